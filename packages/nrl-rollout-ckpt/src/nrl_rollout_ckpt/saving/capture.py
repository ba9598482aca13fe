"""What a save takes out of a run: references under the cut, and everything that is computed from them after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Protocol

from nrl_interfaces.rollout import EnvironmentEpisode
from nrl_interfaces.values import copied

from nrl_rollout_ckpt.disk.manifest import RolloutSnapshotManifest, SnapshotCounts
from nrl_rollout_ckpt.state.barrier import DataPlaneMutationCut
from nrl_rollout_ckpt.state.inventory import validate_replay_inventory
from nrl_rollout_ckpt.state.ledger_checks import LedgerError, require_settled
from nrl_rollout_ckpt.state.ledger_moves import keeps_episodes
from nrl_rollout_ckpt.state.records import PromptGroupRecoveryRecord, ReplayGroup
from nrl_rollout_ckpt.state.replay_index import combined
from nrl_rollout_ckpt.state.rollout_state import CapturedRolloutState, CheckpointKind, RolloutParts

_SCHEMA_VERSION: Final = 1


class TeacherCoordinator(Protocol):
    """Knows which teachers tagged the rows of a distillation run."""

    def state(self) -> Sequence[Any]:
        """Give one plain value a teacher; it is kept in the data plane's metadata."""
        ...


class OpenTrainStepError(RuntimeError):
    """Raised when a trainer checkpoint is to be saved while a train step holds groups; nothing was written.

    Attributes:
        group_ids: The groups.
    """

    def __init__(self, group_ids: tuple[str, ...]) -> None:
        super().__init__(group_ids)
        self.group_ids = group_ids

    def __str__(self) -> str:
        return (
            f"a train step holds {len(self.group_ids)} groups, {', '.join(self.group_ids[:10])}: a trainer checkpoint "
            "is saved between steps only, so finish the step or put the groups back first"
        )


class UnsettledGroupsError(OSError):
    """Raised when the data plane has not said whether a group's rows are in it; nothing was written.

    The loop that commits the group asks again, so a later attempt may succeed.

    Attributes:
        groups: Which, and what is to be done.
    """

    def __init__(self, groups: str) -> None:
        super().__init__(groups)
        self.groups = groups

    def __str__(self) -> str:
        return self.groups


@dataclass(frozen=True)
class ReplayMetadata:
    """What binds the rows in the data plane to the replay index beside it.

    Attributes:
        manifest_digest: SHA-256 of the index's groups.
        group_count: How many.
    """

    manifest_digest: str
    group_count: int


class Identity(NamedTuple):
    """Which trainer state a snapshot belongs to.

    Attributes:
        train_steps: Of `TrainingProgress`.
        trainer_version: Of `TrainingProgress`.
    """

    train_steps: int
    trainer_version: int

    @classmethod
    def now(cls, parts: RolloutParts) -> Identity:
        """The one at this moment."""
        return cls(parts.progress.train_steps, parts.progress.trainer_version)


# ---- Under the cut: no await, no bytes ----


def take_references(
    parts: RolloutParts,
    cut: DataPlaneMutationCut,
    kind: CheckpointKind,
    *,
    records_prompt_groups: bool,
    teacher: TeacherCoordinator | None = None,
) -> CapturedRolloutState:
    """Take everything but the rows, at one moment.

    Args:
        parts: The run.
        cut: The exclusive cut.
        kind: What it is for.
        records_prompt_groups: Whether the ledger is used; a snapshot keeps it anyway.
        teacher: Knows which teachers tagged the rows.

    Raises:
        ExpiredCutError: If the section has ended.
        OpenTrainStepError: If a train step holds groups that a trainer checkpoint would lose.
        UnsettledGroupsError: If it is not known whether a group's rows are in the data plane.
        RuntimeError: If the cut is not exclusive.
        ValueError: If a group or a row is in the index and in a train step.
    """
    cut.require_live()
    if not cut.is_exclusive:
        raise RuntimeError(f"a capture inside a section {cut.section!r}; allowed: `barrier.checkpoint()`")
    is_snapshot = kind is CheckpointKind.ROLLOUT_SNAPSHOT
    index = parts.replay_index
    claimed = index.training_owned_replay_groups()
    if claimed and not is_snapshot:
        raise OpenTrainStepError(tuple(group.group_id for group in claimed))
    keeps_index = is_snapshot or parts.sampler.supports_buffer_checkpoint
    keeps_ledger = is_snapshot or records_prompt_groups
    replay_groups = combined(index.groups, claimed) if keeps_index else None
    return CapturedRolloutState(
        kind=kind,
        train_steps=parts.progress.train_steps,
        trainer_version=parts.progress.trainer_version,
        current_epoch=parts.progress.current_epoch,
        partition_id=parts.partition_id,
        prompt_source_state=copied(parts.prompt_source.state_dict()),
        sampler_name=parts.sampler.name,
        sampler_dispatch_index=parts.sampler.dispatch_index,
        sampler_stamps_target_steps=parts.runtime.sampler_stamps_target_steps,
        batch_shortfall=dict(parts.runtime.batch_shortfall),
        dropped=tuple(parts.runtime.dropped),
        recent_prompts=tuple(parts.runtime.recent_prompts),
        reserve=tuple(saved for _, saved in parts.runtime.replacement_reserve),
        replay_groups=replay_groups,
        replay_capacity=index.capacity,
        ledger_groups=_not_canonical(parts.ledger.groups, replay_groups or ()) if keeps_ledger else None,
        next_admission_id=parts.ledger.next_admission_id,
        rolled_back_group_ids=tuple(group.group_id for group in claimed),
        mutation_version=parts.barrier.mutation_version,
        teacher_states=None if teacher is None else tuple(copied(list(teacher.state()))),
    )


