"""Columns as lists of rows, and back: how the model of a data plane holds every kind of column."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from nrl_interfaces.layout import jagged_rows, nested_from_rows
from nrl_interfaces.packed import PackedTensor
from nrl_interfaces.values import copied

__all__ = ["empty_like", "joined", "split", "tensordict_of"]


def split(name: str, column: Any, rows: int) -> list[Any]:
    """Give a copy of each row of a column.

    Raises:
        ValueError: If it has another number of rows than ``rows``; names the column.
    """
    items: list[Any] | None = None
    if isinstance(column, torch.Tensor):
        items = jagged_rows(column) if column.is_nested else list(column) if column.ndim else None
    elif isinstance(column, np.ndarray):
        array = cast("NDArray[Any]", column)
        items = [array[at : at + 1] for at in range(len(array))]  # an item alone would lose its dtype
    elif isinstance(column, list | tuple | PackedTensor):
        items = list(cast("Sequence[Any]", column))
    if items is None or len(items) != rows:
        size = "no rows" if items is None else f"{len(items)} rows"
        raise ValueError(f"field {name!r} has {size}; allowed: {rows}, one a sample id")
    return [copied(item) for item in items]


def empty_like(column: Any) -> Any:
    """Give a column of the same kind without rows."""
    if isinstance(column, torch.Tensor) and column.is_nested:
        return nested_from_rows([], column)
    return copied(column.slice([]) if isinstance(column, PackedTensor) else column[:0])


def joined(empty: Any, rows: Sequence[Any]) -> Any:
    """Give a column of the kind of ``empty`` from copies of rows."""
    rows = [copied(row) for row in rows]
    if isinstance(empty, PackedTensor):
        return PackedTensor.concat([empty, PackedTensor(rows, empty.dim_to_pack)])
    if isinstance(empty, np.ndarray):
        return np.concatenate([cast("Any", empty), *rows])
    if isinstance(empty, torch.Tensor):
        if empty.is_nested:
            return nested_from_rows(rows, empty)
        return torch.stack(rows) if rows else copied(empty)
    return type(empty)(rows)


def tensordict_of(columns: Mapping[str, Any], rows: int) -> Any:
    """Give a TensorDict; a column that is no tensor as one NonTensorData."""
    from tensordict import NonTensorData, TensorDict

    wrapped: dict[str, Any] = {
        name: column if isinstance(column, torch.Tensor) else cast("Any", NonTensorData)(column, batch_size=[rows])
        for name, column in columns.items()
    }
    return TensorDict(wrapped, batch_size=[rows])
