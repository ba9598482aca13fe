"""The packing algorithms side by side: bins and milliseconds, against first fit as it is written first; growth."""

import gc
import random
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
from nrl_energon_loader.packing.algorithms import ALGORITHMS

Packer = Callable[[Sequence[int], int, int], list[list[int]]]

CAPACITY = 4096
ROUNDS = 9
SIZES = (1_000, 10_000, 100_000)


def long_tailed(count: int) -> list[int]:
    """Lengths as conversations have them: half below 400 tokens, one in a hundred cut at the capacity."""
    rng = random.Random(0)
    return [min(CAPACITY, 1 + int(rng.lognormvariate(6, 1))) for _ in range(count)]


def bins_one_by_one(lengths: Sequence[int], capacity: int, max_items: int) -> list[list[int]]:
    """First fit decreasing by its definition: a loop over the bins for each item."""
    bins: list[list[int]] = []
    rooms: list[int] = []
    for position in sorted(range(len(lengths)), key=lambda p: -lengths[p]):
        for number, room in enumerate(rooms):
            if lengths[position] <= room and len(bins[number]) < max_items:
                bins[number].append(position)
                rooms[number] -= lengths[position]
                break
        else:
            bins.append([position])
            rooms.append(capacity - lengths[position])
    return bins


def bins_in_an_array(lengths: Sequence[int], capacity: int, max_items: int) -> list[list[int]]:
    """The same with numpy looking through all bins at once."""
    bins: list[list[int]] = []
    rooms = np.zeros(len(lengths), dtype=np.int64)
    for position in sorted(range(len(lengths)), key=lambda p: -lengths[p]):
        fits = rooms[: len(bins)] >= lengths[position]
        number = int(fits.argmax()) if fits.any() else len(bins)
        if number == len(bins):
            bins.append([])
            rooms[number] = capacity
        bins[number].append(position)
        rooms[number] = rooms[number] - lengths[position] if len(bins[number]) < max_items else 0
    return bins


def measure(
    ways: dict[str, Packer], lengths: Sequence[int], rounds: int
) -> dict[str, tuple[list[list[int]], list[float]]]:
    """Bins and milliseconds of each way; they take turns, so that a slow moment of the machine meets all of them."""
    bins: dict[str, list[list[int]]] = {}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, pack in ways.items():
            gc.collect()
            began = time.perf_counter()
            bins[name] = pack(lengths, CAPACITY, CAPACITY)
            times[name].append(1e3 * (time.perf_counter() - began))
    return {name: (bins[name], times[name]) for name in ways}


def spread(values: list[float]) -> str:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:,.1f} ({low:,.1f} to {high:,.1f})"


def side_by_side() -> None:
    peers = {
        "first fit decreasing, bins one by one": bins_one_by_one,
        "first fit decreasing, bins in a numpy array": bins_in_an_array,
    }
    lengths = long_tailed(10_000)
    print(f"\n10,000 lengths, capacity {CAPACITY:,}, median {statistics.median(lengths):,.0f}, ", end="")
    print(f"mean {statistics.mean(lengths):,.0f}; {ROUNDS} interleaved rounds, median and quartiles:\n")
    found = measure({**ALGORITHMS, **peers}, lengths, ROUNDS)
    least = len(found["first_fit_decreasing"][0])
    print("| algorithm | bins | to first fit decreasing | filled | ms |\n| --- | --- | --- | --- | --- |")
    for name, (bins, times) in found.items():
        filled = sum(lengths) / len(bins) / CAPACITY
        shown = f"`{name}`" if name in ALGORITHMS else name
        print(f"| {shown} | {len(bins):,} | {len(bins) / least - 1:+.1%} | {filled:.1%} | {spread(times)} |")


def growth() -> None:
    print("\nMilliseconds as the number of lengths grows, the least of 3 rounds, and how many times the row before:\n")
    print(f"| lengths | {' | '.join(f'`{name}`' for name in ALGORITHMS)} |")
    print(f"| --- |{' --- |' * len(ALGORITHMS)}")
    before: dict[str, float] = {}
    for size in SIZES:
        found = {name: min(times) for name, (_, times) in measure(ALGORITHMS, long_tailed(size), 3).items()}
        cells = [f"{ms:,.1f}" + (f" ({ms / before[name]:.1f} x)" if before else "") for name, ms in found.items()]
        print(f"| {size:,} | {' | '.join(cells)} |")
        before = found


if __name__ == "__main__":
    print("## nrl-energon-loader: packing\n")
    print("Which conversations share a row. Lengths are lognormal (mu 6, sigma 1), cut at the capacity.")
    side_by_side()
    growth()
