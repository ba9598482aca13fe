"""PackedTensor: a column whose rows own any number of tensor segments, which pack along one dimension.

It stands for multimodal columns (pixel values, grid sizes, cumulative lengths): row ``i`` owns zero or more tensors
whose sizes differ along ``dim_to_pack`` only, and the model wants them all in one tensor.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["PackedRow", "PackedTensor", "RowIndices", "row_indices"]

PackedRow: TypeAlias = torch.Tensor | Sequence[torch.Tensor] | None
RowIndices: TypeAlias = Sequence[int] | slice | torch.Tensor | NDArray[Any]


def row_indices(indices: RowIndices, size: int) -> list[int]:
    """Turn indices of any form into row numbers from 0 to ``size - 1``.

    Args:
        indices: Ints (a list, range, 1-D integer tensor or array), negative ones counted from the end as in a list,
            or a slice, cut to the rows there are as in a list.
        size: How many rows there are.

    Raises:
        IndexError: If an index is out of range; names it and ``size``.
        TypeError: If an index is no int (a bool is none).
        ValueError: If a tensor or array is not 1-D.

    >>> row_indices([0, -1], 3), row_indices(slice(1, 9), 3)
    ([0, 2], [1, 2])
    """
    if isinstance(indices, slice):
        return list(range(size)[indices])
    if isinstance(indices, torch.Tensor | np.ndarray):
        if indices.ndim != 1:
            raise ValueError(f"indices have {indices.ndim} dimensions; allowed: 1")
        indices = cast("list[int]", cast("Any", indices).tolist())
    return [_row_index(index, size) for index in indices]


def _row_index(index: object, size: int) -> int:
    if isinstance(index, bool) or not hasattr(index, "__index__"):
        raise TypeError(
            f"index {index!r} is a {type(index).__name__}; allowed: an int (of a mask, give mask.nonzero()[:, 0])"
        )
    number = operator.index(cast("int", index))
    if not -size <= number < size:
        allowed = f"{-size} to {size - 1}" if size else "none"
        raise IndexError(f"index {number} is out of range for {size} rows; allowed: {allowed}")
    return number % size


class PackedTensor:
    """Rows of tensor segments that pack along ``dim_to_pack``; immutable.

    A segment object that several rows share is stored once, and stays so through `slice`, `concat`, `to` and
    pickling. The segments are the caller's tensors, not copies: whoever writes into them changes them here too.

    Args:
        rows: One item a row: a tensor (one segment), a list or tuple of tensors, or None (no segment).
        dim_to_pack: The dimension along which sizes may differ, 0 or more.
        dtype: The segments' dtype. Needed, with ``trailing_shape``, where all rows may be empty.
        trailing_shape: The segments' shape without ``dim_to_pack``.

    Raises:
        TypeError: If ``rows`` is one tensor, or a segment is no tensor.
        ValueError: If a segment differs from the declared (else the first) one in dtype, or in shape outside
            ``dim_to_pack``; or ``dim_to_pack`` is negative; or only one of dtype and trailing_shape is given.

    >>> images = PackedTensor([torch.ones(2, 3), None, [torch.zeros(1, 3), torch.ones(1, 3)]], dim_to_pack=0)
    >>> len(images), images.as_tensor().shape
    (3, torch.Size([4, 3]))
    >>> images.slice([1]).as_tensor().shape
    torch.Size([0, 3])
    """

    _segments: tuple[torch.Tensor, ...]
    _rows: tuple[tuple[int, ...], ...]  # for each row, positions in _segments
    _dim: int
    _template: torch.Tensor | None  # size 0 along _dim; holds dtype, shape and device; None while they are unknown

    def __init__(
        self,
        rows: Iterable[PackedRow],
        dim_to_pack: int,
        *,
        dtype: torch.dtype | None = None,
        trailing_shape: Sequence[int] | None = None,
    ) -> None:
        if isinstance(rows, torch.Tensor):
            raise TypeError("rows is a tensor; allowed: a list with a tensor, a list of tensors or None a row")
        if isinstance(dim_to_pack, bool) or dim_to_pack < 0:
            raise ValueError(f"dim_to_pack is {dim_to_pack}; allowed: 0 or more")
        template = _declared(dtype, trailing_shape, dim_to_pack)
        stored: dict[int, int] = {}  # id of a segment -> its position; ids are safe while `segments` holds them
        segments: list[torch.Tensor] = []
        positions: list[tuple[int, ...]] = []
        for number, row in enumerate(rows):
            own = _segments_of(row)
            for segment in own:
                if id(segment) not in stored:
                    template = _checked(segment, template, dim_to_pack, f"row {number}")
                    stored[id(segment)] = len(segments)
                    segments.append(segment)
            positions.append(tuple(stored[id(segment)] for segment in own))
        self._segments, self._rows = tuple(segments), tuple(positions)
        self._dim, self._template = dim_to_pack, template

    @classmethod
    def _make(
        cls,
        segments: Iterable[torch.Tensor],
        rows: Iterable[tuple[int, ...]],
        dim: int,
        template: torch.Tensor | None,
    ) -> Self:
        made = cls.__new__(cls)
        vars(made).update(_segments=tuple(segments), _rows=tuple(rows), _dim=dim, _template=template)
        return made

    @property
    def dim_to_pack(self) -> int:
        """The dimension along which the segments pack."""
        return self._dim

    @property
    def template(self) -> torch.Tensor | None:
        """A tensor of size 0 along `dim_to_pack` with the dtype, trailing shape and device; None if unknown."""
        return self._template

    @property
    def dtype(self) -> torch.dtype | None:
        """The segments' dtype; None if there never was a segment and none was declared."""
        return None if self._template is None else self._template.dtype

    @property
    def trailing_shape(self) -> tuple[int, ...] | None:
        """The segments' shape without `dim_to_pack`; None where `dtype` is None."""
        return None if self._template is None else _outside(self._template, self._dim)

    @property
    def stored_segments(self) -> tuple[torch.Tensor, ...]:
        """Each stored segment once, in the order of first use: what the column holds in memory."""
        return self._segments

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        """The segments of each row."""
        return (tuple(self._segments[k] for k in row) for row in self._rows)

    def __repr__(self) -> str:
        return (
            f"PackedTensor({len(self)} rows, {len(self._segments)} segments, dim_to_pack={self._dim}, "
            f"dtype={self.dtype}, trailing_shape={self.trailing_shape})"
        )

    def slice(self, indices: RowIndices) -> Self:
        """Give the rows ``indices``, in their order; segments of other rows are let go.

        Raises:
            IndexError, TypeError, ValueError: As `row_indices`.
        """
        chosen = [self._rows[index] for index in row_indices(indices, len(self))]
        used = {k: new for new, k in enumerate(dict.fromkeys(k for row in chosen for k in row))}
        rows = (tuple(used[k] for k in row) for row in chosen)
        return self._make((self._segments[k] for k in used), rows, self._dim, self._template)

    @classmethod
    def concat(cls, packed: Sequence["PackedTensor"]) -> Self:
        """Join the rows of several, in order.

        One that never had a segment and declares nothing joins any other.

        Raises:
            ValueError: If there is none, or they differ in dim_to_pack, dtype or trailing shape.
        """
        if not packed:
            raise ValueError("there are 0 packed tensors to concatenate; allowed: 1 or more")
        dim, template, start = packed[0].dim_to_pack, None, 0
        for number, one in enumerate(packed):
            where = f"packed tensor {number} (rows from {start})"
            if one.dim_to_pack != dim:
                raise ValueError(f"{where} has dim_to_pack {one.dim_to_pack}; allowed: {dim}, as in the first")
            if one.template is not None:
                template = _checked(one.template, template, dim, where)
            start += len(one)
        joined = cls([row for one in packed for row in one], dim)
        return cls._make(joined.stored_segments, joined._rows, dim, template)

    @classmethod
    def empty_rows_like(cls, other: "PackedTensor", n: int) -> Self:
        """Give ``n`` rows without a segment, with the dim_to_pack, dtype, trailing shape and device of ``other``.

        Raises:
            ValueError: If ``n`` is negative or a bool.
        """
        if isinstance(n, bool) or n < 0:
            raise ValueError(f"n is {n}; allowed: 0 or more rows")
        return cls._make((), ((),) * n, other.dim_to_pack, other.template)

    def map_segments(self, fn: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        """Give the same rows with ``fn(segment)`` in place of each stored segment, called once for each.

        ``fn`` sees the empty template too, so that a column without segments changes dtype and device alike.

        Raises:
            ValueError: If the results differ in dtype, or in shape outside dim_to_pack.

        >>> copied = PackedTensor([torch.ones(2)] * 2, 0).map_segments(torch.clone)
        """
        segments = tuple(fn(segment) for segment in self._segments)
        template = None if self._template is None else fn(self._template)
        for number, segment in enumerate(segments):
            template = _checked(segment, template, self._dim, f"stored segment {number}")
        return self._make(segments, self._rows, self._dim, template)

    def to(self, device: torch.device | str | int) -> Self:
        """Give the same rows on ``device``; each stored segment moves once, one already there is kept."""
        return self.map_segments(lambda segment: segment.to(device))

    def as_tensor(self, device: torch.device | str | int | None = None) -> torch.Tensor:
        """Pack the segments of all rows, in order, into one new tensor.

        Args:
            device: Where the tensor shall be; None leaves the segments where they are.

        Returns:
            The packed tensor. Without any segment: size 0 along dim_to_pack, with dtype and trailing shape; where
            these are unknown, shape [0] in torch's default dtype.
        """
        packed = self if device is None else self.to(device)
        pieces = [segment for row in packed for segment in row]
        if pieces:
            return torch.cat(pieces, dim=self._dim)
        return torch.empty(0, device=device) if packed.template is None else packed.template.clone()


def _declared(dtype: torch.dtype | None, trailing_shape: Sequence[int] | None, dim: int) -> torch.Tensor | None:
    if dtype is None and trailing_shape is None:
        return None
    if dtype is None or trailing_shape is None or dim > len(trailing_shape):
        raise ValueError(
            f"dtype {dtype} with trailing_shape {trailing_shape}; allowed: neither, or both, "
            f"with at least dim_to_pack = {dim} sizes in the shape"
        )
    return torch.empty((*trailing_shape[:dim], 0, *trailing_shape[dim:]), dtype=dtype)


def _segments_of(row: PackedRow) -> Sequence[torch.Tensor]:
    if row is None:
        return ()
    # What is neither goes on as a segment, to be refused by its row.
    return row if isinstance(row, list | tuple) else (cast("torch.Tensor", row),)


def _outside(tensor: torch.Tensor, dim: int) -> tuple[int, ...]:
    return (*tensor.shape[:dim], *tensor.shape[dim + 1 :])


def _checked(segment: torch.Tensor, template: torch.Tensor | None, dim: int, where: str) -> torch.Tensor:
    """Refuse a segment that doesn't fit; give the template to check the next one by."""
    if not isinstance(segment, torch.Tensor):
        raise TypeError(f"{where} holds a {type(segment).__name__}; allowed: tensors, lists of tensors, or None")
    if segment.layout != torch.strided or segment.is_nested or segment.ndim <= dim:
        raise ValueError(
            f"{where} has a segment of {segment.ndim} dimensions, layout {segment.layout}, nested: "
            f"{segment.is_nested}; allowed: a dense tensor of more than dim_to_pack = {dim} dimensions"
        )
    if template is None:
        return segment.new_empty((*segment.shape[:dim], 0, *segment.shape[dim + 1 :]))
    if segment.dtype != template.dtype:
        raise ValueError(f"{where} has dtype {segment.dtype}; allowed: {template.dtype}, as before it")
    if _outside(segment, dim) != _outside(template, dim):
        raise ValueError(
            f"{where} has shape {list(segment.shape)}; allowed: "
            f"{list(_outside(template, dim))} outside dim_to_pack = {dim}, as before it"
        )
    return template
