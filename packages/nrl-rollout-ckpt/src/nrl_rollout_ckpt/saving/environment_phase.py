"""The time in which an environment is paused for a snapshot; it is resumed on every path out of it."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self

from nrl_interfaces.rollout import EnvironmentSnapshot

from nrl_rollout_ckpt.clock import Clock
from nrl_rollout_ckpt.saving.commit_window import CommitWindow
from nrl_rollout_ckpt.saving.snapshot_states import ENVIRONMENT_PHASE, PhaseEvent
from nrl_rollout_ckpt.state.completion import run_to_end


class EnvironmentPhase:
    """One pause of an environment, for one attempt.

    Args:
        pause: What the environment gave: pauses when entered, resumes when left.
        clock: Measures the pause.

    Attributes:
        snapshot: The environment's part of the snapshot; None before, and where it has none.
        paused_seconds: From the begin of the entry to the end of the exit.
    """

    def __init__(self, pause: AbstractAsyncContextManager[EnvironmentSnapshot | None], clock: Clock) -> None:
        self.snapshot: EnvironmentSnapshot | None = None
        self.paused_seconds = 0.0
        self._pause = pause
        self._clock = clock
        self._state = ENVIRONMENT_PHASE.initial
        self._began = 0.0

    async def __aenter__(self) -> Self:
        self._move(PhaseEvent.ENTER)
        self._began = self._clock.monotonic()
        try:
            self.snapshot = await self._pause.__aenter__()
        except BaseException:
            self._move(PhaseEvent.NOT_ENTERED)
            raise
        self._move(PhaseEvent.ENTERED)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._move(PhaseEvent.LEAVE)
        try:
            await run_to_end(self._resume(kind, error, trace))
        finally:
            self.paused_seconds = self._clock.monotonic() - self._began
            self._move(PhaseEvent.LEFT)

    async def _resume(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._pause.__aexit__(kind, error, trace)
        except BaseException as failure:
            if error is None:
                raise
            if failure is not error:
                error.add_note(f"and the environment did not resume: {failure!r}")

    def _move(self, event: PhaseEvent) -> None:
        self._state = ENVIRONMENT_PHASE.after(self._state, event)


async def enter_unless_a_step_commits(
    stack: contextlib.AsyncExitStack, phase: AbstractAsyncContextManager[object], window: CommitWindow
) -> bool:
    """Enter `phase` on `stack`, or give that up as soon as `window` is announced or open.

    The entry is cancelled once at most: the environment is given the time to resume, whoever is cancelled meanwhile
    and how often. One that came to its end all the same is on the stack.

    Returns:
        Whether the phase was entered.

    Raises:
        RuntimeError: If the entry was cancelled by nobody who may.
    """
    if not window.is_closed:
        return False
    entry = asyncio.ensure_future(_enter(phase))
    cancelled: asyncio.CancelledError | None = None
    given_up = False

    def give_up() -> None:
        nonlocal given_up
        if not given_up:
            given_up = True
            entry.cancel()

    with window.when_announced(give_up):
        while not entry.done():
            try:
                await asyncio.wait([entry])
            except asyncio.CancelledError as error:
                cancelled = error
                give_up()
    failure = None if entry.cancelled() else entry.exception()
    entered = not entry.cancelled() and failure is None
    if entered:
        stack.push_async_exit(phase)
    if cancelled is not None:
        raise cancelled from failure
    if failure is not None:
        raise failure
    if not entered and not given_up:
        raise RuntimeError("the environment cancelled its own pause, though no train step commits and nobody asked")
    return entered


async def _enter(phase: AbstractAsyncContextManager[object]) -> None:
    await phase.__aenter__()
