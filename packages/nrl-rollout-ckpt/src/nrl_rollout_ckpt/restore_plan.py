"""What a restore will do, read and tried before anything is changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from nrl_interfaces.rollout import EnvironmentEpisode, RestoredEnvironmentRollouts

from nrl_rollout_ckpt.disk.layout import DATA_PLANE
from nrl_rollout_ckpt.disk.manifest import RolloutSnapshotManifest, manifest_name, read_manifest, verify_files
from nrl_rollout_ckpt.disk.sidecars import RestoredSidecars, read_sidecars
from nrl_rollout_ckpt.restore_checks import (
    RestoreCheckError,
    check_counts,
    check_manifest,
    check_partition,
    check_sampler,
    check_sizes,
    check_unneeded_prompts,
    find_prompts,
    has_folder,
)
from nrl_rollout_ckpt.state.barrier import DataPlaneMutationCut
from nrl_rollout_ckpt.state.ledger import RolloutRecoveryLedger, reserved_group
from nrl_rollout_ckpt.state.ledger_states import PromptGroupPhase
from nrl_rollout_ckpt.state.records import Prompt, PromptGroupRecoveryRecord, ReplayGroup, SavedPrompt
from nrl_rollout_ckpt.state.replay_index import ReplayIndex
from nrl_rollout_ckpt.state.rollout_state import CheckpointKind, ResumeSource, RolloutParts


@dataclass(frozen=True)
class RestorePlan:
    """What `RolloutRestorer.check` has read and found to fit.

    Attributes:
        source: What is restored.
        manifest: Its manifest; None where there is no rollout state.
        saved: All that was read; None likewise.
        replay_groups: The groups for the replay index.
        generated_anew: Complete groups that are not restored, since `restore_buffer` is False.
        ledger_groups: The groups for the ledger, `generated_anew` among them, each with its prompt; prepared for a
            restart that goes on with all of `episodes`.
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

    @property
    def rows_path(self) -> Path | None:
        """Where the rows of the index are; None where none were saved, or none that an index knows."""
        if self.source.path is None or self.manifest is None or self.saved is None or self.saved.replay_groups is None:
            return None
        return self.source.path / DATA_PLANE if has_folder(self.manifest, DATA_PLANE) else None


def read_recovery_sidecar(
    path: Path, kind: CheckpointKind, *, digests: bool = True
) -> tuple[RolloutSnapshotManifest, RestoredSidecars]:
    """Verify and read what stands beside the data plane in a snapshot or a trainer checkpoint.

    Args:
        path: The folder.
        kind: What wrote it.
        digests: Whether every file is compared with its digest; False compares the sizes.

    Raises:
        RestoreCheckError: If a file is missing or damaged.
        ValueError: If the manifest, or what a file says, is not allowed.
        OSError: If a file can't be read.
    """
    manifest = read_manifest(path / manifest_name(kind))
    problems = verify_files(path, manifest, digests=digests)
    if problems:
        raise RestoreCheckError(path, "; ".join(problems), "take an older snapshot: this one is damaged")
    return manifest, read_sidecars(path, manifest)


def make_plan(parts: RolloutParts, source: ResumeSource, new_id: Callable[[], str]) -> RestorePlan:
    """Read a snapshot and compare it with a run; may run in a thread, and changes nothing.

    Args:
        parts: The run's parts.
        source: The snapshot.
        new_id: Gives 32 hex digits, never the same twice.

    Raises:
        RestoreCheckError: If it does not fit, or is damaged.
        PromptChangedError: If the prompt source has other prompts.
        ValueError, RuntimeError, OSError: If a file can't be read, or holds what can't be.
    """
    if source.path is None or source.kind is None:
        return RestorePlan(source)
    manifest, saved = read_recovery_sidecar(source.path, source.kind, digests=not source.verified)
    check_manifest(source, manifest)
    check_counts(source.path, manifest, saved)
    check_partition(source.path, saved, parts.partition_id)
    check_sampler(source.path, manifest, saved, parts.sampler)
    check_sizes(source.path, saved, parts.replay_index, restore_buffer=parts.config.restore_buffer)
    plan = _divided(RestorePlan(source, manifest, saved), saved, parts, new_id)
    return _tried(_with_prompts(plan, saved, source.path, parts), saved, parts, new_id)


