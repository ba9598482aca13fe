"""A task's coroutine that says where it waits, each time it does; what `nrl_interfaces.testing.awaits` is made of."""

import asyncio
import gc
from collections.abc import AsyncGenerator, Callable, Coroutine
from types import FrameType
from typing import Any

__all__ = ["Gate", "Watched", "described", "is_waiting_for_tasks", "location"]


class Watched(Coroutine[Any, Any, Any]):
    """A coroutine that asks `reached`, whenever it hands something to wait for to the loop, what to hand on instead."""

    def __init__(self, coro: Coroutine[Any, Any, Any], reached: Callable[["Watched", Any], Any]) -> None:
        self.coro = coro
        self._reached = reached
        self._gate: Gate | None = None

    def send(self, value: Any, /) -> Any:
        """Run to the next place where it waits."""
        if self._gate is None:
            return self._reached(self, self.coro.send(value))
        gate, self._gate = self._gate, None
        return gate.awaited  # the hold is over: it goes on waiting

    def throw(self, *error: Any) -> Any:
        """Raise an error where it waits, and run to the next such place."""
        self._gate = None
        return self._reached(self, self.coro.throw(*error))

    def hold(self, gate: "Gate") -> Any:
        """Give what the loop waits for until the gate opens."""
        self._gate = gate
        return next(iter(gate.__await__()))

    def close(self) -> None:
        """Close it."""
        self.coro.close()

    def __await__(self) -> Any:
        return self.coro.__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.coro, name)  # for what prints tasks


class Gate(asyncio.Future[None]):
    """Holds a task that waits for `awaited`; a cancellation goes there, as it would without the gate, and opens it."""

    def __init__(self, awaited: Any) -> None:
        super().__init__()
        self.awaited = awaited

    def open(self, _: object = None) -> None:
        """End the hold."""
        if not self.done():
            self.set_result(None)

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel what the held task waits for."""
        self.open()
        return self.awaited is not None and self.awaited.cancel(msg)


def described(task: asyncio.Task[Any]) -> str:
    """Name a task and say where it waits."""
    return f"{task.get_name()} at {location(task.get_coro())}"


def location(awaitable: Any) -> str:
    """Say where a coroutine waits: the last frame that is not asyncio's own."""
    frames = _frames(awaitable)
    frame = next((frame for frame in reversed(frames) if not _is_of_asyncio(frame)), frames[-1] if frames else None)
    if frame is None:
        return "an unknown place"
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno} in {frame.f_code.co_name}"


def is_waiting_for_tasks(awaitable: Any, future: Any) -> bool:
    """Whether a coroutine that waits for `future` waits for tasks by it: one, or by `wait`, `gather`, `TaskGroup`."""
    if type(future) not in (asyncio.Future, type(None)):
        return True
    inner = _frames(awaitable)[-1:]
    names = ("asyncio.tasks", "asyncio.taskgroups")
    return any(frame.f_globals["__name__"] in names and "sleep" not in frame.f_code.co_name for frame in inner)


def _is_of_asyncio(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] in ("asyncio", "contextlib")


def _frames(awaitable: Any) -> list[FrameType]:
    """Follow what a coroutine awaits down to the last Python frame."""
    frames: list[FrameType | None] = []
    while awaitable is not None:
        if hasattr(awaitable, "cr_await"):
            frames.append(awaitable.cr_frame)
            awaitable = awaitable.cr_await
        elif hasattr(awaitable, "ag_await"):
            frames.append(awaitable.ag_frame)
            awaitable = awaitable.ag_await
        elif hasattr(awaitable, "gi_yieldfrom"):
            frames.append(awaitable.gi_frame)
            awaitable = awaitable.gi_yieldfrom
        else:  # the step of an async generator shows its generator to the garbage collector alone
            inner: list[Any] = [it for it in gc.get_referents(awaitable) if isinstance(it, AsyncGenerator)]
            awaitable = inner[0] if inner else None
    return [frame for frame in frames if frame is not None]
