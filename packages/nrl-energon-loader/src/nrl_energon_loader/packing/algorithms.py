"""Which lengths go into a bin together, by the name of the algorithm.

Each takes lengths, a capacity and the most items a bin may hold, and gives bins: lists of positions in ``lengths``.
Every position stands in exactly one bin; neither bound is ever exceeded. The same arguments give the same bins.
"""

import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

__all__ = ["ALGORITHMS", "Packer", "packer"]

Packer: TypeAlias = Callable[[Sequence[int], int, int], list[list[int]]]


def packer(name: str) -> Packer:
    """Find an algorithm.

    Args:
        name: ``concatenative``, ``first_fit_decreasing``, ``first_fit_shuffle`` or ``modified_first_fit_decreasing``.

    Raises:
        ValueError: If there is no such algorithm.

    >>> packer("first_fit_decreasing")([3, 5, 2, 4], 7, 4)
    [[1, 2], [3, 0]]
    """
    if name not in ALGORITHMS:
        raise ValueError(f"packing_algorithm is {name!r}; allowed: {', '.join(ALGORITHMS)}, or None for no packing")
    return ALGORITHMS[name]


def concatenative(lengths: Sequence[int], capacity: int, max_items: int) -> list[list[int]]:
    """Fill one bin after the other in the given order, never going back to one."""
    _check(lengths, capacity, max_items)
    bins: list[list[int]] = []
    free = -1
    for position, length in enumerate(lengths):
        if length > free or len(bins[-1]) == max_items:
            bins.append([])
            free = capacity
        bins[-1].append(position)
        free -= length
    return bins


def first_fit_decreasing(lengths: Sequence[int], capacity: int, max_items: int) -> list[list[int]]:
    """Put the longest first, each into the first bin that has room; of equal lengths the earlier one first."""
    _check(lengths, capacity, max_items)
    return _first_fit(_decreasing(lengths), lengths, capacity, max_items)


def first_fit_shuffle(lengths: Sequence[int], capacity: int, max_items: int) -> list[list[int]]:
    """Put each into the first bin that has room, in an order that mixes long and short ones in all bins.

    The order is random to the eye, but the same for as many lengths.
    """
    _check(lengths, capacity, max_items)
    order = list(range(len(lengths)))
    random.Random(len(lengths)).shuffle(order)  # noqa: S311 - nothing secret
    return _first_fit(order, lengths, capacity, max_items)


def modified_first_fit_decreasing(lengths: Sequence[int], capacity: int, max_items: int) -> list[list[int]]:
    """Johnson and Garey's way: fill up the bins of the longest items with what fits best, then first fit decreasing."""
    _check(lengths, capacity, max_items)
    return _ModifiedFirstFit(lengths, capacity, max_items).bins()


def _check(lengths: Sequence[int], capacity: int, max_items: int) -> None:
    if max_items < 1:
        raise ValueError(f"max_items is {max_items}; allowed: 1 or more")
    for position, length in enumerate(lengths):
        if not 0 < length <= capacity:
            raise ValueError(f"lengths[{position}] is {length}; allowed: 1 to {capacity}, the capacity")


def _decreasing(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)  # equal ones keep their order


