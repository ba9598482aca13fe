"""A data plane in memory, with as much as snapshots need of one."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from nrl_interfaces.fileops import FileOps
from nrl_interfaces.publish import make_folder, publish

if TYPE_CHECKING:
    from nrl_interfaces.data_plane import DataPlaneView

_FILE: Final = "in_memory_data_plane.pt"


@dataclass(frozen=True)
class _Row:
    fields: Mapping[str, Any]
    tags: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class _View:
    rows: Mapping[str, Mapping[str, _Row]]
    claimed: Mapping[str, list[tuple[str, str]]]
    ops: FileOps

    def save(self, checkpoint_dir: str | Path, metadata: dict[str, Any] | None = None) -> None:
        rows = {
            partition_id: {sample_id: [dict(row.fields), dict(row.tags)] for sample_id, row in partition.items()}
            for partition_id, partition in self.rows.items()
        }
        data = io.BytesIO()
        torch.save({"rows": rows, "claimed": dict(self.claimed), "metadata": metadata or {}}, data)
        folder = Path(checkpoint_dir)
        make_folder(folder, self.ops)
        publish(folder / _FILE, data.getbuffer(), self.ops)


class InMemoryDataPlane:
    """Rows by partition; a partition is there as soon as rows are put. Safe from any thread; values are copied.

    Args:
        freezes: Whether it has a ``freeze()``.
        ops: The operations on files.

    Attributes:
        freeze: Only there if it freezes.

    >>> plane = InMemoryDataPlane()
    >>> plane.put_samples(["a", "b"], "train", {"reward": torch.tensor([0.5, 1.0])})
    >>> plane.get_samples(["b"], "train", ["reward"])
    {'reward': [tensor(1.)]}
    """

    freeze: Callable[[], DataPlaneView]

    def __init__(self, *, freezes: bool = True, ops: FileOps | None = None) -> None:
        self._lock = threading.RLock()
        self._rows: dict[str, dict[str, _Row]] = {}
        self._claimed: dict[str, set[tuple[str, str]]] = {}
        self._ops = FileOps() if ops is None else ops
        self._used = False
        if freezes:
            self.freeze = self._freeze

    def put_samples(
        self,
        sample_ids: Sequence[str],
        partition_id: str,
        fields: Mapping[str, Any] | None = None,
        tags: Sequence[Mapping[str, Any]] | None = None,
        *,
        replace: bool = False,
    ) -> None:
        """Put columns of one value a row, tags, or both.

        Raises:
            ValueError: If a column is not as long as the ids, or is there already and `replace` is False.
        """
        columns = dict(fields or {})
        for name, column in [*columns.items(), *([("tags", tags)] if tags is not None else [])]:
            if len(column) != len(sample_ids):
                raise ValueError(f"{name!r} has {len(column)} rows; allowed: {len(sample_ids)}, as many as ids")
        with self._lock:
            partition = self._rows.get(partition_id, {})
            new: dict[str, _Row] = {}
            for at, sample_id in enumerate(sample_ids):
                old = partition.get(sample_id, _Row({}))
                again = sorted(set(columns) & set(old.fields))
                if again and not replace:
                    raise ValueError(f"row {sample_id!r} has {again} already; allowed: new fields, or replace=True")
                values = {name: _copied(column[at]) for name, column in columns.items()}
                new[sample_id] = _Row({**old.fields, **values}, old.tags if tags is None else dict(tags[at]))
            self._used = True
            self._rows[partition_id] = {**partition, **new}

    def get_samples(
        self, sample_ids: Sequence[str], partition_id: str, select_fields: Sequence[str]
    ) -> dict[str, list[Any]]:
        """Read columns, one value a row, in the order of the ids.

        Raises:
            KeyError: If there is no such partition, row or field.
        """
        with self._lock:
            rows = [self._rows[partition_id][sample_id] for sample_id in sample_ids]
            return {name: [_copied(row.fields[name]) for row in rows] for name in select_fields}

    def list_sample_ids(self, partition_id: str) -> list[str]:
        """See `nrl_interfaces.rollout.CheckpointableDataPlane`."""
        with self._lock:
            return sorted(self._rows.get(partition_id, {}))

    def clear_samples(self, sample_ids: Sequence[str] | None, partition_id: str) -> None:
        """See `nrl_interfaces.rollout.CheckpointableDataPlane`.

        Raises:
            KeyError: If there is no such partition or row; nothing is dropped.
        """
        with self._lock:
            gone = set(self._rows[partition_id]) if sample_ids is None else set(sample_ids)
            self._require_rows(gone, partition_id)
            left = {sample_id: row for sample_id, row in self._rows[partition_id].items() if sample_id not in gone}
            self._rows[partition_id] = left
            if sample_ids is None:
                del self._rows[partition_id]
            claimed = self._claimed.get(partition_id, set())
            self._claimed[partition_id] = {claim for claim in claimed if claim[1] not in gone}

    def claim_samples(self, sample_ids: Sequence[str], partition_id: str, task_name: str) -> None:
        """Mark rows as claimed by a task.

        Raises:
            KeyError: If there is no such partition or row.
            ValueError: If the task has claimed one already.
        """
        with self._lock:
            self._require_rows(set(sample_ids), partition_id)
            claims = {(task_name, sample_id) for sample_id in sample_ids}
            claimed = self._claimed.get(partition_id, set())
            if claims & claimed:
                raise ValueError(f"task {task_name!r} has claimed {sorted(claims & claimed)} already")
            self._used = True
            self._claimed[partition_id] = claimed | claims

    def claimed_ids(self, partition_id: str, task_name: str) -> list[str]:
        """List the ids that a task has claimed, sorted."""
        with self._lock:
            return sorted(sample_id for task, sample_id in self._claimed.get(partition_id, ()) if task == task_name)

    def release_claims(self, sample_ids: Sequence[str], partition_id: str, task_name: str) -> None:
        """See `nrl_interfaces.rollout.CheckpointableDataPlane`."""
        with self._lock:
            claims = {(task_name, sample_id) for sample_id in sample_ids}
            claimed = self._claimed.get(partition_id, set())
            if not claims <= claimed:
                raise ValueError(f"task {task_name!r} has not claimed {sorted(claims - claimed)}")
            self._claimed[partition_id] = claimed - claims

    def save_checkpoint(self, checkpoint_dir: str | Path, *, metadata: dict[str, Any] | None = None) -> None:
        """See `nrl_interfaces.rollout.CheckpointableDataPlane`."""
        self._freeze().save(checkpoint_dir, metadata)

    def load_checkpoint(self, checkpoint_dir: str | Path) -> dict[str, Any]:
        """See `nrl_interfaces.rollout.CheckpointableDataPlane`.

        Raises:
            RuntimeError: If it was used before.
        """
        saved = torch.load(Path(checkpoint_dir) / _FILE, weights_only=True)
        with self._lock:
            if self._used:
                raise RuntimeError("the data plane was used before; allowed: to load into a new one")
            self._used = True
            for partition_id, partition in saved["rows"].items():
                self._rows[partition_id] = {sample_id: _Row(*row) for sample_id, row in partition.items()}
            self._claimed = {partition_id: set(claims) for partition_id, claims in saved["claimed"].items()}
        return saved["metadata"]

    def _freeze(self) -> DataPlaneView:
        with self._lock:  # rows are never changed, and a put or a clear makes a new dict of them
            claimed = {partition_id: sorted(claims) for partition_id, claims in self._claimed.items()}
            return _View(dict(self._rows), claimed, self._ops)

    def _require_rows(self, sample_ids: set[str], partition_id: str) -> None:
        missing = sorted(sample_ids - set(self._rows[partition_id]))
        if missing:
            raise KeyError(f"partition {partition_id!r} has no rows {missing}")


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, list | tuple):
        items = [_copied(item) for item in cast("Sequence[Any]", value)]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in cast("dict[Any, Any]", value).items()}
    return value
