"""Every state machine of the state: each event in each state."""

import pickle
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from nrl_rollout_ckpt.state.ledger_states import (
    ATTEMPTS,
    GROUP_PHASES,
    GROUP_STATUSES,
    PromptGroupEvent,
    PromptGroupPhase,
    PromptGroupPhaseEvent,
    PromptGroupStatus,
    RolloutAttemptEvent,
    RolloutAttemptStatus,
)
from nrl_rollout_ckpt.state.transition_table import IllegalTransitionError, TransitionTable

MACHINES = {
    "phase": (GROUP_PHASES, PromptGroupPhase, PromptGroupPhaseEvent, set[Any]({PromptGroupPhase.ADMITTED})),
    "status": (GROUP_STATUSES, PromptGroupStatus, PromptGroupEvent, set[Any]()),
    "attempt": (
        ATTEMPTS,
        RolloutAttemptStatus,
        RolloutAttemptEvent,
        set[Any]({RolloutAttemptStatus.ABANDONED}),
    ),
}

# What is allowed, written down once more by hand: state -> event -> state.
ALLOWED = {
    "phase": {"reserved": {"admit": "admitted"}},
    "status": {
        "generating": {
            "dispatch": "generating",
            "seal": "generating",
            "all_sealed": "ready_to_finalize",
            "abandon_unsealed": "generating",
            "retry": "generating",
        },
        "ready_to_finalize": {"abandon_unsealed": "ready_to_finalize", "finalize": "finalizing"},
        "finalizing": {"finalize_failed": "ready_to_finalize", "finalize_unanswered": "finalization_unknown"},
        "finalization_unknown": {"finalize": "finalizing"},
    },
    "attempt": {
        "reserved": {"dispatch": "dispatched", "abandon": "abandoned", "take_up_again": "reserved"},
        "dispatched": {"seal": "sealed", "fail": "failed", "abandon": "abandoned", "take_up_again": "reserved"},
        "sealed": {"abandon": "abandoned"},
        "failed": {"abandon": "abandoned"},
    },
}


def pairs() -> Iterator[tuple[str, Any, Any]]:
    for name, (_, states, events, _) in MACHINES.items():
        yield from ((name, state, event) for state, event in product(states, events))


@pytest.mark.parametrize(("name", "state", "event"), list(pairs()))
def test_every_event_in_every_state(name: str, state: Any, event: Any) -> None:
    table: TransitionTable[Any, Any] = MACHINES[name][0]
    after = ALLOWED[name].get(state.value, {}).get(event.value)
    if after is not None:
        assert table.after(state, event).value == after
        return
    with pytest.raises(IllegalTransitionError) as caught:
        table.after(state, event)
    assert (caught.value.machine, caught.value.state, caught.value.event) == (table.machine, state.value, event.value)
    assert caught.value.allowed == table.events_of(state)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("name", MACHINES)
def test_every_state_is_reached_and_only_ends_have_no_way_on(name: str) -> None:
    table, states, _, ends = MACHINES[name]
    reached = {table.initial}
    while new := {after for (before, _), after in table.moves.items() if before in reached} - reached:
        reached |= new
    assert reached == set(states)
    assert {state for state in states if not table.events_of(state)} == ends


def test_the_error_says_what_is_allowed() -> None:
    with pytest.raises(IllegalTransitionError, match="'finalizing': 'seal' is not allowed there; allowed: finalize_f"):
        GROUP_STATUSES.after(PromptGroupStatus.FINALIZING, PromptGroupEvent.SEAL)
    with pytest.raises(IllegalTransitionError, match="allowed: nothing: it has ended"):
        ATTEMPTS.after(RolloutAttemptStatus.ABANDONED, RolloutAttemptEvent.SEAL)
