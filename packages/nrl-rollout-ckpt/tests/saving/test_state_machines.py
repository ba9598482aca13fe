"""The tables: every event that is not in one raises, and changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from enum import StrEnum
from typing import Any

import pytest
from nrl_rollout_ckpt.saving.attempt import SnapshotAttempt
from nrl_rollout_ckpt.saving.commit_window import CommitWindow
from nrl_rollout_ckpt.saving.environment_phase import EnvironmentPhase
from nrl_rollout_ckpt.saving.snapshot_states import (
    ATTEMPT,
    COMMIT_WINDOW,
    ENVIRONMENT_PHASE,
    AttemptEvent,
    AttemptState,
    PhaseEvent,
    PhaseState,
    WindowEvent,
    WindowState,
)
from nrl_rollout_ckpt.state.transition_table import IllegalTransitionError, TransitionTable
from nrl_rollout_ckpt.testing import FakeClock

MACHINES = [
    (ATTEMPT, AttemptState, AttemptEvent, {AttemptState.COMPLETED, AttemptState.SKIPPED, AttemptState.FAILED}),
    (COMMIT_WINDOW, WindowState, WindowEvent, set()),
    (ENVIRONMENT_PHASE, PhaseState, PhaseEvent, {PhaseState.AFTER}),
]


@pytest.mark.parametrize(
    ("table", "states", "events", "ends"), MACHINES, ids=lambda value: getattr(value, "machine", "")
)
def test_every_state_is_reached_and_left(
    table: TransitionTable[Any, Any], states: type[StrEnum], events: type[StrEnum], ends: set[Any]
) -> None:
    assert {table.initial, *table.moves.values()} == set(states)
    assert {state for state in states if not table.events_of(state)} == ends
    assert {event for _, event in table.moves} == set(events)


def test_an_attempt_skips_only_before_it_has_captured_and_fails_at_any_time_before_its_end() -> None:
    may_skip = {state for state, event in ATTEMPT.moves if event is AttemptEvent.SKIP}
    assert may_skip == {AttemptState.CHECKING, AttemptState.ENTERING_ENVIRONMENT, AttemptState.CUTTING}
    may_fail = {state for state, event in ATTEMPT.moves if event is AttemptEvent.FAIL}
    assert may_fail == set(AttemptState) - {AttemptState.COMPLETED, AttemptState.SKIPPED, AttemptState.FAILED}


@pytest.mark.parametrize("state", AttemptState)
@pytest.mark.parametrize("event", AttemptEvent)
def test_an_attempt_refuses_what_is_not_in_the_table(state: AttemptState, event: AttemptEvent) -> None:
    attempt = SnapshotAttempt(FakeClock())
    attempt.state = state
    if (state, event) in ATTEMPT.moves:
        attempt.move(event)
        assert attempt.state is ATTEMPT.moves[state, event]
        return
    with pytest.raises(IllegalTransitionError, match="the snapshot attempt"):
        attempt.move(event)
    assert attempt.state is state


WINDOW_PATHS = {
    WindowState.CLOSED: [],
    WindowState.ANNOUNCED: ["announce"],
    WindowState.OPEN: ["announce", "open"],
}


@pytest.mark.parametrize("state", WindowState)
@pytest.mark.parametrize("event", WindowEvent)
def test_the_window_refuses_what_is_not_in_the_table(state: WindowState, event: WindowEvent) -> None:
    window = CommitWindow()
    for call in WINDOW_PATHS[state]:
        getattr(window, call)()
    closed: list[int] = []
    window.when_closed(lambda: closed.append(1))
    if (state, event) in COMMIT_WINDOW.moves:
        getattr(window, event.value)()
        assert window.state is COMMIT_WINDOW.moves[state, event]
        assert closed == ([1] if window.is_closed else [])
        return
    with pytest.raises(IllegalTransitionError, match="the optimizer-commit window"):
        getattr(window, event.value)()
    assert window.state is state
    assert closed == []


def test_the_window_tells_once_that_it_is_announced() -> None:
    window, told = CommitWindow(), list[str]()
    with window.when_announced(lambda: told.append("first")), window.when_announced(lambda: told.append("second")):
        window.announce()
        window.open()
    window.close()
    with window.when_announced(lambda: told.append("not announced")):
        pass
    window.announce()
    assert told == ["first", "second"]


def test_a_phase_is_entered_once_and_left_once() -> None:
    calls: list[str] = []

    @contextlib.asynccontextmanager
    async def pause() -> AsyncGenerator[None]:
        calls.append("paused")
        yield
        calls.append("resumed")

    async def run() -> None:
        phase = EnvironmentPhase(pause(), FakeClock())
        with pytest.raises(IllegalTransitionError):
            await phase.__aexit__(None, None, None)
        async with phase:
            with pytest.raises(IllegalTransitionError):
                await phase.__aenter__()
        with pytest.raises(IllegalTransitionError):
            await phase.__aexit__(None, None, None)

    asyncio.run(run())
    assert calls == ["paused", "resumed"]