def _first_fit(order: Sequence[int], lengths: Sequence[int], capacity: int, max_items: int) -> list[list[int]]:
    """Put each into the first bin that has room, found in a tree: a node has the largest room of the bins below it.

    Node n has the children 2n and 2n + 1; the leaves are the bins, those not yet begun at the right, all room free.
    """
    # Of two bins that no longer grow only for want of room, the second begins with more than the first has left.
    most_bins = min(len(order), 2 * sum(map(lengths.__getitem__, order)) // capacity + 1 + len(order) // max_items)
    leaves = 1 << most_bins.bit_length()
    tree = [capacity] * (2 * leaves)
    bins: list[list[int]] = []
    for position in order:
        length, node = lengths[position], 1
        while node < leaves:
            node *= 2
            if tree[node] < length:
                node += 1
        number = node - leaves
        if number == len(bins):
            bins.append([])
        bins[number].append(position)
        room = tree[node] - length if len(bins[number]) < max_items else 0
        while tree[node] != room:  # up to the first node that keeps its largest room; tree[0] always does
            tree[node] = room
            room = max(room, tree[node ^ 1])
            node //= 2
    return bins


class _Pool:
    """Items to be placed, by length; those of equal length in their order."""

    def __init__(self, positions: Iterable[int], lengths: Sequence[int]) -> None:
        self._stacks: dict[int, list[int]] = {}
        for position in positions:
            self._stacks.setdefault(lengths[position], []).append(position)
        for stack in self._stacks.values():
            stack.reverse()
        self._sorted = sorted(self._stacks)

    def smallest(self) -> int | None:
        """Give the smallest length left."""
        return self._sorted[0] if self._sorted else None

    def two_smallest(self) -> int | None:
        """Give the sum of the two smallest lengths left; None if fewer are left."""
        if not self._sorted or (len(self._sorted) == 1 and len(self._stacks[self._sorted[0]]) == 1):
            return None
        first = self._sorted[0]
        return 2 * first if len(self._stacks[first]) > 1 else first + self._sorted[1]

    def take_largest(self, room: int) -> int | None:
        """Take the largest item that fits into a room; None if none does."""
        place = bisect_right(self._sorted, room) - 1
        return None if place < 0 else self._take(place)

    def take_smallest(self) -> int:
        """Take the smallest item."""
        return self._take(0)

    def _take(self, place: int) -> int:
        stack = self._stacks[self._sorted[place]]
        position = stack.pop()
        if not stack:
            del self._sorted[place]
        return position

    def rest(self) -> list[int]:
        """Give what is left, longest first."""
        return [position for length in reversed(self._sorted) for position in reversed(self._stacks[length])]


class _ModifiedFirstFit:
    def __init__(self, lengths: Sequence[int], capacity: int, max_items: int) -> None:
        self._lengths, self._capacity, self._max_items = lengths, capacity, max_items
        order = _decreasing(lengths)
        self._bins = [[position] for position in order if 2 * lengths[position] > capacity]
        self._room = [capacity - lengths[one] for (one,) in self._bins]
        others = order[len(self._bins) :]
        self._medium = _Pool((p for p in others if 3 * lengths[p] > capacity), lengths)
        self._small = _Pool((p for p in others if capacity >= 3 * lengths[p] and 6 * lengths[p] > capacity), lengths)
        self._tiny = _Pool((p for p in others if 6 * lengths[p] <= capacity), lengths)

    def bins(self) -> list[list[int]]:
        self._add_mediums()
        self._add_pairs_of_smalls()
        self._fill_up()
        rest = [*self._medium.rest(), *self._small.rest(), *self._tiny.rest()]
        return self._bins + _first_fit(rest, self._lengths, self._capacity, self._max_items)

    def _put(self, number: int, position: int) -> None:
        self._bins[number].append(position)
        self._room[number] -= self._lengths[position]

    def _add_mediums(self) -> None:
        """Forward, the largest medium item that fits: the bins of the longest have the least room, and come first."""
        for number, room in enumerate(self._room):
            if self._max_items > 1 and (position := self._medium.take_largest(room)) is not None:
                self._put(number, position)

    def _add_pairs_of_smalls(self) -> None:
        """Backward, into bins without a medium one: the smallest small item and the largest that still fits."""
        for number in reversed(range(len(self._bins))):
            pair = self._small.two_smallest()
            if len(self._bins[number]) > 1 or self._max_items < 3 or pair is None or pair > self._room[number]:
                continue
            self._put(number, self._small.take_smallest())
            position = self._small.take_largest(self._room[number])
            if position is not None:  # always: the two smallest fit
                self._put(number, position)

    def _fill_up(self) -> None:
        """Forward, the largest item of any kind that fits, again and again."""
        for number in range(len(self._bins)):
            while len(self._bins[number]) < self._max_items:
                room = self._room[number]
                pools = (self._medium, self._small, self._tiny)  # every medium item is longer than every small one
                position = next((p for pool in pools if (p := pool.take_largest(room)) is not None), None)
                if position is None:
                    break
                self._put(number, position)


ALGORITHMS: Final[dict[str, Packer]] = {
    "concatenative": concatenative,
    "first_fit_decreasing": first_fit_decreasing,
    "first_fit_shuffle": first_fit_shuffle,
    "modified_first_fit_decreasing": modified_first_fit_decreasing,
}
