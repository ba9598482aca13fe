"""When batches are admitted, and which groups a train step takes."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from nrl_interfaces.testing.rollout import check_rollout_sampler
from nrl_rollout_ckpt.samplers import InOrderSampler, WindowedSampler
from nrl_rollout_ckpt.state.barrier import DataPlaneMutationCut, ExpiredCutError
from nrl_rollout_ckpt.state.rollout_state import TrainingProgress

BOTH = pytest.mark.parametrize("make", [InOrderSampler, WindowedSampler])


@dataclass(frozen=True)
class Group:
    group_id: str
    start_weight: int = 0
    target_step: int | None = None


def cut() -> DataPlaneMutationCut:
    return DataPlaneMutationCut("prompt_reservations")


@BOTH
@pytest.mark.parametrize("max_staleness", [0, 1, 2])
def test_it_keeps_to_what_a_sampler_promises(make: Any, max_staleness: int) -> None:
    def made() -> Any:
        progress = TrainingProgress()

        def set_version(version: int) -> None:
            progress.trainer_version = version
            progress.notify()

        return make(progress, max_staleness), set_version

    asyncio.run(check_rollout_sampler(made))
    sampler, _ = made()
    assert sampler.supports_buffer_checkpoint
    assert sampler.supports_training_claims


@BOTH
@pytest.mark.parametrize("max_staleness", [0, 1, 3])
def test_batch_k_is_admitted_once_training_is_at_most_max_staleness_behind(make: Any, max_staleness: int) -> None:
    progress = TrainingProgress()
    sampler = make(progress, max_staleness)
    for version in range(3):
        admitted = 0
        while sampler.dispatch_index + 1 <= version + max_staleness:
            sampler.commit_admission(cut())
            admitted += 1
        assert admitted == (max_staleness + 1 if version == 0 else 1)
        with pytest.raises(RuntimeError, match=f"batch {version + max_staleness + 1} is not admissible"):
            sampler.commit_admission(cut())
        assert sampler.dispatch_index == version + max_staleness
        progress.advance()


@BOTH
def test_a_wait_ends_when_training_moves_and_not_before(make: Any) -> None:
    async def run() -> None:
        progress = TrainingProgress()
        sampler = make(progress, 0)
        await sampler.wait_until_admissible()
        sampler.commit_admission(cut())
        waiting = asyncio.ensure_future(sampler.wait_until_admissible())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        progress.advance()
        await waiting

    asyncio.run(run())


@BOTH
def test_an_admission_needs_a_live_cut(make: Any) -> None:
    sampler = make(TrainingProgress())
    ended = cut()
    ended.end()
    with pytest.raises(ExpiredCutError):
        sampler.commit_admission(ended)
    assert sampler.dispatch_index == -1


@BOTH
@pytest.mark.parametrize("index", [-2, True, 1.0, "1", None])
def test_a_bad_dispatch_index_is_refused_and_changes_nothing(make: Any, index: Any) -> None:
    sampler = make(TrainingProgress())
    sampler.restore_dispatch_index(4)
    with pytest.raises(ValueError, match="allowed: an int from -1"):
        sampler.restore_dispatch_index(index)
    assert sampler.dispatch_index == 4


@BOTH
@pytest.mark.parametrize("max_staleness", [-1, True, 0.5])
def test_a_bad_staleness_is_refused(make: Any, max_staleness: Any) -> None:
    with pytest.raises(ValueError, match="max_staleness"):
        make(TrainingProgress(), max_staleness)


def test_in_order_gives_each_batch_its_step_and_each_step_its_groups() -> None:
    progress = TrainingProgress()
    sampler = InOrderSampler(progress, max_staleness=1)
    assert [sampler.commit_admission(cut()), sampler.commit_admission(cut())] == [0, 1]
    sampler.restore_dispatch_index(0)
    assert sampler.commit_admission(cut()) == 1
    groups = [Group("b", target_step=1), Group("a", target_step=0), Group("c", target_step=1)]
    assert sampler.select(groups, 0, 2, {}) is None
    assert sampler.select(groups, 0, 2, {0: 1}) == ["a"]
    assert sampler.select(groups, 1, 2, {}) == ["b", "c"]
    assert sampler.select(groups, 2, 2, {2: 2}) == []
    assert sampler.select(groups, 2, 2, {2: 3}) == []
    assert sampler.stale(groups, 1) == ["a"]
    assert sampler.stale([Group("x")], 9) == []


def test_windowed_takes_the_first_groups_that_are_fresh() -> None:
    progress = TrainingProgress()
    sampler = WindowedSampler(progress, max_staleness=1)
    assert sampler.commit_admission(cut()) is None
    groups = [Group("old", 0), Group("b", 2), Group("c", 1), Group("d", 2)]
    assert sampler.stale(groups, 2) == ["old"]
    assert sampler.select(groups, 2, 2, {}) == ["b", "c"]
    assert sampler.select(groups, 2, 4, {}) is None
    assert sampler.select(groups, 2, 4, {2: 1}) == ["b", "c", "d"]
