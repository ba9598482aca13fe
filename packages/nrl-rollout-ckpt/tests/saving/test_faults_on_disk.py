"""Every operation on files of a snapshot fails, or is the process's last; on disk is the old state or the new one."""

from __future__ import annotations

import asyncio
import errno
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nrl_interfaces.testing.faults import Moment, run_in_child
from nrl_rollout_ckpt.disk.retention import is_complete

NewWorld = Callable[..., Any]
OLD, NEW = "snapshot_000001", "snapshot_000002"


@pytest.fixture
def with_old(new_world: NewWorld, tmp_path: Path) -> Callable[[], Any]:
    """Makes a world in a folder of its own that has one snapshot and keeps one; each call makes the same."""
    original = tmp_path / "original"
    count = 0

    async def prepare() -> None:
        world = await new_world(folder=original, settings={"keep_latest_k": 1}).populate()
        assert (await world.save()).path.name == OLD
        world.close()

    asyncio.run(prepare())

    def make() -> Any:
        nonlocal count
        count += 1
        folder = shutil.copytree(original, tmp_path / f"copy{count}")
        return new_world(folder=folder, faults=True, settings={"keep_latest_k": 1})

    return make


async def save(world: Any, arm: Callable[[Any], object] = lambda _: None) -> Any:
    """Save with a fault in the attempt."""
    await world.populate()
    arm(world)
    return await world.save()


def operations_of_a_save(make: Callable[[], Any]) -> list[tuple[str, str]]:
    world = make()
    recorded: list[Any] = []
    assert asyncio.run(save(world, lambda world: recorded.append(world.record()))).path.name == NEW
    assert world.snapshots() == [NEW]
    world.close()
    return recorded[0].calls


def complete(world: Any) -> list[str]:
    return sorted(path.name for path in world.folder.rglob("snapshot_*") if is_complete(path))


def restore_in_a_new_process(world: Any) -> None:
    assert run_in_child(lambda: asyncio.run(world.assert_restores())) == 0


@pytest.mark.slow
def test_each_operation_fails(with_old: Callable[[], Any]) -> None:
    calls = operations_of_a_save(with_old)
    commit = calls.index(("rename", f"tmp_{NEW}"))
    assert len(calls) > 60

    async def run(at: int) -> None:
        world = with_old()
        result, error = None, None
        try:
            result = await save(world, lambda world: world.fail(at, errno.ENOSPC))
        except OSError as raised:
            error = raised
        assert (error is None) is (at > commit + 1), calls[at]  # what comes afterwards is retention
        assert error is None or error.errno == errno.ENOSPC
        assert result is None or result.saved
        world.assert_runs()
        assert complete(world), calls[at]
        assert (NEW in complete(world)) is (at > commit)
        await world.assert_restores()
        world.file_ops.now = type(world.file_ops)().now
        assert (await world.save()).saved
        assert len(world.snapshots()) == 1
        await world.assert_restores()
        world.close()

    for at in range(len(calls)):
        asyncio.run(run(at))


def killed(with_old: Callable[[], Any], at: int, moment: Moment) -> Any:
    """What a process leaves that was killed in its attempt; the world of the next process."""
    folder = with_old()
    folder.close()  # its child is another process, and so is whoever comes after it

    def die() -> None:
        world = type(folder)(folder.folder, ops=type(folder.file_ops)(), settings={"keep_latest_k": 1})
        asyncio.run(save(world, lambda world: world.kill(at, moment)))

    assert run_in_child(die) == signal.SIGKILL
    return type(folder)(folder.folder, ops=type(folder.file_ops)(), settings={"keep_latest_k": 1})


@pytest.mark.slow
def test_each_operation_is_the_last_of_its_process(with_old: Callable[[], Any]) -> None:
    calls = operations_of_a_save(with_old)
    commit = calls.index(("rename", f"tmp_{NEW}"))
    for at, call in enumerate(calls):
        world = killed(with_old, at, "during")  # half of a write; "after" is the same as before the next one
        published = at > commit
        assert (NEW in complete(world)) is published, call
        assert OLD in complete(world) or published
        asyncio.run(world.assert_restores())
        assert asyncio.run(save(world)).saved
        assert len(world.snapshots()) == 1
        world.assert_runs()
        world.close()


@pytest.mark.parametrize(
    "fault",
    [("write", "rollout_recovery.json"), ("write", "manifest.json.partial"), ("rename", f"tmp_{NEW}")],
    ids=["sidecar", "manifest", "rename"],
)
def test_r05_the_old_snapshot_stays_until_the_new_one_is_complete(
    with_old: Callable[[], Any], fault: tuple[str, str]
) -> None:
    at = operations_of_a_save(with_old).index(fault)
    world = with_old()
    with pytest.raises(OSError, match="No space left"):
        asyncio.run(save(world, lambda world: world.fail(at, errno.ENOSPC)))
    assert complete(world) == [OLD]
    world.assert_runs()
    restore_in_a_new_process(world)
    world.file_ops.now = type(world.file_ops)().now
    last = asyncio.run(world.save())
    assert complete(world) == world.snapshots() == [last.path.name]
    world.close()


def test_r05_a_process_killed_just_after_the_rename_leaves_the_new_snapshot(with_old: Callable[[], Any]) -> None:
    world = killed(with_old, operations_of_a_save(with_old).index(("rename", f"tmp_{NEW}")), "after")
    assert NEW in complete(world)
    restore_in_a_new_process(world)
    last = asyncio.run(save(world))
    assert complete(world) == world.snapshots() == [last.path.name]
    world.close()


def test_a_cleanup_that_fails_does_not_hide_the_cause(with_old: Callable[[], Any]) -> None:
    class Broken(type(with_old().file_ops.now)):
        def write(self, fd: int, data: Any) -> int:
            raise OSError(errno.ENOSPC, "the cause")

        def unlink(self, path: Path) -> None:
            raise OSError(errno.EIO, "the cleanup")

    world = with_old()
    with pytest.raises(OSError, match="the cause") as caught:
        asyncio.run(save(world, lambda world: setattr(world.file_ops, "now", Broken())))
    assert any("the cleanup" in note for note in caught.value.__notes__)
    assert world.leftovers() == [f"tmp_{NEW}"]
    world.file_ops.now = type(world.file_ops)().now
    assert asyncio.run(world.save()).saved
    world.assert_runs()
    world.close()
