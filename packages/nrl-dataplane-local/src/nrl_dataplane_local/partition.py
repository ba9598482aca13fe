"""A partition: what was declared, and for each slot which row stands there, what it has and who has claimed it.

A row gets the next slot when its id comes, so slots are in the order of puts; the slots of a group of g rows are
neighbours that begin at a multiple of g.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from nrl_interfaces.values import copied
from numpy.typing import NDArray

from nrl_dataplane_local.columns import Bytes, ColumnGroup, GrowingArray, NewRows, Slots
from nrl_dataplane_local.values import check_fits, empty_like

__all__ = ["Partition", "Put"]

_FEW = 1024  # slots that are not worth renumbering


@dataclass(frozen=True)
class Put:
    """A put that has been checked, so that nothing is left that could refuse it.

    Attributes:
        sample_ids: Its ids, each with its number.
        new_ids: Those of them that are not there yet.
        columns: The rows of each field.
        tags: The tags, or None.
    """

    sample_ids: dict[str, int]
    new_ids: list[str]
    columns: Mapping[str, NewRows]
    tags: list[dict[str, Any]] | None


@dataclass(eq=False)
class Partition:
    """The rows of one registration. Callers hold the client's lock.

    Attributes:
        partition_id: Its id.
        fields: The fields that may be put.
        num_samples: How many rows: those of the batch, or the capacity of the stream.
        consumer_tasks: The tasks that claim.
        grpo_group_size: The rows of a group, or None.
        enums: The vocabulary of fields that hold strings.
        generation: The number of this registration.
        is_stream: Whether rows come and go.
        held: Where the bytes are counted.
        started: Whether anything was put.
        slots: The slot of each id, in the order of puts.
        columns: By field that was put, the group that its column is in.
        live: By slot, whether a row is there.
        claimed: By task and slot, whether the task has claimed the row.
        claims: By task, how many of the rows that are there it has claimed.
        cursors: By task and fields, a slot before which a claim would find nothing.
    """

    partition_id: str
    fields: tuple[str, ...]
    num_samples: int
    consumer_tasks: tuple[str, ...]
    grpo_group_size: int | None
    enums: Mapping[str, Sequence[str]]
    generation: int
    is_stream: bool
    held: Bytes
    started: bool = False
    slots: dict[str, int] = field(default_factory=dict[str, int])
    columns: dict[str, ColumnGroup] = field(default_factory=dict[str, ColumnGroup])
    live: GrowingArray = field(default_factory=lambda: GrowingArray(np.bool_))
    claimed: dict[str, GrowingArray] = field(init=False)
    claims: dict[str, int] = field(init=False)
    cursors: dict[tuple[str, tuple[str, ...]], int] = field(default_factory=dict[tuple[str, tuple[str, ...]], int])
    _ids: list[str | None] = field(default_factory=list[str | None])  # by slot; None where the row has gone
    _tags: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])  # by slot, where there is one

    def __post_init__(self) -> None:
        self.claimed = {task: GrowingArray(np.bool_) for task in self.consumer_tasks}
        self.claims = dict.fromkeys(self.consumer_tasks, 0)

    # ---- Looking ----

    @property
    def sample_ids(self) -> list[str]:
        """The ids, in the order of puts."""
        return list(self.slots)

    @property
    def batch(self) -> dict[str, Any]:
        """The columns that all rows have; not copies."""
        slots = self.slots_of(self.slots)
        places = {name: group.places_of(slots) for name, group in self.columns.items()}
        whole = {name: at for name, at in places.items() if (at >= 0).all()}
        return {name: self.columns[name].find(at).read(name, copy=False) for name, at in whole.items()}

    @property
    def tags(self) -> list[dict[str, Any]] | None:
        """A copy of each row's tags; None if no row has any."""
        return self.tags_of(self.slots_of(self.slots))

    @property
    def consumed(self) -> dict[str, set[str]]:
        """The ids that each task has claimed."""
        return {task: set(self.ids_at(np.flatnonzero(array.view))) for task, array in self.claimed.items()}

    def slots_of(self, sample_ids: Collection[str]) -> Slots:
        """Give the slots of ids that are there; KeyError for one that is not."""
        if sample_ids == self._ids:  # all rows in their order, as most reads want them
            return np.arange(len(self._ids))
        return np.fromiter(map(self.slots.__getitem__, sample_ids), np.int64, len(sample_ids))

    def ids_at(self, slots: Slots) -> list[str]:
        """Give the ids of the rows at ``slots``; slots whose row has gone are left out."""
        at: list[int] = slots.tolist()
        ids = [self._ids[slot] for slot in at]
        return [sample_id for sample_id in ids if sample_id is not None]

    def tags_of(self, slots: Slots) -> list[dict[str, Any]] | None:
        """Give a copy of each row's tags, {} for a row without; None if none of them has any."""
        tags = self.raw_tags(slots) if self._tags else []
        return [copied(tag or {}) for tag in tags] if any(tag is not None for tag in tags) else None

    def raw_tags(self, slots: Slots) -> list[dict[str, Any] | None]:
        """Give each row's own tags, None for a row without; they are not to be written into."""
        at: list[int] = slots.tolist()
        return [self._tags.get(slot) for slot in at]

    # ---- Putting ----

    def check_put(
        self, sample_ids: dict[str, int], values: Mapping[str, Any], tags: list[dict[str, Any]] | None, *, replace: bool
    ) -> Put:
        """Refuse what can't be put.

        Raises:
            ValueError: Names the field, id or number that is wrong, and what is allowed.
        """
        new_ids = [each for each in sample_ids if each not in self.slots] if self.slots else list(sample_ids)
        self._check_room(new_ids)
        if self.grpo_group_size and len(new_ids) % self.grpo_group_size:
            raise ValueError(
                f"{len(new_ids)} new sample ids for partition {self.partition_id!r}; allowed: whole groups of "
                f"{self.grpo_group_size}"
            )
        columns = {name: NewRows.of(value, self._check_column(name, value)) for name, value in values.items()}
        if len(new_ids) < len(sample_ids) and not replace:
            self._check_not_put([sample_id for sample_id in sample_ids if sample_id in self.slots], values)
        return Put(sample_ids, new_ids, columns, tags)

    def _check_not_put(self, sample_ids: list[str], names: Iterable[str]) -> None:
        slots = self.slots_of(sample_ids)
        for name in names:
            is_there = self.columns[name].places_of(slots) >= 0 if name in self.columns else np.zeros(1, np.bool_)
            if is_there.any():
                raise ValueError(
                    f"field {name!r} of sample id {sample_ids[int(is_there.argmax())]!r} was put before; allowed: "
                    f"fields that are not there yet, or replace=True"
                )

    def _check_room(self, new_ids: list[str]) -> None:
        if self.is_stream:
            room = self.num_samples - len(self.slots)
            if len(new_ids) > room:
                raise ValueError(
                    f"{len(new_ids)} new sample ids for partition {self.partition_id!r}, which has room for {room} of "
                    f"{self.num_samples}; clear rows first, or register more num_samples"
                )
        elif self.started and new_ids:
            raise ValueError(
                f"sample id {new_ids[0]!r} is not in partition {self.partition_id!r}; allowed after the first put: "
                f"ids that are there (partition_mode='stream' lets rows come and go)"
            )
        elif not self.started and len(new_ids) != self.num_samples:
            raise ValueError(
                f"{len(new_ids)} sample ids in the first put to partition {self.partition_id!r}; allowed: "
                f"{self.num_samples}, as registered (partition_mode='stream' lets rows come as they are ready)"
            )

    def _check_column(self, name: str, value: Any) -> Any:
        if name not in self.fields:
            raise ValueError(
                f"field {name!r} is not declared in partition {self.partition_id!r}; allowed: {list(self.fields)}"
            )
        if name in self.enums:
            self._check_vocabulary(name, value)
        if name not in self.columns:
            return empty_like(value)
        try:
            return check_fits(value, self.columns[name].likes[name])
        except ValueError as error:
            raise ValueError(f"field {name!r} does not fit its column: {error}") from error

    def _check_vocabulary(self, name: str, value: Any) -> None:
        allowed = self.enums[name]
        items = cast("NDArray[Any]", value).reshape(-1).tolist() if isinstance(value, np.ndarray) else value
        if isinstance(items, list | tuple):
            for item in cast("Iterable[Any]", items):
                if isinstance(item, str) and item not in allowed:
                    raise ValueError(f"field {name!r} has the value {item!r}; allowed: {list(allowed)}")

    def apply(self, put: Put) -> Slots:
        """Do a put that was checked; gives the slots of its rows."""
        for group in self._groups():
            group.compact()
        first = len(self._ids)
        size = first + len(put.new_ids)
        self._grow(size)
        self._ids[first:] = put.new_ids
        if first == 0:  # nothing is there yet, so their numbers are their slots
            self.slots = put.sample_ids
        else:
            self.slots.update(zip(put.new_ids, range(first, size), strict=True))
        self.live.view[first:] = True
        only_new = len(put.new_ids) == len(put.sample_ids)
        slots = np.arange(first, size) if only_new else self.slots_of(put.sample_ids)
        self.write(slots, put.columns)
        if put.tags is not None:
            self._tags.update(zip(slots.tolist(), put.tags, strict=True))
        self.started = True
        if not only_new:
            self._look_again(slots)
        return slots

    def write(self, slots: Slots, columns: Mapping[str, NewRows]) -> None:
        """Add columns for slots where rows are."""
        new = ColumnGroup(self.held)
        by_group: dict[ColumnGroup, list[str]] = {}
        for name in columns:
            by_group.setdefault(self.columns.get(name, new), []).append(name)
        for group, names in by_group.items():
            # The other columns of a group don't get these rows: from here on they are of another history.
            written = group.split(names) if len(names) < len(group.likes) else group
            written.write(slots, {name: columns[name] for name in names})
            self.columns.update(dict.fromkeys(names, written))

    def _groups(self) -> list[ColumnGroup]:
        return list(dict.fromkeys(self.columns.values()))

    def place(self, sample_ids: Sequence[str], slots: Slots, tags: Sequence[dict[str, Any] | None]) -> None:
        """Put rows without columns into a partition that is empty, each at its slot.

        Raises:
            ValueError: The numbers of ids, slots and tags differ, or an id or a slot is there twice.
        """
        self._grow(-(-(int(slots.max(initial=-1)) + 1) // self.group) * self.group)
        for sample_id, slot, tag in zip(sample_ids, slots.tolist(), tags, strict=True):
            if sample_id in self.slots or self._ids[slot] is not None:
                raise ValueError(f"sample id {sample_id!r} or slot {slot} is there twice")
            self._ids[slot], self.slots[sample_id] = sample_id, slot
            if tag is not None:
                self._tags[slot] = tag
        self.live.view[slots] = True

    def _grow(self, size: int) -> None:
        for array in (self.live, *self.claimed.values()):
            array.grow(size)
        self._ids += [None] * (size - len(self._ids))

    # ---- Claiming ----

    def claim(self, slots: Slots, task: str) -> None:
        """Mark rows as claimed that are there and were not."""
        self.claimed[task].view[slots] = True
        self.claims[task] += len(slots)

    def release(self, slots: Slots, task: str) -> None:
        """Mark rows as not claimed that were."""
        self.claimed[task].view[slots] = False
        self.claims[task] -= len(slots)
        self._look_again(slots)

    def _look_again(self, slots: Slots) -> None:
        """Rows of these slots may have become ready: let no cursor stand behind them."""
        if len(slots):
            lowest = int(slots.min()) // self.group * self.group
            for key, cursor in self.cursors.items():
                self.cursors[key] = min(cursor, lowest)

    @property
    def group(self) -> int:
        """The rows of a group; 1 where there are none."""
        return self.grpo_group_size or 1

    # ---- Clearing ----

    def clear(self, sample_ids: Sequence[str]) -> None:
        """Drop the rows of ids that are there."""
        slots = self.slots_of(sample_ids)
        for group in self._groups():
            group.clear(slots)
        for task, array in self.claimed.items():
            self.claims[task] -= int(array.view[slots].sum())
            array.view[slots] = False
        self.live.view[slots] = False
        for sample_id, slot in zip(sample_ids, slots.tolist(), strict=True):
            del self.slots[sample_id]
            self._ids[slot] = None
            self._tags.pop(slot, None)
        self._look_again(slots)  # what is left of a group may be ready now
        if len(self._ids) > _FEW and len(self._ids) > 4 * len(self.slots):
            self._renumber()

    def _renumber(self) -> None:
        """Close the gaps between slots, so that memory follows the rows that are there."""
        group = self.group
        live = self.live.view.reshape(-1, group)
        kept = live.any(axis=1)
        new_group = np.cumsum(kept) - 1
        old = np.flatnonzero(np.repeat(kept, group))
        new_slots = (new_group[:, None] * group + np.arange(group)).reshape(-1)
        for column in self._groups():
            column.renumber(new_slots, len(old))
        for array in (self.live, *self.claimed.values()):
            array.replace(array.view[old])
        self._ids = [self._ids[slot] for slot in old.tolist()]
        self.slots = {sample_id: slot for slot, sample_id in enumerate(self._ids) if sample_id is not None}
        self._tags = {int(new_slots[slot]): tag for slot, tag in self._tags.items()}
        self.cursors.clear()

    def let_go(self) -> None:
        """Take the partition's bytes out of the count: it is dropped whole."""
        for group in self._groups():
            group.let_go()

    def copy(self) -> "Partition":
        """Give a partition of the same rows, which nothing that happens to this one changes."""
        copies = {group: group.copy() for group in self._groups()}
        made = Partition(
            partition_id=self.partition_id,
            fields=self.fields,
            num_samples=self.num_samples,
            consumer_tasks=self.consumer_tasks,
            grpo_group_size=self.grpo_group_size,
            enums=self.enums,
            generation=self.generation,
            is_stream=self.is_stream,
            held=Bytes(),
            started=self.started,
            slots=dict(self.slots),
            columns={name: copies[group] for name, group in self.columns.items()},
            live=self.live.copy(),
            _ids=list(self._ids),
            _tags=dict(self._tags),
        )
        made.claimed = {task: array.copy() for task, array in self.claimed.items()}
        made.claims = dict(self.claims)
        return made
