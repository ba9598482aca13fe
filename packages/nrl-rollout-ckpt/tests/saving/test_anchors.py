"""Which trainer checkpoint a snapshot belongs to, and what becomes of those that are not durable yet."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from typing import Any

import pytest
from nrl_rollout_ckpt.saving.outcomes import RolloutCheckpointAttemptReason as Reason

NewWorld = Callable[..., Any]


def test_pitfall_64_a_missing_anchor_is_told_once_and_counted_each_time(
    new_world: NewWorld, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings() -> int:
        return caplog.text.count("no snapshots until")

    async def run() -> None:
        world = await new_world().populate()
        await world.claim_step()
        await world.commit_step()
        for _ in range(3):
            result = await world.save()
            assert (result.saved, result.reason) == (False, Reason.MISSING_TRAINER_ANCHOR)
            assert "step_1" in result.details
        assert warnings() == 1
        assert world.outcomes() == ["missing_trainer_anchor"] * 3
        await world.save_trainer_checkpoint()
        result = await world.save()
        assert result.path == world.folder / "step_1/rollout_snapshots/snapshot_000001"
        world.parts.progress.advance()
        await world.save()
        assert warnings() == 2
        world.assert_runs()
        world.close()

    asyncio.run(run())


@pytest.mark.parametrize(("steps", "version"), [(0, 1), (1, 2)])
def test_an_identity_that_is_not_known_is_an_error(new_world: NewWorld, steps: int, version: int) -> None:
    async def run() -> None:
        world = await new_world().populate()
        world.parts.progress.train_steps, world.parts.progress.trainer_version = steps, version
        with pytest.raises(RuntimeError, match=f"at step {steps} with version {version}"):
            await world.save()
        assert world.outcomes() == ["invariant_error"]
        world.assert_runs()
        world.close()

    asyncio.run(run())


def test_before_the_first_step_the_run_needs_an_identity(new_world: NewWorld) -> None:
    async def run() -> None:
        world = await new_world().populate()
        world.snapshotter._anchors._bootstrap_identity = None
        with pytest.raises(RuntimeError, match="needs bootstrap_identity"):
            await world.save()
        world.close()

    asyncio.run(run())


def test_pitfall_41_a_failed_trainer_checkpoint_is_not_the_snapshots_fault(new_world: NewWorld) -> None:
    def fail() -> None:
        raise OSError(errno.ENOSPC, "planted")

    async def run() -> None:
        world = await new_world().populate()
        await world.claim_step()
        await world.commit_step()
        async with world.snapshotter.trainer_checkpoint():
            path = world.checkpoints.init_tmp_checkpoint(1, {"current_step": 1}, {})
            world.checkpoints.begin_finalization(path, fail)
        for _ in range(2):
            result = await world.save()
            assert (result.saved, result.reason) == (False, Reason.TRAINER_FINALIZATION_FAILED)
            assert "planted" in result.details
        with pytest.raises(RuntimeError, match="planted"):
            async with world.snapshotter.trainer_checkpoint():
                pytest.fail("the trainer goes on without its checkpoint")
        async with world.snapshotter.trainer_checkpoint():
            pass  # each failure once
        world.assert_runs()
        world.close()

    asyncio.run(run())


def test_closing_hands_the_failure_on_if_nobody_has_taken_it(new_world: NewWorld) -> None:
    def fail() -> None:
        raise OSError(errno.ENOSPC, "planted")

    async def run() -> None:
        world = await new_world().populate()
        world.checkpoints.begin_finalization(world.checkpoints.init_tmp_checkpoint(3, {"current_step": 3}, {}), fail)
        assert (await world.save()).saved  # under its own anchor, which is there
        with pytest.raises(RuntimeError, match="planted"):
            world.close()
        world.close()
        await new_world(folder=world.folder).save()  # the folder was let go all the same

    asyncio.run(run())


@pytest.mark.parametrize("how", ["cancelled", "commit"])
def test_waiting_for_weights_makes_way(new_world: NewWorld, how: str) -> None:
    weights = threading.Event()

    async def run() -> None:
        world = await new_world().populate()
        world.checkpoints.begin_finalization(
            world.checkpoints.init_tmp_checkpoint(7, {"current_step": 7}, {}), lambda: weights.wait(10)
        )
        saving = asyncio.ensure_future(world.save())
        for _ in range(5):
            await asyncio.sleep(0)
        if how == "cancelled":
            saving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await saving
        else:
            await world.snapshotter.begin_optimizer_commit(drain_snapshot=True)
            assert (await saving).reason is Reason.TRAINER_STATE_CHANGED
            world.snapshotter.end_optimizer_commit()
        assert not weights.is_set()
        world.assert_runs()
        weights.set()
        async with world.snapshotter.trainer_checkpoint():
            assert world.checkpoints.step_path(7).is_dir()  # the wait that was left behind has ended
        world.close()

    asyncio.run(run())


def test_pitfall_38_the_anchor_is_protected_while_it_is_written_under(new_world: NewWorld) -> None:
    async def run() -> None:
        world = await new_world().populate()
        await world.claim_step()
        await world.commit_step()
        await world.save_trainer_checkpoint()
        protected: list[int] = []

        async def look(step: str, instance: str) -> None:
            protected.append(world.checkpoints._protected[1])

        world.environment.hook = look
        assert (await world.save()).saved
        assert set(protected) == {1}
        assert world.checkpoints._protected[1] == 0
        world.close()

    asyncio.run(run())
