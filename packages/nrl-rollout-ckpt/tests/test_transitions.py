"""The transitions of a run: one section each, and one owner for every prompt at every cut."""

import asyncio
import random
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import torch
from nrl_interfaces.rollout import PromptRef
from nrl_rollout_ckpt.state.completion import awaited
from nrl_rollout_ckpt.state.ledger import LedgerError, UnknownGroupError
from nrl_rollout_ckpt.state.ledger_checks import require_settled
from nrl_rollout_ckpt.state.ledger_states import PromptGroupStatus, RecoveryGranularity
from nrl_rollout_ckpt.state.payloads import PayloadTypeError
from nrl_rollout_ckpt.state.records import Prompt, PromptGroupRecoveryRecord, SiblingSealResult
from nrl_rollout_ckpt.state.replay_index import ReplayIndexError, TrainingClaim
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


# ---- Rows ----


def test_a_complete_group_goes_to_plane_and_index_and_leaves_the_ledger() -> None:
    async def test() -> None:
        it = Run()
        group = (await it.ready(1))[0]
        it.progress.advance()
        tags = [{"n": 0}, {"n": 1}]
        replay = await it.does.commit_group(group.group_id, FIELDS, tags=tags)
        assert (replay.sample_ids, replay.start_weight, replay.end_weight) == (tuple(group.sample_ids()), 0, 1)
        assert replay.target_step == 0
        assert it.index.groups == (replay,)
        assert len(it.ledger) == 0
        it.check_account()
        with pytest.raises(UnknownGroupError):
            await it.does.commit_group(group.group_id, FIELDS)

    run(test)


def test_pitfall_30_a_refused_put_leaves_the_group_ready_and_no_row() -> None:
    async def test() -> None:
        it = Run()
        group = (await it.ready(1))[0]
        before = it.summary()
        with pytest.raises(ValueError, match="'reward' has 3 rows"):
            await it.does.commit_group(group.group_id, {"reward": torch.zeros(3)})
        assert it.summary() == before
        require_settled(it.ledger.groups)
        await it.does.commit_group(group.group_id, FIELDS)
        it.check_account()

    run(test)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_put_without_an_answer_stops_snapshots_until_the_group_is_committed_again(when: str) -> None:
    async def test() -> None:
        it = Run()
        group = (await it.ready(1))[0]
        getattr(it.plane, when)["put_samples"] = TimeoutError("no answer")
        with pytest.raises(TimeoutError):
            await it.does.commit_group(group.group_id, FIELDS)
        with pytest.raises(LedgerError, match=rf"{group.group_id} \(finalization_unknown\)"):
            require_settled(it.ledger.groups)
        with pytest.raises(LedgerError, match="is not known"):
            await it.does.drop_group(group.group_id)
        await it.does.commit_group(group.group_id, FIELDS)
        it.check_account()
        assert (len(it.index), len(it.ledger)) == (1, 0)

    run(test)


def test_rooms_of_the_index_are_not_given_away_twice_while_rows_are_put() -> None:
    async def test() -> None:
        it = Run(capacity=1)
        groups = await it.ready(2)
        ends = await asyncio.gather(
            *(it.does.commit_group(group.group_id, FIELDS) for group in groups), return_exceptions=True
        )
        assert [type(end) for end in ends if isinstance(end, Exception)] == [ReplayIndexError]
        it.check_account()
        twice = (await Run(capacity=4).ready(1))[0]
        with pytest.raises(UnknownGroupError):
            await it.does.commit_group(f"{twice.group_id}x", FIELDS)

    run(test)


def test_a_group_is_committed_once_by_two_tasks() -> None:
    async def test() -> None:
        it = Run()
        group = (await it.ready(1))[0]
        ends = await asyncio.gather(
            *(it.does.commit_group(group.group_id, FIELDS) for _ in range(2)), return_exceptions=True
        )
        errors = [end for end in ends if isinstance(end, Exception)]
        assert len(errors) == 1
        assert isinstance(errors[0], ReplayIndexError | IllegalTransitionError)
        it.check_account()

    run(test)


def test_a_train_step_takes_writes_and_finishes() -> None:
    async def test() -> None:
        it = Run()
        claim = await it.claimed()
        assert (len(it.index), len(claim.sample_ids)) == (0, 4)
        await it.does.write_back(claim, {"reward": torch.arange(4.0)})
        assert list(it.summary()["rows"].values()) == [0.0, 1.0, 2.0, 3.0]
        it.runtime.batch_shortfall = {-1: 1, 5: 2}
        await it.does.finish_step(claim)
        assert it.plane.list_sample_ids("train") == []
        assert it.runtime.batch_shortfall == {5: 2}
        for call in (it.does.finish_step, it.does.put_back):
            with pytest.raises(ReplayIndexError, match="not open"):
                await call(claim)
        with pytest.raises(ReplayIndexError, match="not open"):
            await it.does.write_back(claim, FIELDS)

    run(test)


