"""How far a loader has come, and how much of what it has delivered."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self, cast

from nrl_energon_loader.samples import DeliveredBatch

__all__ = ["Counters"]


@dataclass
class Counters:
    """Counts of what was delivered, never of what was only prepared.

    Attributes:
        epoch: The epoch that the next batch is of, from 0.
        batches_in_epoch: Batches of it that were delivered.
        batches: Batches of all epochs.
        samples: Conversations in them.
        skipped: Bad samples that workers skipped on the way to them.
        samples_by_source: `samples` by the path of their dataset.
        skipped_by_source: `skipped` by the path of their dataset.
    """

    epoch: int = 0
    batches_in_epoch: int = 0
    batches: int = 0
    samples: int = 0
    skipped: int = 0
    samples_by_source: dict[str, int] = field(default_factory=dict[str, int])
    skipped_by_source: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, item: Any) -> None:
        """Count a batch; of one that is no `DeliveredBatch` nobody knows the samples."""
        self.batches_in_epoch += 1
        self.batches += 1
        if isinstance(item, DeliveredBatch):
            self.samples += item.samples
            self.skipped += sum(item.skips_by_source.values())
            _add(self.samples_by_source, item.samples_by_source)
            _add(self.skipped_by_source, item.skips_by_source)

    def end_epoch(self) -> None:
        """Go on to the next epoch."""
        self.epoch += 1
        self.batches_in_epoch = 0

    def to_state(self) -> dict[str, Any]:
        """Give a copy as plain data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_state(cls, state: object) -> Self:
        """Read what `to_state` gave.

        Raises:
            ValueError: If it is anything else.
        """
        names = [each.name for each in dataclasses.fields(cls)]
        if not isinstance(state, Mapping) or sorted(cast("Mapping[str, Any]", state)) != sorted(names):
            raise ValueError(f"{state!r}; allowed: the counters {', '.join(names)}")
        counters = cls(**cast("Mapping[str, Any]", state))
        for name in names:
            value = getattr(counters, name)
            if name.endswith("_by_source"):
                value = dict(value)
                setattr(counters, name, value)
            for number in cast("dict[str, Any]", value).values() if isinstance(value, dict) else [value]:
                if type(number) is not int or number < 0:
                    raise ValueError(f"{name} {value!r}; allowed: whole numbers from 0")
        return counters


def _add(counts: dict[str, int], more: Mapping[str, int]) -> None:
    for name, number in more.items():
        counts[name] = counts.get(name, 0) + number
