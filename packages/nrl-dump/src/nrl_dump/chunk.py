"""A chunk as `add_chunk` is given it, checked whole before any of it is written."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from nrl_interfaces.layout import ragged_dim

from nrl_dump.columns import DTYPES, RESERVED, ColumnSpec, InfNan, Kind, StepColumns
from nrl_dump.tags import check_text, encode_tag


@dataclass(frozen=True)
class DenseColumn:
    """A column whose rows have one shape.

    Attributes:
        spec: What it is.
        tensor: `[B, L, *item]` or `[B]`, as the caller gave it.
    """

    spec: ColumnSpec
    tensor: torch.Tensor

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.tensor.element_size() * self.tensor[:1].numel()

    def snapshot(self) -> DenseColumn:
        """A copy in memory that the caller can't change."""
        return replace(self, tensor=_copied(self.tensor))


@dataclass(frozen=True)
class JaggedColumn:
    """A column whose rows have their own lengths.

    Attributes:
        spec: What it is.
        values: `[items, *item]`, rows one behind the other, perhaps with items between them that no row selects.
        starts: Where each row begins in `values`.
        lengths: How many items each row has.
    """

    spec: ColumnSpec
    values: torch.Tensor
    starts: list[int]
    lengths: list[int]

    @property
    def row_bytes(self) -> int:
        """Bytes of the longest row."""
        return self.values.element_size() * self.values[:1].numel() * max(self.lengths, default=0)

    def snapshot(self) -> JaggedColumn:
        """A copy in memory that the caller can't change."""
        return replace(self, values=_copied(self.values))


Column = DenseColumn | JaggedColumn


@dataclass(frozen=True)
class Chunk:
    """Rows that passed every check.

    Attributes:
        sample_ids: One a row.
        tags: One a row, as given, or as JSON once it is a snapshot.
        lengths: One a row.
        columns: Sequences, then scalars, each with all rows.
        lengths_dtype: The dtype of the `input_lengths` given.
    """

    sample_ids: list[str]
    tags: Sequence[dict[str, Any] | bytes]
    lengths: list[int]
    columns: tuple[Column, ...]
    lengths_dtype: str

    def __len__(self) -> int:
        return len(self.sample_ids)

    def step_columns(self, inf_nan: InfNan) -> StepColumns:
        """What the step's other chunks must have, too."""
        return StepColumns(tuple(column.spec for column in self.columns), self.lengths_dtype, inf_nan)

    def tag_bytes(self, row: int, inf_nan: InfNan) -> bytes:
        """A row's tags as JSON."""
        tag = self.tags[row]
        return tag if isinstance(tag, bytes) else encode_tag(tag, self.sample_ids[row], inf_nan)

    def snapshot(self, inf_nan: InfNan) -> Chunk:
        """A copy in memory that no later change of the caller's reaches, devices' work before it included."""
        tags = [self.tag_bytes(row, inf_nan) for row in range(len(self))]
        return replace(self, tags=tags, columns=tuple(column.snapshot() for column in self.columns))

    @property
    def n_bytes(self) -> int:
        """Bytes of the tensors and of tags already encoded."""
        tensors = (c.tensor if isinstance(c, DenseColumn) else c.values for c in self.columns)
        return sum(t.element_size() * t.numel() for t in tensors) + sum(len(t) for t in self.tags)


def check_chunk(
    *,
    sample_ids: Sequence[str],
    tags: Sequence[dict[str, Any]] | None,
    input_lengths: torch.Tensor,
    sequences: Mapping[str, torch.Tensor],
    scalars: Mapping[str, torch.Tensor],
    inf_nan: InfNan,
) -> Chunk:
    """Check everything about a chunk that can be checked without the step's other chunks.

    Raises:
        ValueError: Something does not fit; names the thing, the value and what is allowed.
    """
    ids = _check_ids(sample_ids)
    lengths = _check_lengths(input_lengths, len(ids))
    _check_names(sequences, scalars)
    columns: list[Column] = [_check_sequence(name, tensor, lengths) for name, tensor in sequences.items()]
    columns += [_check_scalar(name, tensor, len(ids)) for name, tensor in scalars.items()]
    checked_tags = _check_tags(tags, ids, inf_nan)
    return Chunk(ids, checked_tags, lengths, tuple(columns), _dtype_name(input_lengths, "input_lengths"))


def _check_ids(sample_ids: Sequence[str]) -> list[str]:
    if isinstance(sample_ids, (str, bytes)):
        raise ValueError(f"sample_ids is one string, {sample_ids!r}: a list of strings is needed")
    ids = [check_text(sample_id, f"sample_ids[{i}]") for i, sample_id in enumerate(sample_ids)]
    if len(set(ids)) < len(ids):
        seen: set[str] = set()
        twice = next(i for i in ids if i in seen or seen.add(i))
        raise ValueError(f"sample id {twice!r} stands twice in the chunk: each row needs an id of its own")
    return ids


def _check_tags(
    tags: Sequence[dict[str, Any]] | None, ids: list[str], inf_nan: InfNan
) -> Sequence[dict[str, Any] | bytes]:
    if tags is None:
        return [b"{}"] * len(ids)
    if len(tags) != len(ids):
        raise ValueError(f"{len(tags)} tags for {len(ids)} sample ids: give one dict a row, or None")
    for sample_id, tag in zip(ids, tags, strict=True):
        encode_tag(tag, sample_id, inf_nan)  # kept as given: encoding a row again is cheaper than holding all
    return list(tags)