def test_a_step_that_has_to_wait_takes_nothing_and_one_without_groups_goes_on() -> None:
    async def test() -> None:
        it = Run(prompts=2)
        groups = await it.dispatched()
        assert await it.does.claim_for_training(2) is None
        for group in groups:
            assert await it.does.drop_group(group.group_id) is None
        claim = await it.does.claim_for_training(2)
        assert claim is not None
        assert claim.groups == ()
        await it.does.finish_step(claim)

    run(test)


def test_groups_of_a_step_that_did_not_happen_are_taken_again() -> None:
    async def test() -> None:
        it = Run()
        claim = await it.claimed()
        await it.does.put_back(claim)
        it.check_account()
        again = await it.does.claim_for_training(2)
        assert again is not None
        assert again.groups == claim.groups

    run(test)


@pytest.mark.parametrize("name", ["finish_step", "evict", "claim_for_training"])
def test_rows_that_can_not_be_cleared_keep_their_groups(name: str) -> None:
    async def test() -> None:
        it = Run(windowed=True)
        if name == "finish_step":
            claim = await it.claimed()
        else:
            await it.committed()
            it.progress.train_steps = it.progress.trainer_version = 2
        before = it.summary()
        it.plane.before["clear_samples"] = OSError("gone")
        calls: dict[str, Callable[[], Any]] = {
            "finish_step": lambda: it.does.finish_step(claim),
            "evict": it.does.evict,
            "claim_for_training": lambda: it.does.claim_for_training(2),
        }
        with pytest.raises(OSError, match="gone"):
            await calls[name]()
        assert it.summary() == before
        it.check_account()
        await calls[name]()

    run(test)


@pytest.mark.parametrize("windowed", [True, False])
def test_stale_groups_are_evicted_and_accounted_for(windowed: bool) -> None:
    async def test() -> None:
        it = Run(windowed=windowed)
        groups = await it.committed()
        it.progress.train_steps = it.progress.trainer_version = 2
        claim = await it.does.claim_for_training(2)
        assert claim == (TrainingClaim(2, ()) if windowed else None)  # a step of two lacks two, or waits for its own
        assert it.runtime.dropped == ["p0", "p1"]
        assert it.runtime.batch_shortfall == ({2: 2} if windowed else {})
        assert it.plane.list_sample_ids("train") == []
        it.check_account()
        assert await it.does.evict() == ()
        assert len(groups) == 2

    run(test)


# ---- Giving up ----


def test_pitfall_10_a_spare_prompt_takes_the_place_of_a_dropped_one_in_one_section() -> None:
    async def test() -> None:
        it = Run()
        assert await it.does.fill_reserve(lambda: it.source.next_batch(2)) == 2
        it.check_account()
        group = (await it.dispatched())[1]
        it.progress.advance()
        new = await it.does.drop_group(group.group_id)
        assert new is not None
        assert (new.prompt.ref.sample_id, new.phase, new.target_step) == ("p0", group.phase, group.target_step)
        assert (new.admission_id, new.start_weight_version) == (group.admission_id, 1)
        assert new.runtime_prompt == {"text": "What is 0?"}
        assert (it.runtime.dropped, it.runtime.batch_shortfall) == (["p3"], {})
        it.check_account()
        await it.does.dispatch(new.group_id)

    run(test)


def test_without_a_spare_prompt_the_step_takes_one_less() -> None:
    async def test() -> None:
        it = Run()
        group = (await it.dispatched())[0]
        assert await it.does.drop_group(group.group_id) is None
        assert (it.runtime.dropped, it.runtime.batch_shortfall) == (["p0"], {0: 1})
        it.check_account()
        reserved = (await it.reserve())[0]
        before = it.summary()
        with pytest.raises(LedgerError, match="admit its batch, then drop it"):
            await it.does.drop_group(reserved.group_id)
        assert it.summary() == before

    run(test)


@pytest.mark.parametrize(("taken", "step"), [(False, 0), (True, 1)])
def test_unstamped_groups_are_missing_from_the_step_that_takes_its_groups_next(taken: bool, step: int) -> None:
    async def test() -> None:
        it = Run(windowed=True)
        if taken:
            await it.claimed()
        group = (await it.dispatched())[0]
        await it.does.drop_group(group.group_id)
        assert it.runtime.batch_shortfall == {step: 1}

    run(test)


