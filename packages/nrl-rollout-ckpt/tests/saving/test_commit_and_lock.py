"""Train steps, trainer checkpoints and snapshots keep out of each other's way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from nrl_rollout_ckpt.state.transition_table import IllegalTransitionError

NewWorld = Callable[..., Any]


def test_a_drain_waits_for_a_snapshot_that_is_past_its_cut(new_world: NewWorld) -> None:
    async def run() -> None:
        world = await new_world().populate()
        publishing, let_go = asyncio.Event(), asyncio.Event()
        publish = world.snapshotter._publish

        async def held(*args: Any) -> Any:
            publishing.set()
            await let_go.wait()
            return await publish(*args)

        world.snapshotter._publish = held
        saving = asyncio.ensure_future(world.save())
        await publishing.wait()
        commit = asyncio.ensure_future(world.snapshotter.begin_optimizer_commit(drain_snapshot=True))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not commit.done()
        let_go.set()
        await commit
        assert (await saving).saved
        world.snapshotter.end_optimizer_commit()

        publishing.clear()
        let_go.clear()
        saving = asyncio.ensure_future(world.save())
        await publishing.wait()
        await world.snapshotter.begin_optimizer_commit(drain_snapshot=False)  # at once, and the snapshot is still good
        let_go.set()
        assert (await saving).saved
        world.snapshotter.end_optimizer_commit()
        world.close()

    asyncio.run(run())


def test_opening_twice_and_closing_what_is_closed_is_refused(new_world: NewWorld) -> None:
    async def run() -> None:
        snapshotter = new_world().snapshotter
        with pytest.raises(IllegalTransitionError):
            snapshotter.end_optimizer_commit()
        for drain_snapshot in (True, False):
            await snapshotter.begin_optimizer_commit(drain_snapshot=drain_snapshot)
            for again in (True, False):
                with pytest.raises(IllegalTransitionError):
                    await snapshotter.begin_optimizer_commit(drain_snapshot=again)
            snapshotter.end_optimizer_commit()
        async with snapshotter.trainer_checkpoint():
            waiting = asyncio.ensure_future(snapshotter.begin_optimizer_commit(drain_snapshot=True))
            await asyncio.sleep(0)
            with pytest.raises(IllegalTransitionError):
                await snapshotter.begin_optimizer_commit(drain_snapshot=False)
        await waiting
        snapshotter.end_optimizer_commit()
        snapshotter.close()

    asyncio.run(run())


def test_who_would_wait_for_itself_is_refused(new_world: NewWorld) -> None:
    async def run() -> None:
        world = new_world()
        snapshotter = world.snapshotter
        async with snapshotter.trainer_checkpoint():
            with pytest.raises(RuntimeError, match="holds the save lock for a trainer checkpoint"):
                await snapshotter.begin_optimizer_commit(drain_snapshot=True)
            with pytest.raises(RuntimeError, match="a rollout snapshot was begun"):
                await snapshotter.save_snapshot()
        async with world.parts.barrier.mutation():
            with pytest.raises(RuntimeError, match="inside a section of the barrier"):
                await snapshotter.begin_optimizer_commit(drain_snapshot=True)
            with pytest.raises(RuntimeError, match="inside a section of the barrier"):
                await snapshotter.save_snapshot()
        world.assert_runs()
        world.close()

    asyncio.run(run())


def test_a_trainer_checkpoint_keeps_snapshots_off(new_world: NewWorld) -> None:
    async def run() -> None:
        world = await new_world().populate()
        async with world.snapshotter.trainer_checkpoint():
            saving = asyncio.ensure_future(world.save())
            for _ in range(5):
                await asyncio.sleep(0)
            assert world.environment.paused == {}
        assert (await saving).saved
        world.close()

    asyncio.run(run())
