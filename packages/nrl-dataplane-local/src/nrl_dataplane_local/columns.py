"""Columns that were put together: immutable segments, one a put, and for each slot where its row stands in them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from nrl_interfaces.values import bytes_by_device, copied
from numpy.typing import NDArray

from nrl_dataplane_local.values import copied_rows, is_identity, join, select_rows

__all__ = ["Bytes", "ColumnGroup", "Found", "GrowingArray", "NewRows", "Slots"]

Slots = NDArray[np.int64]
ABSENT = -1


class GrowingArray:
    """A one-dimensional array that grows at its end, in amortized constant time an item."""

    def __init__(self, dtype: type[np.generic], fill: int = 0) -> None:
        self._fill = fill
        self._items = np.empty(0, dtype=dtype)
        self._size = 0

    @property
    def view(self) -> NDArray[Any]:
        """The items; good until the next `grow`."""
        return self._items[: self._size]

    def grow(self, size: int) -> None:
        """Make it at least ``size`` long."""
        if size > len(self._items):
            items = np.empty(max(size, 16, 2 * len(self._items)), dtype=self._items.dtype)
            items[: self._size] = self.view
            items[self._size :] = self._fill
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

    def add(self, columns: Iterable["NewRows"], sign: int = 1) -> None:
        """Count what has come, or with sign -1 what has gone."""
        for rows in columns:
            for device, size in rows.bytes.items():
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
        if isinstance(value, torch.Tensor) and not value.is_nested:
            return cls(value, like, {str(value.device): value.nbytes})
        return cls(value, like, bytes_by_device(value))


@dataclass(frozen=True)
class Segment:
    """The rows of one put; nobody writes into it.

    Attributes:
        columns: The rows of each column.
        slots: The slot of each row when it was written.
        base: The number of its first row in the group.
    """

    columns: Mapping[str, NewRows]
    slots: Slots
    base: int


@dataclass(frozen=True)
class Found:
    """Rows of a group, found but not yet read; reading needs no lock, as segments never change.

    Attributes:
        likes: 0 rows of each column.
        parts: Segments, and which of their rows; None for all.
        order: For each row asked for, its number in the joined parts; None if they are in order.
    """

    likes: Mapping[str, Any]
    parts: Sequence[tuple[Segment, Slots | None]]
    order: Slots | None

    def read(self, name: str, *, copy: bool) -> Any:
        """Give the rows of a column; with ``copy``, rows of their own."""
        if not self.parts:
            return copied(self.likes[name])
        rows = join([_read_part(segment.columns[name].value, chosen, copy=copy) for segment, chosen in self.parts])
        return rows if self.order is None else select_rows(rows, self.order)


def _read_part(value: Any, chosen: Slots | None, *, copy: bool) -> Any:
    if chosen is None:
        return copied(value) if copy else value
    return copied_rows(value, chosen) if copy else select_rows(value, chosen)


class ColumnGroup:
    """Columns whose rows came by the same puts, by slot. So what is found for one is found for all.

    Attributes:
        likes: 0 rows of each column, with its dtype and trailing shape.
    """

    def __init__(self, held: Bytes) -> None:
        self.likes: dict[str, Any] = {}
        self._held = held
        self._places = GrowingArray(np.int64, ABSENT)  # by slot: the row's number in the group
        self._segments: list[Segment | None] = []  # None: no row of it is left
        self._bases = GrowingArray(np.int64)  # by segment: its base, ascending
        self._left = GrowingArray(np.int64)  # by segment: how many of its rows are in use
        self._next_row = 0
        self._gone = 0  # segments that are None
        self._thin: set[int] = set()  # segments with less than half of their rows in use

    # ---- Finding ----

    def present(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Tell which slots from ``start`` up to ``stop`` have a row."""
        there = self._places.view[start:stop] >= 0
        return there if len(there) == stop - start else np.pad(there, (0, stop - start - len(there)))

    def places_of(self, slots: Slots) -> Slots:
        """Give the number in the group of each slot's row; `ABSENT` where there is none."""
        places = self._places.view
        inside = slots < len(places)
        if inside.all():
            return places[slots]
        found = np.full(len(slots), ABSENT, dtype=np.int64)
        found[inside] = places[slots[inside]]
        return found

    def find(self, places: Slots) -> Found:
        """Find rows by their numbers in the group, none of them `ABSENT`."""
        if not len(places):
            return Found(self.likes, (), None)
        if len(self._segments) == 1:
            return Found(self.likes, [self._part(0, places)], None)
        first, last = self._segment_of(np.array([places.min(), places.max()])).tolist()
        if first == last:
            return Found(self.likes, [self._part(first, places)], None)
        numbers = self._segment_of(places)
        by_segment = np.argsort(numbers, kind="stable")
        numbers, places = numbers[by_segment], places[by_segment]
        cuts = np.flatnonzero(np.diff(numbers)) + 1
        firsts: list[int] = numbers[np.concatenate([[0], cuts])].tolist()
        parts = [self._part(number, run) for number, run in zip(firsts, np.split(places, cuts), strict=True)]
        return Found(self.likes, parts, None if is_identity(by_segment, len(by_segment)) else np.argsort(by_segment))

    def _segment_of(self, places: Slots) -> Slots:
        return np.searchsorted(self._bases.view, places, side="right") - 1

    def _part(self, number: int, places: Slots) -> tuple[Segment, Slots | None]:
        segment = cast("Segment", self._segments[number])  # a row in use keeps its segment
        chosen = places - segment.base
        return segment, None if is_identity(chosen, len(segment.slots)) else chosen

    # ---- Changing ----

    def write(self, slots: Slots, columns: Mapping[str, NewRows]) -> None:
        """Add a put's rows, of every column of the group; slots that have a row already get the new one."""
        self.likes = {name: rows.like for name, rows in columns.items()}
        if self._segments:
            old = self.places_of(slots)
            self._let_go(old[old >= 0])
        self._places.grow(int(slots.max(initial=ABSENT)) + 1)
        self._append(slots, columns)

    def clear(self, slots: Slots) -> None:
        """Drop the rows of ``slots``, of those that have one."""
        places = self.places_of(slots)
        there = places >= 0
        self._let_go(places[there])
        self._places.view[slots[there]] = ABSENT

    def compact(self) -> None:
        """Copy what is left of thin segments, and forget those that are gone once they are the most."""
        for number in sorted(self._thin):
            segment = self._segments[number]
            if segment is not None:
                at = np.flatnonzero(segment.slots >= 0)
                places = self._places.view[segment.slots[at]]
                used = at[places == segment.base + at]
                columns = {
                    name: NewRows.of(copied_rows(rows.value, used), rows.like) for name, rows in segment.columns.items()
                }
                self._append(segment.slots[used], columns)
                self._drop(number)
        if self._gone > 32 and 2 * self._gone > len(self._segments):
            kept = [number for number, segment in enumerate(self._segments) if segment is not None]
            self._segments = [self._segments[number] for number in kept]
            self._bases.replace(self._bases.view[kept])
            self._left.replace(self._left.view[kept])
            self._gone = 0

    def renumber(self, new_slots: Slots, size: int) -> None:
        """Move every row to ``new_slots[slot]``, all below ``size``; slots that lost their row are `ABSENT` there."""
        old = np.flatnonzero(self._places.view >= 0)
        places = np.full(size, ABSENT)
        places[new_slots[old]] = self._places.view[old]
        self._places.replace(places)
        for at, segment in enumerate(self._segments):
            if segment is not None:
                slots = np.where(segment.slots >= 0, new_slots[segment.slots], ABSENT)
                self._segments[at] = Segment(segment.columns, slots, segment.base)

    def split(self, names: Iterable[str]) -> "ColumnGroup":
        """Move some columns, not all, into a group of their own, of the same rows."""
        made = self._of(set(names), self._held)
        self.likes = {name: like for name, like in self.likes.items() if name not in made.likes}
        self._segments = [segment and _columns_of(segment, set(self.likes)) for segment in self._segments]
        return made

    def copy(self) -> "ColumnGroup":
        """Give another group of the same segments; it counts no bytes."""
        return self._of(set(self.likes), Bytes())

    def _of(self, names: set[str], held: Bytes) -> "ColumnGroup":
        made = ColumnGroup(held)
        made.likes = {name: like for name, like in self.likes.items() if name in names}
        made._places, made._bases, made._left = self._places.copy(), self._bases.copy(), self._left.copy()
        made._segments = [segment and _columns_of(segment, names) for segment in self._segments]
        made._next_row, made._gone, made._thin = self._next_row, self._gone, set(self._thin)
        return made

    def let_go(self) -> None:
        """Take the group's bytes out of the count: it is dropped whole."""
        for number in range(len(self._segments)):
            self._drop(number)

    def _append(self, slots: Slots, columns: Mapping[str, NewRows]) -> None:
        if not len(slots):
            return
        segment = Segment(columns, slots, self._next_row)
        self._segments.append(segment)
        self._bases.append(segment.base)
        self._left.append(len(slots))
        self._next_row += len(slots)
        self._places.view[slots] = np.arange(segment.base, self._next_row)
        self._held.add(columns.values())

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
            self._held.add(segment.columns.values(), -1)
            self._segments[number] = None
            self._thin.discard(number)
            self._gone += 1


def _columns_of(segment: Segment, names: set[str]) -> Segment:
    if names >= segment.columns.keys():
        return segment
    columns = {name: rows for name, rows in segment.columns.items() if name in names}
    return Segment(columns, segment.slots, segment.base)