def test_what_a_step_lacks_above_its_groups_is_missing_from_the_next() -> None:
    async def test() -> None:
        it = Run(windowed=True)
        for group in await it.dispatched(3):
            await it.does.drop_group(group.group_id)
        assert it.runtime.batch_shortfall == {0: 3}
        claim = await it.does.claim_for_training(2)
        assert claim is not None
        await finish(it, claim)
        assert it.runtime.batch_shortfall == {0: 2, 1: 1}
        it.progress.advance()
        await it.committed(1)
        claim = await it.does.claim_for_training(2)
        assert claim is not None
        assert len(claim.groups) == 1
        await finish(it, claim)
        assert it.runtime.batch_shortfall == {1: 1}

    run(test)


def test_pitfall_29_what_a_dropped_group_still_reports_is_refused_by_name() -> None:
    async def test() -> None:
        it = Run()
        group = (await it.dispatched())[0]
        await it.does.drop_group(group.group_id)
        before = it.summary()
        for late in (
            it.does.seal_sibling(group.group_id, 0, RESULT),
            it.does.retry(group.group_id),
            it.does.drop_group(group.group_id),
            it.does.commit_group(group.group_id, FIELDS),
        ):
            with pytest.raises(UnknownGroupError, match=group.group_id):
                await late
        assert it.summary() == before

    run(test)


# ---- Sections ----

SECTIONS: dict[str, tuple[str, Callable[[Run], Any], Callable[[Run, Any], Any]]] = {
    "reserve_batch": ("prompt_reservations", lambda it: awaited(None), lambda it, _: it.reserve()),
    "fill_reserve": (
        "prompt_reservations",
        lambda it: awaited(None),
        lambda it, _: it.does.fill_reserve(lambda: it.source.next_batch(1)),
    ),
    "admit": ("other", lambda it: it.reserve(), lambda it, groups: it.does.admit(groups[0].admission_id)),
    "dispatch": ("other", lambda it: admitted(it), lambda it, groups: it.does.dispatch(groups[0].group_id)),
    "seal_sibling": (
        "sibling_seals",
        lambda it: it.dispatched(),
        lambda it, groups: it.does.seal_sibling(groups[0].group_id, 0, RESULT),
    ),
    "seal_group": (
        "sibling_seals",
        lambda it: it.dispatched(),
        lambda it, groups: it.does.seal_group(groups[0].group_id, {0: RESULT, 1: RESULT}),
    ),
    "retry": ("recovery_retries", lambda it: it.dispatched(), lambda it, groups: it.does.retry(groups[0].group_id)),
    "commit_group": (
        "group_commits",
        lambda it: it.ready(),
        lambda it, groups: it.does.commit_group(groups[0].group_id, FIELDS),
    ),
    "claim_for_training": ("group_removals", lambda it: it.committed(), lambda it, _: it.does.claim_for_training(2)),
    "write_back": (
        "advantage_writeback",
        lambda it: it.claimed(1),
        lambda it, claim: it.does.write_back(claim, {"reward": torch.ones(2)}),
    ),
    "finish_step": ("sample_clears", lambda it: it.claimed(), lambda it, claim: finish(it, claim)),
    "put_back": ("other", lambda it: it.claimed(), lambda it, claim: it.does.put_back(claim)),
    "drop_group": (
        "group_removals",
        lambda it: it.dispatched(),
        lambda it, groups: it.does.drop_group(groups[0].group_id),
    ),
    "evict": ("group_removals", lambda it: stale(it), lambda it, _: it.does.evict()),
}


async def admitted(it: Run) -> Any:
    return await it.does.admit((await it.reserve())[0].admission_id)


async def stale(it: Run) -> None:
    await it.committed()
    it.progress.train_steps = it.progress.trainer_version = 5


def make(name: str) -> Run:
    whole = {"default_granularity": RecoveryGranularity.PROMPT_GROUP} if name == "seal_group" else {}
    return Run(**whole)


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


# ---- A whole run, with cuts and cancellations at any moment ----


async def generate(it: Run, group_id: str, chance: random.Random) -> None:
    """Do what is left to do for one group, as a loop after a restart would."""
    while any(group.group_id == group_id for group in it.ledger.groups):
        group = it.ledger.get(group_id)
        statuses = [sibling.current.status.value for sibling in group.siblings]
        if group.status is PromptGroupStatus.READY_TO_FINALIZE:
            await it.does.commit_group(group_id, FIELDS)
        elif chance.random() < 0.1:
            await it.does.drop_group(group_id)
        elif "reserved" in statuses:
            await it.does.dispatch(group_id)
        elif chance.random() < 0.2:
            await it.does.retry(group_id)
        else:
            index = statuses.index("dispatched")
            await turns(chance.randrange(4))
            await it.does.seal_sibling(group_id, index, SiblingSealResult({"n": index}, 0.5))


