"""Work that must come to its end once it has begun, whoever is cancelled meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, cast

Result = TypeVar("Result")
Params = ParamSpec("Params")


async def run_to_end(work: Coroutine[Any, Any, Result]) -> Result:
    """Await `work` in a task of its own; a cancellation is held back until it has ended, then raised.

    If the work itself raises while a cancellation is held back, its error is raised, from the cancellation.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if (error := task.exception()) is not None:
        raise error from cancelled
    raise cancelled


async def in_thread(function: Callable[Params, Result], *args: Params.args, **kwargs: Params.kwargs) -> Result:
    """Call a function in a thread; a cancellation waits for its end, since a thread can't be stopped."""
    return await run_to_end(asyncio.to_thread(function, *args, **kwargs))


async def awaited(value: Awaitable[Result] | Result) -> Result:
    """Await what a callable gave, if it is something to await."""
    if isinstance(value, Awaitable):
        return await cast("Awaitable[Result]", value)
    return value
