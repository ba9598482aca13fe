"""Between columns and TensorDicts: the form in which rows are put and read."""

from collections.abc import Mapping
from typing import Any, cast

import torch
from nrl_interfaces import BatchedDataDict, Layout
from nrl_interfaces.data_plane import Fields
from nrl_interfaces.layout import to_padded
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase

from nrl_dataplane_local.values import batch_size_of

__all__ = ["columns_of", "local_batch_to_tensordict", "materialize_local"]


def local_batch_to_tensordict(fields: Mapping[str, Any], *, batch_size: int) -> TensorDict:
    """Wrap columns in a TensorDict, without copies.

    Tensors stay tensors. Any other column (list, tuple, array, PackedTensor, dict of columns) becomes one
    NonTensorData that holds the whole of it. Index the columns before you wrap them: to index such a TensorDict changes
    the batch size of a NonTensorData and not what it holds, and to join some drops all but one of equal ones.

    Args:
        fields: Columns of ``batch_size`` rows.
        batch_size: B.

    Raises:
        ValueError: If a column has another number of rows, or is of no kind that a column may have; names it.

    >>> batch = local_batch_to_tensordict({"ids": torch.zeros(2, 3), "source": ["a", "b"]}, batch_size=2)
    >>> batch["source"]
    ['a', 'b']
    """
    for name, value in fields.items():
        check_batch_size(name, value, batch_size)
    return wrap(fields, batch_size)


def wrap(columns: Mapping[str, Any], batch_size: int) -> TensorDict:
    """`local_batch_to_tensordict` for columns that are known to fit."""
    size = [batch_size]
    wrapped = {
        name: value if isinstance(value, torch.Tensor) else NonTensorData(value, batch_size=size)
        for name, value in columns.items()
    }
    return TensorDict(cast("Any", wrapped), batch_size=size)


def check_batch_size(name: str, value: Any, batch_size: int) -> None:
    """Refuse a column that has not ``batch_size`` rows.

    Raises:
        ValueError: Names the column.
    """
    try:
        rows = batch_size_of(value)
    except ValueError as error:
        raise ValueError(f"field {name!r} can't be a column: {error}") from error
    if rows != batch_size:
        raise ValueError(f"field {name!r} has {rows} rows; allowed: {batch_size}, one a sample id")


def columns_of(fields: Fields, batch_size: int) -> dict[str, Any]:
    """Take the columns out of a TensorDict or a mapping, and check that each has ``batch_size`` rows.

    One item for all rows, which is how a TensorDict holds equal items, becomes a list with it in each row.

    Raises:
        ValueError: Names the column that doesn't fit, or the batch size.
    """
    if isinstance(fields, TensorDictBase):
        size = list(fields.batch_size)
        if size[:1] != [batch_size]:
            raise ValueError(f"the TensorDict has batch size {size}; allowed: [{batch_size}], one row a sample id")
        columns = _entries(fields)
    else:
        columns = dict(fields)
    for name, value in columns.items():
        if isinstance(value, TensorDictBase):
            raise ValueError(
                f"field {name!r} is a nested TensorDict; allowed: its entries as fields of their own, or a "
                f"dict of columns in local_batch_to_tensordict"
            )
        check_batch_size(name, value, batch_size)
    return columns


def _entries(td: TensorDictBase) -> dict[str, Any]:
    entries = cast("Any", td).items()  # tensordict types it in part only
    return {name: unwrap(value) for name, value in entries}


def unwrap(value: Any) -> Any:
    """Give the column that a TensorDict's entry holds."""
    if isinstance(value, NonTensorStack):
        return cast("Any", value).tolist()
    if not isinstance(value, NonTensorData):
        return value
    data = cast("Any", value).data
    try:
        batch_size_of(data)
    except ValueError:
        return [data] * value.batch_size[0]
    return data


def materialize_local(
    td: TensorDict,
    layout: Layout = "padded",
    pad_value_dict: dict[str, int | float] | None = None,
    pad_to_seqlen: int = 0,
) -> BatchedDataDict[Any]:
    """Turn rows that were read back into a batch of columns.

    Args:
        td: What `get_samples` or `get_data` gave.
        layout: "padded": nested tensors become dense ones, padded on the right; "jagged": they stay nested. Dense
            tensors stay as they are in both.
        pad_value_dict: The pad value of a nested column; 0 without one. Names of no column are ignored.
        pad_to_seqlen: The least length that nested tensors are padded to.

    Returns:
        The columns; those that are no tensors exactly as they were put.

    Raises:
        ValueError: If ``layout`` is neither of the two; or as `nrl_interfaces.layout.to_padded`.
    """
    if layout not in ("padded", "jagged"):
        raise ValueError(f"layout is {layout!r}; allowed: 'padded' or 'jagged'")
    columns = _entries(td)
    if layout == "padded":
        pads = pad_value_dict or {}
        columns = {name: _padded(value, pads.get(name, 0), pad_to_seqlen) for name, value in columns.items()}
    return BatchedDataDict[Any](columns)


def _padded(value: Any, pad_value: float, pad_to_seqlen: int) -> Any:
    nested = isinstance(value, torch.Tensor) and value.is_nested
    return to_padded(value, pad_value, pad_to_seqlen) if nested else value
