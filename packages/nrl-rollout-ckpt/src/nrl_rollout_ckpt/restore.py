"""Restoring: all checks first, which change nothing; then every part in one section of the barrier."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from nrl_interfaces.metrics import emit
from nrl_interfaces.rollout import LiveCut

from nrl_rollout_ckpt.disk.layout import ENVIRONMENT
from nrl_rollout_ckpt.restore_checks import (
    PromptChangedError,
    RestoreCheckError,
    check_parts_are_new,
    check_progress,
)
from nrl_rollout_ckpt.restore_plan import RestorePlan, make_plan, read_recovery_sidecar
from nrl_rollout_ckpt.state.completion import awaited, in_thread, run_to_end
from nrl_rollout_ckpt.state.inventory import validate_replay_inventory
from nrl_rollout_ckpt.state.ledger_states import RolloutAttemptStatus
from nrl_rollout_ckpt.state.rollout_state import (
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

        Each snapshot that was passed over, and what is lost by that, is a warning in the log.

        Raises:
            RuntimeError: If the parts are in use already.
            RestoreCheckError: If the snapshot does not fit this run, or is damaged.
            PromptChangedError: If the prompt source has other prompts.
        """
        _warn_of_what_is_passed_over(source)
        check_parts_are_new(self._parts)
        check_progress(source, self._progress)
        started = self._clock.monotonic()
        plan = await in_thread(make_plan, self._parts, source, self._new_id)
        return replace(plan, seconds=self._clock.monotonic() - started)

    async def apply(self, plan: RestorePlan) -> RestoreReport:
        """Restore every part; a cancellation waits until all of them are.

        Raises:
            RuntimeError: If the parts are in use already; nothing was changed.
            RestoreIncompleteError: If a part failed, from its error.
        """
        check_parts_are_new(self._parts)
        return await run_to_end(self._apply(plan))

    async def _apply(self, plan: RestorePlan) -> RestoreReport:
        started = self._clock.monotonic()
        steps = {
            "data plane": self._restore_data_plane,
            "prompt source": self._restore_prompt_source,
            "sampler": self._restore_sampler,
            "ledger": self._restore_ledger,
            "replay index": self._restore_replay_index,
            "reserve": self._restore_runtime_state,
            "environment": self._restore_environment,
        }
        applied: list[str] = []
        async with self._barrier.mutation("recovery_restore") as cut:
            for name, step in steps.items():
                try:
                    await awaited(step(plan, cut))
                except Exception as error:
                    raise RestoreIncompleteError(tuple(applied), name) from error
                applied.append(name)
        report = self._report(plan, plan.seconds + self._clock.monotonic() - started)
        self._tell(report)
        return report

    async def _restore_data_plane(self, plan: RestorePlan, cut: LiveCut) -> None:
        cut.require_live()
        if plan.rows_path is not None:
            await in_thread(self._load_rows, plan, plan.rows_path)

    def _load_rows(self, plan: RestorePlan, path: Path) -> None:
        plane, partition_id = self._data_plane, self._partition_id
        _check_metadata(plane.load_checkpoint(path), plan, partition_id)
        validate_replay_inventory(plane.list_sample_ids(partition_id), (*plan.replay_groups, *plan.generated_anew))
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

    def _restore_prompt_source(self, plan: RestorePlan, cut: LiveCut) -> None:
        cut.require_live()
        if plan.saved:
            self._prompt_source.load_state_dict(plan.saved.prompt_source_state)

    def _restore_sampler(self, plan: RestorePlan, cut: LiveCut) -> None:
        cut.require_live()
        source, progress = plan.source, self._progress
        before = source.trainer_version - 1  # of a checkpoint that knows no cursor
        self._sampler.restore_dispatch_index(plan.manifest.sampler_dispatch_index if plan.manifest else before)
        progress.train_steps, progress.trainer_version = source.train_steps, source.trainer_version
        progress.current_epoch = source.current_epoch
        progress.notify()

    def _restore_ledger(self, plan: RestorePlan, cut: LiveCut) -> None:
        self._ledger.load_groups(cut, plan.ledger_groups, plan.next_admission_id)

    def _restore_replay_index(self, plan: RestorePlan, cut: LiveCut) -> None:
        self._replay_index.load(cut, plan.replay_groups)

    def _restore_runtime_state(self, plan: RestorePlan, cut: LiveCut) -> None:
        cut.require_live()
        if plan.saved:
            self._runtime.replacement_reserve.extend(plan.reserve)
            self._runtime.batch_shortfall.update(plan.saved.batch_shortfall)
            self._runtime.sampler_stamps_target_steps = plan.saved.sampler_stamps_target_steps
            self._runtime.dropped.extend(plan.saved.dropped)
            self._runtime.recent_prompts.extend(plan.saved.recent_prompts)

    async def _restore_environment(self, plan: RestorePlan, cut: LiveCut) -> None:
        """Take up the episodes, and have the ledger begin anew those that the environment does not go on with."""
        if plan.source.path is None or not plan.episodes:
            return
        restored = await self._environment.restore(plan.source.path / ENVIRONMENT, plan.episodes)
        if set(restored.episodes) != set(plan.episodes):
            self._ledger.prepare_for_restart(cut, restored, self._new_id)

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

    def _tell(self, report: RestoreReport) -> None:
        _log.info("restored %s", replace(report, skipped=(), warnings=()))  # each of these has its own line
        counts = {name: value for name, value in vars(report).items() if isinstance(value, int | float)}
        counts["skipped_snapshots"] = len(report.skipped)
        emit(
            self._metrics, op="rollout_restore", **{f"{METRIC_PREFIX}/{name}": count for name, count in counts.items()}
        )


def _warn_of_what_is_passed_over(source: ResumeSource) -> None:
    passed_over = (f"passed over {item.path}: {item.reason}" for item in source.skipped)
    for text in (*passed_over, *source.warnings):
        _log.warning("%s", " ".join(text.split()))  # an error within may have several lines


def _check_metadata(metadata: dict[str, Any], plan: RestorePlan, partition_id: str) -> None:
    """Compare what the data plane was saved with, with the files beside it."""
    assert plan.manifest is not None  # noqa: S101 - a plane is loaded of a snapshot only
    assert plan.saved is not None  # noqa: S101
    wanted = {
        "single_controller_train_steps": plan.manifest.base_train_step,
        "single_controller_trainer_version": plan.manifest.trainer_version,
        "partition_id": partition_id,
        "sampler_name": plan.manifest.sampler_name,
        "mode": "authoritative",
        "replay_manifest_digest": plan.saved.replay_digest,
        "replay_group_count": plan.manifest.counts.replay_groups,
        "rollout_recovery_payload_sha256": plan.saved.recovery_sha256,
    }
    differing = [name for name, value in wanted.items() if metadata.get(name) != value]
    if differing:
        told = ", ".join(f"{name} {metadata.get(name)!r} and not {wanted[name]!r}" for name in differing)
        raise ValueError(f"the data plane was saved with {told}: it is of another snapshot than the files beside it")
