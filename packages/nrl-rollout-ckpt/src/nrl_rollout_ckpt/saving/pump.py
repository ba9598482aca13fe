"""When snapshots are taken: at intervals, after the trainer's checkpoints, on request, and before a run ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Collection
from concurrent.futures import Future
from typing import Final, Protocol

from nrl_interfaces.rollout import Deadline

from nrl_rollout_ckpt.clock import Clock
from nrl_rollout_ckpt.config import RolloutCheckpointConfig
from nrl_rollout_ckpt.saving.commit_window import CommitWindow
from nrl_rollout_ckpt.saving.outcomes import (
    RolloutCheckpointAttemptReason,
    RolloutCheckpointSaveResult,
    reason_of,
)
from nrl_rollout_ckpt.saving.pump_errors import RequiredSnapshotError, SnapshotsKeepFailingError
from nrl_rollout_ckpt.saving.requests import SnapshotRequest, SnapshotRequests
from nrl_rollout_ckpt.state.rollout_state import TrainingProgress

_log = logging.getLogger(__name__)
_Reason = RolloutCheckpointAttemptReason
_LOST_TO_A_STEP: Final = frozenset({_Reason.OPTIMIZER_COMMIT_IN_PROGRESS, _Reason.TRAINER_STATE_CHANGED})
_TO_ANSWER_S: Final = 1.0  # what is left, at the least, to whoever waits for the end of the last attempt
_MAY_PASS: Final = _LOST_TO_A_STEP | {_Reason.MISSING_TRAINER_ANCHOR}


class SnapshotSaver(Protocol):
    """Takes one snapshot."""

    async def __call__(self, *, force: bool) -> RolloutCheckpointSaveResult:
        """Take it, or say why not; with `force` even if nothing has changed."""
        ...


class SnapshotPump:
    """Takes snapshots one after another until the run is to stop.

    The first attempt comes one interval after the begin, each other one an interval after the end of the one before;
    requests and the trainer's checkpoints do not wait for it. Without an interval snapshots are off: requests are
    refused, and `run` only sleeps.

    Args:
        save: Takes a snapshot, and reports the attempt.
        window: The train step's commits; requests wait until they are over.
        progress: Where training is.
        timeout: The run's deadline.
        config: The interval, how many failures are allowed, and how long to wait at the deadline.
        clock: The time; only clocks that never step are asked.
    """

    def __init__(
        self,
        *,
        save: SnapshotSaver,
        window: CommitWindow,
        progress: TrainingProgress,
        timeout: Deadline,
        config: RolloutCheckpointConfig,
        clock: Clock,
    ) -> None:
        self._save = save
        self._window = window
        self._progress = progress
        self._timeout = timeout
        self._config = config
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wakeup = asyncio.Event()
        self._requests = SnapshotRequests(self._wake)
        self._has_news = True  # since the begin of the last attempt
        self._published: int | None = None  # a trainer checkpoint that no attempt was made under
        self._last_published: int | None = None
        self._failures = 0
        self._last_save_s = 0.0
        self._stop_requested = False
        window.when_closed(self._wake)
        if config.snapshot_attempt_interval_s is None:
            self._requests.refuse("snapshots are off, since snapshot_attempt_interval_s is None")

    @property
    def stop_requested(self) -> bool:
        """Whether the run is to stop; never False again."""
        return self._stop_requested

    def request(
        self, reason: str, *, stop: bool = False, within_s: float = math.inf
    ) -> Future[RolloutCheckpointSaveResult]:
        """See `RolloutSnapshotter.request_snapshot`; who stops the run may wait for less than `deadline_grace_s`."""
        return self._requests.add(reason, stop=stop, give_up=self._clock.monotonic() + within_s)

    def trainer_checkpoint_published(self, step: int) -> None:
        """Wake the pump for a snapshot under the trainer's checkpoint of `step`; from any thread."""
        self._published = self._last_published = step
        self._wake()

    def close(self) -> None:
        """Refuse the requests that wait, and all that come later."""
        self._requests.refuse("the snapshot pump has ended; `save_snapshot(force=True)` takes one without it")

    async def run(self) -> None:
        """Take snapshots; returns only when the run is to stop, and then `stop_requested` is True.

        Raises:
            SnapshotsKeepFailingError: If `max_consecutive_failures` attempts failed without a snapshot between them.
            RequiredSnapshotError: If the last snapshot failed.
            RuntimeError: If the pump runs already, or has run.
            Exception: Whatever an attempt raises that is no `OSError` or `TimeoutError`, at once.
        """
        if self._loop is not None:
            raise RuntimeError("the snapshot pump was started a second time; `run()` is for one task, once")
        self._loop = asyncio.get_running_loop()
        interval = self._config.snapshot_attempt_interval_s
        try:
            if interval is None:
                await self._clock.wait(asyncio.Event(), None)  # until cancelled: the trainer ends the run
            else:
                await self._take_snapshots(interval)
                self._stop_requested = True
        finally:
            self.close()

    # ---- Before the end ----

    async def _take_snapshots(self, interval_s: float) -> None:
        due = self._clock.monotonic() + interval_s
        while (purpose := self._purpose_of_end()) is None:
            requests = self._ready_requests()
            if not requests and self._published is None and self._clock.monotonic() < due:
                await self._sleep(min(due - self._clock.monotonic(), self._timeout.remaining_s()))
                continue
            step = self._progress.train_steps
            result = await self._attempt(requests, force=bool(requests), keep_waiting=_LOST_TO_A_STEP)
            due = self._clock.monotonic() + interval_s
            if result.saved and self._is_due() and self._is_last_anchor(step):
                return self._end(result, "the time budget ran out during this snapshot")
        return self._end(await self._take_last_snapshot(purpose), purpose)

    def _ready_requests(self) -> tuple[SnapshotRequest, ...]:
        return self._requests.waiting if self._window.is_closed else ()

    def _purpose_of_end(self) -> str | None:
        if self._is_due():
            return "the time budget is used up"
        return next((request.reason for request in self._requests.waiting if request.stop), None)

    def _is_due(self) -> bool:
        # Not `would_save()`: that is False once the trainer has begun its own last checkpoint.
        return self._timeout.remaining_s() <= 0

    def _is_last_anchor(self, step: int) -> bool:
        """Whether the trainer makes no checkpoint after the one of `step`; asked when the last save is due."""
        if step != self._progress.train_steps:
            return False
        return step == 0 or (step == self._last_published and not self._timeout.would_save())

    # ---- The end ----

    async def _take_last_snapshot(self, purpose: str) -> RolloutCheckpointSaveResult:
        """Take one snapshot as soon as nothing stands in its way, at the latest when `deadline_grace_s` have passed."""
        give_up = self._clock.monotonic() + self._config.deadline_grace_s
        if not self._is_last_anchor(self._progress.train_steps):
            self._published = None  # the trainer has one more checkpoint to make
        self._has_news = True
        while True:
            while (left := self._left_s(give_up)) > 0 and not self._may_take_last():
                await self._sleep(left)
            keep_waiting = _MAY_PASS if left > 0 else frozenset[RolloutCheckpointAttemptReason]()
            result = await self._attempt(
                self._requests.waiting, force=True, keep_waiting=keep_waiting, required_for=purpose
            )
            if result.reason not in keep_waiting:
                return result

    def _left_s(self, give_up: float) -> float:
        """How long the last attempt may wait, so that its answer finds everybody who waits for it."""
        if self._window.is_closed:  # in a commit that hangs nobody could stop the run: that is left to who asked
            asked = min((request.give_up for request in self._requests.waiting), default=math.inf)
            give_up = min(give_up, asked - max(self._last_save_s, _TO_ANSWER_S))
        return give_up - self._clock.monotonic()

    def _may_take_last(self) -> bool:
        if not self._window.is_closed:
            return False
        step = self._progress.train_steps
        at_once = step == 0 or any(request.stop for request in self._requests.waiting)
        return self._has_news if at_once else self._published == step

    def _end(self, result: RolloutCheckpointSaveResult, purpose: str) -> None:
        # Whoever asked for the end meanwhile has it; others asked for a snapshot of later, and are refused.
        self._requests.answer(tuple(request for request in self._requests.waiting if request.stop), result)
        if result.saved:
            self._timeout.check_save()  # only now: whoever takes it before answers for the last save
            _log.info("the run stops: %s; its last snapshot is %s", purpose, result.path)
            return
        _log.warning("the run stops without a last snapshot: %s; %s", purpose, result.details or result.reason.value)

    # ---- One attempt ----

    async def _attempt(
        self,
        requests: tuple[SnapshotRequest, ...],
        *,
        force: bool,
        keep_waiting: Collection[RolloutCheckpointAttemptReason],
        required_for: str | None = None,
    ) -> RolloutCheckpointSaveResult:
        """Attempt a snapshot, and answer `requests` unless it was skipped for a reason in `keep_waiting`."""
        self._published, self._has_news = None, False
        began = self._clock.monotonic()
        try:
            result = await self._save(force=force)
        except Exception as error:  # noqa: BLE001 - raised again, or answered and counted
            self._requests.answer(requests, error)
            return self._after_failure(error, required_for)
        if result.saved:
            self._failures = 0
            self._last_save_s = self._clock.monotonic() - began
            self._timeout.save_took(self._last_save_s)
        if result.reason not in keep_waiting:
            self._requests.answer(requests, result)
        return result

    def _after_failure(self, error: Exception, required_for: str | None) -> RolloutCheckpointSaveResult:
        if not isinstance(error, OSError):
            raise error  # a broken invariant does not mend itself
        self._failures += 1
        if required_for is not None:
            raise RequiredSnapshotError(required_for) from error
        allowed = self._config.max_consecutive_failures
        _log.warning(
            "snapshot failed, the one before it is kept (failure %d of %d): %r", self._failures, allowed, error
        )
        if self._failures >= allowed:
            raise SnapshotsKeepFailingError(self._failures) from error
        return RolloutCheckpointSaveResult(saved=False, reason=reason_of(error), details=str(error))

    # ---- Sleep ----

    async def _sleep(self, seconds: float) -> None:
        """Sleep until something happens, but not longer."""
        await self._clock.wait(self._wakeup, None if seconds == math.inf else seconds)
        self._wakeup.clear()

    def _wake(self) -> None:
        self._has_news = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # a loop that is closed has nobody to wake
                self._loop.call_soon_threadsafe(self._wakeup.set)
