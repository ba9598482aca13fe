"""The state machines of the ledger: a prompt group's phase and status, and a sibling's attempt."""

from enum import StrEnum

from nrl_rollout_ckpt.state.transition_table import TransitionTable


class RecoveryGranularity(StrEnum):
    """What is kept of a group that was not complete: each sealed sibling, or nothing."""

    SIBLING = "sibling"
    PROMPT_GROUP = "prompt_group"


class RecoveryTargetLevel(StrEnum):
    """Where a restart goes on: within an episode at its last saved turn, at a sibling, or at the prompt."""

    TURN = "turn"
    SIBLING = "sibling"
    PROMPT_GROUP = "prompt_group"


class PromptGroupPhase(StrEnum):
    """Whether the sampler has admitted the group's batch."""

    RESERVED = "reserved"
    ADMITTED = "admitted"


class PromptGroupPhaseEvent(StrEnum):
    """What moves a phase."""

    ADMIT = "admit"


GROUP_PHASES = TransitionTable(
    "the phase of a prompt group",
    PromptGroupPhase.RESERVED,
    {(PromptGroupPhase.RESERVED, PromptGroupPhaseEvent.ADMIT): PromptGroupPhase.ADMITTED},
)


class PromptGroupStatus(StrEnum):
    """How far the generations of a group are."""

    GENERATING = "generating"
    READY_TO_FINALIZE = "ready_to_finalize"
    FINALIZING = "finalizing"
    FINALIZATION_UNKNOWN = "finalization_unknown"


class PromptGroupEvent(StrEnum):
    """What moves a status, or is allowed in some of them only."""

    DISPATCH = "dispatch"
    SEAL = "seal"
    ALL_SEALED = "all_sealed"
    ABANDON_UNSEALED = "abandon_unsealed"
    RETRY = "retry"
    FINALIZE = "finalize"
    FINALIZE_FAILED = "finalize_failed"
    FINALIZE_UNANSWERED = "finalize_unanswered"


_STATUS, _EVENT = PromptGroupStatus, PromptGroupEvent
GROUP_STATUSES = TransitionTable(
    "the status of a prompt group",
    PromptGroupStatus.GENERATING,
    {
        (_STATUS.GENERATING, _EVENT.DISPATCH): _STATUS.GENERATING,
        (_STATUS.GENERATING, _EVENT.SEAL): _STATUS.GENERATING,
        (_STATUS.GENERATING, _EVENT.ALL_SEALED): _STATUS.READY_TO_FINALIZE,
        (_STATUS.GENERATING, _EVENT.ABANDON_UNSEALED): _STATUS.GENERATING,
        (_STATUS.GENERATING, _EVENT.RETRY): _STATUS.GENERATING,
        (_STATUS.READY_TO_FINALIZE, _EVENT.ABANDON_UNSEALED): _STATUS.READY_TO_FINALIZE,
        (_STATUS.READY_TO_FINALIZE, _EVENT.FINALIZE): _STATUS.FINALIZING,
        (_STATUS.FINALIZING, _EVENT.FINALIZE_FAILED): _STATUS.READY_TO_FINALIZE,
        (_STATUS.FINALIZING, _EVENT.FINALIZE_UNANSWERED): _STATUS.FINALIZATION_UNKNOWN,
        (_STATUS.FINALIZATION_UNKNOWN, _EVENT.FINALIZE): _STATUS.FINALIZING,  # again, after a look at the rows
    },
)


class RolloutAttemptStatus(StrEnum):
    """How far one attempt at a sibling is."""

    RESERVED = "reserved"
    DISPATCHED = "dispatched"
    SEALED = "sealed"
    FAILED = "failed"
    ABANDONED = "abandoned"


class RolloutAttemptEvent(StrEnum):
    """What moves an attempt."""

    DISPATCH = "dispatch"
    SEAL = "seal"
    FAIL = "fail"
    ABANDON = "abandon"
    TAKE_UP_AGAIN = "take_up_again"


_ATTEMPT, _MOVE = RolloutAttemptStatus, RolloutAttemptEvent
ATTEMPTS = TransitionTable(
    "an attempt",
    RolloutAttemptStatus.RESERVED,
    {
        (_ATTEMPT.RESERVED, _MOVE.DISPATCH): _ATTEMPT.DISPATCHED,
        (_ATTEMPT.RESERVED, _MOVE.ABANDON): _ATTEMPT.ABANDONED,
        (_ATTEMPT.RESERVED, _MOVE.TAKE_UP_AGAIN): _ATTEMPT.RESERVED,
        (_ATTEMPT.DISPATCHED, _MOVE.SEAL): _ATTEMPT.SEALED,
        (_ATTEMPT.DISPATCHED, _MOVE.FAIL): _ATTEMPT.FAILED,
        (_ATTEMPT.DISPATCHED, _MOVE.ABANDON): _ATTEMPT.ABANDONED,
        (_ATTEMPT.DISPATCHED, _MOVE.TAKE_UP_AGAIN): _ATTEMPT.RESERVED,
        (_ATTEMPT.SEALED, _MOVE.ABANDON): _ATTEMPT.ABANDONED,
        (_ATTEMPT.FAILED, _MOVE.ABANDON): _ATTEMPT.ABANDONED,
    },
)
