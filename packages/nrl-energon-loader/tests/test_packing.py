"""Packing algorithms: what holds for all, what each promises, how they grow."""

import random
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nrl_energon_loader.packing import algorithms
from nrl_energon_loader.packing.algorithms import ALGORITHMS, packer

every_algorithm = pytest.mark.parametrize("name", list(ALGORITHMS))


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[int], int, int]:
    capacity = draw(st.integers(1, 40))
    return draw(st.lists(st.integers(1, capacity), max_size=60)), capacity, draw(st.integers(1, 6))


def long_tailed(count: int, capacity: int, seed: int, spread: float = 1.0) -> list[int]:
    rng = random.Random(seed)
    return [min(capacity, 1 + int(rng.lognormvariate(6, spread))) for _ in range(count)]


@every_algorithm
@given(problem=problems())
def test_every_item_stands_in_one_bin_and_no_bound_is_exceeded(name: str, problem: Any) -> None:
    lengths, capacity, max_items = problem
    bins = ALGORITHMS[name](lengths, capacity, max_items)
    assert sorted(position for one in bins for position in one) == list(range(len(lengths)))
    for one in bins:
        assert 1 <= len(one) <= max_items
        assert sum(lengths[position] for position in one) <= capacity


@every_algorithm
@given(problem=problems())
def test_the_same_arguments_give_the_same_bins(name: str, problem: Any) -> None:
    lengths, capacity, max_items = problem
    random.seed(len(lengths))  # nobody else's randomness plays a part
    first = ALGORITHMS[name](lengths, capacity, max_items)
    random.seed(0)
    assert ALGORITHMS[name](tuple(lengths), capacity, max_items) == first


def first_fit(order: Sequence[int], lengths: Sequence[int], capacity: int, max_items: int) -> list[list[int]]:
    """The definition: try the bins one by one."""
    bins: list[list[int]] = []
    for position in order:
        for one in bins:
            if len(one) < max_items and sum(lengths[p] for p in one) + lengths[position] <= capacity:
                one.append(position)
                break
        else:
            bins.append([position])
    return bins


@given(problem=problems())
def test_first_fit_decreasing_is_first_fit_of_the_longest_first(problem: Any) -> None:
    lengths, capacity, max_items = problem
    order = sorted(range(len(lengths)), key=lambda position: (-lengths[position], position))
    assert algorithms.first_fit_decreasing(*problem) == first_fit(order, lengths, capacity, max_items)


@given(problem=problems(), seed=st.integers(0, 100))
def test_first_fit_finds_the_first_bin_in_any_order(problem: Any, seed: int) -> None:
    lengths, capacity, max_items = problem
    order = random.Random(seed).sample(range(len(lengths)), len(lengths))
    assert algorithms._first_fit(order, lengths, capacity, max_items) == first_fit(order, lengths, capacity, max_items)


@given(problem=problems())
def test_concatenative_keeps_the_order_and_never_goes_back(problem: Any) -> None:
    lengths, capacity, max_items = problem
    bins = algorithms.concatenative(*problem)
    assert [position for one in bins for position in one] == list(range(len(lengths)))
    for one, following in pairwise(bins):
        full = len(one) == max_items or sum(lengths[p] for p in one) + lengths[following[0]] > capacity
        assert full


def test_shuffle_mixes_long_and_short_items_in_the_order_of_bins() -> None:
    lengths = sorted(long_tailed(2_000, 4096, seed=3))
    bins = algorithms.first_fit_shuffle(lengths, 4096, 4096)
    means = [sum(lengths[p] for p in one) / len(one) for one in bins]
    half = len(means) // 2
    assert 0.8 < (sum(means[:half]) / half) / (sum(means[half:]) / (len(means) - half)) < 1.25
    decreasing = algorithms.first_fit_decreasing(lengths, 4096, 4096)
    assert len(decreasing[0]) < len(decreasing[-1])  # which the other one does not


def test_modified_first_fit_decreasing_finds_better_bins_than_first_fit_decreasing() -> None:
    lengths = [56, 49, 30, 18, 18, 16]
    assert algorithms.first_fit_decreasing(lengths, 100, 9) == [[0, 2], [1, 3, 4], [5]]
    # Beside the 56: the smallest of 16 to 33 and the largest that still fits.
    assert algorithms.modified_first_fit_decreasing(lengths, 100, 9) == [[0, 3, 4], [1, 2, 5]]
    # A pair goes to the large one with the most room, and only where three may be together.
    assert algorithms.modified_first_fit_decreasing([60, 52, 18, 17], 100, 3) == [[0], [1, 3, 2]]
    assert algorithms.modified_first_fit_decreasing([60, 52, 18, 17], 100, 2) == [[0, 2], [1, 3]]


@pytest.mark.parametrize("capacity", [2048, 8192])
@pytest.mark.parametrize("spread", [0.7, 1.0, 1.3])
@pytest.mark.parametrize("seed", [0, 1])
def test_bins_on_long_tailed_lengths(capacity: int, spread: float, seed: int) -> None:
    lengths = long_tailed(10_000, capacity, seed, spread)
    bins = {name: len(pack(lengths, capacity, capacity)) for name, pack in ALGORITHMS.items()}
    least = bins["first_fit_decreasing"]
    assert least >= sum(lengths) / capacity
    assert bins["modified_first_fit_decreasing"] <= 1.01 * least
    assert bins["first_fit_shuffle"] <= 1.03 * least
    assert bins["concatenative"] > least


def lines_run(name: str, count: int) -> int:
    """How many lines of the algorithms' file a run goes through: time that hangs on no machine."""
    lengths, lines = long_tailed(count, 4096, seed=5), 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace if frame.f_code.co_filename == algorithms.__file__ else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        ALGORITHMS[name](lengths, 4096, 4096)
    finally:
        sys.settrace(before)
    return lines


@every_algorithm
def test_work_grows_nearly_as_the_number_of_items(name: str) -> None:
    assert lines_run(name, 8_000) < 4 * 1.35 * lines_run(name, 2_000)


@every_algorithm
def test_bad_input_is_refused(name: str) -> None:
    pack = packer(name)
    assert pack is ALGORITHMS[name]
    assert pack([], 4, 1) == []
    for length in (0, -1, 5):
        with pytest.raises(ValueError, match=rf"lengths\[1\] is {length}; allowed: 1 to 4, the capacity"):
            pack([4, length], 4, 1)
    with pytest.raises(ValueError, match="max_items is 0; allowed: 1 or more"):
        pack([1], 4, 0)


def test_an_unknown_algorithm_is_refused() -> None:
    with pytest.raises(ValueError, match="packing_algorithm is 'best_fit'; allowed: concatenative, first_fit_dec"):
        packer("best_fit")
