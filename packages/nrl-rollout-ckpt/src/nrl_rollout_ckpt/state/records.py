"""What the ledger and the replay index hold: frozen records, which transitions replace."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nrl_interfaces.rollout import EnvironmentEpisode, PromptRef

from nrl_rollout_ckpt.state.ledger_states import (
    PromptGroupPhase,
    PromptGroupStatus,
    RecoveryGranularity,
    RecoveryTargetLevel,
    RolloutAttemptStatus,
)

if TYPE_CHECKING:
    from nrl_rollout_ckpt.state.payloads import StoredValue


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as it comes from its source.

    Attributes:
        ref: Where it comes from.
        payload: The prompt itself: what generation needs.
        task_source: A name by which a recovery granularity may be chosen.
    """

    ref: PromptRef
    payload: Any
    task_source: str | None = None


@dataclass(frozen=True, slots=True)
class SavedPrompt:
    """A prompt as a snapshot keeps it.

    Attributes:
        ref: Where it comes from.
        digest: SHA-256 of its content, so that a source that was reordered is noticed.
        stored: The prompt itself, where its source has no ``resolve``; else None.
        task_source: Of `Prompt`.
    """

    ref: PromptRef
    digest: str
    stored: StoredValue | None = None
    task_source: str | None = None


@dataclass(frozen=True, slots=True)
class RolloutAttemptRecord:
    """One physical execution of a sibling.

    Attributes:
        attempt_uuid: 32 hex digits, once over the whole ledger.
        status: How far it is.
        result: What the sealed generation is (tokens, log-probabilities...); None unless it is SEALED.
        reward: Its reward; None unless it is SEALED.
        mask_sample: Whether training leaves it out; None unless it is SEALED.
        environment_instance_id: The environment instance that runs it; None where none does.
        environment_attempt: How often the environment took it up again.
    """

    attempt_uuid: str
    status: RolloutAttemptStatus = RolloutAttemptStatus.RESERVED
    result: StoredValue | None = None
    reward: float | None = None
    mask_sample: bool | None = None
    environment_instance_id: str | None = None
    environment_attempt: int = 0


@dataclass(frozen=True, slots=True)
class RolloutSiblingRecord:
    """One generation slot of a group.

    Attributes:
        generation_index: Its place, from 0.
        attempts: All attempts; the last one is the current one.
    """

    generation_index: int
    attempts: tuple[RolloutAttemptRecord, ...]

    @property
    def current(self) -> RolloutAttemptRecord:
        """The attempt that counts."""
        return self.attempts[-1]


@dataclass(frozen=True, slots=True)
class PromptGroupRecoveryRecord:
    """The owner of a prompt that has left its source and is not in the data plane yet.

    Attributes:
        group_id: Its id; fixed before dispatch, kept over retries.
        admission_id: The number of the batch that it was reserved with; groups of one agree in phase and target step.
        prompt: The prompt, as it is saved.
        recovery_granularity: What is kept when it is not complete.
        restore_level: Where a restart goes on.
        expected_generations: How many siblings.
        start_weight_version: The trainer version at admission; None while RESERVED.
        target_step: The train step that it is stamped for, where the sampler stamps.
        siblings: One each generation index.
        phase: Whether its batch is admitted.
        status: How far its generations are.
        runtime_prompt: The prompt object itself, by reference, never saved; None until it was resolved again.
    """

    group_id: str
    admission_id: int
    prompt: SavedPrompt
    recovery_granularity: RecoveryGranularity
    restore_level: RecoveryTargetLevel
    expected_generations: int
    siblings: tuple[RolloutSiblingRecord, ...]
    start_weight_version: int | None = None
    target_step: int | None = None
    phase: PromptGroupPhase = PromptGroupPhase.RESERVED
    status: PromptGroupStatus = PromptGroupStatus.GENERATING
    runtime_prompt: Any = field(default=None, compare=False, repr=False)

    def sample_id(self, generation_index: int) -> str:
        """The id of a sibling, which is its row's id too: ``<group_id>_g<i>``."""
        return f"{self.group_id}_g{generation_index}"

    def sample_ids(self) -> list[str]:
        """The ids of all siblings."""
        return [self.sample_id(at) for at in range(self.expected_generations)]

    def rollout_id(self, generation_index: int) -> str:
        """The id of a sibling's current attempt: ``<sibling>_a<uuid>``."""
        return f"{self.sample_id(generation_index)}_a{self.siblings[generation_index].current.attempt_uuid}"

    def episode(self, generation_index: int) -> EnvironmentEpisode | None:
        """The current attempt as the environment knows it; None where no environment runs it."""
        current = self.siblings[generation_index].current
        if current.environment_instance_id is None:
            return None
        return EnvironmentEpisode(
            current.environment_instance_id, self.rollout_id(generation_index), current.environment_attempt
        )


@dataclass(frozen=True, slots=True)
class SiblingSealResult:
    """What a generation that has ended brings.

    Attributes:
        result: The generation (JSON values and dense tensors), saved with the ledger until the group is complete.
        reward: Its reward, a finite number.
        mask_sample: Whether training leaves it out.
        rollout_id: The attempt that it is of, so that a late result of a former one is refused; None: the current one.
    """

    result: Any
    reward: float
    mask_sample: bool = False
    rollout_id: str | None = None


@dataclass(frozen=True, slots=True)
class ReplayGroup:
    """A complete group: its rows are in the data plane, no train step has consumed them.

    Attributes:
        group_id: Its id.
        sample_ids: Its rows' ids, in order of generation.
        start_weight: The trainer version whose weights began its generations.
        end_weight: The one whose weights ended the last of them.
        target_step: The train step that it is stamped for, where the sampler stamps.
        prompt: Its prompt, so that it can be generated anew where its rows are not restored.
    """

    group_id: str
    sample_ids: tuple[str, ...]
    start_weight: int
    end_weight: int
    prompt: SavedPrompt
    target_step: int | None = None
