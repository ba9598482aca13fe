"""One attempt at a snapshot: how far it is, what it has on disk, and where its time goes."""

from __future__ import annotations

from pathlib import Path

from nrl_interfaces.fileops import FileOps

from nrl_rollout_ckpt.clock import Clock
from nrl_rollout_ckpt.disk.layout import SnapshotPaths, prepare_snapshot_paths
from nrl_rollout_ckpt.saving.outcomes import RolloutCheckpointAttemptOutcome, SaveTimings
from nrl_rollout_ckpt.saving.snapshot_states import ATTEMPT, AttemptEvent, AttemptState

_OUTCOMES = {
    AttemptState.COMPLETED: RolloutCheckpointAttemptOutcome.COMPLETED,
    AttemptState.SKIPPED: RolloutCheckpointAttemptOutcome.SKIPPED,
    AttemptState.FAILED: RolloutCheckpointAttemptOutcome.FAILED,
}


class SnapshotAttempt:
    """The state of an attempt; begins when the save lock is asked for.

    Attributes:
        paths: Its folder; None until that was made.
        timings: Where its time went.
        state: How far it is.
    """

    def __init__(self, clock: Clock) -> None:
        self.paths: SnapshotPaths | None = None
        self.timings = SaveTimings()
        self.state = ATTEMPT.initial
        self._clock = clock
        self._asked = clock.monotonic()
        self._locked = self._asked

    @property
    def outcome(self) -> RolloutCheckpointAttemptOutcome | None:
        """How it ended; None as long as it has not."""
        return _OUTCOMES.get(self.state)

    @property
    def duration_s(self) -> float:
        """Seconds since it began, the wait for the save lock with it."""
        return self._clock.monotonic() - self._asked

    def move(self, event: AttemptEvent) -> None:
        """Go on.

        Raises:
            IllegalTransitionError: If the event is not allowed now.
        """
        self.state = ATTEMPT.after(self.state, event)
        if event is AttemptEvent.LOCKED:
            self._locked = self._clock.monotonic()
        if event is AttemptEvent.PUBLISHED:
            self.timings.total_save_seconds = self._clock.monotonic() - self._locked

    @property
    def is_published_on_disk(self) -> bool:
        """Whether the snapshot has its name, though this attempt does not know yet."""
        return self.state is AttemptState.PUBLISHING and self.paths is not None and self.paths.final.is_dir()

    def prepare(self, anchor: Path, ops: FileOps) -> SnapshotPaths:
        """Make the folder; it is known here even if nobody waits for this call's end."""
        self.paths = prepare_snapshot_paths(anchor, ops)
        self.timings.snapshot_sequence = self.paths.sequence
        return self.paths
