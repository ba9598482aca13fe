"""The barrier: sections that share, one that excludes, and no task that waits for ever."""

import asyncio
import contextlib
import pickle
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nrl_rollout_ckpt.state.barrier import (
    MUTATION_KINDS,
    DataPlaneCheckpointBarrier,
    DataPlaneMutationCut,
    ExpiredCutError,
)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 20))


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# ---- Random tasks ----

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["mutation", "mutation", "mutation", "checkpoint"]),
        st.integers(0, 4),  # turns before it
        st.integers(0, 4),  # turns inside
        st.one_of(st.none(), st.integers(0, 12)),  # turns until it is cancelled
        st.booleans(),  # whether its body raises
    ),
    min_size=1,
    max_size=12,
)


class Observed:
    """What random tasks see, and what must never be seen."""

    def __init__(self) -> None:
        self.barrier = DataPlaneCheckpointBarrier(monotonic=lambda: 0.0)
        self.inside: Counter[str] = Counter()
        self.mutations_ended = 0
        self.cuts: list[DataPlaneMutationCut] = []

    async def task(self, kind: str, before: int, within: int, *, fails: bool) -> None:
        await turns(before)
        section = self.barrier.mutation("other") if kind == "mutation" else self.barrier.checkpoint()
        with contextlib.suppress(ZeroDivisionError):
            async with section as cut:
                self.cuts.append(cut)
                self.inside[kind] += 1
                try:
                    self.look(cut)
                    for _ in range(within):
                        await asyncio.sleep(0)
                        self.look(cut)
                    if fails:
                        raise ZeroDivisionError
                finally:
                    self.inside[kind] -= 1
                    self.mutations_ended += kind == "mutation"

    def look(self, cut: DataPlaneMutationCut) -> None:
        cut.require_live()
        assert self.inside["checkpoint"] <= 1
        assert not (self.inside["checkpoint"] and self.inside["mutation"]), "a checkpoint overlaps a mutation"
        assert self.barrier.drain_telemetry().active == self.inside["mutation"]


@settings(deadline=None, max_examples=300)
@given(steps=STEPS)
def test_random_tasks_never_overlap_a_checkpoint_and_all_of_them_end(steps: Any) -> None:
    async def test() -> None:
        seen = Observed()
        tasks = [
            asyncio.create_task(seen.task(kind, before, within, fails=fails))
            for kind, before, within, _, fails in steps
        ]
        for turn in range(14):
            for task, (*_, cancelled_after, _) in zip(tasks, steps, strict=True):
                if cancelled_after == turn:
                    task.cancel()
            await asyncio.sleep(0)
        done, waiting = await asyncio.wait(tasks, timeout=5)
        assert not waiting, "a wake-up was lost"
        for task in done:
            if not task.cancelled():
                task.result()
        assert seen.barrier.mutation_version == seen.mutations_ended
        for cut in seen.cuts:
            with pytest.raises(ExpiredCutError):
                cut.require_live()
        await asyncio.wait_for(seen.task("checkpoint", 0, 0, fails=False), 1)
        await asyncio.wait_for(seen.task("mutation", 0, 0, fails=False), 1)
        left = seen.barrier.drain_telemetry()
        assert (left.active, left.waiting, left.checkpoint_active) == (0, 0, False)

    run(test)


# ---- Single cases ----


def test_many_mutations_share_and_a_checkpoint_waits_for_them() -> None:
    async def test() -> None:
        barrier, order, leave = DataPlaneCheckpointBarrier(), list[str](), asyncio.Event()

        async def mutate(name: str) -> None:
            async with barrier.mutation("group_commits"):
                order.append(f"{name} in")
                await leave.wait()
                order.append(f"{name} out")

        async def checkpoint() -> None:
            async with barrier.checkpoint() as cut:
                assert cut.is_exclusive
                order.append("checkpoint")

        first = [asyncio.create_task(mutate("a")), asyncio.create_task(mutate("b"))]
        await turns(3)
        saver = asyncio.create_task(checkpoint())
        await turns(3)
        late = asyncio.create_task(mutate("late"))
        await turns(3)
        assert order == ["a in", "b in"]  # the late one is held off by the checkpoint that waits
        leave.set()
        await asyncio.gather(*first, saver, late)
        assert order == ["a in", "b in", "a out", "b out", "checkpoint", "late in", "late out"]

    run(test)


