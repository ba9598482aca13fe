"""The snapshotter beside a run: real attempts, on a real folder, by a clock that the test moves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from nrl_rollout_ckpt.saving.deadline import TimeoutChecker
from nrl_rollout_ckpt.saving.outcomes import RolloutCheckpointAttemptReason as Reason
from nrl_rollout_ckpt.saving.requests import SnapshotRefusedError
from nrl_rollout_ckpt.testing import FakeClock

NewWorld = Callable[..., Any]


@contextlib.asynccontextmanager
async def running(world: Any) -> AsyncGenerator[asyncio.Task[None]]:
    task = asyncio.create_task(world.snapshotter.run())
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(20):
            yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
        world.assert_runs()
        world.close()


async def until(holds: Callable[[], bool]) -> None:
    """Let threads and tasks work, without time passing for them."""
    while not holds():  # noqa: ASYNC110 - threads bring it about, and nobody is told of that
        await asyncio.sleep(0)


async def request(world: Any, **options: Any) -> Any:
    return await asyncio.wrap_future(world.snapshotter.request_snapshot("by hand", **options))


def test_an_interval_passes_and_a_snapshot_is_there_that_restores(new_world: NewWorld) -> None:
    async def story() -> None:
        clock = FakeClock()
        world = await new_world(clock=clock).populate()
        async with running(world):
            clock.advance(299)
            await asyncio.sleep(0)
            assert world.outcomes() == []
            clock.advance(1)
            await until(lambda: world.outcomes() == ["completed"])
            assert world.snapshots() == ["snapshot_000001"]
            await world.assert_restores()

    asyncio.run(story())


def test_a_published_trainer_checkpoint_gets_a_snapshot_with_the_environment(new_world: NewWorld) -> None:
    async def story() -> None:
        world = await new_world().populate()
        async with running(world):
            await world.claim_step()
            await world.commit_step()
            await world.save_trainer_checkpoint()
            await asyncio.to_thread(world.snapshotter.trainer_checkpoint_published, 1)
            await until(lambda: world.outcomes() == ["completed"])
            report = await world.assert_restores(trained=2)
            assert report.path.parent.parent.name == "step_1"
            assert report.environment_episodes == 2

    asyncio.run(story())


def test_r09_2_a_deadline_before_the_first_step_saves_under_the_bootstrap_anchor_and_stops(
    new_world: NewWorld,
) -> None:
    async def story() -> None:
        clock = FakeClock()
        timeout = TimeoutChecker(60, job_start=clock.time() - 70, clock=clock)
        world = await new_world(clock=clock, timeout=timeout).populate()
        async with running(world) as task:
            await task
            assert world.snapshotter.stop_requested
            assert world.outcomes() == ["completed"]
            assert not timeout.check_save()
            report = await world.assert_restores()
            assert report.path.parent.parent.name == "bootstrap"

    asyncio.run(story())


@pytest.mark.parametrize("becomes_durable", [True, False])
def test_r09_4_a_deadline_past_it_waits_for_the_trainer(
    new_world: NewWorld, becomes_durable: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        clock = FakeClock()
        timeout = TimeoutChecker(60, margin_s=0, clock=clock)
        world = await new_world(clock=clock, timeout=timeout).populate()
        await world.claim_step()
        await world.commit_step()
        async with running(world) as task:
            clock.advance(60)
            for _ in range(5):
                await asyncio.sleep(0)
            assert timeout.check_save()
            if becomes_durable:
                await world.save_trainer_checkpoint()
                world.snapshotter.trainer_checkpoint_published(1)
            else:
                clock.advance(120)
            await task
            assert world.snapshotter.stop_requested
        if becomes_durable:
            assert world.outcomes() == ["completed"]
            report = await world.assert_restores(trained=2)
            assert report.path.parent.parent.name == "step_1"
        else:
            assert world.outcomes() == ["missing_trainer_anchor"]
            assert world.snapshots() == []
            assert f"{world.folder / 'step_1'} is not durable" in caplog.text

    asyncio.run(story())


def test_a_request_that_meets_a_commit_runs_when_it_is_over(new_world: NewWorld) -> None:
    async def story() -> None:
        world = await new_world().populate()
        async with running(world):
            await world.claim_step()
            await world.snapshotter.begin_optimizer_commit(drain_snapshot=False)
            waiting = asyncio.ensure_future(request(world))
            for _ in range(20):
                await asyncio.sleep(0)
            assert world.outcomes() == []
            await world.transitions.finish_step(world.claim)
            world.parts.progress.advance()
            world.snapshotter.end_optimizer_commit()
            assert (await waiting).reason is Reason.MISSING_TRAINER_ANCHOR
            await world.save_trainer_checkpoint()
            assert (await request(world)).saved

    asyncio.run(story())


def test_a_request_that_meets_a_commit_that_is_called_off_runs_then(new_world: NewWorld) -> None:
    async def story() -> None:
        world = await new_world().populate()
        async with running(world):
            async with world.snapshotter._save_lock.hold("a test"):
                commit = asyncio.create_task(world.snapshotter.begin_optimizer_commit(drain_snapshot=True))
                await asyncio.sleep(0)
                waiting = asyncio.ensure_future(request(world))
                for _ in range(20):
                    await asyncio.sleep(0)
                assert world.outcomes() == []
                commit.cancel()
                await asyncio.wait([commit])
            assert (await waiting).saved

    asyncio.run(story())


def test_a_request_that_stops_the_run_waits_for_the_trainer_checkpoint(new_world: NewWorld) -> None:
    async def story() -> None:
        world = await new_world().populate()
        async with running(world) as task:
            await world.claim_step()
            await world.commit_step()
            waiting = asyncio.ensure_future(request(world, stop=True))
            await until(lambda: world.outcomes() == ["missing_trainer_anchor"])
            assert not waiting.done()
            await world.save_trainer_checkpoint()
            world.snapshotter.trainer_checkpoint_published(1)
            assert (await waiting).path.parent.parent.name == "step_1"
            await task
            assert world.snapshotter.stop_requested

    asyncio.run(story())


def test_a_run_cancelled_during_a_save_leaves_nothing_behind(new_world: NewWorld) -> None:
    async def story() -> None:
        world = await new_world().populate()
        async with running(world) as task:
            future = world.snapshotter.request_snapshot("by hand")
            await until(lambda: world.snapshotter._save_lock.is_held)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(SnapshotRefusedError):
                future.result(timeout=0)
            world.assert_runs()
            assert world.outcomes() == ["cancelled"]
            assert (await world.save()).saved

    asyncio.run(story())


def test_a_closed_snapshotter_refuses_requests(new_world: NewWorld) -> None:
    async def story() -> None:
        world = new_world()
        early = world.snapshotter.request_snapshot("early")
        world.close()
        for future in (early, world.snapshotter.request_snapshot("late")):
            with pytest.raises(SnapshotRefusedError, match="the snapshot pump has ended"):
                future.result(timeout=0)

    asyncio.run(story())


def test_with_snapshots_off_nothing_is_saved(new_world: NewWorld) -> None:
    async def story() -> None:
        clock = FakeClock()
        timeout = TimeoutChecker(60, clock=clock)
        world = await new_world(
            settings={"snapshot_attempt_interval_s": None}, clock=clock, timeout=timeout, turns=False
        ).populate()
        async with running(world) as task:
            clock.advance(1e6)
            world.snapshotter.trainer_checkpoint_published(0)
            with pytest.raises(SnapshotRefusedError, match="snapshots are off"):
                await request(world)
            assert not task.done()
            assert world.outcomes() == []
            assert timeout.would_save(), "the deadline is the trainer's alone"

    asyncio.run(story())
