"""Snapshots of rollouts, and the rollout state of trainer checkpoints: one capture, one writer, one lock for both.

A snapshot belongs to the trainer checkpoint of the step that training is at, its anchor. An attempt goes through these
stages; `nrl_rollout_ckpt.saving.snapshot_states` has them as a table:

1. wait for the save lock; look whether a train step commits, whether anything has changed, whether the anchor is there;
2. pause the environment, which writes its episodes; a train step that is about to commit calls that off;
3. the exclusive cut: nobody changes anything while references are taken; then the environment is resumed;
4. write everything into a folder under a temporary name, fsync it, rename it;
5. remove what retention does not keep.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from nrl_interfaces.publish import publish, remove_folder
from nrl_interfaces.rollout import Deadline, EnvironmentEpisode, TrainerCheckpoints

from nrl_rollout_ckpt.disk.bootstrap import BootstrapCompatibilityIdentity
from nrl_rollout_ckpt.disk.layout import CONFIG, ENVIRONMENT, FolderOwner, commit_snapshot
from nrl_rollout_ckpt.disk.manifest import RolloutSnapshotManifest, digest_of_anchor
from nrl_rollout_ckpt.disk.retention import free_bytes_of
from nrl_rollout_ckpt.disk.trainer_checkpoints import config_yaml
from nrl_rollout_ckpt.saving.attempt import SnapshotAttempt
from nrl_rollout_ckpt.saving.capture import Identity, TeacherCoordinator, manifest_of, with_episodes
from nrl_rollout_ckpt.saving.environment_phase import EnvironmentPhase, enter_unless_a_step_commits
from nrl_rollout_ckpt.saving.housekeeping import make_room, prune
from nrl_rollout_ckpt.saving.outcomes import (
    OutcomeReport,
    RolloutCheckpointAttemptOutcome,
    RolloutCheckpointAttemptReason,
    RolloutCheckpointSaveResult,
    reason_of,
)
from nrl_rollout_ckpt.saving.pumped_snapshots import PumpedSnapshots
from nrl_rollout_ckpt.saving.requirements import require_snapshots_work
from nrl_rollout_ckpt.saving.snapshot_states import AttemptEvent
from nrl_rollout_ckpt.saving.state_saving import controller_bytes, write_controller_sidecars
from nrl_rollout_ckpt.state.completion import in_thread
from nrl_rollout_ckpt.state.rollout_state import CapturedRolloutState, CheckpointKind, RolloutParts

__all__ = ["PublishedFiles", "RolloutSnapshotter", "write_controller_sidecars"]

_log = logging.getLogger(__name__)
_Outcome, _Reason = RolloutCheckpointAttemptOutcome, RolloutCheckpointAttemptReason
_WARN_AFTER_DISCARDS: Final = 3


def _warn_if_environment_paused_past_interval(paused_seconds: float, interval_s: float | None) -> None:
    """Warn when a snapshot held rollouts longer than the time between two snapshots: they stand more than they run."""
    if interval_s is not None and paused_seconds > interval_s:
        _log.warning(
            "the environment was paused for %.1f s, longer than the %.1f s between snapshots: rollouts stand still "
            "more than they run; set a longer snapshot_attempt_interval_s",
            paused_seconds,
            interval_s,
        )


class PublishedFiles(NamedTuple):
    """What publishing a snapshot took.

    Attributes:
        controller_bytes: Bytes beside the rows and the environment's files.
        total_bytes: Bytes of all files.
        row_seconds: Writing the rows.
        sidecar_seconds: Writing all else, and the digests.
        commit_seconds: Making everything durable under its name.
    """

    controller_bytes: int
    total_bytes: int
    row_seconds: float
    sidecar_seconds: float
    commit_seconds: float


class RolloutSnapshotter(PumpedSnapshots):
    """Saves the state of rollouts: in snapshots of its own, and in the trainer's checkpoints.

    It holds the checkpoint folder from its construction to `close`, and is a context manager. For one event loop.

    Args:
        parts: The run.
        checkpointer: The trainer's checkpoints; snapshots are written under them.
        timeout: The run's deadline.
        bootstrap_identity: What stands in for the trainer's state before its first checkpoint.
        teacher_coordinator: Knows which teachers tagged the rows, if any did.
        records_prompt_groups: Whether dispatch uses the ledger; asked at every capture.
        free_bytes: What the file system of a folder has left, in bytes.

    Raises:
        SnapshotsUnsupportedError: If snapshots are on and a part can't do what they need.
        FolderInUseError: If another process saves into the checkpoint folder.
    """

    def __init__(
        self,
        parts: RolloutParts,
        *,
        checkpointer: TrainerCheckpoints,
        timeout: Deadline,
        bootstrap_identity: BootstrapCompatibilityIdentity | None,
        teacher_coordinator: TeacherCoordinator | None,
        records_prompt_groups: Callable[[], bool],
        free_bytes: Callable[[Path], int] = free_bytes_of,
    ) -> None:
        super().__init__(
            parts,
            checkpointer=checkpointer,
            timeout=timeout,
            bootstrap_identity=bootstrap_identity,
            teacher_coordinator=teacher_coordinator,
            records_prompt_groups=records_prompt_groups,
        )
        require_snapshots_work(parts)
        self._free_bytes = free_bytes
        self._report = OutcomeReport(parts.metrics, parts.config.snapshot_attempt_interval_s)
        self._saved_bytes = 0
        self._discards = 0
        self._owner = FolderOwner(checkpointer.checkpoint_dir, parts.file_ops, parts.clock.time)

    def close(self) -> None:
        """Let the checkpoint folder go, refuse requests, put SIGTERM's handler back; safe to call twice.

        To be called once no save runs.

        Raises:
            RuntimeError: If a trainer checkpoint did not become durable and nobody has been told yet.
        """
        self._end_pump()
        self._owner.close()
        self._anchors.raise_failure()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- One snapshot ----

    async def save_snapshot(self, *, force: bool = False) -> RolloutCheckpointSaveResult:
        """Publish one snapshot under the trainer checkpoint of the step that training is at.

        Args:
            force: Save even if nothing has changed since the last one.

        Returns:
            What was done, and why.

        Raises:
            OSError, TimeoutError: The disk or the environment refused; a later attempt may succeed.
            RuntimeError: Snapshots are off, or the state contradicts itself. Whatever is raised, a cancellation too:
                the environment runs, the snapshots before are there, and this one is either whole or not there.
        """
        if self._config.snapshot_attempt_interval_s is None:
            raise RuntimeError("snapshots are off: snapshot_attempt_interval_s is None; allowed: seconds above 0")
        attempt = SnapshotAttempt(self._clock)
        try:
            async with self._save_lock.hold("a rollout snapshot"):
                attempt.move(AttemptEvent.LOCKED)
                result = await self._attempt(attempt, force=force)
        except BaseException as error:
            if attempt.outcome is None:
                attempt.move(AttemptEvent.FAIL)
            completed = attempt.outcome is _Outcome.COMPLETED
            self._log(attempt, _Reason.COMPLETED if completed else reason_of(error))
            raise
        self._log(attempt, result.reason)
        return result

    async def _attempt(self, attempt: SnapshotAttempt, *, force: bool) -> RolloutCheckpointSaveResult:
        at = Identity.now(self._parts)
        if not self._window.is_closed:
            return self._skip(attempt, _Reason.OPTIMIZER_COMMIT_IN_PROGRESS)
        unchanged = self._saved_at == (at, self._barrier.mutation_version)
        if unchanged and not force and not self._environment.keeps_state:
            return self._skip(attempt, _Reason.NO_DATA_PLANE_MUTATIONS)
        await self._anchors.wait_for_trainer()
        with self._anchors.protect(at.train_steps):
            if not self._is_still(at):
                return self._skip(attempt, _Reason.TRAINER_STATE_CHANGED)
            anchor = await self._resolve_anchor()
            if anchor is None:
                return self._skip(attempt, *self._anchors.why_missing())
            attempt.move(AttemptEvent.ANCHORED)
            try:
                return await self._save_under(attempt, at, *anchor)
            except BaseException as error:
                if isinstance(error, asyncio.CancelledError) and attempt.is_published_on_disk:
                    attempt.move(AttemptEvent.PUBLISHED)  # cancelled during the rename, which ran to its end
                await self._remove_temporary(attempt, error)
                raise

    async def _resolve_anchor(self) -> tuple[Path, str | None] | None:
        """Choose the durable trainer checkpoint that a snapshot belongs to.

        Returns:
            Its folder and None; before the first train step the bootstrap anchor and the run's fingerprint. None where
            the trainer checkpoint is not durable.

        Raises:
            RuntimeError: If it is not known which checkpoint has the weights of now.
            BootstrapMismatchError: If the folder's snapshots were made with another config.
        """
        return await self._anchors.resolve()

    async def _save_under(
        self, attempt: SnapshotAttempt, at: Identity, anchor: Path, fingerprint: str | None
    ) -> RolloutCheckpointSaveResult:
        ops = self._file_ops
        paths = await in_thread(attempt.prepare, anchor, ops)
        await in_thread(make_room, anchor, self._saved_bytes, self._config.max_disk_bytes, ops, self._free_bytes)
        captured = await self._capture_paused(attempt, at, paths.temporary)
        if captured is None:
            await self._remove_temporary(attempt, None)
            return self._skip(attempt, _Reason.TRAINER_STATE_CHANGED)
        attempt.move(AttemptEvent.CAPTURED)
        digest = await in_thread(digest_of_anchor, anchor)
        manifest = manifest_of(captured, created=self._clock.time(), fingerprint=fingerprint, anchor_digest=digest)
        files = await self._publish(paths.temporary, paths.final, captured, manifest)
        attempt.move(AttemptEvent.PUBLISHED)
        self._note_published(attempt, captured, files)
        await in_thread(prune, anchor, at.train_steps, self._config, ops)
        return RolloutCheckpointSaveResult(saved=True, reason=_Reason.COMPLETED, path=paths.final)

    async def _capture_paused(
        self, attempt: SnapshotAttempt, at: Identity, temporary: Path
    ) -> CapturedRolloutState | None:
        """Pause the environment, make the cut, resume; None where a train step came first."""
        exported: Sequence[EnvironmentEpisode] | None = None
        phase = EnvironmentPhase(self._environment.snapshot(temporary / ENVIRONMENT), self._clock)
        async with contextlib.AsyncExitStack() as stack:
            if not await self._enter_environment_phase_unless_a_step_commits(stack, phase):
                return None
            attempt.move(AttemptEvent.ENTERED)
            asked = self._clock.monotonic()
            async with self._barrier.checkpoint() as cut:
                began = self._clock.monotonic()
                if not self._is_still(at):
                    return None
                if phase.snapshot is not None:
                    await phase.snapshot.check_against_cut(cut)
                    exported = tuple(phase.snapshot.episodes)
                captured = await self.capture(cut, temporary, CheckpointKind.ROLLOUT_SNAPSHOT)
            attempt.timings.barrier_wait_seconds = began - asked
            attempt.timings.exclusive_hold_seconds = self._clock.monotonic() - began
        attempt.timings.environment_pause_seconds = phase.paused_seconds
        if self._environment.keeps_state:
            _warn_if_environment_paused_past_interval(phase.paused_seconds, self._config.snapshot_attempt_interval_s)
        if Identity(captured.train_steps, captured.trainer_version) != at:  # the counters need no cut to move
            return None
        return (
            captured
            if exported is None
            else await in_thread(with_episodes, captured, exported, self._ledger.has_had_attempt)
        )

    async def _enter_environment_phase_unless_a_step_commits(
        self,
        stack: contextlib.AsyncExitStack,
        environment_phase: AbstractAsyncContextManager[EnvironmentPhase],
    ) -> bool:
        """Enter the environment phase on `stack`, or give that up once a step commits.

        Returns:
            Whether it was entered; whether its snapshot is kept is decided in the cut.
        """
        return await enter_unless_a_step_commits(stack, environment_phase, self._window)

    async def _publish(
        self, tmp_path: Path, final_path: Path, captured: CapturedRolloutState, manifest: RolloutSnapshotManifest
    ) -> PublishedFiles:
        """Write the snapshot's files, the manifest last of all, then give them their name in one step.

        Args:
            tmp_path: Where they are written; the environment's are there already.
            final_path: Their name.
            captured: The state.
            manifest: Without the files.

        Returns:
            The sizes of the files, and the seconds spent.
        """
        began = self._clock.monotonic()
        _, row_seconds = await self._write_rows_and_sidecars(tmp_path, captured)
        await in_thread(publish, tmp_path / CONFIG, config_yaml(self._parts.run_config), self._file_ops)
        described = await in_thread(self._write_manifest, tmp_path, manifest)
        written = self._clock.monotonic()
        await in_thread(commit_snapshot, tmp_path, final_path, self._file_ops)
        return PublishedFiles(
            controller_bytes=controller_bytes(described),
            total_bytes=described.total_bytes,
            row_seconds=row_seconds,
            sidecar_seconds=written - began - (row_seconds - captured.data_plane_seconds),
            commit_seconds=self._clock.monotonic() - written,
        )

    # ---- What goes with it ----

    def _is_still(self, at: Identity) -> bool:
        return self._window.is_closed and Identity.now(self._parts) == at

    def _skip(
        self, attempt: SnapshotAttempt, reason: RolloutCheckpointAttemptReason, details: str = ""
    ) -> RolloutCheckpointSaveResult:
        attempt.move(AttemptEvent.SKIP)
        if reason is _Reason.TRAINER_STATE_CHANGED and self._environment.keeps_state:
            self._discards += 1
            self._warn_if_snapshots_keep_losing_to_train_steps(self._discards)
        return RolloutCheckpointSaveResult(saved=False, reason=reason, details=details)

    async def _remove_temporary(self, attempt: SnapshotAttempt, cause: BaseException | None) -> None:
        """Remove what is left of the attempt; where that fails, `cause` says so too."""
        if attempt.paths is None:
            return
        try:
            await in_thread(remove_folder, attempt.paths.temporary, self._file_ops)
        except Exception as error:
            if cause is None:
                raise
            cause.add_note(f"and {attempt.paths.temporary} is left, the next attempt removes it: {error!r}")

    def _note_published(self, attempt: SnapshotAttempt, captured: CapturedRolloutState, files: PublishedFiles) -> None:
        self._note_saved(captured)
        self._anchors.saved()
        self._saved_bytes, self._discards = files.total_bytes, 0
        timings, replay_groups = attempt.timings, captured.replay_groups or ()
        timings.tq_save_seconds = files.row_seconds
        timings.sidecar_save_seconds = files.sidecar_seconds
        timings.snapshot_commit_seconds = files.commit_seconds
        timings.controller_sidecar_bytes = files.controller_bytes
        timings.replay_groups = len(replay_groups)
        timings.ledger_groups = len(captured.ledger_groups or ())
        timings.replay_rows = sum(len(group.sample_ids) for group in replay_groups)
        timings.snapshot_rows = len(captured.sample_ids or ())
        timings.report(self._metrics)

    def _warn_if_snapshots_keep_losing_to_train_steps(self, consecutive_discards: int) -> None:
        """Warn once a streak: the environment needs longer to pause than train steps take."""
        if consecutive_discards == _WARN_AFTER_DISCARDS:
            _log.warning(
                "%d snapshots in a row were discarded because a train step committed meanwhile: pausing the "
                "environment takes longer than a step. A snapshot right after a trainer checkpoint has the best chance",
                consecutive_discards,
            )

    def _log(self, attempt: SnapshotAttempt, reason: RolloutCheckpointAttemptReason) -> None:
        outcome = attempt.outcome
        if outcome is not None:
            self._log_outcome(outcome=outcome, reason=reason, attempt_duration_seconds=attempt.duration_s)

    def _log_outcome(
        self,
        *,
        outcome: RolloutCheckpointAttemptOutcome,
        reason: RolloutCheckpointAttemptReason,
        attempt_duration_seconds: float,
    ) -> None:
        """Report an attempt, skipped ones too."""
        is_bad = outcome is _Outcome.FAILED and reason is not _Reason.CANCELLED
        level = logging.WARNING if is_bad else logging.INFO
        _log.log(level, "snapshot attempt %s: %s, after %.3f s", outcome, reason, attempt_duration_seconds)
        self._report.attempt(
            outcome=outcome, reason=reason, duration_s=attempt_duration_seconds, now=self._clock.monotonic()
        )
