"""Each transition, cancelled at each of its awaits: it happened whole or not at all, and the barrier is free."""

import asyncio
from typing import Any

import pytest
from nrl_interfaces.testing.awaits import Drive, at_each_suspension
from runs import Run
from test_transitions import SECTIONS, make


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


async def hold(it: Run) -> None:
    async with it.barrier.checkpoint():
        for _ in range(3):
            await asyncio.sleep(0)
