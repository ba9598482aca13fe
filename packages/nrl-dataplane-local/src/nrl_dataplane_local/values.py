"""What a column's value can do: say its rows, hand out some of them, be joined with others.

A value is a dense or nested tensor with the batch first, a numpy array, a PackedTensor, a list or tuple with one item
a row, or a dict of such values.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from nrl_interfaces import BatchedDataDict, PackedTensor
from nrl_interfaces.batch import column_kind
from nrl_interfaces.layout import jagged_rows, nested_from_rows
from nrl_interfaces.values import copied
from numpy.typing import NDArray

__all__ = [
    "batch_size_of",
    "check_fits",
    "copied_rows",
    "empty_like",
    "from_numpy",
    "is_identity",
    "join",
    "select_rows",
    "whole_numbers",
]

Positions = NDArray[np.int64]

from_numpy: Callable[[NDArray[Any]], torch.Tensor] = cast("Any", torch).from_numpy  # torch types it in part only


def batch_size_of(value: Any) -> int:
    """Say how many rows a value has.

    Raises:
        ValueError: If it has no batch dimension, is of no kind that a column may have, or is a dict whose values
            differ in size.
    """
    if isinstance(value, torch.Tensor | np.ndarray) and value.ndim == 0:
        raise ValueError("it has no dimension; allowed: 1 or more, the batch first")
    if isinstance(value, torch.Tensor):
        return value.size(0)
    if isinstance(value, PackedTensor | np.ndarray | list | tuple):
        return len(cast("Sequence[Any]", value))
    if isinstance(value, dict) and value:
        sizes = {name: batch_size_of(item) for name, item in cast("dict[str, Any]", value).items()}
        if len(set(sizes.values())) == 1:
            return next(iter(sizes.values()))
        raise ValueError(f"it is a dict whose values have {sizes} rows; allowed: the same number in each")
    raise ValueError(
        f"it is a {type(cast('object', value)).__name__}; allowed: a tensor, an array, a PackedTensor, a list or tuple "
        f"with one item a row, or a dict of these"
    )


def is_identity(indices: Sequence[int] | Positions, batch_size: int) -> bool:
    """Tell whether ``indices`` are all rows in their order."""
    return len(indices) == batch_size and bool((np.asarray(indices) == np.arange(batch_size)).all())


def select_rows(value: Any, indices: Sequence[int] | Positions) -> Any:
    """Give the rows at ``indices`` (from 0, in range), in their order; a run of neighbours is a view where it can be.

    >>> select_rows(["a", "b", "c"], [2, 0])
    ['c', 'a']
    """
    positions = np.asarray(indices, dtype=np.int64)
    if isinstance(value, dict):
        return {name: select_rows(item, positions) for name, item in cast("dict[str, Any]", value).items()}
    is_run = _is_run(positions)
    run = slice(int(positions[0]), int(positions[-1]) + 1) if is_run and len(positions) else slice(0, 0)
    if isinstance(value, PackedTensor):
        return value.slice(run if is_run else positions)
    if isinstance(value, torch.Tensor) and value.is_nested:
        rows = jagged_rows(value)
        at: list[int] = positions.tolist()
        return nested_from_rows([rows[row] for row in at], value)
    if is_run:
        return value[run]
    if isinstance(value, torch.Tensor):
        return value.index_select(0, from_numpy(positions).to(value.device))
    if isinstance(value, np.ndarray):
        return cast("NDArray[Any]", value)[positions]
    items = [value[at] for at in positions.tolist()]
    return tuple(items) if isinstance(value, tuple) else items


def _is_run(positions: Positions) -> bool:
    first = positions[0] if len(positions) else 0
    return is_identity(positions - first, len(positions))


def copied_rows(value: Any, indices: Sequence[int] | Positions) -> Any:
    """Give the rows at ``indices`` as values of their own, each copied once."""
    rows = select_rows(value, indices)
    gathered = isinstance(value, torch.Tensor) and (value.is_nested or not _is_run(np.asarray(indices)))
    return rows.detach() if gathered else copied(rows)


def empty_like(value: Any) -> Any:
    """Give 0 rows with the dtype and trailing shape of ``value``, holding on to none of its memory."""
    if isinstance(value, torch.Tensor) and not value.is_nested:
        return value.new_empty((0, *value.shape[1:]))
    return copied(select_rows(value, ()))


def whole_numbers(value: Any, count: int) -> list[int] | None:
    """Give a column of ``count`` whole numbers, [B] or [B, 1], as ints; None if it is none."""
    if isinstance(value, torch.Tensor) and value.is_nested:
        return None
    is_array = isinstance(value, torch.Tensor | np.ndarray)
    items: list[Any] = cast("Any", value).reshape(-1).tolist() if is_array else list(value)
    try:
        numbers = [int(item) for item in items]
    except (TypeError, ValueError, OverflowError):
        return None
    return numbers if numbers == items and len(items) == count else None


def join(values: Sequence[Any]) -> Any:
    """Join values along the rows; a single one is given back as it is.

    Raises:
        ValueError: If they do not fit together.
    """
    first = values[0]
    if len(values) == 1:
        return first
    if all(isinstance(value, torch.Tensor) and not value.is_nested for value in values):
        return torch.cat(list(values))
    if any(isinstance(value, dict) for value in values):
        names = list(cast("dict[str, Any]", first)) if isinstance(first, dict) else []
        if any(not isinstance(value, dict) or value.keys() != set(names) for value in values):
            raise ValueError("a dict of columns and something else; allowed: dicts of the same names")
        return {name: join([value[name] for value in values]) for name in names}
    return BatchedDataDict[Any].from_batches([{"it": value} for value in values])["it"]


def check_fits(value: Any, like: Any) -> Any:
    """Refuse a value that can't stand in one column with ``like``, 0 rows of it; give the 0 rows that stand for both.

    Raises:
        ValueError: If kind, dtype, device, or any size but the batch differs (jagged tensors: any but the ragged one).
    """
    if isinstance(like, dict) and isinstance(value, dict) and like.keys() == value.keys():
        columns = cast("dict[str, Any]", value)
        return {name: check_fits(column, like[name]) for name, column in columns.items()}
    ours, theirs = _form(like), _form(value)
    if ours != theirs:
        raise ValueError(f"it is {theirs}; allowed: {ours}, as put before (a jagged tensor has rows of any length)")
    if isinstance(like, torch.Tensor):
        return like
    if isinstance(like, PackedTensor):
        return PackedTensor.concat([like, empty_like(value)])
    return join([like, empty_like(value)])


def _form(value: Any) -> str:
    """Say what must agree with what was put before."""
    if isinstance(value, torch.Tensor) and not value.is_nested:
        sizes = ", ".join(["*", *map(str, value.shape[1:])])
        return f"a dense tensor [{sizes}], {value.dtype} on {value.device}"
    if isinstance(value, dict):
        return f"a dict of the columns {list(cast('dict[str, Any]', value))}"
    return column_kind(value)
