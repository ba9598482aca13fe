"""Columns of any kind in the two forms that TransferQueue keeps row by row: tensors and plain items."""

import functools
import io
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from nrl_interfaces.data_plane import Fields
from nrl_interfaces.layout import jagged_rows, nested_from_rows, ragged_dim
from nrl_interfaces.packed import PackedTensor
from nrl_interfaces.values import copied
from numpy.typing import NDArray
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase

__all__ = ["Kind", "columns_of", "dumped", "from_wire", "kind_of", "loaded", "own_rows", "to_wire", "wrap"]

_nested: Any = torch.nested  # torch types it in part only
_from_numpy: Any = cast("Any", torch).from_numpy  # the same


@dataclass(frozen=True)
class Kind:
    """What a field's columns are; the registry keeps one a field, as TransferQueue keeps rows and not columns.

    Attributes:
        label: What columns must have in common to be one field's.
        is_tensor: Whether rows travel as tensors; else as strings and pickles.
        like: A column of 0 rows, pickled; of a strided nested one 1 row without items, as torch can't unpickle fewer.
    """

    label: str
    is_tensor: bool
    like: bytes

    def empty(self) -> Any:
        """Give a column of 0 rows."""
        like = loaded(self.like)
        is_strided = isinstance(like, torch.Tensor) and like.is_nested and like.layout != torch.jagged
        return nested_from_rows([], like) if is_strided else like


def columns_of(fields: Fields, rows: int) -> dict[str, Any]:
    """Take the columns out of a TensorDict or a mapping.

    Raises:
        ValueError: A column is none, or has another number of rows than ``rows``; names it.
    """
    if isinstance(fields, TensorDictBase):
        size = list(fields.batch_size)
        if size[:1] != [rows]:
            raise ValueError(f"the TensorDict has batch size {size}; allowed: [{rows}], one row a sample id")
        entries = cast("Any", fields).items()  # tensordict types it in part only
        columns = {str(name): _unwrapped(value) for name, value in entries}
    else:
        columns = dict(fields)
    for name, column in columns.items():
        size = _rows_of(column)
        if size != rows:
            said = f"{type(column).__name__} that is no column" if size is None else f"column of {size} rows"
            raise ValueError(f"field {name!r} has a {said}; allowed: {rows} rows, one a sample id")
    return columns


def _unwrapped(value: Any) -> Any:
    if isinstance(value, NonTensorStack):
        return cast("Any", value).tolist()
    if not isinstance(value, NonTensorData):
        return value
    data = cast("Any", value).data
    # One item for all rows, which is how a TensorDict holds equal items.
    return [data] * value.batch_size[0] if _rows_of(data) is None else data


def _rows_of(column: Any) -> int | None:
    if isinstance(column, torch.Tensor):
        return column.size(0) if column.ndim else None
    if isinstance(column, np.ndarray):
        array = cast("NDArray[Any]", column)
        return len(array) if array.ndim else None
    return len(cast("Any", column)) if isinstance(column, list | tuple | PackedTensor) else None


def wrap(columns: Mapping[str, Any], rows: int) -> TensorDict:
    """Put columns into a TensorDict; one that is no tensor as one NonTensorData."""
    wrapped = {
        name: column if isinstance(column, torch.Tensor) else NonTensorData(column, batch_size=[rows])
        for name, column in columns.items()
    }
    return TensorDict(cast("Any", wrapped), batch_size=[rows])


# ---- To the wire ----


def kind_of(column: Any) -> Kind:
    """Say what a column is."""
    if isinstance(column, torch.Tensor):
        if not column.is_nested:
            like = column[:0].detach().cpu().clone()
            return Kind(_tensor_label(column.dtype, column.shape[1:]), is_tensor=True, like=dumped(like))
        if column.layout != torch.jagged:
            like = nested_from_rows([torch.empty((0,) * (column.ndim - 1), dtype=column.dtype)], column.detach().cpu())
            return Kind(f"strided nested tensors of {column.dtype}", is_tensor=False, like=dumped(like))
        like = nested_from_rows([], column.detach().cpu())
        if ragged_dim(column) == 1:
            row = column.values().shape
            return Kind(_tensor_label(column.dtype, row), is_tensor=True, like=dumped(like))
        return Kind(f"nested tensors of {column.dtype}, ragged elsewhere", is_tensor=False, like=dumped(like))
    if isinstance(column, np.ndarray):
        array = cast("NDArray[Any]", column)
        return _array_kind(array)
    if isinstance(column, PackedTensor):
        like = dumped(column.slice([]))
        return Kind(f"PackedTensors along {column.dim_to_pack}", is_tensor=False, like=like)
    return Kind(f"items in a {type(column).__name__}", is_tensor=False, like=dumped(column[:0]))


def _tensor_label(dtype: torch.dtype, row: Sequence[int]) -> str:
    """Name what as_nested_tensor needs equal: all but the size of a row's first dimension."""
    return f"tensors of {dtype}, rows {['*', *row[1:]] if len(row) else []}"


def _array_kind(array: NDArray[Any]) -> Kind:
    like = dumped(array[:0].copy())
    if _torch_takes(array.dtype):
        return Kind(f"arrays of {array.dtype}, rows {list(array.shape[1:])}", is_tensor=True, like=like)
    of = (
        f"kind {array.dtype.kind}" if array.dtype.kind in "US" else array.dtype.str
    )  # strings may be longer in a later put
    return Kind(f"arrays of {of}, rows {list(array.shape[1:])}", is_tensor=False, like=like)


