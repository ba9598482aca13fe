"""One partition of the model: rows in a dict, and for each task the set of the ids that it has claimed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nrl_interfaces.data_plane import ClaimExplanation, KVBatchMeta
from nrl_interfaces.testing.model_columns import empty_like, joined, split
from nrl_interfaces.values import copied

__all__ = ["ModelPartition"]


@dataclass
class ModelPartition:
    """A partition. Values and tags in it are never changed, only replaced."""

    partition_id: str
    is_stream: bool
    fields: list[str]
    num_samples: int
    tasks: list[str]
    group_size: int
    enums: dict[str, list[str]]
    generation: int
    was_put: bool = False
    rows: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])  # by id, in insertion order
    tags: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    groups: dict[str, int] = field(default_factory=dict[str, int])  # the number of each id's group
    claimed: dict[str, set[str]] = field(default_factory=dict[str, set[str]])  # by task
    empty: dict[str, Any] = field(default_factory=dict[str, Any])  # each field's column without rows

    def copy(self) -> "ModelPartition":
        """Give this moment's partition; it shares values and nothing else."""
        return replace(
            self,
            rows={sample_id: dict(row) for sample_id, row in self.rows.items()},
            tags=dict(self.tags),
            groups=dict(self.groups),
            claimed={task: set(ids) for task, ids in self.claimed.items()},
            empty=dict(self.empty),
        )

    # ---- Writing ----

    def put(
        self, ids: list[str], columns: Mapping[str, Any] | None, tags: list[dict[str, Any]] | None, *, again: bool
    ) -> None:
        """See `DataPlaneClient.put_samples`. All checks come first."""
        if columns is None and tags is None:
            raise ValueError("a put of neither fields nor tags; allowed: either or both")
        if tags is not None and len(tags) != len(ids):
            raise ValueError(f"there are {len(tags)} tags for {len(ids)} sample ids; allowed: one each")
        new = [sample_id for sample_id in ids if sample_id not in self.rows]
        self._check_new(new)
        values = {name: self._checked(name, column, ids, again=again) for name, column in (columns or {}).items()}
        for name, column in (columns or {}).items():
            self.empty[name] = empty_like(column)
        first_group = max(self.groups.values(), default=-1) + 1
        for at, sample_id in enumerate(new):
            self.rows[sample_id] = {}
            self.groups[sample_id] = first_group + at // self.group_size
        for at, sample_id in enumerate(ids):
            self.rows[sample_id].update({name: rows[at] for name, rows in values.items()})
            if tags is not None:
                self.tags[sample_id] = copied(tags[at])
        self.was_put = True

    def _check_new(self, new: list[str]) -> None:
        if self.is_stream and len(self.rows) + len(new) > self.num_samples:
            raise ValueError(
                f"{len(new)} new rows beside {len(self.rows)} in partition {self.partition_id!r}; "
                f"allowed: {self.num_samples} in all"
            )
        if not self.is_stream and not self.was_put and len(new) != self.num_samples:
            raise ValueError(f"the first put has {len(new)} rows; allowed: {self.num_samples}, all of the batch")
        if not self.is_stream and self.was_put and new:
            raise ValueError(
                f"sample id {new[0]!r} is not in partition {self.partition_id!r}; allowed: ids of its batch"
            )
        if len(new) % self.group_size:
            raise ValueError(f"{len(new)} new rows; allowed: whole groups of {self.group_size}")

    def _checked(self, name: str, column: Any, ids: list[str], *, again: bool) -> list[Any]:
        if name not in self.fields:
            raise ValueError(f"field {name!r} is not declared; allowed: {self.fields}")
        rows = split(name, column, len(ids))
        if name in self.enums:
            strange = [row for row in rows if isinstance(row, str) and row not in self.enums[name]]
            if strange:
                raise ValueError(f"field {name!r} has {strange[0]!r}; allowed: {self.enums[name]}")
        there = [sample_id for sample_id in ids if name in self.rows.get(sample_id, {})]
        if there and not again:
            raise ValueError(f"sample id {there[0]!r} has field {name!r} already; allowed: once, or replace=True")
        return rows

    def drop(self, ids: Sequence[str]) -> None:
        """Drop rows that are there."""
        for sample_id in ids:
            del self.rows[sample_id], self.groups[sample_id]
            self.tags.pop(sample_id, None)
            for claimed in self.claimed.values():
                claimed.discard(sample_id)

    # ---- Reading ----

    def read(self, ids: Sequence[str], fields: Sequence[str]) -> dict[str, Any]:
        """Give columns of rows in the order asked."""
        for name in fields:
            if name not in self.fields:
                raise KeyError(f"field {name!r} is not declared in partition {self.partition_id!r}")
        for sample_id in ids:
            if sample_id not in self.rows:
                raise KeyError(f"sample id {sample_id!r} is not in partition {self.partition_id!r}")
            if lacking := [name for name in fields if name not in self.rows[sample_id]]:
                raise KeyError(f"sample id {sample_id!r} has no field {lacking[0]!r} yet")
        if unknown := [name for name in fields if name not in self.empty]:
            raise KeyError(f"field {unknown[0]!r} was never put")
        return {name: joined(self.empty[name], [self.rows[sample_id][name] for sample_id in ids]) for name in fields}

    def meta(self, task: str | None, ids: list[str], fields: list[str] | None, rank: int | None = None) -> KVBatchMeta:
        """Describe rows."""
        lengths = [self.rows[sample_id].get("input_lengths") for sample_id in ids]
        info = {"model_partition_generation": self.generation, **({} if rank is None else {"dp_rank": rank})}
        return KVBatchMeta(
            self.partition_id,
            task,
            list(ids),
            None if fields is None else list(fields),
            None if None in lengths or not ids else [int(length) for length in lengths],  # type: ignore[arg-type]
            info,
            [copied(self.tags.get(sample_id, {})) for sample_id in ids] if self.tags.keys() & set(ids) else None,
        )

    # ---- Claiming ----

    def ready(self, task: str, fields: Sequence[str]) -> list[list[str]]:
        """Give the groups that a task can claim, in order: not claimed, and every row has the fields."""
        groups: dict[int, list[str]] = {}
        for sample_id, number in self.groups.items():
            groups.setdefault(number, []).append(sample_id)
        return [
            ids
            for ids in groups.values()
            if not self.claimed[task] & set(ids)
            and all(name in self.rows[sample_id] for sample_id in ids for name in fields)
        ]

    def look(self, task: str, fields: Sequence[str], size: int) -> tuple[list[str], bool]:
        """Give the ids that a claim would take now, whole groups of them, and whether it would wait for more."""
        found: list[str] = []
        for group in self.ready(task, fields):
            if len(found) + len(group) > size:
                return found, False
            found += group
        more_can_come = self.is_stream or not self.was_put or bool(self._missing(task, fields))
        return found, len(found) < size and more_can_come

    def _missing(self, task: str, fields: Sequence[str]) -> dict[str, int]:
        left = [row for sample_id, row in self.rows.items() if sample_id not in self.claimed[task]]
        counts = {name: sum(name not in row for row in left) for name in fields}
        return {name: count for name, count in counts.items() if count}

    def explain(self, task: str, fields: Sequence[str], size: int) -> ClaimExplanation:
        """See `DataPlaneClient.explain`."""
        expected = 0 if self.was_put and not self.is_stream else self.num_samples - len(self.rows)
        return ClaimExplanation(
            partition_id=self.partition_id,
            task_name=task,
            required_fields=tuple(fields),
            batch_size=size,
            rows=len(self.rows),
            rows_ready=sum(map(len, self.ready(task, fields))),
            rows_claimed=len(self.claimed[task]),
            rows_missing=self._missing(task, fields),
            rows_expected=expected,
            would_wait=self.look(task, fields, size)[1],
        )

    def release(self, ids: Sequence[str], task: str) -> None:
        """Make claimed rows claimable again."""
        chosen = set(ids)
        if strange := [sample_id for sample_id in ids if sample_id not in self.claimed[task]]:
            raise ValueError(f"sample id {strange[0]!r} is not claimed by task {task!r}; nothing is released")
        numbers = {self.groups[sample_id] for sample_id in chosen}
        if parts := [other for other, number in self.groups.items() if number in numbers and other not in chosen]:
            raise ValueError(
                f"sample id {parts[0]!r} is of a group of which others are released; allowed: whole groups"
            )
        self.claimed[task] -= chosen
