"""Transitions of rows, and giving up: what each does, and what it refuses."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import torch
from nrl_rollout_ckpt.state.ledger import LedgerError, UnknownGroupError
from nrl_rollout_ckpt.state.ledger_checks import require_settled
from nrl_rollout_ckpt.state.records import SiblingSealResult
from nrl_rollout_ckpt.state.replay_index import ReplayIndexError, TrainingClaim
from nrl_rollout_ckpt.state.transition_table import IllegalTransitionError
from runs import FIELDS, Run
from sections import finish

RESULT = SiblingSealResult({"n": 1}, 0.5)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 30))


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


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
