"""Which rows a claim takes, whether it would wait, and why: from what TransferQueue says of the rows."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from nrl_interfaces.data_plane import ClaimExplanation
from numpy.typing import NDArray

from nrl_dataplane_tq.engine import Engine
from nrl_dataplane_tq.partition import Partition

__all__ = ["Look", "have_lengths", "look_at"]

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Look:
    """What a task sees of a partition at one moment; arrays have one item a row, in the order of puts.

    Attributes:
        partition: The partition.
        task: The task.
        claimed: The rows that it has claimed.
        having: By required field, the rows that have it.
    """

    partition: Partition
    task: str
    claimed: Mask
    having: Mapping[str, Mask]

    @property
    def ready(self) -> NDArray[np.int64]:
        """The positions of the rows that can be claimed: not claimed, with every field, and so is their whole group."""
        ready = ~self.claimed
        for has_field in self.having.values():
            ready &= has_field
        if self.partition.declaration.group > 1:
            groups = self.partition.arrays[1]
            ready &= ~np.isin(groups, groups[~ready])
        return np.flatnonzero(ready)

    @property
    def missing(self) -> dict[str, int]:
        """How many of the rows that are not claimed lack each field; fields that none lacks are left out."""
        counts = {name: int((~self.claimed & ~has_field).sum()) for name, has_field in self.having.items()}
        return {name: count for name, count in counts.items() if count}

    def taken(self, batch_size: int) -> tuple[NDArray[np.int64], bool]:
        """Give the positions of the rows that a claim would take now, and whether it would wait for more."""
        ready = self.ready
        taken = self._whole_groups(ready, batch_size)
        is_enough = len(taken) == batch_size or len(taken) < len(ready)
        return taken, not is_enough and self._more_can_come()

    def _whole_groups(self, ready: NDArray[np.int64], room: int) -> NDArray[np.int64]:
        if self.partition.declaration.group == 1 or len(ready) <= room:
            return ready[:room]
        ends = np.unique(self.partition.arrays[1][ready], return_counts=True)[1].cumsum()
        fitting = ends[ends <= room]
        return ready[: fitting[-1] if len(fitting) else 0]

    def _more_can_come(self) -> bool:
        partition = self.partition
        return partition.declaration.is_stream or not partition.is_started or bool(self.missing)

    def explain(self, fields: Sequence[str], batch_size: int) -> ClaimExplanation:
        """Say why a claim would wait."""
        return ClaimExplanation(
            partition_id=self.partition.declaration.partition_id,
            task_name=self.task,
            required_fields=tuple(fields),
            batch_size=batch_size,
            rows=len(self.partition.rows),
            rows_ready=len(self.ready),
            rows_claimed=int(self.claimed.sum()),
            rows_missing=self.missing,
            rows_expected=self.partition.rows_expected,
            would_wait=self.taken(batch_size)[1],
        )

    def check_release(self, sample_ids: Sequence[str]) -> None:
        """Refuse rows that the task has not claimed, and parts of groups.

        Raises:
            ValueError: Names the first id, or the numbers of rows.
        """
        rows, partition_id = self.partition.rows, self.partition.declaration.partition_id
        claimed = {sample_id for sample_id, is_claimed in zip(rows, self.claimed.tolist(), strict=True) if is_claimed}
        for sample_id in sample_ids:
            if sample_id not in claimed:
                raise ValueError(
                    f"sample id {sample_id!r} is not claimed by task {self.task!r} in partition {partition_id!r}; "
                    f"allowed: ids that it has claimed"
                )
        groups = {rows[sample_id].group for sample_id in sample_ids}
        whole = int(np.isin(self.partition.arrays[1], list(groups)).sum())
        if whole != len(sample_ids):
            raise ValueError(
                f"{len(sample_ids)} sample ids are of groups that have {whole} rows; allowed: whole groups of "
                f"{self.partition.declaration.group} (what is left of them)"
            )


async def look_at(engine: Engine, partition: Partition, task: str, fields: Sequence[str]) -> Look:
    """Ask TransferQueue what a task would see."""
    numbers, engine_id = partition.arrays[0], partition.declaration.engine_id
    having = {name: np.zeros(len(numbers), dtype=np.bool_) for name in fields}
    known = [name for name in having if name in partition.kinds]
    claimed, *there = await asyncio.gather(
        engine.claimed(engine_id, task, numbers), *(engine.having(engine_id, name, numbers) for name in known)
    )
    having.update(zip(known, there, strict=True))
    for put in partition.puts.values():
        if not put.is_replacing:  # its columns may be there, but its tags and other columns not yet
            hidden = np.isin(numbers, put.numbers)
            for name in having.keys() & put.kinds.keys():
                having[name] &= ~hidden
    return Look(partition, task, claimed, having)


async def have_lengths(engine: Engine, partition: Partition, sample_ids: Sequence[str]) -> bool:
    """Tell whether all of some rows have ``input_lengths``."""
    name = "input_lengths"
    if not sample_ids or name not in partition.kinds:
        return False
    numbers = np.array(partition.numbers_of(sample_ids))
    return bool((await engine.having(partition.declaration.engine_id, name, numbers)).all())
