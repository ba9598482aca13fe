"""What a pool knows of the rows of one step: which shard has each of them, and which were lost."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from nrl_dump.manifest import Manifest
from nrl_dump.merge import StepIncompleteError


@dataclass
class PoolStep:
    """One step that is not published.

    A row is given to a shard, and then either in that shard's part or lost: its writer died, or refused it. A lost row
    is owed until it is given to a shard again, so that no step is published that only looks whole.

    Attributes:
        step: The trainer's step, from 0.
        flushed: Rows that are durable in each shard's part, where no chunk came since.
        publication: The publication on its way, if there is one.
    """

    step: int
    flushed: dict[str, int] = field(default_factory=dict[str, int])
    publication: Future[Manifest] | None = None
    _shard_of: dict[str, str] = field(default_factory=dict[str, str])
    _lost_by: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def is_publishing(self) -> bool:
        """Whether a publication is on its way, so that no part may change."""
        return self.publication is not None and not self.publication.done()

    def give(self, shard_id: str, sample_ids: Sequence[str]) -> None:
        """Note that a shard gets these rows.

        Raises:
            ValueError: A shard has one of them already; nothing is noted.
        """
        twice = next((sample_id for sample_id in sample_ids if sample_id in self._shard_of), None)
        if twice is not None:
            raise ValueError(
                f"sample id {twice!r} was given to shard {self._shard_of[twice]!r} in step {self.step} before:"
                f" call discard_step({self.step}) to write the step again"
            )
        for sample_id in sample_ids:
            self._shard_of[sample_id] = shard_id
            self._lost_by.pop(sample_id, None)
        self.flushed.pop(shard_id, None)

    def lose(self, sample_ids: Sequence[str]) -> None:
        """Note that rows given to a shard are not in its part."""
        for sample_id in sample_ids:
            if (shard_id := self._shard_of.pop(sample_id, None)) is not None:
                self._lost_by[sample_id] = shard_id

    def lose_shard(self, shard_id: str) -> list[str]:
        """Note that a shard's part is void; returns every row that it lost and that no shard has again."""
        self.lose([sample_id for sample_id, shard in self._shard_of.items() if shard == shard_id])
        self.flushed.pop(shard_id, None)
        return [sample_id for sample_id, shard in self._lost_by.items() if shard == shard_id]

    def forgive(self, sample_ids: Sequence[str]) -> None:
        """No longer owe lost rows."""
        for sample_id in sample_ids:
            self._lost_by.pop(sample_id, None)

    def rows_given(self, shard_id: str) -> int:
        """How many rows a shard has, as far as the pool knows."""
        return sum(shard == shard_id for shard in self._shard_of.values())

    def note_flush(self, shard_id: str, rows: int) -> None:
        """Note what a shard's `flush` returned.

        Raises:
            StepIncompleteError: It is not what the shard was given.
        """
        given = self.rows_given(shard_id)
        if rows != given:
            raise StepIncompleteError(
                self.step,
                f"shard {shard_id!r} was given {given} rows and has {rows}: call restart_shard({shard_id!r}) and write"
                " the rows that it returns again",
                given,
                {shard_id: rows},
            )
        self.flushed[shard_id] = rows

    def check_whole(self) -> None:
        """Raise StepIncompleteError unless there are rows, and none is owed."""
        if self._lost_by:
            first, shard_id = next(iter(self._lost_by.items()))
            raise StepIncompleteError(
                self.step,
                f"{len(self._lost_by)} rows, {first!r} of shard {shard_id!r} the first of them, were lost and not"
                " written again: write them, to any shard; or go on without those of that shard, by"
                f" restart_shard({shard_id!r}, drop_rows=True), or without the step, by discard_step({self.step})",
                len(self._shard_of) + len(self._lost_by),
                dict(self.flushed),
            )
        if not self._shard_of:
            raise StepIncompleteError(self.step, "no row of it was written through this pool")
