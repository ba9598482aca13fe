"""The state machines of saving: a snapshot attempt, the optimizer-commit window, and the environment phase."""

from enum import StrEnum

from nrl_rollout_ckpt.state.transition_table import TransitionTable

# ---- One attempt at a snapshot ----


class AttemptState(StrEnum):
    """How far an attempt is; the last three are ends."""

    WAITING_FOR_LOCK = "waiting_for_lock"
    CHECKING = "checking"
    ENTERING_ENVIRONMENT = "entering_environment"
    CUTTING = "cutting"
    PUBLISHING = "publishing"
    COMPLETED = "completed"
    SKIPPED = "skipped"
    FAILED = "failed"


class AttemptEvent(StrEnum):
    """What moves an attempt."""

    LOCKED = "locked"
    ANCHORED = "anchored"
    ENTERED = "entered"
    CAPTURED = "captured"
    PUBLISHED = "published"
    SKIP = "skip"
    FAIL = "fail"


_STATE, _EVENT = AttemptState, AttemptEvent
_MAY_SKIP = (_STATE.CHECKING, _STATE.ENTERING_ENVIRONMENT, _STATE.CUTTING)
_MAY_FAIL = (_STATE.WAITING_FOR_LOCK, *_MAY_SKIP, _STATE.PUBLISHING)
ATTEMPT = TransitionTable(
    "the snapshot attempt",
    _STATE.WAITING_FOR_LOCK,
    {
        (_STATE.WAITING_FOR_LOCK, _EVENT.LOCKED): _STATE.CHECKING,
        (_STATE.CHECKING, _EVENT.ANCHORED): _STATE.ENTERING_ENVIRONMENT,
        (_STATE.ENTERING_ENVIRONMENT, _EVENT.ENTERED): _STATE.CUTTING,
        (_STATE.CUTTING, _EVENT.CAPTURED): _STATE.PUBLISHING,
        (_STATE.PUBLISHING, _EVENT.PUBLISHED): _STATE.COMPLETED,
        **{(state, _EVENT.SKIP): _STATE.SKIPPED for state in _MAY_SKIP},
        **{(state, _EVENT.FAIL): _STATE.FAILED for state in _MAY_FAIL},
    },
)

# ---- The optimizer-commit window ----


class WindowState(StrEnum):
    """Whether a train step is between its irreversible update and its published counters."""

    CLOSED = "closed"
    ANNOUNCED = "announced"
    OPEN = "open"


class WindowEvent(StrEnum):
    """What moves the window."""

    ANNOUNCE = "announce"
    RETRACT = "retract"
    OPEN = "open"
    CLOSE = "close"


COMMIT_WINDOW = TransitionTable(
    "the optimizer-commit window",
    WindowState.CLOSED,
    {
        (WindowState.CLOSED, WindowEvent.ANNOUNCE): WindowState.ANNOUNCED,
        (WindowState.ANNOUNCED, WindowEvent.RETRACT): WindowState.CLOSED,
        (WindowState.CLOSED, WindowEvent.OPEN): WindowState.OPEN,
        (WindowState.ANNOUNCED, WindowEvent.OPEN): WindowState.OPEN,
        (WindowState.OPEN, WindowEvent.CLOSE): WindowState.CLOSED,
    },
)

# ---- The environment phase ----


class PhaseState(StrEnum):
    """Whether the environment is paused for a snapshot."""

    BEFORE = "before"
    ENTERING = "entering"
    INSIDE = "inside"
    LEAVING = "leaving"
    AFTER = "after"


class PhaseEvent(StrEnum):
    """What moves the phase."""

    ENTER = "enter"
    ENTERED = "entered"
    NOT_ENTERED = "not_entered"
    LEAVE = "leave"
    LEFT = "left"


ENVIRONMENT_PHASE = TransitionTable(
    "the environment phase",
    PhaseState.BEFORE,
    {
        (PhaseState.BEFORE, PhaseEvent.ENTER): PhaseState.ENTERING,
        (PhaseState.ENTERING, PhaseEvent.ENTERED): PhaseState.INSIDE,
        (PhaseState.ENTERING, PhaseEvent.NOT_ENTERED): PhaseState.AFTER,
        (PhaseState.INSIDE, PhaseEvent.LEAVE): PhaseState.LEAVING,
        (PhaseState.LEAVING, PhaseEvent.LEFT): PhaseState.AFTER,
    },
)
