"""State machines as tables: which event leads where, and an error for every other."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar

State = TypeVar("State", bound=StrEnum)
Event = TypeVar("Event", bound=StrEnum)


class IllegalTransitionError(RuntimeError):
    """Raised when an event is not allowed in a state; nothing has changed.

    Attributes:
        machine: What the state belongs to, such as "the commit window".
        state: The state it is in.
        event: The event that came.
        allowed: The events that this state allows.
    """

    def __init__(self, machine: str, state: str, event: str, allowed: tuple[str, ...]) -> None:
        super().__init__(machine, state, event, allowed)
        self.machine, self.state, self.event, self.allowed = machine, state, event, allowed

    def __str__(self) -> str:
        allowed = ", ".join(self.allowed) or "nothing: it has ended"
        return f"{self.machine} is {self.state!r}: {self.event!r} is not allowed there; allowed: {allowed}"


class TransitionTable(Generic[State, Event]):
    """A state machine without I/O.

    Attributes:
        machine: What the messages call it.
        initial: Where it begins.
        moves: From a state by an event to a state.
    """

    def __init__(self, machine: str, initial: State, moves: Mapping[tuple[State, Event], State]) -> None:
        self.machine, self.initial, self.moves = machine, initial, dict(moves)

    def after(self, state: State, event: Event) -> State:
        """Give the state that `event` leads to.

        Raises:
            IllegalTransitionError: If it is not allowed.
        """
        try:
            return self.moves[state, event]
        except KeyError:
            raise IllegalTransitionError(self.machine, state.value, event.value, self.events_of(state)) from None

    def events_of(self, state: State) -> tuple[str, ...]:
        """Name the events that a state allows."""
        return tuple(event.value for before, event in self.moves if before == state)
