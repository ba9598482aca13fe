"""Acting at suspension points finds planted faults, and passes what is right."""

import asyncio
import contextlib
import contextvars
import re
from collections.abc import AsyncGenerator, Callable

import pytest
from nrl_interfaces.testing.awaits import Drive, Point, at_each_suspension, count_suspensions


class Environment:
    def __init__(self) -> None:
        self.is_paused = False
        self.paused = self.resumed = 0

    async def pause(self) -> None:
        self.is_paused = True
        self.paused += 1
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def resume(self) -> None:
        await asyncio.sleep(0)
        self.is_paused = False
        self.resumed += 1


@contextlib.asynccontextmanager
async def forgetful(environment: Environment) -> AsyncGenerator[None]:
    await environment.pause()  # its cleanup begins too late
    try:
        yield
    finally:
        await finish(environment.resume())


@contextlib.asynccontextmanager
async def careful(environment: Environment) -> AsyncGenerator[None]:
    try:
        await environment.pause()
        yield
    finally:
        await finish(environment.resume())


@contextlib.asynccontextmanager
async def careful_once(environment: Environment) -> AsyncGenerator[None]:
    try:
        await environment.pause()
        yield
    finally:
        await environment.resume()  # a second cancellation hits the cleanup


async def finish(work) -> None:
    task, cancelled = asyncio.ensure_future(work), False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


def saving(pausing: Callable, *, in_a_task: bool = False):
    """The scenario of R03: whatever happens during a save, the environment is resumed, once."""

    async def save(environment: Environment) -> str:
        async with pausing(environment):
            await asyncio.sleep(0)
        return "saved"

    async def save_by_a_task(environment: Environment) -> str:
        task = asyncio.create_task(save(environment))
        try:
            return await task
        finally:
            task.cancel()
            await finish(task)

    async def scenario(drive: Drive) -> None:
        environment = Environment()
        driven = await drive((save_by_a_task if in_a_task else save)(environment))
        assert not environment.is_paused
        assert environment.resumed == environment.paused
        assert (driven.result == "saved") == (driven.error is None)

    return scenario


def check(scenario, act, **options) -> int:
    return asyncio.run(at_each_suspension(scenario, act, **options))


def finds(scenario, act, message: str = "is_paused", **options) -> str:
    """The note of the failure that must come."""
    with pytest.raises(AssertionError, match=message) as caught:
        check(scenario, act, **options)
    return caught.value.__notes__[0]


@pytest.mark.parametrize("in_a_task", [False, True])
@pytest.mark.parametrize("act", ["cancel", "cancel late", "cancel twice", OSError("disk full")], ids=str)
def test_r03_a_right_context_manager_passes(act, in_a_task: bool) -> None:
    where = {} if isinstance(act, str) else {"where": lambda point: " in resume" not in point.location}
    assert check(saving(careful, in_a_task=in_a_task), act, **where) >= 3


@pytest.mark.parametrize("in_a_task", [False, True])
@pytest.mark.parametrize("act", ["cancel", "cancel late", "cancel twice", OSError("disk full")], ids=str)
def test_r03_cleanup_that_begins_after_the_pause_is_found_and_located(act, in_a_task: bool) -> None:
    note = finds(saving(forgetful, in_a_task=in_a_task), act)
    assert re.search(r"at suspension point [01], test_awaits\.py:\d+ in pause$", note), note


def test_a_second_cancellation_hits_the_cleanup() -> None:
    assert "'cancel twice' at suspension point 0," in finds(saving(careful_once), "cancel twice")
    note = finds(saving(careful_once), "cancel")
    assert note.endswith(" in resume"), note  # the cleanup of the run that nobody disturbed
    check(saving(careful_once), "cancel", where=lambda point: " in resume" not in point.location)


def test_an_added_await_is_covered_without_an_edit() -> None:
    class Slower(Environment):
        async def pause(self) -> None:
            await asyncio.sleep(0)
            await super().pause()

    def count(environment: Environment) -> int:
        return asyncio.run(count_suspensions(environment.pause))

    assert (count(Environment()), count(Slower())) == (2, 3)