def _torch_takes(dtype: np.dtype[Any]) -> bool:
    try:
        _from_numpy(np.empty(0, dtype))
    except (TypeError, ValueError):
        return False
    return True


def to_wire(name: str, column: Any, kind: Kind, sample_ids: Sequence[str]) -> Any:
    """Give a column in the form in which TransferQueue takes it.

    Raises:
        TypeError: An item can't be pickled; names field, id and class.
    """
    if kind.is_tensor:
        tensor: torch.Tensor = (
            _from_numpy(np.ascontiguousarray(cast("Any", column))) if isinstance(column, np.ndarray) else column
        )
        if tensor.is_nested and cast("Any", tensor).lengths() is not None:
            tensor = nested_from_rows(jagged_rows(tensor), tensor)  # without holes
        return _viewed(tensor.detach().cpu(), _carrier(tensor.dtype))
    rows = _items(column)
    return NonTensorStack(*[_packed(name, row, at) for row, at in zip(rows, sample_ids, strict=True)])


def own_rows(columns: dict[str, Any]) -> dict[str, Any]:
    """Give each row of a dense column storage of its own: TransferQueue's ``data_parser``, run by its storage units.

    A dense column reaches a unit as one buffer. Its rows would be views of that, and a checkpoint, a pickle, would
    write the whole buffer for each of them. (The rows of a jagged column come one by one.)
    """
    for name, column in columns.items():
        if isinstance(column, torch.Tensor):
            columns[name] = [row.clone() for row in column.unbind()]
    return columns


def _viewed(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Give the same bytes as items of another dtype of that size."""
    if tensor.dtype == dtype:
        return tensor
    if not tensor.is_nested:
        return tensor.view(dtype)
    return _nested.nested_tensor_from_jagged(tensor.values().view(dtype), cast("Any", tensor).offsets())


@functools.cache
def _carrier(dtype: torch.dtype) -> torch.dtype:
    """Give the dtype in which items travel: torch can't unpickle some, such as fp8, and checkpoints are pickles."""
    try:
        pickle.loads(pickle.dumps(torch.empty(0, dtype=dtype)))  # noqa: S301 - made here
    except (AttributeError, KeyError):
        return {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    return dtype


def _items(column: Any) -> list[Any]:
    if isinstance(column, torch.Tensor):
        return jagged_rows(column.detach().cpu())
    if isinstance(column, np.ndarray):
        array = cast("NDArray[Any]", column)
        return [array[at : at + 1] for at in range(len(array))]  # an item alone would lose its dtype
    return list(column)


def _packed(name: str, row: Any, sample_id: str) -> str | bytes:
    """Give a string as it is, and anything else pickled: the wire's own format would make lists of tuples and sets."""
    if type(row) is str:
        return row
    try:
        return dumped(copied(row))  # a copy of a view has its rows alone
    except Exception as error:
        raise TypeError(
            f"field {name!r} of sample id {sample_id!r} is a {type(row).__name__} that can't be pickled ({error}); "
            f"allowed: what pickle takes, as rows cross processes"
        ) from error


# ---- From the wire ----


def from_wire(column: Any, kind: Kind) -> Any:
    """Give a column back from what TransferQueue read; the result is the caller's own."""
    like = kind.empty()
    if kind.is_tensor:
        return _like(column, like)
    rows: list[Any] = [item if isinstance(item, str) else loaded(item) for item in column.tolist()]
    if isinstance(like, torch.Tensor):
        return nested_from_rows(rows, like)
    if isinstance(like, np.ndarray):
        array = cast("NDArray[Any]", like)
        return np.concatenate([array, *rows], dtype=None if array.dtype.kind in "US" else array.dtype)
    if isinstance(like, PackedTensor):
        return PackedTensor.concat([like, PackedTensor(rows, like.dim_to_pack)])
    return type(like)(rows)


def _like(read: torch.Tensor, like: Any) -> Any:
    if isinstance(like, np.ndarray):
        return _like(read, _from_numpy(cast("NDArray[Any]", like))).numpy()
    read = _viewed(read, like.dtype)
    if like.is_nested or not read.is_nested:  # rows that are scalars are read as a dense column
        return read
    lengths = cast("Any", read).offsets().diff()
    rows, length = len(lengths), int(lengths[0])
    if not bool((lengths == length).all()):  # dense columns of two widths were put
        return read
    values = read.values()
    return values.reshape(rows, length, *values.shape[1:])


# ---- Pickles ----


class _Pickler(pickle.Pickler):
    """Pickles tensors of every dtype."""

    def reducer_override(self, value: Any, /) -> Any:
        if isinstance(value, torch.Tensor) and not value.is_nested and value.dtype != _carrier(value.dtype):
            return torch.Tensor.view, (value.view(_carrier(value.dtype)), value.dtype)
        return NotImplemented


def dumped(value: Any) -> bytes:
    """Pickle a value."""
    file = io.BytesIO()
    _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


def loaded(data: bytes) -> Any:
    """Give back what a client of the same queue dumped."""
    return pickle.loads(data)  # noqa: S301 - Ray and TransferQueue themselves hand pickles from process to process