def test_telemetry_counts_what_was_blocked_and_how_long() -> None:
    async def test() -> None:
        now = [100.0]
        barrier, leave = DataPlaneCheckpointBarrier(monotonic=lambda: now[0]), asyncio.Event()

        async def checkpoint() -> None:
            async with barrier.checkpoint():
                await leave.wait()

        async def mutate(kind: Any) -> None:
            async with barrier.mutation(kind):
                pass

        saver = asyncio.create_task(checkpoint())
        await turns(2)
        waiting = [asyncio.create_task(mutate(kind)) for kind in ("sibling_seals", "sibling_seals", "other")]
        await turns(2)
        at_work = barrier.drain_telemetry()
        assert (at_work.active, at_work.waiting, at_work.checkpoint_active) == (0, 3, True)
        assert (at_work.most_waiting, at_work.blocked) == (3, {"sibling_seals": 2, "other": 1})
        waiting[2].cancel()
        await turns(2)
        now[0] += 2.5
        leave.set()
        await asyncio.gather(saver, *waiting, return_exceptions=True)
        after = barrier.drain_telemetry()
        assert sorted(after.wait_s) == [0.0, 2.5, 2.5]  # the cancelled one waited for no time
        assert (after.most_waiting, after.blocked, after.waiting, after.active) == (3, {}, 0, 0)
        assert barrier.drain_telemetry().wait_s == ()
        assert barrier.drain_telemetry().most_waiting == 0

    run(test)


@pytest.mark.parametrize("outer", ["mutation", "checkpoint"])
@pytest.mark.parametrize("inner", ["mutation", "checkpoint"])
def test_pitfall_19_a_section_within_a_section_is_refused_at_once(outer: Any, inner: Any) -> None:
    async def test() -> None:
        barrier = DataPlaneCheckpointBarrier()
        async with getattr(barrier, outer)() as cut:
            with pytest.raises(RuntimeError, match="would wait for itself: pass the cut"):
                async with getattr(barrier, inner)():
                    pass
            cut.require_live()  # the outer section goes on
        async with barrier.checkpoint():  # and the refusal left nothing behind
            pass

    run(test)


def test_pitfall_20_a_child_task_is_in_no_section_of_its_parent() -> None:
    async def test() -> None:
        barrier, entered = DataPlaneCheckpointBarrier(), list[str]()

        async def child() -> None:
            async with barrier.mutation():
                entered.append("child")

        async with barrier.checkpoint():
            task = asyncio.create_task(child())
            await turns(5)
            assert entered == []
        await task
        assert entered == ["child"]

    run(test)


def test_pitfall_26_a_checkpoint_that_is_cancelled_while_it_waits_opens_the_barrier_again() -> None:
    async def test() -> None:
        barrier, leave, entered = DataPlaneCheckpointBarrier(), asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            async with barrier.mutation():
                await leave.wait()

        async def checkpoint() -> None:
            async with barrier.checkpoint():
                raise AssertionError("it never gets in")

        async def mutate() -> None:
            async with barrier.mutation():
                entered.set()

        holder, saver = asyncio.create_task(hold()), asyncio.create_task(checkpoint())
        await turns(3)
        blocked = asyncio.create_task(mutate())
        await turns(3)
        assert not entered.is_set()
        saver.cancel()
        await asyncio.wait_for(entered.wait(), 1)  # while the first mutation is still in
        leave.set()
        await asyncio.gather(holder, blocked)

    run(test)


def test_pitfall_27_a_mutation_that_raises_is_counted_and_a_checkpoint_is_not() -> None:
    async def test() -> None:
        barrier = DataPlaneCheckpointBarrier()
        with pytest.raises(ZeroDivisionError):
            async with barrier.mutation():
                raise ZeroDivisionError
        assert barrier.mutation_version == 1
        async with barrier.checkpoint():
            pass
        assert barrier.mutation_version == 1

    run(test)


def test_pitfall_21_a_cut_is_no_proof_after_its_section() -> None:
    async def test() -> None:
        async with DataPlaneCheckpointBarrier().mutation("sample_clears") as cut:
            cut.require_live()
        with pytest.raises(ExpiredCutError, match="'sample_clears'") as caught:
            cut.require_live()
        assert isinstance(caught.value, RuntimeError)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)

    run(test)


def test_an_unknown_kind_is_refused_before_anything_is_taken() -> None:
    async def test() -> None:
        barrier = DataPlaneCheckpointBarrier()
        with pytest.raises(ValueError, match="'sibling_seal'; allowed: advantage_writeback, "):
            async with barrier.mutation("sibling_seal"):  # type: ignore[arg-type]
                pass
        assert barrier.mutation_version == 0
        for kind in MUTATION_KINDS:
            async with barrier.mutation(kind) as cut:  # type: ignore[arg-type]
                assert (cut.section, cut.is_exclusive) == (kind, False)

    run(test)


def test_outside_of_a_task_there_is_no_section() -> None:
    entering: Any = DataPlaneCheckpointBarrier().mutation().__aenter__()
    with pytest.raises(RuntimeError, match="no running event loop"):
        entering.send(None)


def test_two_checkpoints_take_turns_and_mutations_between_them_get_in() -> None:
    async def test() -> None:
        barrier, order = DataPlaneCheckpointBarrier(), list[str]()

        async def section(name: str, kind: Any) -> None:
            async with getattr(barrier, kind)():
                order.append(name)
                await turns(2)

        names = [("first", "checkpoint"), ("mutation", "mutation"), ("second", "checkpoint")]
        await asyncio.gather(*(section(name, kind) for name, kind in names))
        assert order == ["first", "mutation", "second"]

    run(test)
