"""Rows of columns of every kind: how many, some of them, joined."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from nrl_dataplane_local.values import (
    batch_size_of,
    check_fits,
    copied_rows,
    empty_like,
    is_identity,
    join,
    select_rows,
    whole_numbers,
)
from nrl_interfaces import PackedTensor


def jagged(*rows: list[int]) -> torch.Tensor:
    ends = torch.tensor([0, *np.cumsum([len(row) for row in rows])])
    return torch.nested.nested_tensor_from_jagged(torch.tensor([float(i) for row in rows for i in row]), ends)


KINDS = {
    "dense": lambda: torch.arange(8).reshape(4, 2),
    "jagged": lambda: jagged([0], [], [1, 2], [3]),
    "array": lambda: np.arange(8).reshape(4, 2),
    "objects": lambda: np.array([[1], {2: 3}, None, "x"], dtype=object),
    "packed": lambda: PackedTensor([torch.zeros(1), None, [torch.ones(2), torch.ones(1)], torch.full((1,), 3.0)], 0),
    "list": lambda: [["a"], {"b": [1]}, "c", None],
    "tuple": lambda: (1, 2.5, b"x", "y"),
    "dict": lambda: {"ids": torch.arange(4), "names": ["a", "b", "c", "d"]},
}


def as_rows(value: Any) -> list[Any]:
    """Each row in a form that == compares."""
    if isinstance(value, dict):
        return list(zip(*(as_rows(item) for item in value.values()), strict=True))
    if isinstance(value, PackedTensor):
        return [[segment.tolist() for segment in row] for row in value]
    if isinstance(value, torch.Tensor):
        return [row.tolist() for row in value.unbind()]
    return value.tolist() if isinstance(value, np.ndarray) else list(value)


@pytest.mark.parametrize("kind", KINDS)
@given(indices=st.lists(st.integers(0, 3), max_size=6))
def test_selected_rows_are_the_rows(kind: str, indices: list[int]) -> None:
    value = KINDS[kind]()
    wanted = [as_rows(value)[at] for at in indices]
    for rows in (select_rows(value, indices), copied_rows(value, np.array(indices, dtype=np.int64))):
        assert type(rows) is type(value)
        assert batch_size_of(rows) == len(indices)
        assert as_rows(rows) == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_taken_apart_joins_again(kind: str) -> None:
    value = KINDS[kind]()
    parts = [select_rows(value, part) for part in ([0], [], [1, 2], [3])]
    assert as_rows(join(parts)) == as_rows(value)


@pytest.mark.parametrize("kind", KINDS)
def test_copied_rows_share_nothing(kind: str) -> None:
    value = KINDS[kind]()
    before = repr(as_rows(value))
    for indices in ([0, 1, 2, 3], [1, 2], [3, 0], [2]):
        spoil(copied_rows(value, indices))
    assert repr(as_rows(value)) == before


def spoil(value: Any) -> None:
    """Write into everything that can be written into."""
    if isinstance(value, PackedTensor):
        for segment in value.stored_segments:
            segment.fill_(77)
    elif isinstance(value, torch.Tensor):
        (value.values() if value.is_nested else value).fill_(77)
    elif isinstance(value, np.ndarray):
        spoil(list(value)) if value.dtype == object else value.fill(77)
    elif isinstance(value, dict):
        for item in value.values():
            spoil(item)
        value["spoilt"] = 1
    elif isinstance(value, list | tuple):
        for item in value:
            spoil(item)
        if isinstance(value, list):
            value.append("spoilt")


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows_keep_their_form(kind: str) -> None:
    value = KINDS[kind]()
    empty = empty_like(value)
    assert batch_size_of(empty) == 0
    assert as_rows(join([empty, value])) == as_rows(value)
    assert as_rows(check_fits(value, empty)) == []


def test_no_rows_hold_on_to_no_memory() -> None:
    assert empty_like(torch.zeros(1000, 4)).untyped_storage().nbytes() == 0


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("text", "is a str"),
        (3, "is a int"),
        (None, "NoneType"),
        (torch.tensor(1), "no dimension"),
        (np.array(1), "no dimension"),
        ({}, "is a dict"),
        ({"a": [1], "b": [1, 2]}, "'a': 1, 'b': 2"),
    ],
    ids=repr,
)
def test_what_is_no_column_is_refused(value: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        batch_size_of(value)


@pytest.mark.parametrize(
    "other",
    [
        torch.zeros(1, 3, dtype=torch.int64),
        torch.zeros(1, 2),
        torch.zeros(1, 2, 1, dtype=torch.int64),
        jagged([1]),
        [1],
        np.zeros((1, 2), dtype=np.int64),
    ],
    ids=["width", "dtype", "dimensions", "nested", "list", "array"],
)
def test_what_does_not_fit_a_dense_column_is_refused(other: Any) -> None:
    with pytest.raises(ValueError, match="allowed"):
        check_fits(other, empty_like(torch.zeros(4, 2, dtype=torch.int64)))


def test_a_packed_column_learns_its_form_later() -> None:
    unknown = PackedTensor([None], 0)
    like = check_fits(PackedTensor([torch.ones(2, 3)], 0), empty_like(unknown))
    assert like.trailing_shape == (3,)
    with pytest.raises(ValueError, match="allowed"):
        check_fits(PackedTensor([torch.ones(2, 4)], 0), like)


def test_dicts_of_other_names_do_not_join() -> None:
    with pytest.raises(ValueError, match="allowed: dicts of the same names"):
        join([{"a": [1]}, {"b": [1]}])
    with pytest.raises(ValueError, match="allowed: dicts of the same names"):
        join([[1], {"b": [1]}])


def test_identity() -> None:
    assert is_identity([0, 1, 2], 3)
    assert is_identity(np.arange(0), 0)
    assert not is_identity([0, 1], 3)
    assert not is_identity([0, 2, 1], 3)


@pytest.mark.parametrize(
    ("value", "numbers"),
    [
        (torch.tensor([3, 1]), [3, 1]),
        (torch.tensor([[3], [1]]), [3, 1]),
        (np.array([3, 1], dtype=np.int16), [3, 1]),
        ([3, 1.0], [3, 1]),
        (torch.tensor([[3, 1], [1, 1]]), None),
        (["3", "1"], None),
        ([1.5, 1], None),
        ([float("nan"), 1], None),
        (jagged([1], [2]), None),
    ],
    ids=repr,
)
def test_whole_numbers(value: Any, numbers: list[int] | None) -> None:
    assert whole_numbers(value, 2) == numbers
