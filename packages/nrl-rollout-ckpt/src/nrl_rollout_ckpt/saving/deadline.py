"""The end of a run's time budget, counted from the start of its job."""

from __future__ import annotations

import logging
import math
from typing import Final

from nrl_rollout_ckpt.clock import Clock, SystemClock

__all__ = ["TimeoutChecker"]

_log = logging.getLogger(__name__)
_MARGIN_OF_A_SAVE: Final = 0.5


class TimeoutChecker:
    """Says when the last save of a run is due; the trainer and the pump share one.

    The last save is due as long before the end of the budget as the last save took, and a margin earlier. Wall-clock
    steps after the construction change nothing.

    Args:
        budget_s: Seconds from the start of the job; None is no end.
        job_start: When the job started, in seconds since the epoch, as a number or as the text of an environment
            variable; None is now. One that is no such time, or lies in the future, is a warning and means now.
        margin_s: Seconds to spare beside the time of the last save; None is half of that time, and nothing before the
            first save. Let it cover the trainer's own last checkpoint and ``deadline_grace_s`` too.
        clock: The time.

    Raises:
        ValueError: If the budget or the margin is not allowed.

    >>> from nrl_rollout_ckpt.testing import FakeClock
    >>> clock = FakeClock()
    >>> timeout = TimeoutChecker(60, job_start=clock.time() - 50, clock=clock)
    >>> timeout.remaining_s()
    10.0
    >>> timeout.save_took(4)
    >>> timeout.remaining_s()
    4.0
    """

    def __init__(
        self,
        budget_s: float | None,
        *,
        job_start: float | str | None = None,
        margin_s: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        if budget_s is not None and not (_is_number(budget_s) and budget_s > 0):
            raise ValueError(f"budget_s is {budget_s!r}; allowed: seconds above 0, or None for no end")
        if margin_s is not None and not (_is_number(margin_s) and margin_s >= 0):
            raise ValueError(f"margin_s is {margin_s!r}; allowed: seconds from 0, or None for half of the last save")
        self._clock = SystemClock() if clock is None else clock
        self._margin_s = margin_s
        self._last_save_s = 0.0
        self._taken = False
        now = self._clock.monotonic()
        self._end = math.inf if budget_s is None else now + budget_s - _age_of_job(job_start, self._clock.time())
        if self._end <= now:
            _log.warning("the time budget of %s s was over before the run began: its last save is due now", budget_s)

    def remaining_s(self) -> float:
        """Seconds until the last save is due: negative afterwards, infinite without a budget."""
        margin = _MARGIN_OF_A_SAVE * self._last_save_s if self._margin_s is None else self._margin_s
        return self._end - self._clock.monotonic() - self._last_save_s - margin

    def would_save(self) -> bool:
        """Whether `check_save` would give True; changes nothing."""
        return not self._taken and self.remaining_s() <= 0

    def check_save(self) -> bool:
        """Whether the last save is due: True once, then False for ever.

        Who gets True makes that save.
        """
        due = self.would_save()
        self._taken = self._taken or due
        return due

    def save_took(self, seconds: float) -> None:
        """Tell how long a save took; the pump tells it of every snapshot."""
        self._last_save_s = seconds


def _age_of_job(job_start: float | str | None, now: float) -> float:
    """How many seconds ago the job started; 0 and a warning where that can't be said."""
    if job_start is None:
        return 0.0
    try:
        start = math.nan if isinstance(job_start, bool) else float(job_start)
    except (TypeError, ValueError):
        start = math.nan
    if math.isfinite(start) and 0 <= start <= now:
        return now - start
    _log.warning(
        "job_start is %r, not a time in seconds since the epoch up to now (%.0f): the time budget counts from now",
        job_start,
        now,
    )
    return 0.0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
