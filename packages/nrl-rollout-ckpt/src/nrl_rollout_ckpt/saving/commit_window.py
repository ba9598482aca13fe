"""The time in which a snapshot would lie: from an irreversible optimizer update to the counters that name it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator

from nrl_rollout_ckpt.saving.snapshot_states import COMMIT_WINDOW, WindowEvent, WindowState


class CommitWindow:
    """Opened and closed by the train step; a snapshot is allowed only while it is closed.

    >>> window = CommitWindow()
    >>> window.announce()
    >>> window.is_closed
    False
    >>> window.announce()
    Traceback (most recent call last):
    nrl_rollout_ckpt.state.transition_table.IllegalTransitionError: the optimizer-commit window is 'announced': ...
    """

    def __init__(self) -> None:
        self._state = COMMIT_WINDOW.initial
        self._told_of_announcement: list[Callable[[], object]] = []
        self._told_of_close: list[Callable[[], object]] = []

    @property
    def state(self) -> WindowState:
        """Where it is."""
        return self._state

    @property
    def is_closed(self) -> bool:
        """Whether no train step commits, or has said that it is about to."""
        return self._state is WindowState.CLOSED

    def announce(self) -> None:
        """Say that it opens soon, so that a snapshot that has not paused the environment yet gives up."""
        self._move(WindowEvent.ANNOUNCE)

    def retract(self) -> None:
        """Take the announcement back."""
        self._move(WindowEvent.RETRACT)

    def open(self) -> None:
        """Begin the time in which no snapshot may be taken."""
        self._move(WindowEvent.OPEN)

    def close(self) -> None:
        """End it."""
        self._move(WindowEvent.CLOSE)

    @contextlib.contextmanager
    def when_announced(self, listener: Callable[[], object]) -> Generator[None]:
        """Call `listener` once, as soon as the window is not closed, if that comes while the block runs."""
        self._told_of_announcement.append(listener)
        try:
            yield
        finally:
            if listener in self._told_of_announcement:
                self._told_of_announcement.remove(listener)

    def when_closed(self, listener: Callable[[], object]) -> None:
        """Call `listener` whenever the window has closed, or its announcement was taken back."""
        self._told_of_close.append(listener)

    def _move(self, event: WindowEvent) -> None:
        self._state = COMMIT_WINDOW.after(self._state, event)
        if self.is_closed:
            listeners = self._told_of_close
        else:
            listeners, self._told_of_announcement = self._told_of_announcement, []
        for listener in listeners:
            listener()
