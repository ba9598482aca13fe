"""Numbers about the columns of a step, in one pass that keeps no row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nrl_dump.columns import ColumnSpec
from nrl_dump.manifest import check_size
from nrl_dump.names import StepFiles
from nrl_dump.reader import numeric_columns, rows_with_arrays
from nrl_dump.values import Array


@dataclass
class ColumnStats:
    """One column of a step.

    Attributes:
        spec: Which.
        count: Items in all rows.
        nan: How many are NaN (or null, where `inf_nan="null"` wrote that for infinities, too).
        inf: How many are infinite.
        min: The smallest of the others; None where there is none.
        max: The largest of the others.
        shortest: The fewest items in a row; None for a column of one number a row.
        longest: The most items in a row.
    """

    spec: ColumnSpec
    count: int = 0
    nan: int = 0
    inf: int = 0
    min: float | None = None
    max: float | None = None
    shortest: int | None = None
    longest: int | None = None
    _sum: float = 0.0

    @property
    def mean(self) -> float | None:
        """The mean of the finite items, summed in float64; None where there is none or the sum has no end there."""
        finite = self.count - self.nan - self.inf
        return self._sum / finite if finite and math.isfinite(self._sum) else None

    def add(self, row: Array) -> None:
        """Take a row in."""
        if row.ndim:
            self.shortest = min(len(row), len(row) if self.shortest is None else self.shortest)
            self.longest = max(len(row), self.longest or 0)
        items = row.reshape(-1)
        self.count += items.size
        if items.dtype.kind == "f":
            finite = np.isfinite(items)
            nan = int(np.isnan(items).sum())
            self.nan += nan
            self.inf += items.size - int(finite.sum()) - nan
            items = items[finite]
        if items.size:
            low, high = items.min().item(), items.max().item()
            self.min = low if self.min is None else min(low, self.min)
            self.max = high if self.max is None else max(high, self.max)
            with np.errstate(over="ignore"):
                self._sum += float(items.sum(dtype=np.float64))

    def to_json(self) -> dict[str, Any]:
        """The numbers as plain data, all of them finite or None."""
        names = ("count", "mean", "min", "max", "nan", "inf", "shortest", "longest")
        numbers = {name: getattr(self, name) for name in names}
        return {"name": self.spec.name, "kind": self.spec.kind, "dtype": self.spec.dtype, **numbers}


@dataclass(frozen=True)
class StepStats:
    """A step's columns, `input_lengths` the first of them."""

    path: Path
    number: int
    rows: int
    columns: tuple[ColumnStats, ...]

    def to_json(self) -> dict[str, Any]:
        """The numbers as plain data."""
        columns = [column.to_json() for column in self.columns]
        return {"step": self.number, "path": str(self.path), "rows": self.rows, "columns": columns}


def step_stats(path: Path, progress: Callable[[Iterable[Any], int], Iterable[Any]] = lambda rows, _: rows) -> StepStats:
    """Read a step once and count.

    Args:
        path: The published file, with its manifest beside it.
        progress: Goes through the rows it is given, whose number it is told, and shows how far it is.

    Raises:
        FileNotFoundError, InterruptedStepError, DamagedStepError, ValueError: As `read_tensors` does.
    """
    manifest = check_size(StepFiles.of_published(path))
    columns = tuple(ColumnStats(spec) for spec in numeric_columns(manifest))
    rows = rows_with_arrays(path, manifest, [column.spec for column in columns])
    for _, arrays in progress(rows, manifest.rows):
        for column, array in zip(columns, arrays, strict=True):
            column.add(array)
    return StepStats(path, manifest.number, manifest.rows, columns)
