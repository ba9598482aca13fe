"""What a writer knows of a step it has written to, and what a further chunk of it must be like."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from nrl_dump.chunk import Chunk
from nrl_dump.columns import StepColumns
from nrl_dump.names import StepFiles
from nrl_dump.part import Part
from nrl_dump.rows import encode_rows


@dataclass
class OpenStep:
    """One step of one writer.

    Attributes:
        files: The step.
        columns: What every chunk must have.
        part: Where its rows go.
        chunk_rows: Rows that are converted at a time; see `encode_rows`.
        sample_ids: Of all chunks written or handed over.
    """

    files: StepFiles
    columns: StepColumns
    part: Part
    chunk_rows: int | None
    sample_ids: set[str] = field(default_factory=set[str])

    def take_in(self, chunk: Chunk) -> Chunk:
        """Note the chunk's ids and return it with its columns in the step's order.

        Raises:
            ValueError: It does not fit the step; nothing is noted.
        """
        step = self.files.step
        order = [column.name for column in self.columns.columns]
        by_name = {column.spec.name: column for column in chunk.columns}
        if sorted(order) == sorted(by_name):
            chunk = replace(chunk, columns=tuple(by_name[name] for name in order))
        if difference := self.columns.difference(chunk.step_columns(self.columns.inf_nan)):
            raise ValueError(
                f"the chunk (here) differs from the first of step {step} (there): {difference};"
                " all chunks of a step need the same columns"
            )
        twice = next((sample_id for sample_id in chunk.sample_ids if sample_id in self.sample_ids), None)
        if twice is not None:
            raise ValueError(
                f"sample id {twice!r} was added to step {step} before:"
                f" call restart_step({step}) to write the step again"
            )
        self.sample_ids.update(chunk.sample_ids)
        return chunk

    def give_back(self, chunk: Chunk) -> None:
        """Forget the ids of a chunk that was not written."""
        self.sample_ids.difference_update(chunk.sample_ids)

    def write(self, chunk: Chunk) -> None:
        """Write a chunk that was taken in: all of it, or none."""
        lines = encode_rows(chunk, self.files.number, self.columns.inf_nan, self.chunk_rows)
        self.part.append(lines, len(chunk))

    def write_later(self, chunk: Chunk) -> None:
        """`write` as a job of the background thread, where an error meets nobody who knows the chunk."""
        try:
            self.write(chunk)
        except BaseException as error:
            self.give_back(chunk)
            error.add_note(f"of step {self.files.step} the chunk of samples {chunk.sample_ids[:1]}... was not written")
            raise
