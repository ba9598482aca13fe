"""Work that was begun comes to its end, whoever is cancelled."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from nrl_rollout_ckpt.state.completion import awaited, in_thread, run_to_end


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 20))


async def started(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    task = asyncio.create_task(work)
    for _ in range(3):
        await asyncio.sleep(0)
    return task


@pytest.mark.parametrize("cancellations", [1, 3])
def test_a_cancellation_waits_for_the_end_and_then_comes(cancellations: int) -> None:
    async def test() -> None:
        go_on, done = asyncio.Event(), list[str]()

        async def work() -> str:
            await go_on.wait()
            done.append("done")
            return "result"

        task = await started(run_to_end(work()))
        for _ in range(cancellations):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done == ["done"]

    run(test)


def test_an_error_of_the_work_is_not_hidden_by_the_cancellation() -> None:
    async def test() -> None:
        go_on = asyncio.Event()

        async def work() -> None:
            await go_on.wait()
            raise OSError("disk")

        task = await started(run_to_end(work()))
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(OSError, match="disk") as caught:
            await task
        assert isinstance(caught.value.__cause__, asyncio.CancelledError)

    run(test)


def test_a_time_limit_around_it_still_ends_as_one() -> None:
    async def test() -> None:
        done = list[str]()

        async def work() -> None:
            await asyncio.sleep(0.02)
            done.append("done")

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await run_to_end(work())
        assert done == ["done"]

    run(test)


def test_a_thread_is_waited_for_and_the_loop_runs_meanwhile() -> None:
    async def test() -> None:
        loop, begun, go_on, done = asyncio.get_running_loop(), asyncio.Event(), threading.Event(), list[str]()

        def blocking(what: str) -> None:
            loop.call_soon_threadsafe(begun.set)
            assert go_on.wait(10)
            done.append(what)

        task = asyncio.create_task(in_thread(blocking, "done"))
        await begun.wait()
        task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done == ["done"]

    run(test)


def test_results_and_errors_come_through() -> None:
    async def test() -> None:
        assert await in_thread(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await in_thread(divmod, 7, 0)

        async def give() -> int:
            return 4

        assert await awaited(give()) == 4
        assert await awaited(5) == 5

    run(test)
