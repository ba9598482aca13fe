"""What snapshots and trainer checkpoints share: the save lock, the commit window, one capture and one writer."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from nrl_interfaces.data_plane import DataPlaneView
from nrl_interfaces.data_plane_errors import UnsupportedByAdapterError
from nrl_interfaces.fileops import FileOps
from nrl_interfaces.publish import publish
from nrl_interfaces.rollout import TrainerCheckpoints

from nrl_rollout_ckpt.disk.bootstrap import BootstrapCompatibilityIdentity
from nrl_rollout_ckpt.disk.layout import DATA_PLANE
from nrl_rollout_ckpt.disk.manifest import RolloutSnapshotManifest, describe_files, manifest_name
from nrl_rollout_ckpt.disk.sidecars import Sidecars, serialize, write_sidecars
from nrl_rollout_ckpt.saving.anchors import Anchors
from nrl_rollout_ckpt.saving.capture import (
    Identity,
    ReplayMetadata,
    TeacherCoordinator,
    check_captured,
    manifest_of,
    plane_metadata,
    take_references,
)
from nrl_rollout_ckpt.saving.commit_window import CommitWindow
from nrl_rollout_ckpt.saving.save_lock import SaveLock
from nrl_rollout_ckpt.saving.snapshot_states import WindowState
from nrl_rollout_ckpt.state.barrier import DataPlaneMutationCut
from nrl_rollout_ckpt.state.completion import in_thread
from nrl_rollout_ckpt.state.rollout_state import (
    CapturedRolloutState,
    CheckpointKind,
    RolloutParts,
    _UsesRolloutParts,  # pyright: ignore[reportPrivateUsage] - made for this
)

_NOT_OF_THE_CONTROLLER: Final = ("data_plane/", "environment/")


async def write_controller_sidecars(
    checkpoint_path: str | Path,
    captured: CapturedRolloutState,
    *,
    sidecars: Sidecars | None = None,
    ops: FileOps | None = None,
) -> list[str]:
    """Write the captured state beside the data plane.

    Args:
        checkpoint_path: The folder that is published later.
        captured: The state.
        sidecars: The same, serialized already.
        ops: The operations on files.

    Returns:
        The names of the files.

    Raises:
        OSError: The disk refused.
        TypeError: The prompt source's state holds what can't be loaded again.
    """
    written = await in_thread(serialize, captured) if sidecars is None else sidecars
    return await in_thread(write_sidecars, Path(checkpoint_path), written, ops or FileOps())


class SavesRolloutState(_UsesRolloutParts):
    """The part of `RolloutSnapshotter` that a trainer's own checkpoints use too; see there."""

    def __init__(
        self,
        parts: RolloutParts,
        *,
        checkpointer: TrainerCheckpoints,
        bootstrap_identity: BootstrapCompatibilityIdentity | None,
        teacher_coordinator: TeacherCoordinator | None,
        records_prompt_groups: Callable[[], bool],
    ) -> None:
        super().__init__(parts)
        self._checkpointer = checkpointer
        self._teacher_coordinator = teacher_coordinator
        self._records_prompt_groups = records_prompt_groups
        self._window = CommitWindow()
        self._save_lock = SaveLock(parts.barrier)
        self._anchors = Anchors(parts, checkpointer, bootstrap_identity, self._window)
        self._saved_at: tuple[Identity, int] | None = None  # with the mutation version

    # ---- The trainer's side ----

    async def begin_optimizer_commit(self, *, drain_snapshot: bool) -> None:
        """Open the window in which no snapshot is taken; `end_optimizer_commit` closes it.

        Args:
            drain_snapshot: Wait first for a snapshot that is past its cut; one that is not gives up. False opens at
                once.

        Raises:
            IllegalTransitionError: If the window is open, or about to be.
            RuntimeError: If it would wait for the task that calls it.
        """
        self._window.announce()  # first: the environment is not paused for a snapshot that would be thrown away
        try:
            if drain_snapshot:
                async with self._save_lock.hold("an optimizer commit"):
                    self._begin_optimizer_commit()
            else:
                self._begin_optimizer_commit()
        finally:
            if self._window.state is WindowState.ANNOUNCED:  # cancelled, or refused
                self._window.retract()

    def _begin_optimizer_commit(self) -> None:
        """Mark the update as applied, until its counters are published."""
        self._window.open()

    def end_optimizer_commit(self) -> None:
        """Close the window, once the step's rows are cleared and its counters published.

        Raises:
            IllegalTransitionError: If it is not open.
        """
        self._window.close()

    @contextlib.asynccontextmanager
    async def trainer_checkpoint(self) -> AsyncGenerator[None]:
        """Keep snapshots off while the trainer saves and publishes a checkpoint of its own.

        Raises:
            RuntimeError: If a trainer checkpoint before it did not become durable, which a snapshot has noticed.
        """
        async with self._save_lock.hold("a trainer checkpoint"):
            await self._anchors.hand_over_to_trainer()
            yield

    # ---- Capturing and writing ----

    async def capture(
        self, cut: DataPlaneMutationCut, checkpoint_path: str | Path, kind: CheckpointKind
    ) -> CapturedRolloutState:
        """Capture what a restart needs, inside the exclusive cut; `write_rollout_state` writes it after it.

        Only references are taken. A data plane without ``freeze()`` is written here and now.

        Args:
            cut: From `DataPlaneCheckpointBarrier.checkpoint`.
            checkpoint_path: The folder that is published later.
            kind: A trainer checkpoint refuses groups that a train step holds; a snapshot rolls them back.

        Raises:
            ExpiredCutError: If the section has ended.
            OpenTrainStepError: If a train step holds groups that a trainer checkpoint would lose.
            UnsettledGroupsError: If it is not known whether a group's rows are in the data plane.
            RuntimeError: If a trainer checkpoint meets an open optimizer-commit window, the cut is not exclusive, or
                the state contradicts itself.
        """
        kind = CheckpointKind(kind)
        if kind is CheckpointKind.TRAINER_CHECKPOINT and self._window.state is WindowState.OPEN:
            raise RuntimeError(
                "a trainer checkpoint inside the optimizer-commit window: its counters are still those of the step "
                "before; call end_optimizer_commit() first"
            )
        captured = take_references(
            self._parts,
            cut,
            kind,
            records_prompt_groups=self._records_prompt_groups(),
            teacher=self._teacher_coordinator,
        )
        sample_ids, view = await in_thread(self._rows_now)
        captured = replace(captured, sample_ids=sample_ids, data_plane_view=view)
        if view is not None:
            return captured
        began = self._clock.monotonic()
        await self._save_rows(checkpoint_path, captured, await in_thread(_checked_sidecars, captured))
        return replace(captured, data_plane_seconds=self._clock.monotonic() - began)

    async def write_rollout_state(self, checkpoint_path: str | Path, captured: CapturedRolloutState) -> list[str]:
        """Write a captured state into a folder that is published later.

        A trainer checkpoint gets ``rollout_manifest.json`` too; the manifest of a snapshot comes last of all its files.

        Returns:
            The names of its files, and of the data plane's folder.

        Raises:
            InventoryError: If the rows in the data plane are not those of the replay index.
            OSError: The disk refused.
        """
        path = Path(checkpoint_path)
        names, _ = await self._write_rows_and_sidecars(path, captured)
        if captured.kind is CheckpointKind.TRAINER_CHECKPOINT:
            manifest = manifest_of(captured, created=self._clock.time())
            await in_thread(self._write_manifest, path, manifest, names)
            names.append(manifest_name(captured.kind))
            if captured.ledger_groups is not None and captured.replay_groups is not None:
                self._note_saved(captured)
        return names

    async def _write_rows_and_sidecars(self, path: Path, captured: CapturedRolloutState) -> tuple[list[str], float]:
        """Give the names, and how many seconds the rows took."""
        sidecars = await in_thread(_checked_sidecars, captured)
        began = self._clock.monotonic()
        if captured.data_plane_view is not None:
            await self._save_rows(path, captured, sidecars)
        row_seconds = captured.data_plane_seconds + self._clock.monotonic() - began
        names = await write_controller_sidecars(path, captured, sidecars=sidecars, ops=self._file_ops)
        return [DATA_PLANE, *names], row_seconds

    async def _save_data_plane_checkpoint(
        self,
        checkpoint_path: str | Path,
        *,
        train_steps: int,
        trainer_version: int,
        current_epoch: int,
        replay_metadata: ReplayMetadata | None = None,
        rollout_recovery_payload_sha256: str | None = None,
        rollout_recovery_group_count: int | None = None,
        view: DataPlaneView | None = None,
        teacher_states: Sequence[Any] | None = None,
    ) -> None:
        """Write the rows, with what they belong to in their metadata.

        Args:
            checkpoint_path: The folder that is published later; the rows go into ``data_plane`` in it.
            train_steps: The identity at the cut; the live counters may have moved on.
            trainer_version: The same.
            current_epoch: The same.
            replay_metadata: Binds them to the replay index; None makes them a copy that nothing is restored from.
            rollout_recovery_payload_sha256: Binds them to the ledger's file.
            rollout_recovery_group_count: Goes with it.
            view: The rows at the cut; None writes those that the data plane has now.
            teacher_states: Which teachers tagged them.

        Raises:
            ValueError: If only one of the recovery's digest and count is given.
            OSError: The disk refused.
        """
        metadata = plane_metadata(
            Identity(train_steps, trainer_version),
            current_epoch,
            partition_id=self._partition_id,
            sampler_name=self._sampler.name,
            replay=replay_metadata,
            recovery_sha256=rollout_recovery_payload_sha256,
            recovery_group_count=rollout_recovery_group_count,
            teacher_states=teacher_states,
        )
        save = self._data_plane.save_checkpoint if view is None else view.save
        await in_thread(save, Path(checkpoint_path) / DATA_PLANE, metadata=metadata)

    async def _save_rows(self, checkpoint_path: str | Path, captured: CapturedRolloutState, sidecars: Sidecars) -> None:
        digest, count = sidecars.replay_digest, sidecars.replay_group_count
        await self._save_data_plane_checkpoint(
            checkpoint_path,
            train_steps=captured.train_steps,
            trainer_version=captured.trainer_version,
            current_epoch=captured.current_epoch,
            replay_metadata=None if digest is None or count is None else ReplayMetadata(digest, count),
            rollout_recovery_payload_sha256=sidecars.recovery_sha256,
            rollout_recovery_group_count=sidecars.recovery_group_count,
            view=captured.data_plane_view,
            teacher_states=captured.teacher_states,
        )

    def _rows_now(self) -> tuple[tuple[str, ...], DataPlaneView | None]:
        freeze: Callable[[], DataPlaneView] | None = getattr(self._data_plane, "freeze", None)
        view = None
        if freeze is not None:
            with contextlib.suppress(UnsupportedByAdapterError):
                view = freeze()
        return tuple(self._data_plane.list_sample_ids(self._partition_id)), view

    def _write_manifest(
        self, path: Path, manifest: RolloutSnapshotManifest, names: Sequence[str] | None = None
    ) -> RolloutSnapshotManifest:
        described = replace(manifest, files=describe_files(path, names))
        publish(path / manifest_name(manifest.kind), described.to_json(), self._file_ops)
        return described

    def _note_saved(self, captured: CapturedRolloutState) -> None:
        self._saved_at = (Identity(captured.train_steps, captured.trainer_version), captured.mutation_version)


def controller_bytes(manifest: RolloutSnapshotManifest) -> int:
    """The bytes of the controller's own files: neither rows nor the environment's."""
    return sum(record.size for record in manifest.files if not record.path.startswith(_NOT_OF_THE_CONTROLLER))


def _checked_sidecars(captured: CapturedRolloutState) -> Sidecars:
    check_captured(captured)
    return serialize(captured)
