"""Which rows a claim takes, whether it would wait, and why."""

from dataclasses import dataclass

import numpy as np
from nrl_interfaces.data_plane import ClaimExplanation
from numpy.typing import NDArray

from nrl_dataplane_local.columns import Slots
from nrl_dataplane_local.partition import Partition

__all__ = ["Wanted", "explain", "look"]

_WINDOW = 4096  # slots looked at in one go


@dataclass(frozen=True)
class Wanted:
    """A claim that has been checked.

    Attributes:
        task: The consumer task.
        fields: What the rows must have.
        batch_size: How many rows.
    """

    task: str
    fields: tuple[str, ...]
    batch_size: int


def look(partition: Partition, wanted: Wanted) -> tuple[Slots, bool]:
    """Find the rows that a claim would take now, and say whether it need not wait for more of them."""
    key = (wanted.task, wanted.fields)
    at = first = partition.cursors.get(key, 0)
    end, count, is_full = len(partition.live.view), 0, False
    found: list[Slots] = []
    while at < end and count < wanted.batch_size and not is_full:
        stop = min(end, at + max(_WINDOW // partition.group, 1) * partition.group)
        ready = np.flatnonzero(_ready(partition, wanted, at, stop)) + at
        taken = _whole_groups(ready, partition.group, wanted.batch_size - count)
        is_full = len(taken) < len(ready)
        if not count and not len(taken):
            first = stop  # nothing up to here: the next look begins behind it
        elif not count:
            first = int(taken[0]) // partition.group * partition.group
        found.append(taken)
        count += len(taken)
        at = stop
    partition.cursors[key] = first
    taken = np.concatenate(found) if found else np.empty(0, np.int64)
    is_full = is_full or count == wanted.batch_size
    return taken, is_full or _no_more_can_come(partition, wanted, count)


def _ready(partition: Partition, wanted: Wanted, start: int, stop: int) -> NDArray[np.bool_]:
    live = partition.live.view[start:stop]
    ready = live & ~partition.claimed[wanted.task].view[start:stop]
    for name in wanted.fields:
        group = partition.columns.get(name)
        if group is None:
            return np.zeros(stop - start, np.bool_)
        ready &= group.present(start, stop)
    if partition.group == 1:
        return ready
    groups = (ready | ~live).reshape(-1, partition.group).all(axis=1)
    return np.repeat(groups, partition.group) & live


def _whole_groups(ready: Slots, group: int, room: int) -> Slots:
    """Give as many of the first rows as there is room for, groups whole."""
    if group == 1 or len(ready) <= room:
        return ready[:room]
    sizes = np.unique(ready // group, return_counts=True)[1].cumsum()
    fitting = sizes[sizes <= room]
    return ready[: fitting[-1] if len(fitting) else 0]


def _no_more_can_come(partition: Partition, wanted: Wanted, count: int) -> bool:
    left = len(partition.slots) - partition.claims[wanted.task]
    return partition.started and not partition.is_stream and left == count


def explain(partition: Partition, wanted: Wanted) -> ClaimExplanation:
    """Say what a claim would find."""
    size = len(partition.live.view)
    unclaimed = partition.live.view & ~partition.claimed[wanted.task].view
    missing: dict[str, int] = {}
    for name in wanted.fields:
        group = partition.columns.get(name)
        lacking = unclaimed if group is None else unclaimed & ~group.present(0, size)
        if lacking.any():
            missing[name] = int(lacking.sum())
    expected = partition.num_samples - len(partition.slots)
    return ClaimExplanation(
        partition_id=partition.partition_id,
        task_name=wanted.task,
        required_fields=wanted.fields,
        batch_size=wanted.batch_size,
        rows=len(partition.slots),
        rows_ready=int(_ready(partition, wanted, 0, size).sum()),
        rows_claimed=partition.claims[wanted.task],
        rows_missing=missing,
        rows_expected=expected if partition.is_stream or not partition.started else 0,
        would_wait=not look(partition, wanted)[1],
    )