def test_children_are_counted_in_order_and_the_same_each_time() -> None:
    async def child(times: int) -> None:
        for _ in range(times):
            await asyncio.sleep(0)

    async def work() -> None:
        await asyncio.gather(child(1), child(2))  # 1 of its own and 3
        async with asyncio.TaskGroup() as group:  # 1 and 4
            group.create_task(asyncio.to_thread(str))
            asyncio.get_running_loop().call_soon(lambda: group.create_task(child(3)))
            await child(0)
        await asyncio.ensure_future(child(1))  # 1 and 1

    async def seen_by(scenario) -> list[str]:
        seen: list[str] = []
        await at_each_suspension(scenario, lambda point: seen.append(f"{point.location} of {point.task is point.main}"))
        return seen

    async def scenario(drive: Drive) -> None:
        await drive(work())

    assert asyncio.run(count_suspensions(work)) == 11
    seen = asyncio.run(seen_by(scenario))
    assert seen == asyncio.run(seen_by(scenario))
    assert sum(place.endswith("True") for place in seen) == 3


def test_a_task_of_another_context_is_not_driven() -> None:
    async def scenario(drive: Drive) -> None:
        async def work() -> None:
            await asyncio.create_task(asyncio.sleep(0), context=contextvars.Context())

        await drive(work())
        assert drive.count == 1

    assert check(scenario, lambda point: None) == 1


def test_the_task_factory_is_used_and_restored() -> None:
    made: list[str] = []

    def factory(loop, coro, **options) -> asyncio.Task:
        made.append(type(coro).__name__)
        return asyncio.Task(coro, loop=loop, **options)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(factory)
        with pytest.raises(ZeroDivisionError):
            await count_suspensions(lambda: failing())
        assert loop.get_task_factory() is factory
        assert made == ["Watched"]

    async def failing() -> None:
        raise ZeroDivisionError

    asyncio.run(main())


def test_a_result_that_a_late_cancellation_loses_is_found() -> None:
    def taking(take: Callable) -> Callable:
        async def scenario(drive: Drive) -> None:
            lock = asyncio.Lock()
            await lock.acquire()

            async def work() -> None:
                asyncio.get_running_loop().call_soon(lock.release)
                await take(lock)

            driven = await drive(work())
            assert driven.error is None or not lock.locked()

        return scenario

    async def lossy(lock: asyncio.Lock) -> None:
        await asyncio.ensure_future(lock.acquire())  # the task may have it when this one is cancelled

    async def right(lock: asyncio.Lock) -> None:
        await lock.acquire()

    check(taking(right), "cancel late")
    check(taking(lossy), "cancel")
    finds(taking(lossy), "cancel late", "locked")


@pytest.mark.parametrize("pausing", [careful, forgetful])
def test_an_exception_comes_out_of_what_is_awaited(pausing) -> None:
    async def scenario(drive: Drive) -> None:
        environment = Environment()
        driven = await drive(pausing(environment).__aenter__())
        assert driven.point is None or (type(driven.error), str(driven.error)) == (OSError, "full")
        assert driven.error is not error, "a copy each time"

    error = OSError("full")
    where = {"where": lambda point: " in pause" in point.location}
    assert check(scenario, error, **where) == 2


def test_an_exception_is_not_raised_where_tasks_are_waited_for() -> None:
    """They fail at points of their own; what waits for them would be left with tasks that run on."""

    async def leaf() -> None:
        await asyncio.sleep(0)

    async def work() -> None:
        await finish(leaf())
        await asyncio.gather(leaf(), return_exceptions=True)
        await asyncio.wait_for(leaf(), 60)
        await asyncio.create_task(leaf())
        async with asyncio.TaskGroup() as group:
            group.create_task(leaf())

    async def scenario(drive: Drive) -> None:
        await drive(work())

    seen: list[str] = []
    check(scenario, OSError("x"), where=lambda point: not seen.append(point.location))
    assert {place.rpartition(" ")[2] for place in seen} == {"leaf"}


