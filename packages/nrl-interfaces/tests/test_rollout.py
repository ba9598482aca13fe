"""The small values of nrl_interfaces.rollout."""

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest
from nrl_interfaces import rollout
from nrl_interfaces.rollout import (
    CheckpointableDataPlane,
    EnvironmentCheckpoint,
    EnvironmentEpisode,
    NoEnvironmentCheckpoint,
    PromptRef,
    PromptSource,
    ResolvingPromptSource,
    RestoredEnvironmentRollouts,
)
from nrl_interfaces.testing.model_data_plane import ModelDataPlane
from nrl_interfaces.testing.rollout import check_environment_checkpoint


@pytest.mark.parametrize(
    ("sample_id", "task_name", "message"),
    [
        ("", None, "sample_id is ''; allowed: a string that is not empty"),
        (7, None, "sample_id is 7;"),
        (None, None, "sample_id is None;"),
        ("a", 7, "task_name is 7; allowed: a string or None"),
    ],
)
def test_a_reference_refuses_what_is_none(sample_id: Any, task_name: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PromptRef(sample_id, task_name)


def test_references_and_episodes_are_values() -> None:
    assert PromptRef("a") == PromptRef("a", None) != PromptRef("a", "math")
    assert len({PromptRef("a"), PromptRef("a")}) == 1
    episodes = [EnvironmentEpisode("env1", "a"), EnvironmentEpisode("env0", "b", 1), EnvironmentEpisode("env0", "b")]
    assert sorted(episodes) == episodes[::-1]
    with pytest.raises(AttributeError):
        episodes[0].attempt = 2  # type: ignore[misc]


def test_no_environment_checkpoint_is_one(tmp_path: Path) -> None:
    make = NoEnvironmentCheckpoint
    check = check_environment_checkpoint(make, tmp_path, runs=lambda environment: True, make_restarted=make)
    asyncio.run(check)
    episodes = [EnvironmentEpisode("env", "a")]
    assert asyncio.run(make().restore(tmp_path, episodes)) == RestoredEnvironmentRollouts(())


def test_protocols_are_met_by_methods_alone() -> None:
    class Source:
        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> int:
            return 1

    class Resolving(Source):
        def resolve(self, ref: PromptRef) -> str:
            return ref.sample_id

    assert isinstance(Source(), PromptSource)
    assert not isinstance(Source(), ResolvingPromptSource)
    assert isinstance(Resolving(), ResolvingPromptSource)
    assert not isinstance(Source(), EnvironmentCheckpoint)
    plane = ModelDataPlane(partition_mode="stream", max_partitions=1, owner=None, safe_globals=())
    assert isinstance(plane, CheckpointableDataPlane)


def test_everything_public_is_listed() -> None:
    defined = {
        name
        for name, value in vars(rollout).items()
        if inspect.isclass(value) and value.__module__ == rollout.__name__ and not name.startswith("_")
    }
    assert defined == set(rollout.__all__)
