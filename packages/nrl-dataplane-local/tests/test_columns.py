"""Columns against a plain dict, whatever is put, replaced, cleared and renumbered; and what they hold on to."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from nrl_dataplane_local.columns import Bytes, ColumnGroup, GrowingArray, NewRows
from nrl_dataplane_local.values import empty_like

SLOTS = 12
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.lists(st.integers(0, SLOTS - 1), unique=True, max_size=SLOTS)),
        st.tuples(st.just("clear"), st.lists(st.integers(0, SLOTS - 1), unique=True, max_size=SLOTS)),
        st.tuples(st.just("compact"), st.just([])),
        st.tuples(st.just("read"), st.lists(st.integers(0, SLOTS - 1), unique=True, max_size=SLOTS)),
    ),
    max_size=30,
)


def new_rows(numbers: list[int], *names: str) -> dict[str, NewRows]:
    value = torch.tensor(numbers, dtype=torch.int64).reshape(-1, 1)
    return dict.fromkeys(names or ("x",), NewRows.of(value, empty_like(value)))


def slots_of(numbers: list[int]) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def read(column: ColumnGroup, slots: list[int], name: str = "x", *, copy: bool = True) -> list[int]:
    return column.find(column.places_of(slots_of(slots))).read(name, copy=copy).reshape(-1).tolist()


@given(steps)
def test_a_column_is_a_dict_of_rows(plan: list[tuple[str, list[int]]]) -> None:
    held, model, number = Bytes(), {}, 0
    column = ColumnGroup(held)
    column.write(slots_of([]), new_rows([]))
    for verb, slots in plan:
        if verb == "write":
            numbers = list(range(number, number + len(slots)))
            number += len(slots)
            column.write(slots_of(slots), new_rows(numbers))
            model.update(zip(slots, numbers, strict=True))
        elif verb == "clear":
            column.clear(slots_of(slots))
            for slot in slots:
                model.pop(slot, None)
        elif verb == "compact":
            frozen, before = column.copy(), dict(model)
            column.compact()
            assert held.held.get("cpu", 0) <= 2 * 8 * len(model)  # no segment with less than half of its rows
            assert read(frozen, list(before)) == list(before.values())
        else:
            there = [slot for slot in slots if slot in model]
            for copy in (True, False):
                assert read(column, there, copy=copy) == [model[slot] for slot in there]
        assert column.present(0, SLOTS).tolist() == [slot in model for slot in range(SLOTS)]
    column.let_go()
    assert held.held.get("cpu", 0) == 0


@given(steps, st.sets(st.integers(0, SLOTS - 1)))
def test_renumbering_moves_every_row(plan: list[tuple[str, list[int]]], dropped: set[int]) -> None:
    column = ColumnGroup(Bytes())
    column.write(slots_of([]), new_rows([]))
    column.write(slots_of(list(range(SLOTS))), new_rows(list(range(SLOTS))))
    for verb, slots in plan:
        if verb == "write":
            column.write(slots_of(slots), new_rows(slots))  # a row's value is its old slot
    column.clear(slots_of(sorted(dropped)))
    kept = [slot for slot in range(SLOTS) if slot not in dropped]
    new_slots = np.full(SLOTS, -1, dtype=np.int64)
    new_slots[kept] = np.arange(len(kept))
    column.renumber(new_slots, len(kept))
    assert read(column, list(range(len(kept)))) == kept
    column.compact()
    assert read(column, list(reversed(range(len(kept))))) == kept[::-1]
    column.write(slots_of([len(kept)]), new_rows([99]))
    assert read(column, [len(kept)]) == [99]


def test_columns_that_part_keep_their_rows_and_their_bytes() -> None:
    held = Bytes()
    group = ColumnGroup(held)
    group.write(slots_of([0, 1, 2]), new_rows([5, 6, 7], "x", "y", "z"))
    group.clear(slots_of([1]))
    parted = group.split(["y"])
    assert (list(group.likes), list(parted.likes), held.held) == (["x", "z"], ["y"], {"cpu": 72})
    parted.write(slots_of([2, 1]), new_rows([8, 9], "y"))
    assert read(group, [0, 2], "z") == [5, 7]
    assert read(parted, [0, 1, 2], "y") == [5, 9, 8]
    assert group.present(0, 3).tolist() == [True, False, True]
    group.let_go()
    parted.let_go()
    assert held.held == {"cpu": 0}


def test_a_segment_goes_with_its_last_row_at_once() -> None:
    held = Bytes()
    column = ColumnGroup(held)
    column.write(slots_of([0, 1]), new_rows([5, 6]))
    column.clear(slots_of([0]))
    assert held.held == {"cpu": 16}
    column.clear(slots_of([1]))
    assert held.held == {"cpu": 0}
    assert held.peak == 16


def test_thin_segments_are_compacted() -> None:
    held = Bytes()
    column = ColumnGroup(held)
    column.write(slots_of(list(range(10))), new_rows(list(range(10))))
    column.clear(slots_of(list(range(4))))
    column.compact()
    assert held.held == {"cpu": 80}  # six of ten rows are left
    column.clear(slots_of([4, 5]))
    column.compact()
    assert held.held == {"cpu": 32}
    assert read(column, [9, 6, 7, 8]) == [9, 6, 7, 8]


def test_segments_that_are_gone_are_forgotten() -> None:
    column = ColumnGroup(Bytes())
    for slot in range(1000):
        column.write(slots_of([slot]), new_rows([slot]))
        column.clear(slots_of([slot - 5]) if slot >= 5 else slots_of([]))
        column.compact()
    assert len(column._segments) < 100
    assert read(column, [999, 995]) == [999, 995]


@pytest.mark.parametrize("size", [0, 1, 16, 17, 1000])
def test_a_growing_array_keeps_its_items(size: int) -> None:
    array = GrowingArray(np.int64, fill=-1)
    for item in range(size):
        array.append(item)
    copy = array.copy()
    array.grow(size + 3)
    assert array.view.tolist() == [*range(size), -1, -1, -1]
    copy.append(7)
    assert copy.view.tolist() == [*range(size), 7]
