"""Transitions from the source to a group that is complete: what each does, and what it refuses."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from nrl_interfaces.rollout import PromptRef
from nrl_rollout_ckpt.state.ledger import LedgerError
from nrl_rollout_ckpt.state.ledger_states import PromptGroupStatus, RecoveryGranularity
from nrl_rollout_ckpt.state.payloads import PayloadTypeError
from nrl_rollout_ckpt.state.records import Prompt, PromptGroupRecoveryRecord, SiblingSealResult
from nrl_rollout_ckpt.state.transition_table import IllegalTransitionError
from nrl_rollout_ckpt.state.transitions import Pull, RolloutTransitions, TargetStepTakenError
from nrl_rollout_ckpt.testing import InMemoryDataPlane, ListPromptSource, make_parts
from runs import FIELDS, SIZE, Run, numbered

RESULT = SiblingSealResult({"n": 1}, 0.5)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 30))


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# ---- From the source ----


@pytest.mark.parametrize("is_async", [False, True])
def test_a_batch_is_pulled_and_owned(is_async: bool) -> None:
    async def test() -> None:
        it = Run(prompts=3)

        async def pull() -> list[Prompt]:
            await asyncio.sleep(0)
            return it.source.next_batch(2)

        async def reserve() -> tuple[PromptGroupRecoveryRecord, ...]:
            given: Pull = pull if is_async else lambda: it.source.next_batch(2)
            return await it.does.reserve_batch(given, expected_generations=SIZE)

        assert [group.prompt.ref.sample_id for group in await reserve()] == ["p0", "p1"]
        assert [group.prompt.ref.sample_id for group in await reserve()] == ["p2"]
        assert await reserve() == ()
        assert it.ledger.next_admission_id == 2
        it.check_account()

    run(test)


def test_pitfall_04_pull_and_reserve_are_one_section() -> None:
    async def test() -> None:
        it, pulled = Run(), asyncio.Event()

        async def pull() -> list[Prompt]:
            batch = it.source.next_batch(2)
            pulled.set()
            await turns(10)
            return batch

        task = asyncio.create_task(it.does.reserve_batch(pull, expected_generations=SIZE))
        await pulled.wait()
        async with it.barrier.checkpoint():  # comes in while the batch has left its source
            it.check_account()
            assert len(it.ledger) == 2
        await task

    run(test)


def test_a_pull_that_raises_reserves_nothing() -> None:
    async def test() -> None:
        it = Run()

        def pull() -> list[Prompt]:
            raise OSError("dataset")

        before = it.summary()
        for call in (it.does.fill_reserve(pull), it.does.reserve_batch(pull, expected_generations=SIZE)):
            with pytest.raises(OSError, match="dataset"):
                await call
        assert it.summary() == before
        async with it.barrier.checkpoint():
            pass

    run(test)


def test_a_prompt_that_can_not_be_saved_is_named_and_nothing_is_reserved() -> None:
    async def test() -> None:
        it = Run(prompts=[*numbered(1), Prompt(PromptRef("bad"), {"image": object()})])
        with pytest.raises(PayloadTypeError, match="prompt 'bad' can't be saved: image is a object"):
            await it.reserve(2)
        assert (len(it.ledger), it.ledger.next_admission_id) == (0, 0)
        assert it.source.state_dict() == {"position": 2}  # as the docstring says
        strings: Any = ["text"]
        with pytest.raises(TypeError, match=r"pull gave a str; allowed: nrl_rollout_ckpt\.Prompt"):
            await it.does.reserve_batch(lambda: strings, expected_generations=SIZE)
        with pytest.raises(ValueError, match="expected_generations is 3; allowed: 2"):
            await it.does.reserve_batch(lambda: strings, expected_generations=3)

    run(test)


@pytest.mark.parametrize("resolves", [True, False])
def test_prompts_are_stored_only_where_their_source_can_not_find_them(resolves: bool) -> None:
    async def test() -> None:
        source = ListPromptSource(numbered(2), resolves=resolves)
        does = RolloutTransitions(make_parts(prompt_source=source))
        groups = await does.reserve_batch(lambda: source.next_batch(2), expected_generations=2)
        assert [group.prompt.stored is None for group in groups] == [resolves, resolves]
        assert groups[0].runtime_prompt == {"text": "What is 0?"}

    run(test)


def test_a_data_plane_without_puts_is_refused() -> None:
    class ReadOnly:
        list_sample_ids = clear_samples = release_claims = save_checkpoint = load_checkpoint = (
            InMemoryDataPlane.freeze
        ) = lambda *_: None

    with pytest.raises(TypeError, match="ReadOnly without put_samples"):
        RolloutTransitions(make_parts(data_plane=ReadOnly()))


# ---- Admission ----


def test_pitfall_05_cursor_and_groups_move_in_one_section() -> None:
    async def test() -> None:
        it = Run()
        batch = await it.reserve()
        admitted = await it.does.admit(0)
        assert [group.target_step for group in admitted] == [0, 0]
        assert it.sampler.dispatch_index == 0
        assert it.runtime.sampler_stamps_target_steps
        before = it.summary()
        for admission_id in (0, 7):
            with pytest.raises(LedgerError, match=f"'of batch {admission_id}'"):
                await it.does.admit(admission_id)
        assert it.summary() == before
        assert admitted[0].group_id == batch[0].group_id

    run(test)


def test_pitfall_23_no_section_is_held_while_the_sampler_has_no_room() -> None:
    async def test() -> None:
        it = Run(max_staleness=0)
        await it.reserve()
        await it.reserve()
        await it.does.admit(0)
        waiting = asyncio.create_task(it.does.admit(1))
        await turns()
        async with it.barrier.checkpoint():
            assert it.sampler.dispatch_index == 0
        it.progress.advance()
        assert [group.target_step for group in await waiting] == [1, 1]

    run(test)


@pytest.mark.parametrize("where", ["index", "ledger"])
def test_pitfall_08_a_step_that_has_groups_already_is_refused(where: str) -> None:
    async def test() -> None:
        it = Run()
        await (it.committed() if where == "index" else it.dispatched())
        await it.reserve()
        it.sampler.restore_dispatch_index(-1)  # a cursor that is older than the groups
        before = it.summary()
        with pytest.raises(TargetStepTakenError, match="batch 1 would be stamped for step 0, which has groups already"):
            await it.does.admit(1)
        assert it.summary() == before

    run(test)


def test_a_last_batch_that_is_short_is_not_waited_for() -> None:
    async def test() -> None:
        it = Run(prompts=1)
        batch = await it.reserve(2)
        await it.does.admit(batch[0].admission_id, wanted=2)
        assert it.runtime.batch_shortfall == {0: 1}

    run(test)


# ---- Generating ----


def test_pitfall_02_a_slow_sibling_keeps_its_group_in_the_ledger() -> None:
    async def test() -> None:
        it = Run()
        slow, fast = await it.dispatched()
        await it.does.seal_sibling(slow.group_id, 0, RESULT)
        for index in range(SIZE):
            await it.does.seal_sibling(fast.group_id, index, RESULT)
        await it.does.commit_group(fast.group_id, FIELDS)
        assert [group.group_id for group in it.ledger.groups] == [slow.group_id]
        it.check_account()

    run(test)


def test_a_retry_is_of_one_sibling_or_of_all_that_are_not_sealed() -> None:
    async def test() -> None:
        it = Run()
        group = (await it.dispatched())[0]
        retried = await it.does.retry(group.group_id, failed=1)
        assert [sibling.current.status for sibling in retried.siblings] == ["dispatched", "reserved"]
        await it.does.seal_sibling(group.group_id, 0, RESULT)
        retried = await it.does.retry(group.group_id)
        assert [sibling.current.status for sibling in retried.siblings] == ["sealed", "reserved"]
        before = it.summary()
        with pytest.raises(IllegalTransitionError, match="'fail' is not allowed"):
            await it.does.retry(group.group_id, failed=1)
        assert it.summary() == before

    run(test)


def test_a_group_that_is_kept_whole_is_sealed_and_retried_whole() -> None:
    async def test() -> None:
        it = Run(default_granularity=RecoveryGranularity.PROMPT_GROUP)
        group = (await it.dispatched())[0]
        before = it.summary()
        with pytest.raises(LedgerError, match="abandon_unsealed comes before"):
            await it.does.retry(group.group_id, failed=0)
        assert it.summary() == before
        await it.does.retry(group.group_id)
        await it.does.dispatch(group.group_id)
        sealed = await it.does.seal_group(group.group_id, {0: RESULT, 1: RESULT})
        assert sealed.status is PromptGroupStatus.READY_TO_FINALIZE

    run(test)
