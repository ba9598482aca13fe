"""A column: immutable segments, one a put, and for each slot where its row stands in them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from nrl_interfaces.values import bytes_by_device, copied
from numpy.typing import NDArray

from nrl_dataplane_local.values import copied_rows, is_identity, join, select_rows

__all__ = ["Bytes", "Column", "GrowingArray", "NewRows", "Pick", "Slots"]

Slots = NDArray[np.int64]
ABSENT = -1


class GrowingArray:
    """A one-dimensional array that grows at its end, in amortized constant time an item."""

    def __init__(self, dtype: type[np.generic], fill: int = 0) -> None:
        self._fill = fill
        self._items = np.full(16, fill, dtype=dtype)
        self._size = 0

    @property
    def view(self) -> NDArray[Any]:
        """The items; good until the next `grow`."""
        return self._items[: self._size]

    def grow(self, size: int) -> None:
        """Make it at least ``size`` long."""
        if size > len(self._items):
            items = np.full(max(size, 2 * len(self._items)), self._fill, dtype=self._items.dtype)
            items[: self._size] = self.view
            self._items = items
        self._size = max(self._size, size)

    def append(self, item: int) -> None:
        """Put one item behind the others."""
        self.grow(self._size + 1)
        self._items[self._size - 1] = item

    def replace(self, items: NDArray[Any]) -> None:
        """Hold a copy of ``items`` from now on."""
        self._items, self._size = np.array(items, dtype=self._items.dtype), len(items)

    def copy(self) -> "GrowingArray":
        """Give another one with the same items."""
        made = GrowingArray(self._items.dtype.type, self._fill)
        made.replace(self.view)
        return made


class Bytes:
    """How many bytes are held, by device, and the most that ever were."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}
        self.peak = 0

    def add(self, sizes: Mapping[str, int], sign: int = 1) -> None:
        """Count what has come, or with sign -1 what has gone."""
        for device, size in sizes.items():
            self.held[device] = self.held.get(device, 0) + sign * size
        self.peak = max(self.peak, sum(self.held.values()))


@dataclass(frozen=True)
class NewRows:
    """Rows for a column, with all that could go wrong with them done.

    Attributes:
        value: The rows.
        like: 0 rows that stand for the column from then on.
        bytes: What the value holds, by device.
    """

    value: Any
    like: Any
    bytes: Mapping[str, int]

    @classmethod
    def of(cls, value: Any, like: Any) -> "NewRows":
        """Count the bytes of a value; RecursionError if it holds itself."""
        return cls(value, like, bytes_by_device(value))


@dataclass(frozen=True)
class Segment:
    """The rows of one put; nobody writes into it.

    Attributes:
        value: The rows.
        slots: The slot of each row when it was written.
        base: The number of its first row in the column.
        bytes: What it holds, by device.
    """

    value: Any
    slots: Slots
    base: int
    bytes: Mapping[str, int]


@dataclass(frozen=True)
class Pick:
    """Rows of a column, found but not yet read; reading needs no lock, as segments never change.

    Attributes:
        parts: Values, and which of their rows; None for all.
        order: For each row asked for, its number in the joined parts; None if they are in order.
    """

    parts: list[tuple[Any, Slots | None]]
    order: Slots | None

    def read(self, *, copy: bool) -> Any:
        """Give the rows; with ``copy``, rows of their own."""
        if not copy:
            rows = join([value if chosen is None else select_rows(value, chosen) for value, chosen in self.parts])
            return rows if self.order is None else select_rows(rows, self.order)
        parts = [copied(value) if chosen is None else copied_rows(value, chosen) for value, chosen in self.parts]
        rows = join(parts)
        return rows if self.order is None else select_rows(rows, self.order)


