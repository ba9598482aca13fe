"""The pump at the end of the time budget."""

import asyncio
from typing import Any

import pytest
from nrl_rollout_ckpt.saving.deadline import TimeoutChecker
from nrl_rollout_ckpt.saving.outcomes import RolloutCheckpointAttemptReason as Reason
from nrl_rollout_ckpt.saving.outcomes import RolloutCheckpointSaveResult
from nrl_rollout_ckpt.testing import FakeClock


def test_r09_1_a_deadline_before_the_interval_is_met_by_the_monotonic_clock(make_bench: Any) -> None:
    bench = make_bench(budget_s=60)

    async def story(task: asyncio.Task[None]) -> None:
        bench.clock.wall -= 1e6
        await bench.pass_time(59)
        assert bench.saves == []
        await bench.pass_time(1)
        await task
        assert bench.saves == [(60, True, 0, "completed")]
        assert bench.pump.stop_requested

    bench.play(story)


def test_the_last_save_is_early_by_the_time_of_the_one_before_and_the_margin(make_bench: Any) -> None:
    bench = make_bench(budget_s=300, margin_s=15)

    async def takes_20() -> None:
        bench.clock.advance(20)

    async def story(task: asyncio.Task[None]) -> None:
        bench.script = [takes_20, takes_20]
        await bench.pass_time(100)
        await bench.pass_time(99)  # 219
        await bench.pass_time(1)  # an interval after the first
        assert [moment for moment, *_ in bench.saves] == [100, 220]
        await bench.pass_time(25)
        await task
        assert [moment for moment, *_ in bench.saves] == [100, 220, 265]  # 300 - 20 - 15

    bench.play(story)


def test_r09_2_a_deadline_in_the_past_is_one_forced_attempt_and_the_end(make_bench: Any) -> None:
    bench = make_bench(budget_s=60)
    bench.clock.advance(70)

    async def story(task: asyncio.Task[None]) -> None:
        await task
        assert bench.saves == [(70, True, 0, "completed")]
        assert bench.pump.stop_requested
        assert not bench.timeout.check_save()
        await bench.pass_time(1000)
        assert len(bench.saves) == 1
        assert bench.pump.stop_requested

    bench.play(story)


@pytest.mark.parametrize("asked_for", ["interval", "request"])
def test_r09_3_a_running_save_counts_as_the_last(make_bench: Any, asked_for: str) -> None:
    bench = make_bench(budget_s=110)

    async def runs_past_the_deadline() -> None:
        bench.clock.advance(50)
        assert not bench.pump.stop_requested

    async def story(task: asyncio.Task[None]) -> None:
        bench.script = [runs_past_the_deadline]
        if asked_for == "request":
            bench.clock.advance(90)
            bench.pump.request("by hand")
        await bench.pass_time(100 if asked_for == "interval" else 0)
        await task
        assert len(bench.saves) == 1
        assert bench.pump.stop_requested
        assert not bench.timeout.would_save()

    bench.play(story)


def test_r09_3_a_running_save_that_comes_to_nothing_does_not_count(make_bench: Any) -> None:
    bench = make_bench(budget_s=110)

    async def lost_to_a_failure() -> None:
        bench.clock.advance(50)
        raise OSError(28, "full")

    async def story(task: asyncio.Task[None]) -> None:
        bench.script = [lost_to_a_failure]
        await bench.pass_time(100)
        await task
        assert bench.reasons == ["", "completed"]
        assert [force for _, force, *_ in bench.saves] == [False, True]

    bench.play(story)


def test_a_request_to_stop_beside_the_deadline_takes_no_second_snapshot(make_bench: Any) -> None:
    bench = make_bench(budget_s=60)

    async def story(task: asyncio.Task[None]) -> None:
        bench.clock.advance(60)
        future = bench.pump.request("preempted", stop=True)
        await task
        assert future.result(timeout=0).saved
        assert len(bench.saves) == 1

    bench.play(story)


# ---- Past step 0 ----


@pytest.mark.parametrize("in_thread", [False, True])
def test_r09_4_past_step_0_it_waits_for_the_trainers_own_last_checkpoint(make_bench: Any, in_thread: bool) -> None:
    bench = make_bench(budget_s=60)
    bench.progress.advance()
    bench.durable.add(1)  # an older checkpoint that the trainer goes beyond

    async def story(task: asyncio.Task[None]) -> None:
        await bench.pass_time(60)
        assert bench.saves == []
        assert bench.timeout.check_save(), "the trainer's own last save is lost"
        bench.progress.advance()
        await bench.pass_time(50)
        assert bench.saves == []
        if in_thread:
            await asyncio.to_thread(bench.publish, 2)
        else:
            bench.publish(2)
        await task
        assert bench.saves == [(110, True, 2, "completed")]
        assert bench.pump.stop_requested

    bench.play(story)


