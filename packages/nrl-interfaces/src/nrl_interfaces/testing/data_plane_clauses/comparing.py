"""Values of data planes as text, so that what was put and what is read compare exactly and print readably.

Rows are compared, not storage: a column of equal rows may come back dense or jagged, as a wire needs it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from nrl_interfaces.layout import jagged_rows
from nrl_interfaces.packed import PackedTensor

__all__ = ["columns_as_text", "described", "fields_of", "rows_of"]


def rows_of(column: Any) -> list[Any]:
    """Give the rows of a column of any kind."""
    if isinstance(column, torch.Tensor):
        return jagged_rows(column) if column.is_nested else list(column)
    return list(cast("Iterable[Any]", column))


def described(value: Any) -> str:
    """Write a value down with its type, exactly; any object but plain data by its identity.

    >>> described({"ids": torch.tensor([1, 2]), "source": ["a", 1.0]})
    "{'ids': int64[2] [1, 2], 'source': ['a', 1.0]}"
    """
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            return f"nested {[described(row) for row in jagged_rows(value)]}"
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} {cast('Any', value).tolist()}"
    if isinstance(value, np.ndarray):
        array = cast("NDArray[Any]", value)
        return f"array {array.dtype}{list(array.shape)} {[described(item) for item in array.tolist()]}"
    if isinstance(value, np.generic):
        scalar = cast("np.generic[Any]", value)
        return f"scalar {scalar.dtype} {scalar.item()!r}"
    if isinstance(value, PackedTensor):
        return f"packed {[described(row) for row in value]}"
    return _described_plain(value)


def _described_plain(value: Any) -> str:
    if isinstance(value, Mapping):
        pairs = (f"{described(key)}: {described(item)}" for key, item in cast("Mapping[Any, Any]", value).items())
        return f"{_kind(cast('Any', value), dict)}{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        return f"{_kind(cast('Any', value), list)}[{', '.join(map(described, cast('list[Any]', value)))}]"
    if isinstance(value, tuple):
        return f"{_kind(cast('Any', value), tuple)}({', '.join(map(described, cast('tuple[Any, ...]', value)))})"
    if isinstance(value, set | frozenset):
        return f"{type(cast('Any', value)).__name__}({sorted(map(described, cast('set[Any]', value)))})"
    return repr(value)


def _kind(value: object, usual: type) -> str:
    """The class of a value, nothing where it is the usual one."""
    return "" if type(value) is usual else type(value).__name__


def fields_of(columns: Any) -> list[str]:
    """Give the names of the fields of a TensorDict or mapping, sorted."""
    return sorted(columns.keys())


def columns_as_text(columns: Any, fields: Sequence[str]) -> dict[str, list[str]]:
    """Give the rows of each field of a TensorDict or mapping as text."""
    return {name: [described(row) for row in rows_of(columns[name])] for name in fields}
