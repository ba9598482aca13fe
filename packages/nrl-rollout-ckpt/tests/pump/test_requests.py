"""Snapshots on request."""

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest
from nrl_rollout_ckpt.saving.outcomes import RolloutCheckpointAttemptReason as Reason
from nrl_rollout_ckpt.saving.outcomes import RolloutCheckpointSaveResult
from nrl_rollout_ckpt.saving.pump_errors import RequiredSnapshotError
from nrl_rollout_ckpt.saving.requests import SnapshotRefusedError

Result = Future[RolloutCheckpointSaveResult]


def test_a_request_from_another_thread_is_served_at_once_and_forced(bench: Any) -> None:
    async def story(task: asyncio.Task[None]) -> None:
        future = await asyncio.to_thread(bench.pump.request, "by hand")
        result = await asyncio.wrap_future(future)
        assert result.saved
        assert bench.saves == [(0, True, 0, "completed")]
        assert not task.done()
        assert not bench.pump.stop_requested

    bench.play(story)


def test_requests_that_wait_share_one_save_and_one_that_comes_during_it_gets_another(bench: Any) -> None:
    late: list[Result] = []

    async def ask() -> None:
        late.append(bench.pump.request("during the save"))

    async def story(task: asyncio.Task[None]) -> None:
        bench.script = [ask]
        first, second = bench.pump.request("one"), bench.pump.request("two")
        assert await asyncio.wrap_future(first) is await asyncio.wrap_future(second)
        assert (await asyncio.wrap_future(late[0])).path != first.result().path
        assert len(bench.saves) == 2

    bench.play(story)


def test_a_request_before_the_pump_runs_waits_for_it(bench: Any) -> None:
    future = bench.pump.request("early")

    async def story(task: asyncio.Task[None]) -> None:
        assert (await asyncio.wrap_future(future)).saved

    bench.play(story)


def test_a_request_that_meets_a_commit_runs_when_it_closes(bench: Any) -> None:
    async def story(task: asyncio.Task[None]) -> None:
        bench.window.open()
        future = bench.pump.request("by hand")
        await bench.pass_time(99)
        assert bench.saves == []
        await bench.pass_time(1)  # an attempt at its time is none of the request
        assert bench.saves == [(100, False, 0, "optimizer_commit_in_progress")]
        assert not future.done()
        bench.durable.add(1)
        bench.end_step()
        await bench.pass_time(0)
        assert future.result(timeout=0).saved
        assert bench.saves[1:] == [(100, True, 1, "completed")]

    bench.play(story)


def test_a_request_whose_save_loses_to_a_step_is_tried_again(bench: Any) -> None:
    async def a_step_begins() -> None:
        bench.window.open()

    async def story(task: asyncio.Task[None]) -> None:
        bench.script = [a_step_begins]
        future = bench.pump.request("by hand")
        await bench.pass_time(0)
        assert bench.reasons == ["optimizer_commit_in_progress"]
        assert not future.done()
        bench.durable.add(1)
        bench.end_step()
        await bench.pass_time(0)
        assert future.result(timeout=0).saved

    bench.play(story)


def test_a_request_without_an_anchor_is_answered_so(bench: Any) -> None:
    async def story(task: asyncio.Task[None]) -> None:
        bench.progress.advance()
        result = await asyncio.wrap_future(bench.pump.request("by hand"))
        assert (result.saved, result.reason) == (False, Reason.MISSING_TRAINER_ANCHOR)

    bench.play(story)


def test_a_cancelled_request_is_dropped_and_one_cancelled_during_its_save_harms_nobody(bench: Any) -> None:
    async def cancel() -> None:
        during.cancel()

    async def story(task: asyncio.Task[None]) -> None:
        nonlocal during
        before = bench.pump.request("before", stop=True)
        assert before.cancel()
        await bench.pass_time(0)
        assert bench.saves == []
        bench.script = [cancel]
        during, other = bench.pump.request("during"), bench.pump.request("other")
        assert (await asyncio.wrap_future(other)).saved
        assert during.cancelled()
        assert not task.done()

    during: Result = Future()
    bench.play(story)


