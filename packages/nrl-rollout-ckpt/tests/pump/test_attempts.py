"""When the pump attempts a snapshot, and what it does about one that fails."""

import asyncio
import math
import pickle
from typing import Any

import pytest
from nrl_rollout_ckpt.config import RolloutCheckpointConfig
from nrl_rollout_ckpt.saving.outcomes import RolloutCheckpointAttemptReason as Reason
from nrl_rollout_ckpt.saving.outcomes import RolloutCheckpointSaveResult
from nrl_rollout_ckpt.saving.pump_errors import RequiredSnapshotError, SnapshotsKeepFailingError
from nrl_rollout_ckpt.saving.requests import SnapshotRefusedError

SKIP = RolloutCheckpointSaveResult(saved=False, reason=Reason.NO_DATA_PLANE_MUTATIONS)


def test_the_first_attempt_comes_after_one_interval_and_each_other_one_an_interval_after_the_last(bench: Any) -> None:
    async def takes_long() -> None:
        bench.clock.advance(40)

    async def story(task: asyncio.Task[None]) -> None:
        bench.script = [takes_long]
        await bench.pass_time(99)
        assert bench.saves == []
        await bench.pass_time(1)
        await bench.pass_time(99)
        assert [moment for moment, *_ in bench.saves] == [100]
        await bench.pass_time(1)
        assert bench.saves == [(100, False, 0, "completed"), (240, False, 0, "completed")]
        assert not task.done()

    bench.play(story)


@pytest.mark.parametrize("step", [-1e6, 1e6])
def test_a_step_of_the_wall_clock_changes_nothing(bench: Any, step: float) -> None:
    async def story(task: asyncio.Task[None]) -> None:
        await bench.pass_time(60)
        bench.clock.wall += step
        await bench.pass_time(39)
        assert bench.saves == []
        await bench.pass_time(1)
        assert len(bench.saves) == 1

    bench.play(story)


@pytest.mark.parametrize("interval", [0, -1, math.nan, math.inf, True])
def test_an_interval_that_is_none_is_refused(interval: Any) -> None:
    with pytest.raises(ValueError, match="snapshot_attempt_interval_s"):
        RolloutCheckpointConfig(snapshot_attempt_interval_s=interval)


def test_without_an_interval_snapshots_are_off(make_bench: Any) -> None:
    bench = make_bench(budget_s=1000, snapshot_attempt_interval_s=None)
    early = bench.pump.request("before", stop=True)

    async def story(task: asyncio.Task[None]) -> None:
        late = bench.pump.request("by hand")
        bench.publish(0)
        await bench.pass_time(1e6)
        for future in (early, late):
            with pytest.raises(SnapshotRefusedError, match="snapshots are off, since snapshot_attempt_interval_s is"):
                future.result(timeout=0)
        assert bench.saves == []
        assert not task.done()
        assert not bench.pump.stop_requested

    bench.play(story)


def test_a_published_trainer_checkpoint_wakes_the_pump_for_a_snapshot_under_it(bench: Any) -> None:
    async def story(task: asyncio.Task[None]) -> None:
        bench.progress.advance()
        await bench.pass_time(100)
        await bench.pass_time(7)
        await asyncio.to_thread(bench.publish, 1)
        await bench.pass_time(0)
        assert bench.saves == [(100, False, 1, "missing_trainer_anchor"), (107, False, 1, "completed")]
        await bench.pass_time(99)  # the interval begins anew
        assert len(bench.saves) == 2

    bench.play(story)


def test_a_checkpoint_published_during_a_save_gets_a_snapshot_of_its_own(bench: Any) -> None:
    async def publish() -> None:
        bench.progress.advance()
        bench.publish(1)

    async def story(task: asyncio.Task[None]) -> None:
        bench.script = [publish]
        await bench.pass_time(100)
        assert [force for _, force, *_ in bench.saves] == [False, False]

    bench.play(story)


# ---- Failures ----


@pytest.mark.parametrize(("error", "reason"), [(TimeoutError("slow"), "timeout"), (OSError(28, "full"), "io_error")])
def test_what_may_pass_is_tried_again_until_it_has_failed_too_often(
    bench: Any, error: OSError, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(task: asyncio.Task[None]) -> None:
        bench.script = [error, error, error]
        for _ in range(3):
            assert not task.done()
            await bench.pass_time(100)
        with pytest.raises(RuntimeError, match="3 snapshots in a row failed") as raised:
            await task
        assert raised.value.__cause__ is error
        assert len(bench.saves) == 3
        assert not bench.pump.stop_requested
        assert [f"failure {n} of 3" in record.getMessage() for n, record in enumerate(caplog.records, 1)] == [True] * 3

    bench.play(story)


def test_a_skip_does_not_forgive_a_failure_and_a_snapshot_does(make_bench: Any) -> None:
    bench = make_bench(max_consecutive_failures=2)

    async def story(task: asyncio.Task[None]) -> None:
        saved = bench.outcome_now()
        bench.script = [OSError(), SKIP, saved, OSError(), SKIP, SKIP, OSError()]
        for _ in range(6):
            await bench.pass_time(100)
        assert not task.done()
        await bench.pass_time(100)
        with pytest.raises(SnapshotsKeepFailingError):
            await task
        assert len(bench.saves) == 7

    bench.play(story)


@pytest.mark.parametrize("error", [RuntimeError("broken"), ValueError("broken"), AssertionError("broken")])
def test_a_broken_invariant_is_raised_at_once(bench: Any, error: Exception) -> None:
    async def story(task: asyncio.Task[None]) -> None:
        bench.script = [error]
        await bench.pass_time(100)
        with pytest.raises(type(error), match="broken") as raised:
            await task
        assert raised.value is error
        assert len(bench.saves) == 1

    bench.play(story)


def test_errors_survive_pickling() -> None:
    for error in (
        SnapshotsKeepFailingError(3),
        RequiredSnapshotError("SIGTERM"),
        SnapshotRefusedError("SIGTERM", "snapshots are off"),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


# ---- The pump as a task ----


def test_a_cancelled_pump_releases_everything(bench: Any) -> None:
    async def story(task: asyncio.Task[None]) -> None:
        never = asyncio.Event()
        bench.script = [never.wait]
        await bench.pass_time(100)
        waiting = bench.pump.request("late")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not bench.is_saving
        with pytest.raises(SnapshotRefusedError, match="'late' was not taken: the snapshot pump has ended"):
            waiting.result(timeout=0)
        assert not bench.pump.stop_requested

    bench.play(story)


def test_a_pump_runs_once(bench: Any) -> None:
    async def story(task: asyncio.Task[None]) -> None:
        with pytest.raises(RuntimeError, match="second time"):
            await bench.pump.run()
        await bench.pass_time(100)
        assert len(bench.saves) == 1

    bench.play(story)
