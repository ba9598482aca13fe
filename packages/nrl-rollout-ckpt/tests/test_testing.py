"""The fakes keep what the real parts keep."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from nrl_interfaces.rollout import (
    EnvironmentEpisode,
    PromptRef,
    PromptSource,
    ResolvingPromptSource,
)
from nrl_interfaces.testing.rollout import (
    check_checkpointable_data_plane,
    check_environment_checkpoint,
    check_resolving_prompt_source,
)
from nrl_rollout_ckpt.state.barrier import DataPlaneMutationCut
from nrl_rollout_ckpt.testing import FakeClock, FakeEnvironment, InMemoryDataPlane, ListPromptSource, numbered_prompts


@pytest.mark.parametrize("freezes", [True, False])
def test_the_plane_keeps_to_what_a_data_plane_promises(tmp_path: Path, freezes: bool) -> None:
    def claim(plane: InMemoryDataPlane) -> list[str]:
        plane.claim_samples(["a"], "train", "trainer")
        return ["a"]

    check_checkpointable_data_plane(
        lambda: InMemoryDataPlane(freezes=freezes),
        tmp_path,
        fill=lambda plane: plane.put_samples(["a", "b", "c"], "train", {"x": [1, 2, 3]}),
        claim=claim,
        partition_id="train",
        task_name="trainer",
    )
    assert hasattr(InMemoryDataPlane(freezes=freezes), "freeze") is freezes


def one_by_one(source: ListPromptSource) -> Iterator[Any]:
    while batch := source.next_batch(1):
        yield from batch


def test_the_prompt_source_keeps_to_what_a_source_promises() -> None:
    check_resolving_prompt_source(
        lambda: ListPromptSource(numbered_prompts(5)),
        ref_of=lambda prompt: prompt.ref,
        payload_of=lambda prompt: prompt.payload,
        prompts=lambda source: iter(
            lambda: source.next_batch(1)[0] if source.state_dict()["position"] < 5 else None, None
        ),
        count=5,
    )


def test_the_environment_keeps_to_what_an_environment_promises(tmp_path: Path) -> None:
    async def with_episodes() -> FakeEnvironment:
        environment = FakeEnvironment()
        for episode in EPISODES:
            await environment.open(episode)
        return environment

    asyncio.run(
        check_environment_checkpoint(
            with_episodes,
            tmp_path,
            runs=lambda environment: environment.dispatch_is_open,
            make_restarted=FakeEnvironment,
        )
    )


def test_a_frozen_view_is_of_its_moment(tmp_path: Path) -> None:
    plane = InMemoryDataPlane()
    column = torch.tensor([1.0, 2.0])
    plane.put_samples(["a", "b"], "train", {"x": column}, tags=[{"n": 1}, {"n": 2}])
    plane.claim_samples(["a"], "train", "trainer")
    column.zero_()
    view = plane.freeze()
    plane.put_samples(["a"], "train", {"x": torch.tensor([9.0])}, replace=True)
    plane.clear_samples(["b"], "train")
    plane.release_claims(["a"], "train", "trainer")
    view.save(tmp_path / "plane", {"step": 3})
    loaded = InMemoryDataPlane()
    assert loaded.load_checkpoint(tmp_path / "plane") == {"step": 3}
    assert loaded.list_sample_ids("train") == ["a", "b"]
    assert loaded.get_samples(["b", "a"], "train", ["x"]) == {"x": [torch.tensor(2.0), torch.tensor(1.0)]}
    assert loaded.claimed_ids("train", "trainer") == ["a"]
    with pytest.raises(RuntimeError, match="used before"):
        loaded.load_checkpoint(tmp_path / "plane")


def test_the_plane_refuses_what_a_real_one_refuses() -> None:
    plane = InMemoryDataPlane()
    plane.put_samples(["a"], "train", {"x": [1]})
    with pytest.raises(ValueError, match="already"):
        plane.put_samples(["a"], "train", {"x": [2]})
    with pytest.raises(ValueError, match="2 rows"):
        plane.put_samples(["b"], "train", {"x": [1, 2]})
    with pytest.raises(KeyError):
        plane.clear_samples(["a", "b"], "train")
    with pytest.raises(ValueError, match="not claimed"):
        plane.release_claims(["a"], "train", "trainer")
    plane.claim_samples(["a"], "train", "trainer")
    with pytest.raises(ValueError, match="claimed"):
        plane.claim_samples(["a"], "train", "trainer")
    assert plane.list_sample_ids("train") == ["a"]
    assert plane.list_sample_ids("other") == []


def test_the_prompt_source_goes_on_where_it_was() -> None:
    source = ListPromptSource(numbered_prompts(5))
    assert isinstance(source, ResolvingPromptSource)
    source.next_batch(2)
    again = ListPromptSource(numbered_prompts(5), resolves=False)
    assert isinstance(again, PromptSource)
    assert not isinstance(again, ResolvingPromptSource)
    again.load_state_dict(source.state_dict())
    assert [prompt.ref.sample_id for prompt in again.next_batch(9)] == ["p2", "p3", "p4"]
    assert again.next_batch(1) == []
    assert source.resolve(PromptRef("p4")) == {"text": "What is 4?"}
    with pytest.raises(LookupError, match="p5"):
        source.resolve(PromptRef("p5"))
    with pytest.raises(ValueError, match="allowed: 0 to 5"):
        again.load_state_dict({"position": 6})


def test_the_clock_wakes_at_the_moment_that_is_due() -> None:
    async def run() -> None:
        clock = FakeClock()
        event, ended = asyncio.Event(), list[tuple[str, bool]]()

        async def wait(name: str, seconds: float | None) -> None:
            ended.append((name, await clock.wait(event, seconds)))

        tasks = [asyncio.ensure_future(wait(name, s)) for name, s in [("a", 5.0), ("b", 2.0), ("c", None), ("d", 0.0)]]
        await settle()
        assert (ended, clock.deadlines) == ([("d", False)], (5.0, 2.0))
        clock.advance(2.0)
        await settle()
        assert ended[1:] == [("b", False)]
        clock.wall = 0.0
        event.set()
        await asyncio.gather(*tasks)
        assert sorted(ended[2:]) == [("a", True), ("c", True)]
        assert (clock.monotonic(), clock.time(), clock.deadlines) == (2.0, 0.0, ())

    asyncio.run(run())


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


EPISODES = [EnvironmentEpisode("env0", "a"), EnvironmentEpisode("env0", "b"), EnvironmentEpisode("env1", "c")]


def test_episodes_are_saved_while_paused_and_a_part_of_them_is_taken_up(tmp_path: Path) -> None:
    async def run() -> None:
        environment = FakeEnvironment()
        for episode in EPISODES:
            await environment.open(episode)
            await environment.turn(episode, "first")
        async with environment.snapshot(tmp_path / "env") as snapshot:
            assert not environment.dispatch_is_open
            turn = asyncio.ensure_future(environment.turn(EPISODES[0], "late"))
            await snapshot.check_against_cut(DataPlaneMutationCut("checkpoint"))
            assert sorted(snapshot.episodes) == EPISODES
            assert not turn.done()
        await turn
        assert environment.paused == environment.resumed == {"env0": 1, "env1": 1}

        again = FakeEnvironment()
        restored = await again.restore(tmp_path / "env", EPISODES[1:])
        assert restored.episodes == tuple(EPISODES[1:])
        taken_up = EnvironmentEpisode("env1", "c", attempt=1)
        await again.open(taken_up)
        assert again.close(taken_up) == ["first"]
        assert again.episodes() == [EPISODES[1]]
        with pytest.raises(ValueError, match="does not hold"):
            await again.restore(tmp_path / "env", [EnvironmentEpisode("env0", "x")])
        with pytest.raises(ValueError, match="allowed: 1"):
            await again.open(EPISODES[1])

    asyncio.run(run())


@pytest.mark.parametrize("step", ["prepare", "commit", "resume"])
@pytest.mark.parametrize("how", ["raises", "is cancelled", "is cancelled twice"])
def test_the_environment_runs_again_whatever_happens(tmp_path: Path, step: str, how: str) -> None:
    async def run() -> None:
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def hook(at: str, instance: str) -> None:
            if at == step and instance == "env1":
                reached.set()
                if how == "raises":
                    raise OSError(f"{step} of {instance}")
                if at == "resume":
                    await go_on.wait()
                else:
                    await asyncio.Event().wait()

        environment = FakeEnvironment(hook=hook)

        async def take() -> None:
            async with environment.snapshot(tmp_path / "env"):
                pass

        task = asyncio.ensure_future(take())
        await reached.wait()
        cancels = {"raises": 0, "is cancelled": 1, "is cancelled twice": 2}[how]
        for _ in range(cancels):
            task.cancel()
            await asyncio.sleep(0)
        go_on.set()
        expected: Any = asyncio.CancelledError if cancels else OSError
        with pytest.raises(expected):
            await task
        assert environment.dispatch_is_open
        assert environment.resumed == environment.paused

    asyncio.run(run())
