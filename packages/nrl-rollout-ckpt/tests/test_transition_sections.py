"""Every transition is one section of the barrier."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from nrl_rollout_ckpt.state.records import SiblingSealResult
from nrl_rollout_ckpt.state.transitions import RolloutTransitions
from runs import Run
from sections import SECTIONS, make

RESULT = SiblingSealResult({"n": 1}, 0.5)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 30))


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_the_list_of_transitions_is_complete() -> None:
    public = {name for name in dir(RolloutTransitions) if not name.startswith("_")}
    assert public == set(SECTIONS)


@pytest.mark.parametrize("name", SECTIONS)
def test_pitfall_18_every_transition_is_exactly_one_section(name: str) -> None:
    async def test() -> None:
        it = make(name)
        kind, prepare, call = SECTIONS[name]
        prepared = await prepare(it)
        version, before = it.barrier.mutation_version, it.summary()
        it.barrier.drain_telemetry()
        async with it.barrier.checkpoint():
            task = asyncio.create_task(call(it, prepared))
            blocked: dict[str, int] = {}
            while not blocked:  # what comes before the section may be done in a thread
                await turns(1)
                blocked = it.barrier.drain_telemetry().blocked
            assert blocked == {kind: 1}
            assert it.summary() == before  # nothing happens during a checkpoint
        await task
        assert it.barrier.mutation_version == version + 1
        assert it.summary() != before
        it.check_account()
        with pytest.raises(RuntimeError, match="would wait for itself"):  # pitfall 19: in a section it is refused
            async with it.barrier.mutation():
                await call(it, prepared)

    run(test)


@pytest.mark.parametrize("name", ["commit_group", "write_back", "finish_step", "evict"])
def test_pitfall_22_a_slow_data_plane_holds_its_section_and_not_the_loop(name: str) -> None:
    async def test() -> None:
        it = make(name)
        _, prepare, call = SECTIONS[name]
        prepared = await prepare(it)
        loop, begun, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        def slow(*args: Any, **more: Any) -> None:
            loop.call_soon_threadsafe(begun.set)
            assert go_on.wait(10), "the loop did not run meanwhile"

        it.plane.put_samples = it.plane.clear_samples = slow  # type: ignore[method-assign]
        task = asyncio.create_task(call(it, prepared))
        await begun.wait()
        saver = asyncio.create_task(exclusive(it))
        await turns()
        assert not saver.done()
        go_on.set()
        await task
        await saver

    run(test)


async def exclusive(it: Run) -> None:
    async with it.barrier.checkpoint():
        pass