def _not_canonical(
    groups: tuple[PromptGroupRecoveryRecord, ...], replay_groups: Iterable[ReplayGroup]
) -> tuple[PromptGroupRecoveryRecord, ...]:
    """Leave out groups that the index owns already: an owner more would train them twice."""
    canonical = {group.group_id for group in replay_groups}
    kept = tuple(group for group in groups if group.group_id not in canonical)
    try:
        require_settled(kept)
    except LedgerError as error:
        raise UnsettledGroupsError(str(error)) from error
    return kept


# ---- After the cut, in a thread ----


def check_captured(captured: CapturedRolloutState) -> None:
    """Compare the rows in the data plane with the index.

    Raises:
        InventoryError: If a row is missing or belongs to no group.
    """
    if captured.sample_ids is not None and captured.replay_groups is not None:
        validate_replay_inventory(captured.sample_ids, captured.replay_groups)


def with_episodes(
    captured: CapturedRolloutState,
    exported: Sequence[EnvironmentEpisode],
    has_had_attempt: Callable[[str], bool],
) -> CapturedRolloutState:
    """Add the episodes in the environment's files that the ledger still owns.

    One that sealed or was given up before the cut, of which the environment was not told before it paused, has another
    owner, or none, and is left out. An environment that has not been told of a new attempt yet knows the episode under
    the attempt before.

    Args:
        captured: The state at the cut.
        exported: The episodes in the files.
        has_had_attempt: Whether the ledger knows an attempt, or knew it, by its rollout id.

    Raises:
        RuntimeError: If an exported episode is of no attempt that ever was.
    """
    at_cut = captured.ledger_groups or ()
    active = (episode for group in at_cut for episode in keeps_episodes(group).values())
    attempts = {(episode.instance_id, episode.rollout_id): episode.attempt for episode in active}
    owned: list[EnvironmentEpisode] = []
    others: list[EnvironmentEpisode] = []
    for episode in exported:
        attempt = attempts.get((episode.instance_id, episode.rollout_id))
        is_owned = attempt is not None and attempt - episode.attempt in (0, 1)
        (owned if is_owned else others).append(episode)
    foreign = [episode for episode in others if not has_had_attempt(episode.rollout_id)]
    if foreign:
        raise RuntimeError(
            f"the environment saved {len(foreign)} episodes of no attempt that the ledger knows, {foreign[0]} first: "
            "open episodes with the ids of the ledger's attempts only"
        )
    return replace(captured, environment_episodes=tuple(sorted(owned)))


def plane_metadata(
    captured_at: Identity,
    epoch: int,
    *,
    partition_id: str,
    sampler_name: str,
    replay: ReplayMetadata | None,
    recovery_sha256: str | None,
    recovery_group_count: int | None,
    teacher_states: Sequence[Any] | None,
) -> dict[str, Any]:
    """Say in the data plane's own checkpoint what its rows belong to.

    Raises:
        ValueError: If only one of the recovery's digest and count is given.
    """
    if (recovery_sha256 is None) != (recovery_group_count is None):
        raise ValueError(
            f"the recovery has digest {recovery_sha256!r} and count {recovery_group_count!r}; allowed: both, or neither"
        )
    metadata: dict[str, Any] = {
        "data_plane_checkpoint_schema_version": _SCHEMA_VERSION,
        "single_controller_train_steps": captured_at.train_steps,
        "single_controller_trainer_version": captured_at.trainer_version,
        "single_controller_epoch": epoch,
        "partition_id": partition_id,
        "sampler_name": sampler_name,
        "mode": "shadow" if replay is None else "authoritative",
    }
    if replay is not None:
        metadata["replay_metadata_schema_version"] = _SCHEMA_VERSION
        metadata["replay_manifest_digest"] = replay.manifest_digest
        metadata["replay_group_count"] = replay.group_count
    if recovery_sha256 is not None:
        metadata["rollout_recovery_schema_version"] = _SCHEMA_VERSION
        metadata["rollout_recovery_payload_sha256"] = recovery_sha256
        metadata["rollout_recovery_group_count"] = recovery_group_count
    if teacher_states is not None:
        metadata["teacher_checkpoints"] = list(teacher_states)
    return metadata


def manifest_of(
    captured: CapturedRolloutState, *, created: float, fingerprint: str | None = None, anchor_digest: str | None = None
) -> RolloutSnapshotManifest:
    """Describe a captured state; the files are added once they are written.

    Args:
        captured: The state.
        created: Seconds since the epoch.
        fingerprint: The run's, before its first trainer checkpoint; else None.
        anchor_digest: For a snapshot, of the trainer checkpoint that it belongs to.
    """
    return RolloutSnapshotManifest(
        kind=captured.kind,
        created=created,
        base_train_step=captured.train_steps,
        trainer_version=captured.trainer_version,
        current_epoch=captured.current_epoch,
        sampler_name=captured.sampler_name,
        sampler_dispatch_index=captured.sampler_dispatch_index,
        mutation_version=captured.mutation_version,
        rolled_back_train_group_count=len(captured.rolled_back_group_ids),
        bootstrap_fingerprint=fingerprint,
        anchor_digest=anchor_digest,
        counts=SnapshotCounts(
            replay_groups=len(captured.replay_groups or ()),
            ledger_groups=len(captured.ledger_groups or ()),
            reserve=len(captured.reserve),
            rows=len(captured.sample_ids or ()),
            environment_episodes=len(captured.environment_episodes or ()),
        ),
    )
