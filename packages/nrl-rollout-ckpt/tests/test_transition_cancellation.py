"""Each transition, cancelled at each of its awaits: it happened whole or not at all, and the barrier is free."""

import asyncio
from typing import Any

import pytest
from nrl_interfaces.testing.awaits import Drive, at_each_suspension
from runs import Run
from sections import SECTIONS, make


@pytest.mark.parametrize("act", ["cancel", "cancel twice", "cancel late"])
@pytest.mark.parametrize("name", SECTIONS)
def test_a_transition_that_is_cancelled_happens_whole_or_not_at_all(name: str, act: Any) -> None:
    _, prepare, call = SECTIONS[name]
    undisturbed: list[dict[str, Any]] = []
    ends: set[str] = set()

    async def scenario(drive: Drive) -> None:
        it = make(name)
        prepared = await prepare(it)
        before = it.summary()
        holder = asyncio.create_task(hold(it))  # so that it has to wait for its section
        await asyncio.sleep(0)
        driven = await drive(call(it, prepared))
        await holder
        after = it.summary()
        if driven.point is None:
            undisturbed.append(after)
        assert after in (before, undisturbed[0])
        ends.add("before" if after == before else "after")
        if driven.error is not None and name == "claim_for_training":
            assert after == before  # nobody would own the claim
        if name == "finish_step" and after != before and driven.error is not None:
            it.trained += [group.prompt.ref.sample_id for group in prepared.groups]
        it.check_account()
        async with asyncio.timeout(1), it.barrier.checkpoint():
            pass

    asyncio.run(at_each_suspension(scenario, act))
    assert ends == {"before", "after"}


@pytest.mark.parametrize("act", ["cancel", "cancel twice", "cancel late"])
def test_a_claim_that_is_cancelled_while_it_evicts_takes_nothing(act: Any) -> None:
    ends: set[int] = set()

    async def scenario(drive: Drive) -> None:
        it = Run(windowed=True)
        await it.committed()
        it.progress.train_steps = it.progress.trainer_version = 2
        await it.committed(1)
        driven = await drive(
            it.does.claim_for_training(1 + 2)
        )  # of three, two are stale: they are missing from the step
        claimed = it.index.training_owned_replay_groups()
        assert len(claimed) == (0 if driven.error is not None else 1)
        ends.add(len(it.runtime.dropped))
        it.check_account()
        assert it.runtime.batch_shortfall == ({2: 2} if it.runtime.dropped else {})

    asyncio.run(at_each_suspension(scenario, act))
    assert ends == {2}  # nothing is awaited before the eviction has begun, and then it comes to its end


async def hold(it: Run) -> None:
    async with it.barrier.checkpoint():
        for _ in range(3):
            await asyncio.sleep(0)