def _divided(plan: RestorePlan, saved: RestoredSidecars, parts: RolloutParts, new_id: Callable[[], str]) -> RestorePlan:
    """Give each group to the index or to the ledger; what is in both is the index's."""
    indexed, recorded = tuple(saved.replay_groups or ()), tuple(saved.ledger_groups or ())
    canonical = {group.group_id for group in indexed}
    anew = () if parts.config.restore_buffer else indexed
    first = saved.next_admission_id
    version = plan.source.trainer_version
    to_generate = (_to_generate(group, first + at, version, parts, new_id) for at, group in enumerate(anew))
    return replace(
        plan,
        replay_groups=indexed if parts.config.restore_buffer else (),
        generated_anew=anew,
        ledger_groups=(*(group for group in recorded if group.group_id not in canonical), *to_generate),
        canonical_group_ids=tuple(group.group_id for group in recorded if group.group_id in canonical),
        next_admission_id=first + len(anew),
    )


def _to_generate(
    group: ReplayGroup, admission_id: int, trainer_version: int, parts: RolloutParts, new_id: Callable[[], str]
) -> PromptGroupRecoveryRecord:
    """Admitted, for the step that it was for: the sampler's cursor, which is restored too, counts its batch already."""
    reserved = reserved_group(
        group.prompt,
        admission_id=admission_id,
        expected_generations=len(group.sample_ids),
        granularity=parts.config.granularity_of(group.prompt.task_source),
        restore_level=parts.config.target_level,
        new_id=new_id,
    )
    return replace(
        reserved,
        group_id=group.group_id,
        phase=PromptGroupPhase.ADMITTED,
        target_step=group.target_step,
        start_weight_version=trainer_version,
    )


def _with_prompts(plan: RestorePlan, saved: RestoredSidecars, path: Path, parts: RolloutParts) -> RestorePlan:
    wanted = [*(group.prompt for group in plan.ledger_groups), *saved.reserve]
    found = find_prompts(path, wanted, parts.prompt_source)
    finished = (group.prompt for group in plan.replay_groups)
    check_unneeded_prompts((*finished, *saved.recent_prompts), parts.prompt_source)
    groups = (replace(group, runtime_prompt=found[group.prompt.digest]) for group in plan.ledger_groups)
    reserve = ((Prompt(spare.ref, found[spare.digest], spare.task_source), spare) for spare in saved.reserve)
    return replace(plan, ledger_groups=tuple(groups), reserve=tuple(reserve))


def _tried(plan: RestorePlan, saved: RestoredSidecars, parts: RolloutParts, new_id: Callable[[], str]) -> RestorePlan:
    """Load the groups into an index and a ledger of its own, with the episodes that both sides can go on with."""
    cut = DataPlaneMutationCut("recovery_restore")
    index = ReplayIndex(parts.replay_index.capacity, parts.replay_index.group_size)
    index.load(cut, plan.replay_groups)
    ledger = RolloutRecoveryLedger()
    ledger.load_groups(cut, plan.ledger_groups, plan.next_admission_id)
    owned = {_key(episode) for episode in ledger.active_episodes()}
    episodes = tuple(episode for episode in saved.environment_episodes or () if _key(episode) in owned)
    ledger.prepare_for_restart(cut, RestoredEnvironmentRollouts(episodes), new_id)
    return replace(plan, ledger_groups=ledger.groups, episodes=episodes)


def _key(episode: EnvironmentEpisode) -> tuple[str, str]:
    return episode.instance_id, episode.rollout_id
