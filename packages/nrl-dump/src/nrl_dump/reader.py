"""Reading steps: rows as plain values, columns as tensors."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import orjson
import torch

from nrl_dump.columns import ColumnSpec
from nrl_dump.manifest import DamagedStepError, Manifest, check_size
from nrl_dump.names import StepFiles
from nrl_dump.values import Array, ColumnBuffer, to_array


def read_step(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    r"""Yield a step's rows, one at a time, as plain Python values just as they stand in the file.

    Every value but `idx` and `step` stands in a list of one. Integers are exact at any size; the words `NaN`,
    `Infinity` and `-Infinity` are read, while strings and nulls in their place stay such. Rows end at `"\n"`
    and nowhere else. A file that has no manifest, as the older logger's, is read, too.

    Args:
        path: The published file, `train_data_step<N>.jsonl`, or any other file of such rows.

    Raises:
        FileNotFoundError: The file is not there.
        InterruptedStepError: The step's publication did not come to its end.
        DamagedStepError: The size is not what the manifest says; or, on the way, a line is not a row.
        ValueError: The path names an unpublished part.

    Example:
        >>> import tempfile, torch
        >>> from nrl_dump import TrainDataDump
        >>> folder = tempfile.mkdtemp()
        >>> with TrainDataDump(folder) as dump:
        ...     dump.add_chunk(
        ...         step=0,
        ...         sample_ids=["a"],
        ...         tags=[{"task": "math"}],
        ...         input_lengths=torch.tensor([2]),
        ...         sequences={"token_ids": torch.tensor([[5, 6, 0]])},
        ...         scalars={"reward": torch.tensor([0.5])},
        ...     )
        ...     _ = dump.finish_step(0)
        >>> for row in read_step(f"{folder}/train_data_step1.jsonl"):
        ...     print(row["sample_id"], row["metadata"], row["token_ids"], row["reward"])
        ['a'] [{'task': 'math'}] [[5, 6]] [0.5]
    """
    path = Path(path)
    find_manifest(path)
    path.stat()  # FileNotFoundError now and not at the first row
    return parse_rows(path)


def read_tensors(path: str | os.PathLike[str], columns: Iterable[str] | None = None) -> dict[str, torch.Tensor]:
    """Read columns of a step as tensors, in the dtypes that were written, bit for bit but for payload and sign of NaN.

    What `inf_nan` wrote for NaN and infinities is turned back; "null" lost which it was, so null is read as NaN.

    Args:
        path: The published file, with its manifest beside it.
        columns: The names wanted, "input_lengths" among those there are; None for all. No other is kept in memory.

    Returns:
        One tensor a column, in the order asked for, rows in the file's order:

        - a column of one number a row, and `input_lengths`: `[rows]`;
        - a sequence, or a jagged column: `[rows, (length), *item]` nested in torch.jagged layout;
        - a column of one list a row: `[rows, K, *item]`, or jagged if chunks had different K.

    Raises:
        KeyError: A name is not among the step's columns.
        FileNotFoundError: The file is not there.
        InterruptedStepError: The step's publication did not come to its end.
        DamagedStepError: The file is not what the manifest says, or there is none.
        ValueError: The path does not name a published step.

    Example:
        >>> import tempfile, torch
        >>> from nrl_dump import TrainDataDump
        >>> folder = tempfile.mkdtemp()
        >>> with TrainDataDump(folder) as dump:
        ...     dump.add_chunk(
        ...         step=0,
        ...         sample_ids=["a", "b"],
        ...         tags=None,
        ...         input_lengths=torch.tensor([2, 1]),
        ...         sequences={"token_ids": torch.tensor([[5, 6, 0], [7, 0, 0]])},
        ...         scalars={"reward": torch.tensor([0.5, -1.0], dtype=torch.bfloat16)},
        ...     )
        ...     _ = dump.finish_step(0)
        >>> tensors = read_tensors(f"{folder}/train_data_step1.jsonl", ["token_ids", "reward"])
        >>> [row.tolist() for row in tensors["token_ids"].unbind()]
        [[5, 6], [7]]
        >>> tensors["reward"]
        tensor([ 0.5000, -1.0000], dtype=torch.bfloat16)
    """
    path = Path(path)
    manifest = check_size(StepFiles.of_published(path))
    buffers = [ColumnBuffer(spec) for spec in pick_columns(manifest, columns)]
    for _, arrays in rows_with_arrays(path, manifest, [buffer.spec for buffer in buffers]):
        for buffer, array in zip(buffers, arrays, strict=True):
            buffer.append(array)
    return {buffer.spec.name: buffer.tensor() for buffer in buffers}


def find_manifest(path: Path) -> Manifest | None:
    """The manifest of a file of rows that is whole by it; None where there is no manifest to go by.

    Raises:
        FileNotFoundError, InterruptedStepError, DamagedStepError, ValueError: As `read_step` does.
    """
    if ".jsonl.part" in path.name:
        raise ValueError(f"{path} is not published: finish_step makes train_data_step<N>.jsonl of it, to read that")
    try:
        files = StepFiles.of_published(path)
    except ValueError:  # a copy under another name
        return None
    if files.data.exists() and not files.manifest.exists():
        return None
    return check_size(files)


def numeric_columns(manifest: Manifest) -> list[ColumnSpec]:
    """What a step's rows hold in numbers: `input_lengths` and the columns, in the order of a row."""
    return [ColumnSpec("input_lengths", "scalar", manifest.columns.lengths_dtype), *manifest.columns.columns]


