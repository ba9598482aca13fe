"""A step as a Parquet file: plain columns, in the types that were written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from nrl_interfaces.fileops import FileOps
from nrl_interfaces.publish import stage

from nrl_dump.columns import ColumnSpec
from nrl_dump.manifest import Manifest, check_size
from nrl_dump.names import StepFiles
from nrl_dump.reader import numeric_columns, rows_with_arrays, unwrap
from nrl_dump.values import Array, array_dtype

_GROUP_BYTES = 64 << 20

_Row = tuple[dict[str, Any], list[Array]]


def write_parquet(
    path: Path,
    target: Path,
    ops: FileOps,
    progress: Callable[[Iterable[Any], int], Iterable[Any]] = lambda rows, _: rows,
) -> Manifest:
    """Write a step as Parquet; the target appears whole, in place of what was there.

    A row has `idx`, `step`, `sample_id`, `input_lengths`, `metadata` (the tags as a JSON string, NaN as the step has
    it) and the columns, none of them in a list of one. Types are the columns' own; bfloat16 and float8, which Parquet
    lacks, are float32. Each field's metadata names the dtype that was written.

    Args:
        path: The published file, with its manifest beside it.
        target: The file to write.
        ops: Operations on files.
        progress: Goes through the rows it is given, whose number it is told, and shows how far it is.

    Returns:
        What the step holds.

    Raises:
        ImportError: pyarrow is not installed.
        ValueError: The target is the step itself.
        FileNotFoundError, InterruptedStepError, DamagedStepError: As `read_tensors` does.
        OSError: The disk refused; the target is as it was.
    """
    arrow, parquet = _import_pyarrow()
    manifest = check_size(StepFiles.of_published(path))
    if target.exists() and target.samefile(path):
        raise ValueError(f"{target} is the step itself: give another file")
    specs = numeric_columns(manifest)
    schema = _schema(arrow, specs)
    rows = progress(rows_with_arrays(path, manifest, specs, exact_tags=True), manifest.rows)
    with stage(target, ops) as file:
        with parquet.ParquetWriter(file, schema) as writer:
            for group in _groups(rows):
                writer.write_table(_table(arrow, schema, specs, group))
        file.commit()
    ops.fsync_folder(target.parent)
    return manifest


def _import_pyarrow() -> tuple[Any, Any]:
    """Pyarrow and its parquet module, untyped as they are; imported when asked for, an extra that it is."""
    try:
        import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
        import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as error:
        raise ImportError(f"Parquet needs pyarrow ({error}): pip install nrl-dump[parquet]") from error
    return pa, pq


def _schema(arrow: Any, specs: list[ColumnSpec]) -> Any:
    lengths, *columns = [_field(arrow, spec) for spec in specs]
    first = [arrow.field("idx", arrow.int64()), arrow.field("step", arrow.int64())]
    texts = [arrow.field(name, arrow.string()) for name in ("sample_id", "metadata")]
    return arrow.schema([*first, texts[0], lengths, texts[1], *columns])


def _field(arrow: Any, spec: ColumnSpec) -> Any:
    kind = arrow.from_numpy_dtype(array_dtype(spec.dtype))
    for _ in range(0 if spec.kind == "scalar" else 1 + len(spec.item_shape)):
        kind = arrow.list_(kind)
    return arrow.field(spec.name, kind, metadata={"nrl_dump.dtype": spec.dtype, "nrl_dump.kind": spec.kind})


def _groups(rows: Iterable[_Row]) -> Iterator[list[_Row]]:
    group: list[_Row] = []
    size = 0
    for row in rows:
        group.append(row)
        size += sum(array.nbytes for array in row[1])
        if size >= _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _table(arrow: Any, schema: Any, specs: list[ColumnSpec], group: list[_Row]) -> Any:
    rows = [row for row, _ in group]
    columns: dict[str, Any] = {
        "idx": [row["idx"] for row in rows],
        "step": [row["step"] for row in rows],
        "sample_id": [unwrap(row, "sample_id") for row in rows],
        "metadata": [json.dumps(unwrap(row, "metadata"), ensure_ascii=False) for row in rows],
    }
    for number, spec in enumerate(specs):
        columns[spec.name] = _column(arrow, spec, [arrays[number] for _, arrays in group])
    return arrow.table({name: columns[name] for name in schema.names}, schema=schema)


def _column(arrow: Any, spec: ColumnSpec, rows: list[Array]) -> Any:
    if spec.kind == "scalar":
        return arrow.array(np.stack(rows))
    items = np.concatenate(rows)
    lists = arrow.array(items.reshape(-1))
    for dimension in range(len(spec.item_shape), 0, -1):
        amount = int(np.prod(items.shape[:dimension]))
        lists = _lists(arrow, [spec.item_shape[dimension - 1]] * amount, lists)
    return _lists(arrow, [len(row) for row in rows], lists)


def _lists(arrow: Any, lengths: list[int], values: Any) -> Any:
    offsets = np.cumsum([0, *lengths], dtype=np.int32)
    return arrow.ListArray.from_arrays(arrow.array(offsets), values)
