"""How much of the disk snapshots take."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any

import pytest

NewWorld = Callable[..., Any]


def test_pitfall_37_snapshots_of_older_anchors_go_once_a_newer_one_is_durable(new_world: NewWorld) -> None:
    async def run() -> None:
        world = await new_world(settings={"keep_latest_k": 2}).populate()
        for _ in range(3):
            await world.save()
        assert world.snapshots() == ["snapshot_000002", "snapshot_000003"]
        await world.claim_step()
        await world.commit_step()
        await world.save_trainer_checkpoint()
        assert len(world.snapshots()) == 2
        await world.save()
        assert not (world.folder / "bootstrap/rollout_snapshots").exists()
        assert (world.folder / "bootstrap/manifest.json").exists()
        world.parts.progress.advance()
        await world.save_trainer_checkpoint()
        await world.save()
        assert [path.name for path in (world.folder / "step_2/rollout_snapshots").iterdir()] == ["snapshot_000001"]
        assert not (world.folder / "step_1/rollout_snapshots").exists()
        assert (world.folder / "step_1/training_info.json").exists()
        world.close()

    asyncio.run(run())


def test_a_retention_that_fails_is_a_warning(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EBUSY, "planted")

    async def run() -> None:
        world = await new_world(settings={"keep_latest_k": 1}).populate()
        await world.save()
        with monkeypatch.context() as patch:
            patch.setattr("nrl_rollout_ckpt.saving.housekeeping.prune_snapshots", refuse)
            assert (await world.save()).saved
        assert "are left for the next time" in caplog.text
        assert len(world.snapshots()) == 2
        assert (await world.save()).saved
        assert world.snapshots() == ["snapshot_000003"]
        world.close()

    asyncio.run(run())


def test_no_snapshot_is_begun_that_does_not_fit(new_world: NewWorld) -> None:
    async def run() -> None:
        free = [10**9]
        world = await new_world(free_bytes=lambda _: free[0]).populate()
        first = await world.save()
        free[0] = 100
        with pytest.raises(OSError, match="a snapshot needs about") as caught:
            await world.save()
        assert caught.value.errno == errno.ENOSPC
        world.assert_runs()
        assert world.environment.paused["env0"] == 1  # the first one
        world.close()
        again = await new_world(folder=world.folder, free_bytes=lambda _: free[0]).populate()
        with pytest.raises(OSError, match="a snapshot needs about"):  # the size of the newest one on disk counts
            await again.save()
        assert first.path.is_dir()
        again.close()

    asyncio.run(run())


def test_the_disk_budget_makes_room_before_and_never_takes_the_newest(new_world: NewWorld) -> None:
    async def run() -> None:
        world = await new_world(settings={"keep_latest_k": 9}).populate()
        size = sum(path.stat().st_size for path in (await world.save()).path.rglob("*") if path.is_file())
        world.close()
        settings = {"keep_latest_k": 9, "max_disk_bytes": int(size * 2.5)}
        world = await new_world(settings=settings).populate()
        on_disk: list[list[str]] = []

        async def look(step: str, instance: str) -> None:
            if (step, instance) == ("prepare", "env0"):
                on_disk.append(world.snapshots())

        world.environment.hook = look
        for _ in range(4):
            assert (await world.save()).saved
        assert on_disk == [[], ["snapshot_000001"], ["snapshot_000002"], ["snapshot_000003"]]
        assert world.snapshots() == ["snapshot_000003", "snapshot_000004"]
        world.close()

    asyncio.run(run())
