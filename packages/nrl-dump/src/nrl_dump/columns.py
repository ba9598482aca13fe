"""The columns of a step: their dtypes and kinds, and the file in which each writer says what its rows hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from nrl_interfaces.ownership import Owner

from nrl_dump.sealed import seal, unseal

_FORMAT = "nrl-dump columns"

InfNan = Literal["constants", "strings", "null"]
"""How NaN and infinities are written: as the words that Python's json reads back, as strings, or as null."""

Kind = Literal["sequence", "scalar", "list", "jagged"]
"""sequence: cut to the row's input length. scalar: a number a row. list: a dense row as given. jagged: a row of its
own length."""

RESERVED = ("idx", "step", "sample_id", "input_lengths", "metadata")
"""Keys that every row has of itself."""

DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        *("float64", "float32", "float16", "bfloat16"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
        *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"),
    )
    if hasattr(torch, name)  # older versions have fewer of float8
}
"""What a column may hold, by the name that stands in manifests."""


@dataclass(frozen=True)
class ColumnSpec:
    """One column as all rows of the step have it.

    Attributes:
        name: The key in a row.
        kind: How a row of it is cut and read back.
        dtype: A key of `DTYPES`.
        item_shape: The shape behind a row's own dimension, `()` for the usual `[B, L]`, `[B, K]` and `[B]`.
    """

    name: str
    kind: Kind
    dtype: str
    item_shape: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The column as plain data."""
        return {"name": self.name, "kind": self.kind, "dtype": self.dtype, "item_shape": list(self.item_shape)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ColumnSpec:
        """The inverse of `to_json`; KeyError or ValueError if it is not that."""
        if data["kind"] not in get_args(Kind) or data["dtype"] not in DTYPES:
            raise ValueError(f"column {data['name']!r} has kind {data['kind']!r} and dtype {data['dtype']!r}")
        return cls(str(data["name"]), data["kind"], data["dtype"], tuple(int(n) for n in data["item_shape"]))


@dataclass(frozen=True)
class StepColumns:
    """What one writer's rows of one step hold.

    Attributes:
        columns: In the order of a row: sequences, then scalars.
        lengths_dtype: The dtype of `input_lengths`.
        inf_nan: How non-finite numbers are written.
        attempt: Tells this writing of the part from every other; shards need not agree on it.
        writer: Who writes the part; shards need not agree on it.
    """

    columns: tuple[ColumnSpec, ...]
    lengths_dtype: str
    inf_nan: InfNan
    attempt: str = field(default="", compare=False)
    writer: Owner | None = field(default=None, compare=False)

    def difference(self, other: StepColumns) -> str | None:
        """What tells two of them apart, for an error's text; None if nothing does."""
        mine, theirs = ({column.name: column for column in c.columns} for c in (self, other))
        for name in dict.fromkeys((*mine, *theirs)):
            if mine.get(name) != theirs.get(name):
                return f"column {name!r} is {_shown(mine.get(name))} there and {_shown(theirs.get(name))} here"
        if list(mine) != list(theirs):
            return f"columns stand in the order {list(mine)} there and {list(theirs)} here"
        if self.lengths_dtype != other.lengths_dtype:
            return f"column 'input_lengths' is {self.lengths_dtype} there and {other.lengths_dtype} here"
        if self.inf_nan != other.inf_nan:
            return f"inf_nan is {self.inf_nan!r} there and {other.inf_nan!r} here"
        return None

    def settings(self) -> dict[str, Any]:
        """What stands in column files and manifests alike."""
        return {
            "inf_nan": self.inf_nan,
            "input_lengths": self.lengths_dtype,
            "columns": [column.to_json() for column in self.columns],
        }

    @classmethod
    def from_settings(cls, data: Mapping[str, Any], attempt: str = "", writer: Owner | None = None) -> StepColumns:
        """The inverse of `settings`; KeyError, TypeError or ValueError if it is not that."""
        columns = tuple(ColumnSpec.from_json(column) for column in data["columns"])
        if data["input_lengths"] not in DTYPES:
            raise ValueError(f"input_lengths has dtype {data['input_lengths']!r}")
        return cls(columns, data["input_lengths"], check_inf_nan(data["inf_nan"]), attempt, writer)

    def to_bytes(self) -> bytes:
        """The column file's content."""
        writer = self.writer and self.writer.to_json()
        return seal(_FORMAT, {**self.settings(), "attempt": self.attempt, "writer": writer})

    @classmethod
    def from_bytes(cls, content: bytes) -> StepColumns:
        """Read a column file.

        Raises:
            ValueError: The content is damaged, foreign, or of a newer format.
        """

        def parse(data: Mapping[str, Any]) -> StepColumns:
            return cls.from_settings(data, data["attempt"], data["writer"] and Owner.from_json(data["writer"]))

        return unseal(_FORMAT, content, parse)


def check_inf_nan(inf_nan: str) -> InfNan:
    """Return a usable setting, ValueError for anything else."""
    for allowed in get_args(InfNan):
        if inf_nan == allowed:
            return allowed
    raise ValueError(f"inf_nan is {inf_nan!r}: {', '.join(map(repr, get_args(InfNan)))} are allowed")


def _shown(column: ColumnSpec | None) -> str:
    if column is None:
        return "missing"
    behind = f" of items {list(column.item_shape)}" if column.item_shape else ""
    return f"{column.kind} {column.dtype}{behind}"