class Column:
    """The rows of one field, by slot."""

    def __init__(self, held: Bytes) -> None:
        self._held = held
        self._places = GrowingArray(np.int64, ABSENT)  # by slot: the row's number in the column
        self._segments: list[Segment | None] = []  # None: no row of it is left
        self._bases = GrowingArray(np.int64)  # by segment: its base, ascending
        self._left = GrowingArray(np.int64)  # by segment: how many of its rows are in use
        self._next_row = 0
        self._gone = 0  # segments that are None
        self._thin: set[int] = set()  # segments with less than half of their rows in use
        self._like: Any = None  # 0 rows

    @property
    def like(self) -> Any:
        """0 rows of the column, with its dtype and trailing shape."""
        return self._like

    def present(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Tell which slots from ``start`` up to ``stop`` have a row."""
        there = self._places.view[start:stop] >= 0
        return there if len(there) == stop - start else np.pad(there, (0, stop - start - len(there)))

    def places_of(self, slots: Slots) -> Slots:
        """Give the number in the column of each slot's row; `ABSENT` where there is none."""
        places = self._places.view
        inside = slots < len(places)
        if inside.all():
            return places[slots]
        found = np.full(len(slots), ABSENT, dtype=np.int64)
        found[inside] = places[slots[inside]]
        return found

    def write(self, slots: Slots, rows: NewRows) -> None:
        """Add a put's rows as a segment; slots that have a row already get the new one."""
        self._like = rows.like
        self._places.grow(int(slots.max()) + 1 if len(slots) else 0)
        old = self._places.view[slots]
        self._let_go(old[old >= 0])
        self._append(slots, rows)

    def clear(self, slots: Slots) -> None:
        """Drop the rows of ``slots``, of those that have one."""
        places = self.places_of(slots)
        there = places >= 0
        self._let_go(places[there])
        self._places.view[slots[there]] = ABSENT

    def find(self, places: Slots) -> Pick:
        """Find rows by their numbers in the column, none of them `ABSENT`."""
        if not len(places):
            return Pick([(self._like, None)], None)
        first, last = (int(self._segment_of(place)) for place in (places.min(), places.max()))
        if first == last:
            return Pick([self._part(first, places)], None)
        numbers = self._segment_of(places)
        by_segment = np.argsort(numbers, kind="stable")
        numbers, places = numbers[by_segment], places[by_segment]
        cuts = np.flatnonzero(np.diff(numbers)) + 1
        firsts: list[int] = numbers[np.concatenate([[0], cuts])].tolist()
        parts = [self._part(number, run) for number, run in zip(firsts, np.split(places, cuts), strict=True)]
        return Pick(parts, None if is_identity(by_segment, len(by_segment)) else np.argsort(by_segment))

    def copy(self) -> "Column":
        """Give another column of the same segments; it counts no bytes."""
        made = Column(Bytes())
        made._places, made._bases, made._left = self._places.copy(), self._bases.copy(), self._left.copy()
        made._segments, made._next_row, made._gone = list(self._segments), self._next_row, self._gone
        made._thin, made._like = set(self._thin), self._like
        return made

    def renumber(self, new_slots: Slots, size: int) -> None:
        """Move every row to ``new_slots[slot]``, all below ``size``; slots that lost their row are `ABSENT` there."""
        old = np.flatnonzero(self._places.view >= 0)
        places = np.full(size, ABSENT)
        places[new_slots[old]] = self._places.view[old]
        self._places.replace(places)
        for at, segment in enumerate(self._segments):
            if segment is not None:
                slots = np.where(segment.slots >= 0, new_slots[segment.slots], ABSENT)
                self._segments[at] = Segment(segment.value, slots, segment.base, segment.bytes)

    def let_go(self) -> None:
        """Take the column's bytes out of the count: it is dropped whole."""
        for segment in self._segments:
            if segment is not None:
                self._held.add(segment.bytes, -1)

    def compact(self) -> None:
        """Copy what is left of thin segments, and forget those that are gone once they are the most."""
        for number in sorted(self._thin):
            segment = self._segments[number]
            if segment is not None:
                known = segment.slots >= 0
                at = np.flatnonzero(known)
                places = self._places.view[segment.slots[at]]
                used = at[places == segment.base + at]
                self._append(segment.slots[used], NewRows.of(copied_rows(segment.value, used), self._like))
                self._drop(number)
        if self._gone > 32 and 2 * self._gone > len(self._segments):
            kept = [number for number, segment in enumerate(self._segments) if segment is not None]
            self._segments = [self._segments[number] for number in kept]
            self._bases.replace(self._bases.view[kept])
            self._left.replace(self._left.view[kept])
            self._gone = 0

    def _append(self, slots: Slots, rows: NewRows) -> None:
        if not len(slots):
            return
        segment = Segment(rows.value, slots, self._next_row, rows.bytes)
        self._segments.append(segment)
        self._bases.append(segment.base)
        self._left.append(len(slots))
        self._next_row += len(slots)
        self._places.view[slots] = np.arange(segment.base, self._next_row)
        self._held.add(segment.bytes)

    def _segment_of(self, places: Slots) -> Slots:
        return np.searchsorted(self._bases.view, places, side="right") - 1

    def _part(self, number: int, places: Slots) -> tuple[Any, Slots | None]:
        segment = cast("Segment", self._segments[number])  # a row in use keeps its segment
        chosen = places - segment.base
        return segment.value, None if is_identity(chosen, len(segment.slots)) else chosen

    def _let_go(self, places: Slots) -> None:
        if not len(places):
            return
        numbers, counts = np.unique(self._segment_of(places), return_counts=True)
        left = self._left.view
        left[numbers] -= counts
        touched: list[int] = numbers.tolist()
        for number in touched:
            segment = self._segments[number]
            if segment is not None and 2 * left[number] < len(segment.slots):
                self._thin.add(number)
                if left[number] == 0:
                    self._drop(number)

    def _drop(self, number: int) -> None:
        segment = self._segments[number]
        if segment is not None:
            self._held.add(segment.bytes, -1)
            self._segments[number] = None
            self._thin.discard(number)
            self._gone += 1
