"""The end of a time budget."""

import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
from nrl_interfaces.testing.rollout import check_deadline
from nrl_rollout_ckpt.saving.deadline import TimeoutChecker
from nrl_rollout_ckpt.testing import FakeClock


def test_it_keeps_to_the_protocol() -> None:
    def make() -> tuple[TimeoutChecker, Callable[[float], object]]:
        clock = FakeClock()
        return TimeoutChecker(100, clock=clock), clock.advance

    check_deadline(make)


def test_r09_1_the_budget_counts_from_the_start_of_the_job() -> None:
    clock = FakeClock()
    timeout = TimeoutChecker(60, job_start=clock.time() - 50, clock=clock)
    clock.advance(9.5)
    assert not timeout.would_save()
    clock.advance(0.5)
    assert timeout.would_save()
    assert timeout.remaining_s() == 0


def test_the_start_may_be_text() -> None:
    clock = FakeClock()
    assert TimeoutChecker(60, job_start=f" {clock.time() - 50} ", clock=clock).remaining_s() == 10


@pytest.mark.parametrize("job_start", ["", "  ", "letters", "nan", math.nan, math.inf, -1.0, True, [], "in the future"])
def test_r09_5_a_bad_start_is_a_warning_and_counting_begins_now(
    job_start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    job_start = clock.time() + 1 if job_start == "in the future" else job_start
    timeout = TimeoutChecker(60, job_start=job_start, clock=clock)
    assert timeout.remaining_s() == 60
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert repr(job_start) in record.getMessage()


def test_r09_2_a_deadline_in_the_past_is_due_at_once_and_said(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    timeout = TimeoutChecker(60, job_start=clock.time() - 70, clock=clock)
    assert timeout.would_save()
    assert timeout.remaining_s() == -10
    assert "over before the run began" in caplog.text


@pytest.mark.parametrize("budget", [0, -1, math.nan, math.inf, True, "60"])
def test_a_bad_budget_is_refused(budget: Any) -> None:
    with pytest.raises(ValueError, match=r"budget_s is .*allowed: seconds above 0"):
        TimeoutChecker(budget)


@pytest.mark.parametrize("margin", [-1, math.nan, math.inf, True, "1"])
def test_a_bad_margin_is_refused(margin: Any) -> None:
    with pytest.raises(ValueError, match=r"margin_s is .*allowed: seconds from 0"):
        TimeoutChecker(60, margin_s=margin)


def test_without_a_budget_nothing_is_due() -> None:
    clock = FakeClock()
    timeout = TimeoutChecker(None, job_start=0.0, clock=clock)
    clock.advance(1e9)
    assert timeout.remaining_s() == math.inf
    assert not timeout.check_save()


def test_it_is_taken_once_and_looking_takes_nothing() -> None:
    clock = FakeClock()
    timeout = TimeoutChecker(10, clock=clock)
    assert not timeout.check_save()
    clock.advance(10)
    assert timeout.would_save()
    assert timeout.would_save()
    assert timeout.check_save()
    assert not timeout.would_save()
    assert not timeout.check_save()
    assert not timeout.check_save()
    assert timeout.remaining_s() == 0


@pytest.mark.parametrize(("margin", "first", "second"), [(None, 100, 85), (0, 100, 90), (7, 93, 83)])
def test_the_time_of_the_last_save_and_a_margin_are_left(margin: float | None, first: float, second: float) -> None:
    timeout = TimeoutChecker(100, margin_s=margin, clock=FakeClock())
    assert timeout.remaining_s() == first
    timeout.save_took(30)
    timeout.save_took(10)
    assert timeout.remaining_s() == second


@pytest.mark.parametrize("step", [-1_000_000.0, 1_000_000.0])
def test_a_step_of_the_wall_clock_changes_nothing(step: float) -> None:
    clock = FakeClock()
    timeout = TimeoutChecker(60, job_start=clock.time() - 50, clock=clock)
    clock.wall += step
    clock.advance(4)
    assert timeout.remaining_s() == 6
