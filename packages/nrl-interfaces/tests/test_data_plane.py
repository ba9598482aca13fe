"""Errors of data planes, and what the contract's classes are by themselves."""

import pickle
from pathlib import Path
from typing import Any

import pytest
from nrl_interfaces import CheckpointDamagedError, DataPlaneClient, StaleMetaError
from nrl_interfaces.data_plane import ClaimExplanation, UnsupportedByAdapterError
from nrl_interfaces.testing.model_data_plane import ModelDataPlane

ERRORS: list[Any] = [
    (
        StaleMetaError("p", 3, 5),
        (ValueError, KeyError),
        "the meta is stale: it is of generation 3 of partition 'p', which is at generation 5; claim or put again for a "
        "new meta",
        ("partition_id", "meta_generation", "current_generation"),
    ),
    (
        StaleMetaError("p", None, None),
        (ValueError, KeyError),
        "the meta is stale: it is of generation None of partition 'p', which is gone; "
        "claim or put again for a new meta",
        ("partition_id", "meta_generation", "current_generation"),
    ),
    (
        CheckpointDamagedError(Path("d/state.pkl"), "data/3", "its CRC differs"),
        (ValueError,),
        "d/state.pkl, record data/3: its CRC differs; "
        "nothing was loaded: take another checkpoint, or save this one again",
        ("path", "record", "problem"),
    ),
    (
        CheckpointDamagedError(Path("d/state.pkl"), None, "it is empty"),
        (ValueError,),
        "d/state.pkl: it is empty; nothing was loaded: take another checkpoint, or save this one again",
        ("path", "record", "problem"),
    ),
    (
        UnsupportedByAdapterError("Mine", "freeze"),
        (NotImplementedError,),
        "Mine has no freeze; allowed: an adapter that has it, such as nrl-dataplane-local",
        ("adapter", "ability"),
    ),
]


@pytest.mark.parametrize(("error", "bases", "text", "fields"), ERRORS)
def test_errors_are_builtins_too_and_survive_pickling(error: Any, bases: Any, text: str, fields: Any) -> None:
    assert all(isinstance(error, base) for base in bases)
    assert str(error) == text
    loaded = pickle.loads(pickle.dumps(error))
    assert type(loaded) is type(error)
    assert str(loaded) == text
    assert [getattr(loaded, name) for name in fields] == [getattr(error, name) for name in fields]


def test_an_adapter_without_views_says_so() -> None:
    class NoViews(ModelDataPlane):
        freeze = DataPlaneClient.freeze

    with pytest.raises(UnsupportedByAdapterError, match="NoViews has no freeze"):
        NoViews().freeze()


def test_an_adapter_that_lacks_a_method_can_not_be_made() -> None:
    class Half(DataPlaneClient):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Half()  # type: ignore[abstract]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {},
            "task 'train' wants 4 rows of partition 'p' with fields ['x', 'y']: 1 of 3 rows are ready, 1 are claimed "
            "already; nothing is missing",
        ),
        (
            {"rows_missing": {"y": 2}, "rows_expected": 5},
            "task 'train' wants 4 rows of partition 'p' with fields ['x', 'y']: 1 of 3 rows are ready, 1 are claimed "
            "already; field 'y' is missing for 2 rows; 5 rows are not put yet",
        ),
    ],
)
def test_an_explanation_reads_as_a_sentence(changes: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {
        "partition_id": "p",
        "task_name": "train",
        "required_fields": ("x", "y"),
        "batch_size": 4,
        "rows": 3,
        "rows_ready": 1,
        "rows_claimed": 1,
        "rows_missing": {},
        "rows_expected": 0,
        "would_wait": True,
    }
    assert str(ClaimExplanation(**{**given, **changes})) == text
