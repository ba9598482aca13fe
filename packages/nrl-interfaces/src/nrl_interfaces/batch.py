"""BatchedDataDict: a dict of columns that have the same number of rows.

A column is a tensor with the batch as dimension 0 (dense, or nested in jagged or strided layout), a `PackedTensor`,
a list, a tuple or a numpy array.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from nrl_interfaces.layout import check_pad_value, jagged_rows, nested_from_rows, ragged_dim
from nrl_interfaces.packed import PackedTensor, RowIndices, row_indices

__all__ = ["BatchedDataDict", "column_kind"]

DictT = TypeVar("DictT")  # names the columns for readers and type checkers; nothing checks it at run time


class BatchedDataDict(dict[str, Any], Generic[DictT]):
    """A dict of columns with a batch size; every method gives a new one and leaves this one alone.

    It is a dict in all else: iterating it gives column names. For rows, see `rows`.

    >>> batch = BatchedDataDict(ids=torch.tensor([[1, 2], [3, 4]]), source=["a", "b"])
    >>> batch.size
    2
    >>> batch.select_indices([1])
    {'ids': tensor([[3, 4]]), 'source': ['b']}
    """

    @property
    def size(self) -> int:
        """The number of rows; 0 without columns.

        Raises:
            ValueError: If two columns differ in size (names both), or a tensor has no dimension.
            TypeError: If a value is of no type that a column may have.
        """
        sizes = {name: _column_size(name, column) for name, column in self.items()}
        first = next(iter(sizes), "")
        for name, size in sizes.items():
            if size != sizes[first]:
                raise ValueError(
                    f"column {name!r} has {size} rows and column {first!r} has {sizes[first]}; "
                    f"allowed: the same size in every column"
                )
        return sizes.get(first, 0)

    def select_indices(self, indices: RowIndices) -> Self:
        """Give the rows ``indices``, in their order, of every column; repeats are allowed.

        Args:
            indices: Ints as a list, 1-D integer tensor or array, negative ones counted from the end; or a slice.

        Raises:
            IndexError: If an index is out of range.
            TypeError, ValueError: As `size` and `nrl_interfaces.packed.row_indices`.
        """
        chosen = row_indices(indices, self.size)
        positions = torch.tensor(chosen, dtype=torch.int64)
        return type(self)({name: _take(column, chosen, positions) for name, column in self.items()})

    def slice(self, start: int, end: int) -> Self:
        """Give the rows from ``start`` up to ``end``, bounds as in a list; dense tensors and arrays are views.

        Raises:
            TypeError, ValueError: As `size`.
        """
        _ = self.size  # refuses columns that are out of step
        rows = slice(start, end)
        return type(self)({name: _cut(column, rows) for name, column in self.items()})

    @classmethod
    def from_batches(
        cls, batches: Sequence[Mapping[str, Any]], pad_value_dict: Mapping[str, float] | None = None
    ) -> Self:
        """Join batches along the rows.

        Dense tensors of 2 or more dimensions are padded on the right along dimension 1 to the longest. A
        PackedTensor column that some batch lacks is filled with empty rows.

        Args:
            batches: One or more batches with the same columns.
            pad_value_dict: The pad value of a column; 0 (False) without one. Names of no column are ignored.

        Raises:
            ValueError: If there is no batch; a batch lacks a column; columns differ in kind, dtype, device or
                trailing shape; or a dtype can't hold its pad value. Names column and batch number.
            TypeError: As `size`.

        >>> short, long = {"ids": torch.tensor([[1]])}, {"ids": torch.tensor([[2, 3]])}
        >>> BatchedDataDict.from_batches([short, long], {"ids": 9})["ids"].tolist()
        [[1, 9], [2, 3]]
        """
        if not batches:
            raise ValueError("there are 0 batches to join; allowed: 1 or more")
        pads = pad_value_dict or {}
        sizes = [_batch_size(number, batch) for number, batch in enumerate(batches)]
        names = dict.fromkeys(name for batch in batches for name in batch)
        return cls({name: _join(name, _gather(name, batches, sizes), pads.get(name)) for name in names})

    def to(self, device: torch.device | str | int) -> Self:
        """Give the batch with tensors and PackedTensors on ``device``; other columns are kept as they are."""
        movable = (torch.Tensor, PackedTensor)
        return type(self)({k: v.to(device) if isinstance(v, movable) else v for k, v in self.items()})

    def rows(self) -> Iterator[dict[str, Any]]:
        """Iterate over the rows, each a dict of the column names.

        A tensor gives a view of its row, a list, tuple or array its item, a PackedTensor one of a single row.

        Raises:
            TypeError, ValueError: As `size`, at the call.

        >>> [row["source"] for row in BatchedDataDict(source=["a", "b"]).rows()]
        ['a', 'b']
        """
        _ = self.size  # refuses columns that are out of step
        columns = [_items(column) for column in self.values()]
        return (dict(zip(self, items, strict=True)) for items in zip(*columns, strict=True))


def _column_size(name: str, column: Any) -> int:
    if isinstance(column, torch.Tensor | np.ndarray) and column.ndim == 0:
        raise ValueError(f"column {name!r} has 0 dimensions; allowed: 1 or more, the batch first")
    if isinstance(column, torch.Tensor):
        return column.size(0)
    if isinstance(column, PackedTensor | list | tuple | np.ndarray):
        return len(cast("Sequence[Any]", column))
    raise TypeError(
        f"column {name!r} is a {type(column).__name__}; "
        f"allowed: a tensor, PackedTensor, list, tuple or numpy array with one item a row"
    )


def _batch_size(number: int, batch: Mapping[str, Any]) -> int:
    try:
        return BatchedDataDict[Any](batch).size
    except (TypeError, ValueError) as error:
        raise type(error)(f"batch {number}: {error}") from error


def _take(column: Any, chosen: Sequence[int], positions: torch.Tensor) -> Any:
    if isinstance(column, PackedTensor):
        return column.slice(chosen)
    if isinstance(column, torch.Tensor):
        if column.is_nested:
            rows = jagged_rows(column)
            return nested_from_rows([rows[index] for index in chosen], column)
        return column.index_select(0, positions.to(column.device))
    if isinstance(column, np.ndarray):
        return cast("NDArray[Any]", column)[positions.numpy()]
    items = (column[index] for index in chosen)
    return tuple(items) if isinstance(column, tuple) else list(items)


def _cut(column: Any, rows: slice) -> Any:
    if isinstance(column, PackedTensor):
        return column.slice(rows)
    if isinstance(column, torch.Tensor) and column.is_nested:
        return nested_from_rows(jagged_rows(column)[rows], column)
    return column[rows]


def _items(column: Any) -> Iterable[Any]:
    if isinstance(column, PackedTensor):
        return (column.slice([index]) for index in range(len(column)))
    if isinstance(column, torch.Tensor) and column.is_nested:
        return jagged_rows(column)
    return column


def _gather(name: str, batches: Sequence[Mapping[str, Any]], sizes: Sequence[int]) -> list[Any]:
    """The column of each batch, missing PackedTensors filled in."""
    like = next(batch[name] for batch in batches if name in batch)
    columns: list[Any] = []
    for number, (batch, size) in enumerate(zip(batches, sizes, strict=True)):
        if name in batch:
            columns.append(batch[name])
        elif isinstance(like, PackedTensor):
            columns.append(PackedTensor.empty_rows_like(like, size))
        else:
            raise ValueError(
                f"column {name!r} is missing in batch {number} (it has {sorted(batch)}); "
                f"allowed: every column in every batch, but for PackedTensor columns"
            )
    return columns


def _join(name: str, columns: list[Any], pad: float | None) -> Any:
    kinds = [column_kind(column) for column in columns]
    for number, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise ValueError(f"column {name!r} is {kind} in batch {number}; allowed: {kinds[0]}, as in batch 0")
    first = columns[0]
    if isinstance(first, PackedTensor):
        try:
            return PackedTensor.concat(columns)
        except ValueError as error:
            raise ValueError(f"column {name!r}: {error}") from error
    if isinstance(first, torch.Tensor):
        if first.is_nested:
            return nested_from_rows([row for column in columns for row in jagged_rows(column)], first)
        return _join_dense(name, columns, pad)
    if isinstance(first, np.ndarray):
        return np.concatenate(columns)
    items = [item for column in columns for item in column]
    return tuple(items) if isinstance(first, tuple) else items


def column_kind(column: Any) -> str:
    """Say in words what must agree for columns to be joined; ``*`` stands for any size.

    >>> column_kind(torch.zeros(2, 3, 4))
    'a tensor, dense torch.strided, torch.float32 on cpu, [*, *, 4]'
    """
    if isinstance(column, torch.Tensor):
        form = f"{'nested' if column.is_nested else 'dense'} {column.layout}"
        return f"a tensor, {form}, {column.dtype} on {column.device}, [{', '.join(_free_shape(column))}]"
    if isinstance(column, np.ndarray):
        array = cast("NDArray[Any]", column)
        # Widths of string dtypes may differ: joining widens them and changes no item.
        dtype = array.dtype.kind if array.dtype.kind in "US" else str(array.dtype)
        return f"an array, {dtype}, [{', '.join(['*', *map(str, array.shape[1:])])}]"
    return f"a {type(column).__name__}"


def _free_shape(column: torch.Tensor) -> list[str]:
    if column.is_nested and column.layout != torch.jagged:
        return ["*", "..."]  # torch gives it no shape
    free = {0, ragged_dim(column) if column.is_nested else 1}
    return ["*" if dim in free else str(size) for dim, size in enumerate(column.shape)]


def _join_dense(name: str, columns: list[torch.Tensor], pad: float | None) -> torch.Tensor:
    first = columns[0]
    longest = max(column.size(1) for column in columns) if first.ndim > 1 else 0
    even = first.ndim == 1 or all(column.size(1) == longest for column in columns)
    if pad is not None or not even:  # a dtype without a zero is refused only where the default 0 would be written
        check_pad_value(pad or 0, first.dtype, f"the pad value of column {name!r}")
    if even:
        return torch.cat(columns)
    total = sum(column.size(0) for column in columns)
    joined = first.new_full((total, longest, *first.shape[2:]), pad or 0)
    start = 0
    for column in columns:
        joined[start : start + column.size(0), : column.size(1)] = column
        start += column.size(0)
    return joined