def test_r09_4_what_never_becomes_durable_ends_the_run_without_a_snapshot(
    make_bench: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bench = make_bench(budget_s=60, deadline_grace_s=30)
    bench.progress.advance()

    async def story(task: asyncio.Task[None]) -> None:
        await bench.pass_time(60)
        await bench.pass_time(29)
        assert not task.done()
        await bench.pass_time(1)
        await task
        assert bench.saves == [(90, True, 1, "missing_trainer_anchor")]
        assert bench.pump.stop_requested
        assert bench.timeout.check_save(), "taken without a durable snapshot"
        assert "step_1 is not durable" in caplog.text

    bench.play(story)


def test_a_checkpoint_that_nobody_told_of_is_found_at_the_end_of_the_grace(make_bench: Any) -> None:
    bench = make_bench(budget_s=60, deadline_grace_s=30)
    bench.progress.advance()
    bench.durable.add(1)

    async def story(task: asyncio.Task[None]) -> None:
        await bench.pass_time(60)
        await bench.pass_time(30)
        await task
        assert bench.saves == [(90, True, 1, "completed")]

    bench.play(story)


def test_a_last_checkpoint_that_is_out_already_is_not_waited_for(make_bench: Any) -> None:
    bench = make_bench(budget_s=110)
    bench.progress.advance()

    async def the_trainer_ends() -> None:
        bench.clock.advance(50)
        assert bench.timeout.check_save()
        bench.publish(1)
        raise OSError(28, "full")

    async def story(task: asyncio.Task[None]) -> None:
        bench.script = [the_trainer_ends]
        await bench.pass_time(100)
        await task
        assert bench.saves[1:] == [(150, True, 1, "completed")]

    bench.play(story)


def test_a_snapshot_under_the_trainers_last_checkpoint_counts_as_the_last(make_bench: Any) -> None:
    bench = make_bench(budget_s=110)
    bench.progress.advance()

    async def the_trainer_ends() -> None:
        bench.clock.advance(50)
        assert bench.timeout.check_save()
        bench.publish(1)

    async def story(task: asyncio.Task[None]) -> None:
        bench.script = [the_trainer_ends]
        await bench.pass_time(100)
        await task
        assert bench.reasons == ["completed"]

    bench.play(story)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("published", ["before it", "during it"])
def test_a_snapshot_under_an_older_checkpoint_does_not(make_bench: Any, published: str, fails: bool) -> None:
    bench = make_bench(budget_s=110)
    bench.progress.advance()

    async def runs_past_the_deadline() -> None:
        bench.clock.advance(50)
        if published == "during it":
            bench.publish(1)
        if fails:
            raise OSError(28, "full")

    async def story(task: asyncio.Task[None]) -> None:
        if published == "before it":
            bench.publish(1)
            await bench.pass_time(0)
            bench.saves.clear()
        bench.script = [runs_past_the_deadline]
        await bench.pass_time(100)
        assert len(bench.saves) == 1
        assert not task.done()
        bench.progress.advance()
        bench.publish(2)
        await task
        assert [step for *_, step, _ in bench.saves] == [1, 2]

    bench.play(story)


def test_a_deadline_during_the_first_commit_takes_its_snapshot_under_the_first_checkpoint(make_bench: Any) -> None:
    bench = make_bench(budget_s=60)

    async def story(task: asyncio.Task[None]) -> None:
        bench.window.open()
        await bench.pass_time(60)
        assert bench.saves == []
        bench.end_step()
        await bench.pass_time(1)
        assert bench.saves == []
        bench.publish(1)
        await task
        assert bench.saves == [(61, True, 1, "completed")]

    bench.play(story)


def test_sigterm_during_the_grace_does_not_wait_for_the_trainer(make_bench: Any) -> None:
    bench = make_bench(budget_s=60)
    bench.progress.advance()
    bench.durable.add(1)

    async def story(task: asyncio.Task[None]) -> None:
        await bench.pass_time(61)
        assert bench.saves == []
        bench.pump.request("SIGTERM", stop=True)
        await task
        assert bench.saves == [(61, True, 1, "completed")]

    bench.play(story)


# ---- Failures at the deadline ----


@pytest.mark.parametrize("error", [OSError(28, "full"), TimeoutError("slow")])
def test_a_failure_at_the_deadline_is_an_error_of_the_run(make_bench: Any, error: OSError) -> None:
    bench = make_bench(budget_s=60)

    async def story(task: asyncio.Task[None]) -> None:
        bench.script = [error]
        await bench.pass_time(60)
        with pytest.raises(RuntimeError, match=r"required snapshot .* failed") as raised:
            await task
        assert raised.value.__cause__ is error
        assert len(bench.saves) == 1
        assert bench.timeout.would_save(), "taken without a durable snapshot"

    bench.play(story)


def test_a_skip_that_no_wait_helps_ends_the_run_and_is_logged(
    make_bench: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bench = make_bench(budget_s=60)

    async def story(task: asyncio.Task[None]) -> None:
        why = "a shard was not written"
        reason = Reason.TRAINER_FINALIZATION_FAILED
        bench.script = [RolloutCheckpointSaveResult(saved=False, reason=reason, details=why)]
        await bench.pass_time(60)
        await task
        assert bench.pump.stop_requested
        assert why in caplog.text

    bench.play(story)


def test_r09_5_a_bad_start_of_the_job_leaves_the_whole_budget(make_bench: Any) -> None:
    bench = make_bench()
    clock: FakeClock = bench.clock
    bench.pump._timeout = TimeoutChecker(60, job_start="letters", clock=clock)

    async def story(task: asyncio.Task[None]) -> None:
        await bench.pass_time(59)
        assert bench.saves == []
        await bench.pass_time(1)
        await task
        assert len(bench.saves) == 1

    bench.play(story)
