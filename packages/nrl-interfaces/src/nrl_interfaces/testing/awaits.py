"""Cancel, fail or overtake a coroutine at each place where it waits; the places are found while it runs.

Write the scenario as one function: it sets up, drives the coroutine, and looks at what is left. It runs once
undisturbed and then anew for each point at which the coroutine, or a task that it started, hands control to the loop:

>>> async def save(gates: list[str]) -> None:
...     gates.append("closed")
...     await asyncio.sleep(0)  # cancelled here, nobody opens the gate
...     try:
...         await asyncio.sleep(0)
...     finally:
...         gates.append("open")
>>> async def scenario(drive: Drive) -> None:
...     gates = []
...     await drive(save(gates))
...     assert gates[-1] == "open", gates
>>> try:
...     asyncio.run(at_each_suspension(scenario, "cancel"))
... except AssertionError as error:
...     print(error, *error.__notes__)  # doctest: +ELLIPSIS
['closed'] 'cancel' at suspension point 0, ...:3 in save

Tasks are watched that are created, in whatever way, in the context of the coroutine. What it calls in threads goes on
by itself; two such calls at one time may end in either order, and points then have other numbers from run to run.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from nrl_interfaces.testing.watched import Gate, Watched, described, is_waiting_for_tasks, location

__all__ = ["Act", "Drive", "Driven", "Point", "at_each_suspension", "count_suspensions"]

_driver: ContextVar[Drive | None] = ContextVar("_driver", default=None)


@dataclass(frozen=True)
class Point:
    """A place where the driven coroutine, or a task of it, waits.

    Attributes:
        number: Its number in this run, from 0, counted over all tasks.
        location: File, line and function.
        task: The task that waits.
        main: The task of the driven coroutine.
    """

    number: int
    location: str
    task: asyncio.Task[Any]
    main: asyncio.Task[Any]

    def cancel(self, _: object = None) -> None:
        """Cancel the driven coroutine, as "cancel" does."""
        self.main.cancel()


Act: TypeAlias = Literal["cancel", "cancel twice", "cancel late"] | Exception | Callable[[Point], Any]
"""What happens at a point:

- "cancel": the driven task is cancelled, also where one of its tasks stands at the point;
- "cancel twice": the same, and once more at its own next point, that is in its cleanup;
- "cancel late": the same, when what is awaited there is done and before its result is taken;
- an exception: what is awaited there raises a copy; places that wait for other tasks are no points then, since
  these fail at points of their own;
- a callable is called; an awaitable that it returns is awaited while the task at the point is held there.
"""


@dataclass(frozen=True)
class Driven:
    """How the coroutine ended.

    Attributes:
        result: What it returned.
        error: What it raised, if the act may be the cause: CancelledError, or anything after an exception.
        point: Where the act happened; None in the undisturbed run.
    """

    result: Any
    error: BaseException | None
    point: Point | None


class Drive:
    """Runs a coroutine and acts at one of its points; `at_each_suspension` makes it.

    Attributes:
        count: How many points were met.
        point: Where the act happened; None as long as it has not.
        tasks: The coroutine's task and those that it started.
    """

    def __init__(self, act: Act, at: int | None, where: Callable[[Point], bool], hold_s: float) -> None:
        self.count = 0
        self.point: Point | None = None
        self.tasks: list[asyncio.Task[Any]] = []
        self._act, self._at, self._where, self._hold_s = act, at, where, hold_s
        self._main: asyncio.Task[Any] | None = None
        self._cancel_again = False
        self._action: asyncio.Future[Any] | None = None
        self._outside = copy_context()

    async def __call__(self, work: Coroutine[Any, Any, Any]) -> Driven:
        """Run `work` in a task, to its end.

        Raises:
            BaseException: What it raised, if the act can't be the cause; and what a called act raised.
        """
        loop = asyncio.get_running_loop()
        previous, context = loop.get_task_factory(), copy_context()
        context.run(_driver.set, self)

        def factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
            make = cast("Callable[..., Any]", previous or _make_task)
            here = options.get("context")
            if (_driver.get() if here is None else here.get(_driver)) is not self:
                return make(loop, coro, **options)
            self.tasks.append(task := make(loop, Watched(coro, self._reached), **options))
            return task

        self._main = None
        loop.set_task_factory(cast("Any", factory))
        try:
            main = loop.create_task(work, context=context)
            await asyncio.wait([main])
            if self._action is not None:
                await self._action
        finally:
            loop.set_task_factory(previous)
        error = asyncio.CancelledError() if main.cancelled() else main.exception()
        expected = Exception if isinstance(self._act, Exception) else asyncio.CancelledError
        if error is not None and not (self.point and isinstance(error, expected)):
            raise error
        return Driven(main.result() if error is None else None, error, self.point)

    def _reached(self, watched: Watched, awaited: Any) -> Any:
        """Count a point, act if it is the one, and return what the task waits for then."""
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        main = self._main = self._main or task  # it comes first
        if main.done():
            return awaited
        if self._cancel_again and task is main:
            self._cancel_again = False
            main.cancel()
        point = Point(self.count, location(watched.coro), task, main)
        is_no_point = isinstance(self._act, Exception) and is_waiting_for_tasks(watched.coro, awaited)
        if is_no_point or not self._where(point):
            return awaited
        self.count += 1
        if point.number != self._at:
            return awaited
        self.point = point
        return self._do(watched, awaited, point)

    def _do(self, watched: Watched, awaited: Any, point: Point) -> Any:
        if isinstance(self._act, Exception):
            return watched.throw(copy.copy(self._act))
        if self._act == "cancel late" and awaited is not None:
            awaited.add_done_callback(point.cancel)  # called before the task's own
        elif isinstance(self._act, str):
            point.cancel()
            self._cancel_again = self._act == "cancel twice"
        elif (action := self._called(self._act, point)) is not None:
            self._action = action
            gate = Gate(awaited)
            action.add_done_callback(gate.open)
            asyncio.get_running_loop().call_later(self._hold_s, gate.open)
            return watched.hold(gate)
        return awaited

    def _called(self, act: Callable[[Point], Any], point: Point) -> asyncio.Future[Any] | None:
        """Call an act; gives what has to be awaited of it, and its error, which is not the coroutine's."""
        try:
            result = act(point)
        except Exception as error:  # noqa: BLE001 - raised by `__call__`
            failed = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            return failed
        if not isinstance(result, Awaitable):
            return None
        return self._outside.run(asyncio.ensure_future, cast("Awaitable[Any]", result))