def _check_lengths(input_lengths: torch.Tensor, rows: int) -> list[int]:
    if not isinstance(input_lengths, torch.Tensor) or input_lengths.is_floating_point() or input_lengths.is_complex():
        raise ValueError(f"input_lengths is {_kind_of(input_lengths)}: a 1-D tensor of whole numbers is needed")
    if input_lengths.dtype is torch.bool or input_lengths.dim() != 1 or len(input_lengths) != rows:
        raise ValueError(
            f"input_lengths is {_kind_of(input_lengths)}: one whole number for each of {rows} rows is needed"
        )
    lengths = _ints(input_lengths)
    for row, length in enumerate(lengths):
        if length < 0:
            raise ValueError(f"input_lengths[{row}] is {length}: lengths from 0 are allowed")
    return lengths


def _check_names(sequences: Mapping[str, torch.Tensor], scalars: Mapping[str, torch.Tensor]) -> None:
    for name in (*sequences, *scalars):
        check_text(name, "a column's name")
        if name in RESERVED:
            raise ValueError(f"column {name!r} has a reserved name: {', '.join(RESERVED)} are written for every row")
    both = sorted(set(sequences) & set(scalars))
    if both:
        raise ValueError(f"column {both[0]!r} is given as a sequence and as a scalar: choose one")


def _check_sequence(name: str, tensor: torch.Tensor, lengths: list[int]) -> Column:
    column = _check_column(name, tensor, len(lengths), "sequence")
    if isinstance(column, DenseColumn) and column.tensor.dim() < 2:
        raise ValueError(f"sequence {name!r} is {_kind_of(tensor)}: [rows, length] is needed; is it a scalar column?")
    there = column.lengths if isinstance(column, JaggedColumn) else [column.tensor.shape[1]] * len(lengths)
    for row, (length, room) in enumerate(zip(lengths, there, strict=True)):
        if length > room:
            raise ValueError(f"input_lengths[{row}] is {length}, but sequence {name!r} has {room} items in that row")
    if isinstance(column, JaggedColumn):
        return replace(column, lengths=list(lengths))
    return column


def _check_scalar(name: str, tensor: torch.Tensor, rows: int) -> Column:
    kind: Kind = "scalar" if isinstance(tensor, torch.Tensor) and tensor.dim() < 2 else "list"
    return _check_column(name, tensor, rows, kind)


def _check_column(name: str, tensor: torch.Tensor, rows: int, kind: Kind) -> Column:
    what = f"column {name!r}"
    dtype = _dtype_name(tensor, what)
    if tensor.is_nested:
        return _check_nested(
            what, tensor, rows, ColumnSpec(name, "sequence" if kind == "sequence" else "jagged", dtype)
        )
    if tensor.layout is not torch.strided or tensor.is_meta:
        raise ValueError(f"{what} is {_kind_of(tensor)}: dense and jagged tensors with data are allowed")
    if tensor.dim() == 0 or len(tensor) != rows:
        raise ValueError(f"{what} is {_kind_of(tensor)}: {rows} rows are needed, one a sample id")
    return DenseColumn(ColumnSpec(name, kind, dtype, tuple(tensor.shape[2:])), tensor.detach())


def _check_nested(what: str, tensor: torch.Tensor, rows: int, spec: ColumnSpec) -> JaggedColumn:
    if tensor.size(0) != rows:
        raise ValueError(f"{what} has {tensor.size(0)} rows: {rows} are needed, one a sample id")
    if tensor.layout is not torch.jagged:
        return _from_rows(what, list(tensor.detach().unbind()), tensor, spec)
    if ragged_dim(tensor) != 1:
        raise ValueError(f"{what} is jagged in another dimension than its second: transpose it")
    jagged: Any = tensor.detach()  # torch's stubs have no nested tensors
    values: torch.Tensor = jagged.values()
    offsets = _ints(jagged.offsets())
    room = [end - start for start, end in itertools.pairwise(offsets)]
    stored = jagged.lengths()
    lengths = room if stored is None else _ints(stored)
    for row, (length, there) in enumerate(zip(lengths, room, strict=True)):
        if not 0 <= length <= there:
            raise ValueError(f"{what} says {length} items for row {row}, whose offsets leave room for {there}")
    return JaggedColumn(replace(spec, item_shape=tuple(values.shape[1:])), values, offsets[:-1], lengths)


def _from_rows(what: str, rows: list[torch.Tensor], tensor: torch.Tensor, spec: ColumnSpec) -> JaggedColumn:
    """The strided nested layout, whose rows may differ in any dimension."""
    shapes = {tuple(row.shape[1:]) for row in rows}
    if tensor.dim() < 2 or len(shapes) > 1:
        raise ValueError(f"{what} has rows of shapes {sorted(shapes)} behind their own length: one shape is needed")
    lengths = [len(row) for row in rows]
    starts = list(itertools.accumulate(lengths, initial=0))[:-1]
    values = torch.cat(rows) if rows else torch.empty(0, dtype=tensor.dtype)
    return JaggedColumn(replace(spec, item_shape=tuple(values.shape[1:])), values, starts, lengths)


def _dtype_name(tensor: torch.Tensor, what: str) -> str:
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{what} is a {type(tensor).__name__}: a tensor is needed")
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"{what} has dtype {name}: {', '.join(DTYPES)} are allowed")
    return name


def _ints(tensor: Any) -> list[int]:
    return tensor.tolist()


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy in memory; off a device it waits for the work queued on the current stream."""
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)


def _kind_of(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__name__}"
    layout, dtype = (str(thing).removeprefix("torch.") for thing in (value.layout, value.dtype))
    return f"a {layout} {dtype} tensor of shape {list(value.shape)}"