def test_a_failed_request_gets_the_error_and_counts(make_bench: Any) -> None:
    bench = make_bench(max_consecutive_failures=2)

    async def story(task: asyncio.Task[None]) -> None:
        bench.script = [OSError(28, "full"), OSError(28, "full")]
        with pytest.raises(OSError, match="full"):
            await asyncio.wrap_future(bench.pump.request("by hand"))
        await bench.pass_time(100)
        with pytest.raises(RuntimeError, match="2 snapshots in a row"):
            await task

    bench.play(story)


# ---- Requests that stop the run ----


def test_a_request_may_stop_the_run(bench: Any) -> None:
    async def story(task: asyncio.Task[None]) -> None:
        other = bench.pump.request("by hand")
        future = bench.pump.request("preempted", stop=True)
        await task
        assert bench.saves == [(0, True, 0, "completed")]
        assert future.result(timeout=0) is other.result(timeout=0)
        assert bench.pump.stop_requested

    bench.play(story)


def test_a_stop_waits_for_a_commit_and_for_the_checkpoint_after_it(bench: Any) -> None:
    async def story(task: asyncio.Task[None]) -> None:
        bench.window.open()
        future = bench.pump.request("preempted", stop=True)
        await bench.pass_time(5)
        assert bench.saves == []
        bench.end_step()
        await bench.pass_time(5)
        assert bench.reasons == ["missing_trainer_anchor"]
        assert not future.done()
        bench.publish(1)
        await task
        assert future.result(timeout=0).path.parts[0] == "step_1"
        assert len(bench.saves) == 2

    bench.play(story)


def test_a_stop_without_an_anchor_stops_after_the_grace_and_says_which(
    bench: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(task: asyncio.Task[None]) -> None:
        bench.progress.advance()
        future = bench.pump.request("preempted", stop=True)
        await bench.pass_time(0)
        await bench.pass_time(119)
        assert not future.done()
        await bench.pass_time(1)
        await task
        assert future.result(timeout=0).reason is Reason.MISSING_TRAINER_ANCHOR
        assert bench.pump.stop_requested
        assert "preempted; step_1 is not durable" in caplog.text

    bench.play(story)


def test_a_commit_that_never_ends_stops_the_run_after_the_grace(bench: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def story(task: asyncio.Task[None]) -> None:
        bench.window.open()
        future = bench.pump.request("preempted", stop=True)
        await bench.pass_time(0)
        await bench.pass_time(120)
        await task
        assert future.result(timeout=0).reason is Reason.OPTIMIZER_COMMIT_IN_PROGRESS
        assert "without a last snapshot: preempted; optimizer_commit_in_progress" in caplog.text

    bench.play(story)


def test_a_stop_whose_snapshot_fails_is_an_error_of_the_run(bench: Any) -> None:
    async def story(task: asyncio.Task[None]) -> None:
        full = OSError(28, "full")
        bench.script = [full]
        future = bench.pump.request("preempted", stop=True)
        with pytest.raises(RequiredSnapshotError, match=r"required snapshot \(preempted\) failed") as raised:
            await task
        assert raised.value.__cause__ is full
        assert future.exception(timeout=0) is full

    bench.play(story)


def test_requests_that_wait_when_the_pump_ends_and_later_ones_are_refused(bench: Any) -> None:
    late: list[Result] = []
    stops: list[Result] = []

    async def ask() -> None:
        late.append(bench.pump.request("during the last save"))
        stops.append(bench.pump.request("SIGTERM", stop=True))

    async def story(task: asyncio.Task[None]) -> None:
        bench.script = [ask]
        bench.pump.request("preempted", stop=True)
        await task
        late.append(await asyncio.to_thread(bench.pump.request, "after"))
        for future in late:
            with pytest.raises(SnapshotRefusedError):
                future.result(timeout=0)
        assert stops[0].result(timeout=0).saved
        assert len(bench.saves) == 1
        assert bench.pump.stop_requested

    bench.play(story)
