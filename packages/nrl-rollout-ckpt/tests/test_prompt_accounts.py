"""Whole runs with cuts and cancellations at any moment: every prompt has one owner."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import torch
from nrl_rollout_ckpt.state.completion import awaited
from nrl_rollout_ckpt.state.ledger_checks import require_settled
from nrl_rollout_ckpt.state.ledger_states import PromptGroupStatus
from nrl_rollout_ckpt.state.records import SiblingSealResult
from nrl_rollout_ckpt.state.transitions import Pull, RolloutTransitions
from runs import FIELDS, Run
from sections import finish

RESULT = SiblingSealResult({"n": 1}, 0.5)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 30))


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


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
