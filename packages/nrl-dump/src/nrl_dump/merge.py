"""Joining the parts of a step: one pass that numbers, counts, digests and checks, a block at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import xxhash

from nrl_dump.columns import StepColumns
from nrl_dump.manifest import Manifest, ShardEntry
from nrl_dump.names import StepFiles

Buffer = bytes | memoryview

_BLOCK_BYTES = 1 << 20  # small enough to stay in the processor's cache between read, search, digest and write
_BRACE, _CLOSING_BRACE = b"{}"


class StepIncompleteError(RuntimeError):
    """Raised when the parts of a step are not what was expected; they stay as they are.

    Attributes:
        step: The trainer's step, from 0.
        reason: What is wrong with them.
        expected_rows: What the caller said, None if nothing.
        rows: Rows found in each part, by shard id, where they were counted.
    """

    def __init__(
        self, step: int, reason: str, expected_rows: int | None = None, rows: dict[str, int] | None = None
    ) -> None:
        self.step = step
        self.reason = reason
        self.expected_rows = expected_rows
        self.rows = rows or {}
        super().__init__(f"step {step} is not published: {reason}")

    def __reduce__(self) -> tuple[type[StepIncompleteError], tuple[int, str, int | None, dict[str, int]]]:
        return type(self), (self.step, self.reason, self.expected_rows, self.rows)


class StepNotThereError(StepIncompleteError):
    """Raised when a part, a column file or rows are missing, or a part is torn: a slow file system may yet show it."""


class TornPartError(StepNotThereError):
    """Raised when a part does not hold whole rows; names part and line."""


def read_columns(files: StepFiles, shard_ids: list[str]) -> dict[str, StepColumns]:
    """What each shard says that its rows hold, in this order; all say the same.

    Raises:
        StepNotThereError: A column file is missing, or there is no shard.
        RuntimeError: One can't be read, or two disagree.
    """
    read: dict[str, StepColumns] = {}
    for shard_id in shard_ids:
        path = files.columns(shard_id)
        try:
            columns = StepColumns.from_bytes(path.read_bytes())
        except FileNotFoundError:
            raise StepNotThereError(files.step, f"{path.name} of shard {shard_id!r} is not there") from None
        except ValueError as error:
            raise RuntimeError(f"{path} can't be read: {error}; discard_step({files.step}) removes it") from error
        read[shard_id] = columns
        if difference := read[shard_ids[0]].difference(columns):
            raise RuntimeError(
                f"shards {shard_ids[0]!r} (there) and {shard_id!r} (here) of step {files.step} disagree: {difference};"
                " all writers of a step need the same columns"
            )
    return read


def merge(files: StepFiles, columns: dict[str, StepColumns], write: Callable[[Buffer], object]) -> Manifest:
    """Write the rows of all parts, `idx` first, and return the manifest of what was written.

    Args:
        files: The step.
        columns: What each part holds, by shard id, in the order of the merge.
        write: Takes the published file's bytes.

    Raises:
        FileNotFoundError: A part is missing.
        TornPartError: A part has a line that is not a whole row.
    """
    digest = xxhash.xxh3_128()
    rows = size = 0
    shards: list[ShardEntry] = []
    for shard_id, shard_columns in columns.items():
        part = PartReader(files, shard_id, first_idx=rows)
        begin = size
        for data in part.numbered_blocks():
            write(data)
            digest.update(data)
            size += len(data)
        rows = part.next_idx
        shards.append(ShardEntry(shard_id, part.rows, size - begin, shard_columns.attempt))
    agreed = next(iter(columns.values()))
    return Manifest(files.number, rows, size, digest.hexdigest(), agreed, tuple(shards))


class PartReader:
    """Reads one part once, numbers its rows and checks that they are whole.

    Attributes:
        next_idx: The `idx` of the row that comes next.
    """

    def __init__(self, files: StepFiles, shard_id: str, first_idx: int) -> None:
        self._files = files
        self._shard_id = shard_id
        self._first_idx = first_idx
        self.next_idx = first_idx
        self._row_begins = True

    @property
    def rows(self) -> int:
        """Rows read so far."""
        return self.next_idx - self._first_idx

    def numbered_blocks(self) -> Iterator[Buffer]:
        """The part's bytes with `idx` put into each row, about as many at a time as were read.

        A block is good until the next one is asked for.

        Raises:
            TornPartError: A line is not a whole row.
        """
        buffer = bytearray(_BLOCK_BYTES)
        last_byte = 0
        with self._files.part(self._shard_id).open("rb", buffering=0) as file:
            while size := file.readinto(buffer):
                pieces = self._number(buffer, size, last_byte)
                last_byte = buffer[size - 1]
                yield pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if not self._row_begins:
            raise self._torn("is torn: the part ends in the middle of it")

    def _number(self, buffer: bytearray, size: int, byte_before: int) -> list[Buffer]:
        """The first `size` bytes of the buffer, in pieces, each row's brace replaced by one with its `idx`."""
        view = memoryview(buffer)
        pieces: list[Buffer] = []
        at = 0
        while at < size:
            if self._row_begins:
                if buffer[at] != _BRACE:
                    raise self._torn("is not a row")
                pieces.append(b'{"idx":%d,' % self.next_idx)
                at += 1
            newline = buffer.find(b"\n", at, size)
            if newline < 0:
                self._row_begins = False
                pieces.append(view[at:size])
                break
            if (buffer[newline - 1] if newline else byte_before) != _CLOSING_BRACE:
                raise self._torn("is torn: it does not end with a brace")
            self._row_begins = True
            self.next_idx += 1
            pieces.append(view[at : newline + 1])
            at = newline + 1
        return pieces

    def _torn(self, why: str) -> TornPartError:
        name = self._files.part(self._shard_id).name
        return TornPartError(self._files.step, f"line {self.rows + 1} of {name} {why}")
