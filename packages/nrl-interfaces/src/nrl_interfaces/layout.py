"""Padded and jagged tensors, and the way from each to the other, exact in every dtype.

A *padded* column is dense, [B, S, ...]; a *jagged* one is a nested tensor whose rows have their own lengths. torch's
own conversion lacks kernels for fp8, the larger unsigned ints and complex, so rows are copied here one by one.
"""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, Literal, TypeAlias, cast

import torch

__all__ = [
    "Layout",
    "check_pad_value",
    "clone_nested",
    "jagged_rows",
    "nested_from_rows",
    "ragged_dim",
    "to_jagged",
    "to_padded",
]

Layout: TypeAlias = Literal["padded", "jagged"]

_nested: Any = torch.nested  # torch types it in part only


def ragged_dim(jagged: torch.Tensor) -> int:
    """Give the dimension, 1 or more, along which the rows of a tensor in torch.jagged layout differ."""
    # torch shows the ragged size as a symbol and every other one as an int.
    return next(dim for dim, size in enumerate(jagged.shape) if not isinstance(cast("object", size), int))


def jagged_rows(nested: torch.Tensor) -> list[torch.Tensor]:
    """Give the rows of a nested tensor, jagged or strided, as views.

    Of a jagged tensor with holes (one that was narrowed) the rows hold the selected items only.

    Raises:
        ValueError: If the tensor is not nested.

    >>> nested = torch.nested.nested_tensor_from_jagged(torch.arange(5), torch.tensor([0, 2, 2, 5]))
    >>> [row.tolist() for row in jagged_rows(nested)]
    [[0, 1], [], [2, 3, 4]]
    """
    if not nested.is_nested:
        raise ValueError(f"a dense tensor of shape {list(nested.shape)}; allowed: a nested tensor")
    if nested.layout != torch.jagged:
        return list(nested.unbind())
    values, dim = nested.values(), ragged_dim(nested) - 1
    starts: list[int] = cast("Any", nested).offsets().tolist()
    stored: Any = cast("Any", nested).lengths()
    lengths: list[int] = _gaps(starts) if stored is None else stored.tolist()
    # One split would fail where offsets begin above 0, or where values go on behind the last one.
    return [values.narrow(dim, start, length) for start, length in zip(starts, lengths, strict=False)]


def _gaps(offsets: list[int]) -> list[int]:
    return [end - start for start, end in pairwise(offsets)]