async def at_each_suspension(
    scenario: Callable[[Drive], Awaitable[object]],
    act: Act,
    *,
    where: Callable[[Point], bool] = lambda _: True,
    hold_s: float = 0.05,
    limit_s: float = 10.0,
) -> int:
    """Run a scenario undisturbed, and then once for each suspension point of what it drives.

    Args:
        scenario: Gets a `Drive` and awaits it with the coroutine; sets up before, asserts after. Each run begins anew.
        act: What happens at the point.
        where: Chooses points; numbers count the chosen ones alone.
        hold_s: How long a task is held at most, in seconds, while what `act` gave runs: that may wait for the task,
            so afterwards both go on. A hold ends, too, when the task is cancelled.
        limit_s: The time limit of one run, in seconds.

    Returns:
        How many points there were.

    Raises:
        AssertionError: If there was no point, a run did not end, or it left a task behind. What the scenario raises
            comes as it is. A note names the point.
    """
    at: int | None = None
    while True:
        drive = Drive(act, at, where, hold_s)
        try:
            await _run(scenario, drive, limit_s)
        except BaseException as error:
            place = drive.point and f"at suspension point {drive.point.number}, {drive.point.location}"
            error.add_note(f"{act!r} {place or 'not yet: the undisturbed run'}")
            raise
        if drive.point is None and at is not None:
            return at
        if drive.count == 0:
            raise AssertionError("nothing was driven that waits: there is no point to act at")
        at = 0 if at is None else at + 1


async def count_suspensions(make: Callable[[], Coroutine[Any, Any, object]]) -> int:
    """Run the coroutine that `make` gives and count its suspension points, those of its tasks too.

    >>> asyncio.run(count_suspensions(lambda: asyncio.sleep(0)))
    1
    """
    drive = Drive("cancel", None, lambda _: True, 0)
    await drive(make())
    return drive.count


def _make_task(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
    return asyncio.Task(coro, loop=loop, **options)


async def _run(scenario: Callable[[Drive], Awaitable[object]], drive: Drive, limit_s: float) -> None:
    limit = asyncio.timeout(limit_s)
    try:
        async with limit:
            await scenario(drive)
        for _ in range(5):  # what is about to end may
            await asyncio.sleep(0)
        if left := [described(task) for task in drive.tasks if not task.done()]:
            raise AssertionError(f"left running: {', '.join(left)}")
    except TimeoutError as error:
        if not limit.expired():
            raise
        left = [described(task) for task in drive.tasks if not task.done()]
        raise AssertionError(f"no end after {limit_s} s; running: {', '.join(left) or 'the scenario'}") from error
    finally:
        for task in drive.tasks:
            task.cancel()
        await asyncio.sleep(0)
