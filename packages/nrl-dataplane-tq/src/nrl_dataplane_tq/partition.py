"""What the registry knows of one partition beyond TransferQueue: the order of its rows, its groups, puts under way."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nrl_dataplane_tq.columns import Kind
from nrl_dataplane_tq.declaration import Declaration

__all__ = ["Partition", "Put", "Row"]

Numbers = NDArray[np.int64]


class Row(NamedTuple):
    """Where a row is.

    Attributes:
        number: What TransferQueue calls its global index.
        group: The number of its group.
    """

    number: int
    group: int


@dataclass
class Put:
    """A put whose rows are on their way to the storage units; nobody sees it before its end.

    Attributes:
        ids: Its sample ids.
        new_ids: Those that have no row yet.
        kinds: The columns that it brings.
        is_replacing: Whether its columns may be there already.
        numbers: The rows' numbers in TransferQueue, in step with ``ids``.
        began: Monotonic seconds.
    """

    ids: list[str]
    new_ids: list[str]
    kinds: dict[str, Kind]
    is_replacing: bool
    numbers: list[int] = field(default_factory=list[int])
    began: float = 0.0


@dataclass
class Partition:
    """The rows of a registration. TransferQueue has which fields they have, who claimed them, their tags and data.

    Attributes:
        declaration: What was registered.
        rows: The rows by id, in the order of puts. TransferQueue's numbers do not keep it: they are used again.
        kinds: What each field that was ever put is made of.
        is_started: Whether anything was put.
        next_group: The number of the next group.
        puts: The puts under way, by number.
        version: Goes up with each change that a waiting claim may have waited for.
        clears: Goes up when rows go; a read that saw one has to begin again.
    """

    declaration: Declaration
    rows: dict[str, Row] = field(default_factory=dict[str, Row])
    kinds: dict[str, Kind] = field(default_factory=dict[str, Kind])
    is_started: bool = False
    next_group: int = 0
    puts: dict[int, Put] = field(default_factory=dict[int, Put])
    version: int = 0
    clears: int = 0
    _arrays: tuple[Numbers, Numbers] | None = None

    @property
    def arrays(self) -> tuple[Numbers, Numbers]:
        """The rows' numbers in TransferQueue and those of their groups, in the order of puts."""
        if self._arrays is None:
            table = np.fromiter((item for row in self.rows.values() for item in row), np.int64, 2 * len(self.rows))
            self._arrays = table[::2].copy(), table[1::2].copy()
        return self._arrays

    @property
    def rows_expected(self) -> int:
        """How many rows may still come."""
        is_open = self.declaration.is_stream or not self.is_started
        return self.declaration.num_samples - len(self.rows) if is_open else 0

    def numbers_of(self, sample_ids: Iterable[str]) -> list[int]:
        """Give the rows' numbers in TransferQueue.

        Raises:
            KeyError: There is no such row; names the first.
        """
        try:
            return [self.rows[sample_id].number for sample_id in sample_ids]
        except KeyError as error:
            raise KeyError(
                f"sample id {error.args[0]!r} is not in partition {self.declaration.partition_id!r}, which has "
                f"{len(self.rows)} rows; list_sample_ids gives their ids"
            ) from None

    # ---- Putting ----

    def checked_put(self, sample_ids: list[str], kinds: Mapping[str, Kind], *, replace: bool) -> Put:
        """Refuse what doesn't fit what is there; whether a row has a field already only TransferQueue knows.

        Raises:
            ValueError: Names the id, the number or the field.
        """
        new_ids = [sample_id for sample_id in sample_ids if sample_id not in self.rows]
        self._check_room(new_ids)
        if len(new_ids) % self.declaration.group:
            raise ValueError(
                f"{len(new_ids)} new sample ids for partition {self.declaration.partition_id!r}; allowed: whole groups "
                f"of {self.declaration.group}"
            )
        for name, kind in kinds.items():
            known = self.kinds.get(name, kind)
            if known.label != kind.label:
                raise ValueError(f"field {name!r} has {kind.label}; allowed: {known.label}, as were put before")
        return Put(list(sample_ids), new_ids, dict(kinds), replace)

    def _check_room(self, new_ids: Sequence[str]) -> None:
        declared = self.declaration
        coming = sum(len(put.new_ids) for put in self.puts.values())
        if declared.is_stream:
            room = declared.num_samples - len(self.rows) - coming
            if len(new_ids) > room:
                raise ValueError(
                    f"{len(new_ids)} new sample ids for partition {declared.partition_id!r}, which has room for {room} "
                    f"of {declared.num_samples}; clear rows first, or register more num_samples"
                )
        elif new_ids and (self.is_started or coming):
            raise ValueError(
                f"sample id {new_ids[0]!r} is not in partition {declared.partition_id!r}; allowed after the first put: "
                f"ids that are there (partition_mode='stream' lets rows come and go)"
            )
        elif not self.is_started and len(new_ids) != declared.num_samples:
            raise ValueError(
                f"{len(new_ids)} sample ids in the first put to partition {declared.partition_id!r}; allowed: "
                f"{declared.num_samples}, as registered (partition_mode='stream' lets rows come as they are ready)"
            )

    def overlaps(self, sample_ids: Iterable[str] | None) -> bool:
        """Tell whether a put of some of these ids is under way; None for any put."""
        if sample_ids is None:
            return bool(self.puts)
        ids = set(sample_ids)
        return any(not ids.isdisjoint(put.ids) for put in self.puts.values())

    def add(self, put: Put) -> None:
        """Let the rows and columns of a put be seen."""
        number_of = dict(zip(put.ids, put.numbers, strict=True))
        for at, sample_id in enumerate(put.new_ids):
            self.rows[sample_id] = Row(number_of[sample_id], self.next_group + at // self.declaration.group)
        self.next_group += len(put.new_ids) // self.declaration.group
        self.kinds = {**put.kinds, **self.kinds}
        self.is_started = True
        self.has_changed()

    def remove(self, sample_ids: Iterable[str]) -> None:
        """Forget rows that are there."""
        for sample_id in sample_ids:
            del self.rows[sample_id]
        if not self.rows:
            self.kinds = {}  # TransferQueue forgets what its fields are made of, too
        self.clears += 1
        self.has_changed()

    def has_changed(self) -> None:
        """Note a change that claims may wait for."""
        self._arrays = None
        self.version += 1

    # ---- Checkpoints ----

    def saved(self) -> dict[str, Any]:
        """Give it as plain data."""
        kinds = {name: (kind.label, kind.is_tensor, kind.like) for name, kind in self.kinds.items()}
        rows = [(sample_id, row.number, row.group) for sample_id, row in self.rows.items()]
        declared = {**vars(self.declaration), "enums": dict(self.declaration.enums)}
        return {
            "declaration": declared,
            "rows": rows,
            "kinds": kinds,
            "is_started": self.is_started,
            "next_group": self.next_group,
        }

    @classmethod
    def loaded(cls, data: Mapping[str, Any]) -> "Partition":
        """The inverse of `saved`."""
        return cls(
            declaration=Declaration(**data["declaration"]),
            rows={sample_id: Row(number, group) for sample_id, number, group in data["rows"]},
            kinds={name: Kind(*kind) for name, kind in data["kinds"].items()},
            is_started=data["is_started"],
            next_group=data["next_group"],
        )