async def roll_out(it: Run, chance: random.Random) -> None:
    while True:
        if not any(group.phase == "reserved" for group in it.ledger.groups) and not await it.reserve(2):
            break
        reserved = [group.admission_id for group in it.ledger.groups if group.phase == "reserved"]
        await it.does.admit(reserved[0], wanted=2)
        await finish_groups(it, chance)
    await finish_groups(it, chance)


async def finish_groups(it: Run, chance: random.Random) -> None:
    while groups := [group for group in it.ledger.redispatch_order() if group.phase == "admitted"]:
        tasks = [asyncio.create_task(generate(it, group.group_id, chance)) for group in groups]
        if chance.random() < 0.5:
            await turns(chance.randrange(20))
            chance.choice(tasks).cancel()
        for end in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(end, Exception):
                raise end


async def train(it: Run, chance: random.Random, steps: int) -> None:
    while it.progress.train_steps < steps:
        claim = await it.does.claim_for_training(2)
        if claim is None:
            await asyncio.sleep(0.001)
            continue
        if claim.groups:
            await it.does.write_back(claim, {"reward": torch.ones(len(claim.sample_ids))})
        if chance.random() < 0.3:
            await it.does.put_back(claim)
            continue
        await finish(it, claim)
        it.progress.advance()


async def finish(it: Run, claim: TrainingClaim) -> None:
    await it.does.finish_step(claim)
    it.trained += [group.prompt.ref.sample_id for group in claim.groups]  # no await in between, so no cut


async def watch(it: Run, chance: random.Random) -> None:
    while True:
        async with it.barrier.checkpoint():
            it.check_account()
            require_settled(it.ledger.groups)
        await asyncio.sleep(chance.random() * 0.003)


async def whole_run(it: Run, seed: int) -> None:
    chance = random.Random(seed)
    await it.does.fill_reserve(lambda: it.source.next_batch(1))
    watcher = asyncio.create_task(watch(it, chance))
    try:
        await asyncio.gather(roll_out(it, chance), train(it, chance, 4))
        async with it.barrier.checkpoint():
            it.check_account()
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
        if watcher.done() and not watcher.cancelled():
            watcher.result()


@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_pitfall_01_every_prompt_has_one_owner_at_every_cut(seed: int, windowed: bool) -> None:
    async def test() -> None:
        it = Run(prompts=9, windowed=windowed, max_staleness=4)
        await whole_run(it, seed)
        assert it.source.state_dict() == {"position": 9}

    run(test)


class PullsOutside(RolloutTransitions):
    """Pitfall 4: the batch has left its source before the section begins."""

    async def reserve_batch(self, pull: Pull, *, expected_generations: int) -> Any:
        batch = await awaited(pull())
        await asyncio.sleep(0.01)
        return await super().reserve_batch(lambda: batch, expected_generations=expected_generations)


class HandsOnInTwo(RolloutTransitions):
    """Pitfall 9: the rows are there before the ledger lets go."""

    async def commit_group(self, group_id: str, fields: Any, *, tags: Any = None) -> Any:
        group = self._ledger.get(group_id)
        self._plane.put_samples(group.sample_ids(), "train", fields)
        await asyncio.sleep(0.01)
        self._plane.clear_samples(group.sample_ids(), "train")
        return await super().commit_group(group_id, fields, tags=tags)


class DropsInTwo(RolloutTransitions):
    """Pitfall 10: the old owner is gone before the new one is there."""

    async def drop_group(self, group_id: str) -> Any:
        spare = self._runtime.replacement_reserve.popleft() if self._runtime.replacement_reserve else None
        await asyncio.sleep(0.01)
        if spare:
            self._runtime.replacement_reserve.appendleft(spare)
        return await super().drop_group(group_id)


@pytest.mark.parametrize("faulty", [PullsOutside, HandsOnInTwo, DropsInTwo])
def test_a_transition_in_two_sections_is_noticed(faulty: Any) -> None:
    async def test() -> None:
        for seed in range(6):
            await whole_run(Run(prompts=9, transitions=faulty, max_staleness=4), seed)

    with pytest.raises(Exception, match=r"owners|the data plane lacks") as caught:
        run(test)
    assert isinstance(caught.value, AssertionError | RuntimeError)
