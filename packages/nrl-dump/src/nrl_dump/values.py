"""A row's value as it stands in JSON, back to numbers of its column's dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nrl_dump.columns import DTYPES, ColumnSpec

Array = npt.NDArray[Any]

_NUMPY_LACKS = {name for name in DTYPES if name.startswith(("bfloat", "float8"))}


def array_dtype(dtype: str) -> np.dtype[Any]:
    """The numpy dtype that holds every value of a column's dtype: itself where numpy has it, else float32."""
    return np.dtype("float32" if dtype in _NUMPY_LACKS else dtype)


def to_array(spec: ColumnSpec, value: Any) -> Array:
    """One row of a column as an array of `array_dtype`, [length, *item_shape], or [] for a scalar column.

    Every way of writing NaN and infinities is read: Python's float takes the words that `inf_nan="strings"` writes,
    and null becomes NaN.

    A decimal goes to double first, and from there to float32; what is narrower goes by way of float32 or is rounded
    from the double at once. The writer spells float64 so that a double, and all others so that a float32 by way of a
    double reads back the same (of all float32 one misleads the shortest spelling; see `rows`). Every float16,
    bfloat16 and float8 is a float32, so its last conversion rounds nothing.

    Raises:
        ValueError: The value is not a row of such a column.
    """
    try:
        array = np.array(value, dtype=array_dtype(spec.dtype))
        if spec.kind == "scalar":
            return array.reshape(())
        return array.reshape(len(value), *spec.item_shape)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"column {spec.name!r} is not a {spec.kind} of {spec.dtype}: {error}") from error


class ColumnBuffer:
    """Rows of one column put one behind the other, at the column's dtype.

    Attributes:
        spec: The column.
        lengths: Of each row put in.
    """

    def __init__(self, spec: ColumnSpec) -> None:
        self.spec = spec
        self.lengths: list[int] = []
        self._data = bytearray()  # torch reads it in place: no second copy at the end

    def append(self, array: Array) -> None:
        """Put a row in, as `to_array` makes it."""
        self.lengths.append(len(array) if array.ndim else 1)
        if self.spec.dtype in _NUMPY_LACKS:
            array = torch.as_tensor(array.reshape(-1)).to(DTYPES[self.spec.dtype]).view(torch.uint8).numpy()
        self._data += array.tobytes()

    def tensor(self) -> torch.Tensor:
        """The rows: [rows] for a scalar, [rows, K, *item_shape] for a list of one length, else jagged."""
        dtype, shape = DTYPES[self.spec.dtype], self.spec.item_shape
        # torch.frombuffer takes no empty buffer
        items = torch.frombuffer(self._data, dtype=dtype) if self._data else torch.empty(0, dtype=dtype)
        if self.spec.kind == "scalar":
            return items
        if self.spec.kind == "list" and len(set(self.lengths)) == 1:
            return items.reshape(len(self.lengths), self.lengths[0], *shape)
        offsets = torch.tensor([0, *self.lengths]).cumsum(0)
        return torch.nested.nested_tensor_from_jagged(items.reshape(sum(self.lengths), *shape), offsets)
