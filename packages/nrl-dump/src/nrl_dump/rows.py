"""A chunk's rows as bytes: from tensors to lines of JSON, without a second copy of the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import numpy as np
import numpy.typing as npt
import orjson
import torch

from nrl_dump.chunk import Chunk, Column, JaggedColumn
from nrl_dump.columns import InfNan
from nrl_dump.tags import WORDS

_BLOCK_BYTES = 1 << 20
_FLUSH_BYTES = 1 << 20

# A reader takes the shortest decimal of a float32 to a double and from there to float32. Of all positive float32, all
# tried, that gives another number for this one only: as a double it lies in the middle between two float32.
_ODD_FLOAT32 = np.float32("7.0385307e-26")
_ODD_SHORTEST, _ODD_LONGER = b"7.038531e-26", b"7.0385307e-26"

_Array = npt.NDArray[np.generic]
_RowEncoder = Callable[[int], bytes]
"""The JSON of one row of a block, by the row's number in the chunk."""


def encode_rows(chunk: Chunk, number: int, inf_nan: InfNan, chunk_rows: int | None) -> Iterator[bytes]:
    """The chunk's lines, `idx` left out, about a megabyte at a time.

    Args:
        chunk: The rows.
        number: `N`, the step's number in the file.
        inf_nan: How non-finite numbers are written.
        chunk_rows: How many rows come off a device, or are converted, at a time; None for what 1 MiB holds.
    """
    lines: list[bytes] = []
    size = 0
    for start, stop in _blocks(chunk, chunk_rows):
        for line in _block_lines(chunk, start, stop, number, inf_nan):
            lines.append(line)
            size += len(line)
            if size >= _FLUSH_BYTES:
                yield line if len(lines) == 1 else b"".join(lines)
                lines, size = [], 0
    if lines:
        yield b"".join(lines)


def _blocks(chunk: Chunk, chunk_rows: int | None) -> Iterator[tuple[int, int]]:
    row_bytes = sum(column.row_bytes for column in chunk.columns)
    rows = chunk_rows or max(1, _BLOCK_BYTES // max(1, row_bytes))
    for start in range(0, len(chunk), rows):
        yield start, min(start + rows, len(chunk))


def _block_lines(chunk: Chunk, start: int, stop: int, number: int, inf_nan: InfNan) -> Iterator[bytes]:
    """The lines of some rows; what was converted for them goes when they are done, before the next block comes."""
    columns = [(_key(column.spec.name), _row_encoder(column, chunk, start, stop, inf_nan)) for column in chunk.columns]
    for row in range(start, stop):
        yield _line(chunk, row, number, inf_nan, columns)


def _line(chunk: Chunk, row: int, number: int, inf_nan: InfNan, columns: list[tuple[bytes, _RowEncoder]]) -> bytes:
    pieces = [
        b'{"step":%d,"sample_id":[%b],"input_lengths":[%d],"metadata":[%b'
        % (number, orjson.dumps(chunk.sample_ids[row]), chunk.lengths[row], chunk.tag_bytes(row, inf_nan))
    ]
    for key, encode in columns:
        pieces += (key, encode(row))
    pieces.append(b"]}\n")
    return b"".join(pieces)


def _key(name: str) -> bytes:
    """What stands before a column's value, the end of the value before it included."""
    return b"],%b:[" % orjson.dumps(name)


def _row_encoder(column: Column, chunk: Chunk, start: int, stop: int, inf_nan: InfNan) -> _RowEncoder:
    if isinstance(column, JaggedColumn):
        return _jagged_encoder(column, start, stop, inf_nan)
    block = _to_numpy(column.tensor[start:stop])
    if column.spec.kind == "scalar":
        numbers = encode_array(block, inf_nan)[1:-1].split(b",")
        return lambda row: numbers[row - start]
    encode = _array_encoder(block, inf_nan)
    if column.spec.kind == "sequence":
        return lambda row: encode(block[row - start, : chunk.lengths[row]])
    return lambda row: encode(block[row - start])


def _jagged_encoder(column: JaggedColumn, start: int, stop: int, inf_nan: InfNan) -> _RowEncoder:
    begin = min(column.starts[start:stop])
    end = max(s + n for s, n in zip(column.starts[start:stop], column.lengths[start:stop], strict=True))
    block = _to_numpy(column.values[begin:end])
    encode = _array_encoder(block, inf_nan)
    return lambda row: encode(block[column.starts[row] - begin :][: column.lengths[row]])


def _to_numpy(block: torch.Tensor) -> _Array:
    """A contiguous array in memory of the same values, bf16 and fp8 as float32; a view where that is possible."""
    block = block.cpu().resolve_neg()
    if block.is_floating_point() and block.dtype not in (torch.float64, torch.float32, torch.float16):
        block = block.to(torch.float32)
    return cast("_Array", block.contiguous().numpy())


def _array_encoder(block: _Array, inf_nan: InfNan) -> Callable[[_Array], bytes]:
    return _dumps if _is_plain(block) else lambda array: encode_array(array, inf_nan)


def _is_plain(block: _Array) -> bool:
    """Whether orjson's text of it, and of each of its rows, is right as it is."""
    if block.dtype.kind != "f":
        return True
    odd = block.dtype == np.float32 and ((block == _ODD_FLOAT32) | (block == -_ODD_FLOAT32)).any()
    return bool(np.isfinite(block).all() and not odd)


def _dumps(array: _Array) -> bytes:
    return orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)


def encode_array(array: _Array, inf_nan: InfNan) -> bytes:
    """A contiguous array as JSON, each number in the shortest form that reads back the same, by way of a double.

    orjson writes every non-finite number as null, and nothing else in an array of numbers is null: the spelling
    asked for is put in their places.
    """
    text = _dumps(array)
    if array.dtype == np.float32:
        text = text.replace(_ODD_SHORTEST, _ODD_LONGER)
    if array.dtype.kind != "f" or inf_nan == "null":
        return text
    pieces = text.split(b"null")
    if len(pieces) == 1:
        return text
    odd = cast("list[float]", array[~np.isfinite(array)].tolist())
    words = [WORDS[inf_nan][repr(number)] for number in odd]
    return b"".join(piece for pair in zip(pieces, [*words, b""], strict=True) for piece in pair)