def nested_from_rows(rows: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """Build a nested tensor from ``rows`` with the layout, dtype, device and trailing shape of ``like``.

    Args:
        rows: Any number of rows that fit ``like``. (A strided nested tensor of 0 rows has no trailing shape.)
        like: A nested tensor.
    """
    if like.layout != torch.jagged:
        return _nested.as_nested_tensor(list(rows), dtype=like.dtype, device=like.device)
    dim = ragged_dim(like) - 1
    offsets = torch.tensor([0, *accumulate(row.size(dim) for row in rows)], device=like.device)
    values = torch.cat([like.values().narrow(dim, 0, 0), *rows], dim=dim)
    return _nested.nested_tensor_from_jagged(values, offsets, jagged_dim=dim + 1)


def clone_nested(nested: torch.Tensor) -> torch.Tensor:
    """Copy a nested tensor, offsets too (torch's own ``clone`` shares them); what stands in holes is left behind.

    >>> nested = torch.nested.nested_tensor_from_jagged(torch.arange(3), torch.tensor([0, 1, 3]))
    >>> clone_nested(nested).offsets() is nested.offsets()
    False
    """
    if nested.layout == torch.jagged and cast("Any", nested).lengths() is None:
        values, offsets, dim = nested.values(), cast("Any", nested).offsets(), ragged_dim(nested)
        if offsets[0] == 0 and offsets[-1] == values.size(dim - 1):
            return _nested.nested_tensor_from_jagged(values.clone(), offsets.clone(), jagged_dim=dim)
    return nested_from_rows(jagged_rows(nested), nested)


def to_padded(jagged: torch.Tensor, pad_value: float = 0, pad_to_seqlen: int = 0) -> torch.Tensor:
    """Turn a nested tensor into a dense one, padded on the right.

    Args:
        jagged: Nested, [B, (S), ...], in jagged (holes allowed) or strided layout.
        pad_value: What stands behind a row's end.
        pad_to_seqlen: The least S of the result; longer rows keep their length.

    Returns:
        [B, S, ...] in the same dtype; 0 rows and rows of length 0 keep dtype and trailing shape.

    Raises:
        ValueError: If the tensor is not nested, the dtype can't hold ``pad_value``, or ``pad_to_seqlen`` is negative.

    >>> nested = torch.nested.nested_tensor_from_jagged(torch.arange(3), torch.tensor([0, 2, 2, 3]))
    >>> to_padded(nested, pad_value=-1).tolist()
    [[0, 1], [-1, -1], [2, -1]]
    """
    check_pad_value(pad_value, jagged.dtype, "pad_value")
    if isinstance(pad_to_seqlen, bool) or pad_to_seqlen < 0:
        raise ValueError(f"pad_to_seqlen is {pad_to_seqlen}; allowed: 0 or more")
    rows = jagged_rows(jagged)
    if jagged.layout == torch.jagged:
        dim = ragged_dim(jagged) - 1
        shape = list(jagged.values().shape)
        shape[dim] = max((row.size(dim) for row in rows), default=0)
    else:
        dim = 0
        shape = [max(sizes) for sizes in zip(*(row.shape for row in rows), strict=True)] or [0]
    shape[dim] = max(shape[dim], pad_to_seqlen)
    padded = torch.full((len(rows), *shape), pad_value, dtype=jagged.dtype, device=jagged.device)
    for number, row in enumerate(rows):
        padded[(number, *(slice(size) for size in row.shape))] = row
    return padded


def to_jagged(padded: torch.Tensor, lengths: torch.Tensor | Sequence[int]) -> torch.Tensor:
    """Turn a padded tensor into a jagged one that holds the first ``lengths[i]`` items of row i.

    Args:
        padded: Dense, [B, S, ...].
        lengths: B ints from 0 to S, on any device.

    Returns:
        A nested tensor in torch.jagged layout, [B, (S), ...], that owns its items.

    Raises:
        ValueError: If ``padded`` is not dense with 2 or more dimensions, or a length doesn't fit; names the row.

    >>> [row.tolist() for row in jagged_rows(to_jagged(torch.tensor([[1, 2], [3, 0], [0, 0]]), [2, 1, 0]))]
    [[1, 2], [3], []]
    """
    if padded.is_nested or padded.ndim < 2:
        raise ValueError(
            f"padded has {padded.ndim} dimensions, nested: {padded.is_nested}; allowed: a dense tensor [B, S, ...]"
        )
    sizes = _checked_lengths(lengths, padded.size(0), padded.size(1))
    pieces = [padded[number, :size] for number, size in enumerate(sizes)]
    values = torch.cat([padded.new_empty((0, *padded.shape[2:])), *pieces])
    offsets = torch.tensor([0, *accumulate(sizes)], device=padded.device)
    return _nested.nested_tensor_from_jagged(values, offsets)


def _checked_lengths(lengths: torch.Tensor | Sequence[int], rows: int, longest: int) -> list[int]:
    sizes: list[Any] = cast("Any", lengths).tolist() if isinstance(lengths, torch.Tensor) else list(lengths)
    if len(sizes) != rows:
        raise ValueError(f"there are {len(sizes)} lengths; allowed: {rows}, one a row")
    for number, size in enumerate(sizes):
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= longest:
            raise ValueError(f"row {number} has length {size!r}; allowed: an int from 0 to {longest}")
    return sizes


def check_pad_value(value: float, dtype: torch.dtype, what: str) -> None:
    """Refuse a pad value that ``dtype`` can't hold; a float dtype may round it.

    Args:
        value: An int, float or bool.
        dtype: The column's dtype.
        what: What the value is, for the message.

    Raises:
        ValueError: If the value would overflow, or become another one in an integer or bool dtype.

    >>> check_pad_value(-1, torch.uint8, "pad_value")
    Traceback (most recent call last):
    ValueError: pad_value is -1; allowed: what torch.uint8 holds, 0 to 255
    """
    if not isinstance(value, int | float):
        raise ValueError(f"{what} is {value!r}; allowed: an int, a float or a bool")
    if dtype.is_floating_point or dtype.is_complex:
        holds, allowed = _float_holds(value, dtype), "values in its range"
    elif dtype == torch.bool:
        holds, allowed = value in (0, 1), "True or False"
    else:
        info = torch.iinfo(dtype)
        holds = math.isfinite(value) and value == int(value) and info.min <= value <= info.max
        allowed = f"{info.min} to {info.max}"
    if not holds:
        raise ValueError(f"{what} is {value!r}; allowed: what {dtype} holds, {allowed}")


def _float_holds(value: float, dtype: torch.dtype) -> bool:
    """Whether a value stays in range, infinite or NaN in ``dtype``."""
    try:
        wanted = float(value)
    except OverflowError:
        return False
    target = dtype.to_real() if dtype.is_complex else dtype
    if math.isfinite(wanted):
        info = torch.finfo(target)  # fp8 casts saturate, and e8m0 has no zero and no sign: a cast would not tell
        return info.min <= wanted <= info.max
    kept = float(torch.tensor(wanted, dtype=torch.float64).to(target).to(torch.float64))
    return kept == wanted or (math.isnan(kept) and math.isnan(wanted))
