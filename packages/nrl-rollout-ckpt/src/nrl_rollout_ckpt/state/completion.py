"""Work that must come to its end once it has begun, whoever is cancelled meanwhile."""

import asyncio
import contextvars
import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, cast

Result = TypeVar("Result")
Params = ParamSpec("Params")


async def run_to_end(work: Coroutine[Any, Any, Result]) -> Result:
    """Await `work` in a task of its own; a cancellation is held back until it has ended, then raised.

    If the work itself raises while a cancellation is held back, its error is raised, from the cancellation.
    """
    return await _ended(asyncio.ensure_future(work))


async def in_thread(function: Callable[Params, Result], *args: Params.args, **kwargs: Params.kwargs) -> Result:
    """Call a function in a thread; a cancellation waits for its end, since a thread can't be stopped."""
    call = functools.partial(contextvars.copy_context().run, function, *args, **kwargs)
    return await _ended(asyncio.get_running_loop().run_in_executor(None, call))


async def _ended(work: asyncio.Future[Result]) -> Result:
    held: BaseException | None = None
    while not work.done():
        ended = asyncio.get_running_loop().create_future()
        work.add_done_callback(functools.partial(_tell, ended))
        try:
            await ended
        except BaseException as error:  # noqa: BLE001 - raised below: nothing may leave before the work has ended
            held = error
    if held is None:
        return work.result()
    if (error := work.exception()) is not None:
        raise error from held
    raise held


def _tell(ended: asyncio.Future[None], _: object) -> None:
    if not ended.done():
        ended.set_result(None)


async def awaited(value: Awaitable[Result] | Result) -> Result:
    """Await what a callable gave, if it is something to await."""
    if isinstance(value, Awaitable):
        return await cast("Awaitable[Result]", value)
    return value
