"""A snapshot attempt is disturbed at every place where it waits; afterwards everything runs, and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from nrl_interfaces.testing.awaits import Act, Drive, Point, at_each_suspension
from nrl_rollout_ckpt.state.transition_table import IllegalTransitionError

pytestmark = pytest.mark.slow
FEWEST_POINTS = 25


@pytest.mark.parametrize("freezes", [True, False])
@pytest.mark.parametrize("act", ["cancel", "cancel twice", "cancel late", OSError(5, "planted")], ids=str)
def test_disturbed_at_each_point(new_world: Callable[..., Any], act: Act, freezes: bool) -> None:
    async def scenario(drive: Drive) -> None:
        world = await new_world(freezes=freezes).populate()
        assert (await world.save()).saved
        await world.claim_step()
        driven = await drive(world.snapshotter.save_snapshot())
        world.assert_runs()
        assert driven.result is None or driven.result.saved
        await world.assert_restores()
        assert (await world.save()).saved
        assert len(world.snapshots()) == 2
        report = await world.assert_restores()
        assert report.rolled_back_groups == 2
        assert report.environment_episodes == 2
        with contextlib.suppress(OSError):  # what the trainer's own checkpoint met is told at the end
            world.close()

    points = asyncio.run(at_each_suspension(scenario, act))
    print(f"{act!r}, freezes={freezes}: {points} suspension points")  # noqa: T201 - part of the result
    assert points >= FEWEST_POINTS


@pytest.mark.parametrize("drain_snapshot", [True, False])
def test_a_step_commits_at_each_point(new_world: Callable[..., Any], drain_snapshot: bool) -> None:
    outcomes: set[str] = set()

    async def scenario(drive: Drive) -> None:
        world = await new_world().populate()
        await world.claim_step()
        acting.append(lambda: world.commit_step(drain_snapshot=drain_snapshot))
        driven = await drive(world.snapshotter.save_snapshot())
        acting.clear()
        world.assert_runs()
        outcomes.add(driven.result.reason)
        if (
            driven.result.saved
        ):  # under the step before: the rows of the step that is done are there, and it is done again
            report = await world.assert_restores()
            assert report.rolled_back_groups == 2
        else:
            assert world.snapshots() == []
        if world.claim is not None:
            await world.commit_step()
        await world.save_trainer_checkpoint()
        assert (await world.save()).saved
        report = await world.assert_restores(trained=2)
        assert report.path.parent.parent.name == "step_1"
        world.close()

    acting: list[Callable[[], Any]] = []

    def commit(_: Point) -> Any:
        return acting[0]()

    points = asyncio.run(at_each_suspension(scenario, commit, hold_s=0.02))
    print(f"a commit, drain_snapshot={drain_snapshot}: {points} suspension points")  # noqa: T201 - part of the result
    assert points >= FEWEST_POINTS
    assert outcomes == {"completed", "trainer_state_changed"}


def test_a_drain_is_cancelled_at_each_point(new_world: Callable[..., Any]) -> None:
    async def scenario(drive: Drive) -> None:
        world = await new_world().populate()
        saving = asyncio.ensure_future(world.save())
        await asyncio.sleep(0)
        assert world.snapshotter._save_lock.is_held
        driven = await drive(world.snapshotter.begin_optimizer_commit(drain_snapshot=True))
        if driven.error is None:
            world.snapshotter.end_optimizer_commit()
        else:
            with pytest.raises(IllegalTransitionError):
                world.snapshotter.end_optimizer_commit()
        await saving
        world.assert_runs()
        assert (await world.save()).saved
        world.close()

    assert asyncio.run(at_each_suspension(scenario, "cancel")) >= 1