def pick_columns(manifest: Manifest, names: Iterable[str] | None) -> list[ColumnSpec]:
    """The columns of these names, each once, in this order; all for None.

    Raises:
        KeyError: A name is not among them; names it and those there are.
    """
    there = {spec.name: spec for spec in numeric_columns(manifest)}
    if names is None:
        return list(there.values())
    if isinstance(names, str):
        raise ValueError(f"columns is one string, {names!r}: a list of names is needed")
    wanted = list(dict.fromkeys(names))
    for name in wanted:
        if name not in there:
            raise KeyError(f"step file {manifest.number} has no column {name!r}: it has {', '.join(map(repr, there))}")
    return [there[name] for name in wanted]


def rows_with_arrays(
    path: Path, manifest: Manifest, specs: Sequence[ColumnSpec], *, exact_tags: bool = False
) -> Iterator[tuple[dict[str, Any], list[Array]]]:
    """Yield each row as parsed, and the columns asked for as arrays (see `values.to_array`).

    Args:
        path: The published file.
        manifest: What it holds.
        specs: The columns to convert.
        exact_tags: Keep whole numbers beyond 64 bits in the row's tags; takes longer.

    Raises:
        DamagedStepError: A line is not a row of these columns, or there are more or fewer than the manifest says.
    """
    rows = 0
    for row in parse_rows(path, json.loads if exact_tags else _loads_numbers):
        rows += 1
        try:
            arrays = [to_array(spec, unwrap(row, spec.name)) for spec in specs]
        except ValueError as error:
            raise DamagedStepError(path, f"line {rows}: {error}") from error
        yield row, arrays
    if rows != manifest.rows:
        raise DamagedStepError(path, f"{rows} rows are not the {manifest.rows} of its manifest")


def unwrap(row: dict[str, Any], name: str) -> Any:
    """A row's value without the list of one that it stands in.

    Raises:
        ValueError: There is no such value.
    """
    value: object = row.get(name)
    if not isinstance(value, list) or len(cast("list[Any]", value)) != 1:
        raise ValueError(f"{name!r} does not stand in a list of one")
    return cast("list[Any]", value)[0]


def parse_rows(path: Path, loads: Callable[[bytes], Any] = json.loads) -> Iterator[dict[str, Any]]:
    r"""Yield a file's rows; lines end at "\n" and nowhere else.

    Raises:
        DamagedStepError: A line is not a row; names its number.
    """
    with path.open("rb") as file:  # in binary: text mode would take "\r" for an end of line, too
        for number, line in enumerate(file, 1):
            try:
                row = loads(line)
            except ValueError as error:
                raise DamagedStepError(path, f"line {number} is not JSON: {error}") from error
            if not isinstance(row, dict):
                raise DamagedStepError(path, f"line {number} is not a row: an object is needed")
            yield cast("dict[str, Any]", row)


def _loads_numbers(line: bytes) -> Any:
    """Parse a row whose tags do not matter: orjson rounds their whole numbers beyond 64 bits, and is faster."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:  # the words NaN and Infinity, which Python's json alone knows
        return json.loads(line)