def test_what_the_act_did_not_cause_is_raised() -> None:
    async def failing() -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    async def scenario(drive: Drive) -> None:
        await drive(failing())

    for act in ("cancel", OSError("x")):
        with pytest.raises(ZeroDivisionError) as caught:
            check(scenario, act)
        assert caught.value.__notes__ == [f"{act!r} not yet: the undisturbed run"]


# ---- A step committed while the coroutine is held ----


def copying(*, by_reference: bool):
    """Two values are read around an await; a step between them must not be seen in one only."""

    async def scenario(drive: Drive) -> None:
        state = {"step": 1, "rows": 1}

        async def capture() -> tuple[int, int]:
            seen = dict(state)
            await asyncio.sleep(0)
            return (seen["step"], state["rows"] if by_reference else seen["rows"])

        steps.append(state)
        step, rows = (await drive(capture())).result
        assert step == rows, "torn"

    async def commit(point: Point) -> None:
        state = steps[-1]
        state["step"] = 2
        for _ in range(3):  # the held task is not run meanwhile
            await asyncio.sleep(0)
        await asyncio.to_thread(state.update, rows=2)

    steps: list[dict[str, int]] = []
    return scenario, commit


def test_a_step_is_committed_to_its_end_while_the_coroutine_is_held() -> None:
    check(*copying(by_reference=False))
    assert "commit" in finds(*copying(by_reference=True), "torn")


def test_an_act_that_waits_for_the_held_task_is_not_waited_for_for_ever() -> None:
    async def scenario(drive: Drive) -> None:
        events.append(asyncio.Event())

        async def work() -> None:
            await asyncio.sleep(0)
            events[-1].set()

        await drive(work())

    async def wait(point: Point) -> None:
        await events[-1].wait()

    events: list[asyncio.Event] = []
    assert check(scenario, wait, hold_s=0.001) == 1


def test_a_held_task_that_is_cancelled_goes_on_at_once_and_cancels_what_it_waits_for() -> None:
    async def scenario(drive: Drive) -> None:
        async def child() -> None:
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                ended.append("child")
                raise

        ended: list[str] = []
        driven = await drive(child())
        assert driven.point is None or ended == ["child"]

    async def cancel(point: Point) -> None:
        point.task.cancel()
        await asyncio.wait([point.task])  # as a commit does that calls a snapshot off

    assert check(scenario, cancel, hold_s=5.0, limit_s=2.0) == 1


def test_what_an_act_raises_is_raised() -> None:
    async def wrong(point: Point) -> None:
        raise ZeroDivisionError

    async def scenario(drive: Drive) -> None:
        async def work() -> None:
            await asyncio.sleep(0)
            ended.append("work")

        await drive(work())

    for act in (wrong, lambda point: 1 / 0):
        ended: list[str] = []
        with pytest.raises(ZeroDivisionError):
            check(scenario, act)
        assert ended == ["work"] * 2  # the undisturbed run and the other: the error is not the coroutine's


# ---- What a run must not leave ----


def test_a_hang_is_told_with_where_it_is() -> None:
    async def scenario(drive: Drive) -> None:
        lock = asyncio.Lock()

        async def take() -> None:
            await lock.acquire()  # and never released when cancelled behind it
            await asyncio.sleep(0)
            lock.release()

        await drive(take())
        await drive(take())

    message = r"no end after 0\.1 s; running: \S+ at test_awaits\.py:\d+ in take"
    assert "point 0," in finds(scenario, "cancel", message, limit_s=0.1)


def test_a_task_left_behind_is_told() -> None:
    async def scenario(drive: Drive) -> None:
        async def work() -> None:
            task = asyncio.create_task(asyncio.Event().wait())
            await asyncio.sleep(0)
            task.cancel()

        await drive(work())

    assert "point 0," in finds(scenario, "cancel", r"left running: \S+ at ")


def test_a_scenario_without_a_point_proves_nothing() -> None:
    async def scenario(drive: Drive) -> None:
        pass

    finds_nothing = "nothing was driven that waits"
    with pytest.raises(AssertionError, match=finds_nothing):
        check(scenario, "cancel")
    with pytest.raises(AssertionError, match=finds_nothing):
        check(saving(careful), "cancel", where=lambda point: False)
