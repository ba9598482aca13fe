"""What came of an attempt at a snapshot, and how that is reported."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from nrl_interfaces.metrics import Metrics, emit

OUTCOME_PREFIX: Final = "rollout/checkpoint_outcome"
TIMING_PREFIX: Final = "timing/rollout_checkpoint"


class RolloutCheckpointAttemptOutcome(StrEnum):
    """How an attempt ended."""

    COMPLETED = "completed"
    SKIPPED = "skipped"
    FAILED = "failed"


class RolloutCheckpointAttemptReason(StrEnum):
    """Why it ended so.

    `NO_DATA_PLANE_MUTATIONS` to `TRAINER_FINALIZATION_FAILED` are skips, the rest are failures.
    """

    COMPLETED = "completed"
    NO_DATA_PLANE_MUTATIONS = "no_data_plane_mutations"
    OPTIMIZER_COMMIT_IN_PROGRESS = "optimizer_commit_in_progress"
    MISSING_TRAINER_ANCHOR = "missing_trainer_anchor"
    TRAINER_STATE_CHANGED = "trainer_state_changed"
    TRAINER_FINALIZATION_FAILED = "trainer_finalization_failed"
    TIMEOUT = "timeout"
    IO_ERROR = "io_error"
    INVARIANT_ERROR = "invariant_error"
    CANCELLED = "cancelled"


_Reason = RolloutCheckpointAttemptReason


def reason_of(error: BaseException) -> RolloutCheckpointAttemptReason:
    """Classify what an attempt raised; only `TIMEOUT` and `IO_ERROR` are worth another try.

    >>> reason_of(TimeoutError()).value, reason_of(OSError(28, "No space left")).value, reason_of(ValueError()).value
    ('timeout', 'io_error', 'invariant_error')
    """
    if isinstance(error, TimeoutError):  # first: it is an OSError too
        return _Reason.TIMEOUT
    if isinstance(error, OSError):
        return _Reason.IO_ERROR
    if isinstance(error, asyncio.CancelledError):
        return _Reason.CANCELLED
    return _Reason.INVARIANT_ERROR


@dataclass(frozen=True)
class RolloutCheckpointSaveResult:
    """What `RolloutSnapshotter.save_snapshot` did.

    Attributes:
        saved: Whether a snapshot was published.
        reason: Why, or why not.
        path: The snapshot; None unless one was published.
        details: The same for a person; empty where the reason says all.
    """

    saved: bool
    reason: RolloutCheckpointAttemptReason
    path: Path | None = None
    details: str = ""


class OutcomeReport:
    """Emits one event for each attempt: its number, its outcome and reason as flags, and the time since a success.

    Args:
        metrics: Gets the events.
        interval_s: The configured interval, for comparison.
    """

    def __init__(self, metrics: Metrics | None, interval_s: float | None) -> None:
        self._metrics = metrics
        self._interval_s = interval_s
        self._attempts = 0
        self._last_success: float | None = None

    def attempt(
        self,
        *,
        outcome: RolloutCheckpointAttemptOutcome,
        reason: RolloutCheckpointAttemptReason,
        duration_s: float,
        now: float,
    ) -> None:
        """Report an attempt that ended at `now`, seconds on a clock that never steps."""
        self._attempts += 1
        fields: dict[str, float | bool | None] = {
            "attempt": self._attempts,
            "attempt_duration_seconds": duration_s,
            "configured_interval_seconds": self._interval_s,
            **{each.value: each is outcome for each in RolloutCheckpointAttemptOutcome},
            **{f"reason_{each.value}": each is reason for each in RolloutCheckpointAttemptReason},
        }
        completed = outcome is RolloutCheckpointAttemptOutcome.COMPLETED
        if self._last_success is not None:
            which = "previous" if completed else "last"
            fields[f"seconds_since_{which}_success"] = now - self._last_success
        if completed:
            self._last_success = now
        prefixed = {f"{OUTCOME_PREFIX}/{name}": value for name, value in fields.items()}
        emit(self._metrics, op="rollout_checkpoint_attempt", **prefixed)


@dataclass
class SaveTimings:
    """Where the time of a snapshot went, and what it holds.

    Attributes:
        snapshot_sequence: Its number.
        total_save_seconds: The whole attempt, the wait for the save lock left out.
        environment_pause_seconds: How long the environment was paused.
        barrier_wait_seconds: The wait for running mutations.
        exclusive_hold_seconds: How long no mutation could run.
        tq_save_seconds: Writing the rows.
        sidecar_save_seconds: Writing all else, and the digests.
        snapshot_commit_seconds: Making it durable.
        replay_groups: Complete groups in it, those rolled back too.
        ledger_groups: Groups that are not complete.
        replay_rows: Rows of complete groups.
        snapshot_rows: Rows in the data plane.
        controller_sidecar_bytes: Bytes beside the data plane and the environment.
    """

    snapshot_sequence: int = 0
    total_save_seconds: float = 0.0
    environment_pause_seconds: float = 0.0
    barrier_wait_seconds: float = 0.0
    exclusive_hold_seconds: float = 0.0
    tq_save_seconds: float = 0.0
    sidecar_save_seconds: float = 0.0
    snapshot_commit_seconds: float = 0.0
    replay_groups: int = 0
    ledger_groups: int = 0
    replay_rows: int = 0
    snapshot_rows: int = 0
    controller_sidecar_bytes: int = 0

    def report(self, metrics: Metrics | None) -> None:
        """Emit them as one event."""
        prefixed = {f"{TIMING_PREFIX}/{name}": value for name, value in vars(self).items()}
        emit(metrics, op="rollout_checkpoint_timing", **prefixed)
