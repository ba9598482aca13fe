"""Restoring: all checks first, which change nothing; then every part in one section of the barrier."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from nrl_interfaces.metrics import emit
from nrl_interfaces.rollout import EnvironmentEpisode, RestoredEnvironmentRollouts

from nrl_rollout_ckpt.disk.layout import DATA_PLANE, ENVIRONMENT
from nrl_rollout_ckpt.disk.manifest import RolloutSnapshotManifest, manifest_name, read_manifest, verify_files
from nrl_rollout_ckpt.disk.sidecars import RestoredSidecars, read_sidecars
from nrl_rollout_ckpt.restore_checks import (
    PromptChangedError,
    RestoreCheckError,
    check_counts,
    check_manifest,
    check_partition,
    check_parts_are_new,
    check_progress,
    check_sampler,
    check_sizes,
    find_prompts,
    has_folder,
)
from nrl_rollout_ckpt.state.barrier import DataPlaneMutationCut
from nrl_rollout_ckpt.state.completion import in_thread, run_to_end
from nrl_rollout_ckpt.state.inventory import validate_replay_inventory
from nrl_rollout_ckpt.state.ledger import RolloutRecoveryLedger, reserved_group
from nrl_rollout_ckpt.state.ledger_states import PromptGroupPhase, RolloutAttemptStatus
from nrl_rollout_ckpt.state.records import Prompt, PromptGroupRecoveryRecord, ReplayGroup, SavedPrompt
from nrl_rollout_ckpt.state.replay_index import ReplayIndex
from nrl_rollout_ckpt.state.rollout_state import (
    CheckpointKind,
    ResumeSource,
    RolloutParts,
    SkippedSnapshot,
    _UsesRolloutParts,  # pyright: ignore[reportPrivateUsage]
)

__all__ = [
    "PromptChangedError",
    "RestoreCheckError",
    "RestoreIncompleteError",
    "RestorePlan",
    "RestoreReport",
    "RolloutRestorer",
    "read_recovery_sidecar",
]

_log = logging.getLogger(__name__)
METRIC_PREFIX: Final = "rollout/restore"


class RestoreIncompleteError(RuntimeError):
    """Raised when a part failed after others were restored: the objects are of no use any more.

    Attributes:
        applied: The parts that are restored.
        failed: The part that failed; the cause is the error's ``__cause__``.
    """

    def __init__(self, applied: tuple[str, ...], failed: str) -> None:
        super().__init__(applied, failed)
        self.applied, self.failed = applied, failed

    def __str__(self) -> str:
        return (
            f"restoring stopped at {self.failed}, after {', '.join(self.applied) or 'nothing'}: start no work on these "
            "parts; begin again with new ones in a new process. The snapshot is as it was"
        )


@dataclass(frozen=True)
class RestorePlan:
    """What `RolloutRestorer.check` has read and found to fit.

    Attributes:
        source: What is restored.
        manifest: Its manifest; None where there is no rollout state.
        saved: All that was read; None likewise.
        replay_groups: The groups for the replay index.
        generated_anew: Complete groups that are not restored, since `restore_buffer` is False.
        ledger_groups: The groups for the ledger, `generated_anew` among them, each with its prompt.
        canonical_group_ids: Groups that the saved ledger and the index both had; the index has them.
        next_admission_id: The ledger's next batch number.
        reserve: The replacement reserve.
        episodes: What the environment is to take up.
        seconds: How long the check took.
    """

    source: ResumeSource
    manifest: RolloutSnapshotManifest | None = None
    saved: RestoredSidecars | None = None
    replay_groups: tuple[ReplayGroup, ...] = ()
    generated_anew: tuple[ReplayGroup, ...] = ()
    ledger_groups: tuple[PromptGroupRecoveryRecord, ...] = ()
    canonical_group_ids: tuple[str, ...] = ()
    next_admission_id: int = 0
    reserve: tuple[tuple[Prompt, SavedPrompt], ...] = field(default=(), repr=False)
    episodes: tuple[EnvironmentEpisode, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class RestoreReport:
    """What was restored.

    Attributes:
        path: The folder that it came from; None where there was nothing to restore.
        groups_from_buffer: Complete groups, with their rows.
        groups_generated_anew: Complete groups that were not restored, since `restore_buffer` is False.
        rolled_back_groups: Groups of a train step that was open, which is done again.
        ledger_groups: Groups that were not complete.
        canonical_groups: Groups that were in ledger and index; the ledger's record was dropped.
        reserve: Prompts of the replacement reserve.
        environment_episodes: Episodes that the environment took up.
        siblings_kept: Generations of incomplete groups that were sealed.
        siblings_to_run: Generations of incomplete groups that are still to run, or to run again.
        seconds: How long it took, the check included.
        skipped: Newer snapshots that were passed over.
        warnings: What a person should know.
    """

    path: Path | None = None
    groups_from_buffer: int = 0
    groups_generated_anew: int = 0
    rolled_back_groups: int = 0
    ledger_groups: int = 0
    canonical_groups: int = 0
    reserve: int = 0
    environment_episodes: int = 0
    siblings_kept: int = 0
    siblings_to_run: int = 0
    seconds: float = 0.0
    skipped: tuple[SkippedSnapshot, ...] = ()
    warnings: tuple[str, ...] = ()


def read_recovery_sidecar(path: Path, kind: CheckpointKind) -> tuple[RolloutSnapshotManifest, RestoredSidecars]:
    """Verify and read what stands beside the data plane in a snapshot or a trainer checkpoint.

    Args:
        path: The folder.
        kind: What wrote it.

    Raises:
        RestoreCheckError: If a file is missing or damaged.
        ValueError: If the manifest, or what a file says, is not allowed.
    """
    return _read(path, kind, digests=True)


class RolloutRestorer(_UsesRolloutParts):
    """Takes a new run to where a snapshot was.

    Args:
        parts: The run's parts, new.
        new_id: Gives 32 hex digits, never the same twice, for new attempts.
    """

    def __init__(self, parts: RolloutParts, *, new_id: Callable[[], str] = lambda: uuid.uuid4().hex) -> None:
        super().__init__(parts)
        self._new_id = new_id

    async def restore(self, source: ResumeSource) -> RestoreReport:
        """Check, then apply.

        Raises:
            Exception: As `check` and `apply`.
        """
        return await self.apply(await self.check(source))

    async def check(self, source: ResumeSource) -> RestorePlan:
        """Read everything and compare it with this run; nothing is changed.

        Raises:
            RuntimeError: If the parts are in use already.
            RestoreCheckError: If the snapshot does not fit this run, or is damaged.
            PromptChangedError: If the prompt source has other prompts.
        """
        check_parts_are_new(self._parts)
        check_progress(source, self._progress)
        return await in_thread(self._check, source)

    async def apply(self, plan: RestorePlan) -> RestoreReport:
        """Restore every part; a cancellation waits until all of them are.

        Raises:
            RuntimeError: If the parts are in use already; nothing was changed.
            RestoreIncompleteError: If a part failed, from its error.
        """
        check_parts_are_new(self._parts)
        return await run_to_end(self._apply(plan))

    # ---- Checking ----

    def _check(self, source: ResumeSource) -> RestorePlan:
        started = self._clock.monotonic()
        if source.path is None or source.kind is None:
            return RestorePlan(source)
        manifest, saved = _read(source.path, source.kind, digests=not source.verified)
        check_manifest(source, manifest)
        check_counts(source.path, manifest, saved)
        check_partition(source.path, saved, self._partition_id)
        check_sampler(source.path, manifest, saved, self._sampler)
        check_sizes(source.path, saved, self._replay_index, restore_buffer=self._config.restore_buffer)
        plan = self._divided(source, saved, manifest)
        plan = self._with_prompts(plan, source.path)
        plan = self._with_episodes(plan, saved)
        return replace(plan, seconds=self._clock.monotonic() - started)

    def _divided(
        self, source: ResumeSource, saved: RestoredSidecars, manifest: RolloutSnapshotManifest
    ) -> RestorePlan:
        """Give each group to the index or to the ledger; what is in both is the index's."""
        indexed, recorded = tuple(saved.replay_groups or ()), tuple(saved.ledger_groups or ())
        canonical = {group.group_id for group in indexed}
        in_both = tuple(group.group_id for group in recorded if group.group_id in canonical)
        ledger_groups = [group for group in recorded if group.group_id not in canonical]
        anew = () if self._config.restore_buffer else indexed
        admission_id = saved.next_admission_id
        for group in anew:
            ledger_groups.append(self._to_generate_anew(group, admission_id, source.trainer_version))
            admission_id += 1
        return RestorePlan(
            source,
            manifest,
            saved,
            replay_groups=indexed if self._config.restore_buffer else (),
            generated_anew=anew,
            ledger_groups=tuple(ledger_groups),
            canonical_group_ids=in_both,
            next_admission_id=admission_id,
        )

    def _to_generate_anew(self, group: ReplayGroup, admission_id: int, trainer_version: int) -> PromptGroupRecoveryRecord:
        """Admitted as it was: the sampler's cursor, which is restored too, counts its batch already."""
        reserved = reserved_group(
            group.prompt,
            admission_id=admission_id,
            expected_generations=len(group.sample_ids),
            granularity=self._config.granularity_of(group.prompt.task_source),
            restore_level=self._config.target_level,
            new_id=self._new_id,
        )
        return replace(
            reserved,
            group_id=group.group_id,
            phase=PromptGroupPhase.ADMITTED,
            target_step=group.target_step,
            start_weight_version=trainer_version,
        )

    def _with_prompts(self, plan: RestorePlan, path: Path) -> RestorePlan:
        reserve = plan.saved.reserve if plan.saved else ()
        wanted = [*(group.prompt for group in plan.ledger_groups), *reserve]
        payloads = find_prompts(path, wanted, self._prompt_source)
        return replace(
            plan,
            ledger_groups=tuple(
                replace(group, runtime_prompt=payloads[group.prompt.digest]) for group in plan.ledger_groups
            ),
            reserve=tuple(
                (Prompt(saved.ref, payloads[saved.digest], saved.task_source), saved) for saved in reserve
            ),
        )

    def _with_episodes(self, plan: RestorePlan, saved: RestoredSidecars) -> RestorePlan:
        """Try ledger and index in new ones, with the episodes that the snapshot has and the ledger can go on with."""
        cut = DataPlaneMutationCut("recovery_restore")
        index = ReplayIndex(self._replay_index.capacity, self._replay_index.group_size)
        index.load(cut, plan.replay_groups)
        ledger = RolloutRecoveryLedger()
        ledger.load_groups(cut, plan.ledger_groups, plan.next_admission_id)
        active = set(ledger.active_episodes())
        episodes = tuple(episode for episode in saved.environment_episodes or () if episode in active)
        ledger.prepare_for_restart(cut, RestoredEnvironmentRollouts(episodes), self._new_id)
        return replace(plan, episodes=episodes)

    # ---- Applying ----

    async def _apply(self, plan: RestorePlan) -> RestoreReport:
        started = self._clock.monotonic()
        applied: list[str] = []
        async with self._barrier.mutation("recovery_restore") as cut:
            for name, step in self._steps(plan, cut):
                try:
                    await step()
                except Exception as error:
                    raise RestoreIncompleteError(tuple(applied), name) from error
                applied.append(name)
        report = self._report(plan, plan.seconds + self._clock.monotonic() - started)
        _log.info("restored %s", report)
        counts = {name: value for name, value in vars(report).items() if isinstance(value, int | float)}
        emit(
            self._metrics,
            op="rollout_restore",
            **{f"{METRIC_PREFIX}/{name}": value for name, value in counts.items()},
            **{f"{METRIC_PREFIX}/skipped_snapshots": len(report.skipped)},
        )
        return report

    def _steps(
        self, plan: RestorePlan, cut: DataPlaneMutationCut
    ) -> Sequence[tuple[str, Callable[[], Awaitable[None]]]]:
        async def data_plane() -> None:
            if plan.manifest and plan.saved and plan.saved.replay_groups is not None:
                if has_folder(plan.manifest, DATA_PLANE):
                    await in_thread(self._load_data_plane, plan, plan.saved.replay_groups)

        async def prompt_source() -> None:
            if plan.saved:
                self._prompt_source.load_state_dict(plan.saved.prompt_source_state)

        async def sampler() -> None:
            source, progress = plan.source, self._progress
            before = source.trainer_version - 1  # of a checkpoint that knows no cursor
            self._sampler.restore_dispatch_index(plan.manifest.sampler_dispatch_index if plan.manifest else before)
            progress.train_steps, progress.trainer_version = source.train_steps, source.trainer_version
            progress.current_epoch = source.current_epoch
            progress.notify()

        async def ledger() -> None:
            self._ledger.load_groups(cut, plan.ledger_groups, plan.next_admission_id)

        async def replay_index() -> None:
            self._replay_index.load(cut, plan.replay_groups)

        async def reserve() -> None:
            if plan.saved:
                self._runtime.replacement_reserve.extend(plan.reserve)
                self._runtime.batch_shortfall.update(plan.saved.batch_shortfall)
                self._runtime.sampler_stamps_target_steps = plan.saved.sampler_stamps_target_steps
                self._runtime.dropped.extend(plan.saved.dropped)

        async def environment() -> None:
            restored = RestoredEnvironmentRollouts()
            if plan.source.path and plan.episodes:
                restored = await self._environment.restore(plan.source.path / ENVIRONMENT, plan.episodes)
            self._ledger.prepare_for_restart(cut, restored, self._new_id)

        steps = (data_plane, prompt_source, sampler, ledger, replay_index, reserve, environment)
        return [(step.__name__, step) for step in steps]

    def _load_data_plane(self, plan: RestorePlan, saved_groups: Sequence[ReplayGroup]) -> None:
        plane, partition_id = self._data_plane, self._partition_id
        metadata = plane.load_checkpoint(Path(str(plan.source.path)) / DATA_PLANE)
        _check_metadata(metadata, plan, partition_id)
        validate_replay_inventory(plane.list_sample_ids(partition_id), saved_groups)
        if plan.generated_anew:
            rows = [sample_id for group in plan.generated_anew for sample_id in group.sample_ids]
            plane.clear_samples(rows, partition_id)
        for group in plan.replay_groups:
            for task_name in self._parts.consumer_tasks:
                self._release(group.sample_ids, task_name)

    def _release(self, sample_ids: Sequence[str], task_name: str) -> None:
        """Release what is claimed of a group: nobody holds a claim across a restart, whatever the plane saved."""
        try:
            self._data_plane.release_claims(sample_ids, self._partition_id, task_name)
        except ValueError:  # not all of it is claimed
            if len(sample_ids) > 1:
                for sample_id in sample_ids:
                    self._release([sample_id], task_name)

    def _report(self, plan: RestorePlan, seconds: float) -> RestoreReport:
        current = [sibling.current for group in self._ledger.groups for sibling in group.siblings]
        kept = sum(attempt.status is RolloutAttemptStatus.SEALED for attempt in current)
        return RestoreReport(
            path=plan.source.path,
            groups_from_buffer=len(plan.replay_groups),
            groups_generated_anew=len(plan.generated_anew),
            rolled_back_groups=plan.manifest.rolled_back_train_group_count if plan.manifest else 0,
            ledger_groups=len(plan.ledger_groups) - len(plan.generated_anew),
            canonical_groups=len(plan.canonical_group_ids),
            reserve=len(plan.reserve),
            environment_episodes=sum(attempt.environment_attempt > 0 for attempt in current),
            siblings_kept=kept,
            siblings_to_run=len(current) - kept,
            seconds=seconds,
            skipped=plan.source.skipped,
            warnings=plan.source.warnings,
        )


def _read(path: Path, kind: CheckpointKind, *, digests: bool) -> tuple[RolloutSnapshotManifest, RestoredSidecars]:
    manifest = read_manifest(path / manifest_name(kind))
    problems = verify_files(path, manifest, digests=digests)
    if problems:
        raise RestoreCheckError(path, "; ".join(problems), "take an older snapshot: this is damaged")
    return manifest, read_sidecars(path, manifest)


def _check_metadata(metadata: dict[str, Any], plan: RestorePlan, partition_id: str) -> None:
    """Compare what the data plane was saved with, with the files beside it."""
