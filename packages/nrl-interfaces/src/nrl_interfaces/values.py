"""Copies and sizes of the values that data planes hold: columns, their items and tags."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from nrl_interfaces.layout import clone_nested
from nrl_interfaces.packed import PackedTensor

__all__ = ["bytes_by_device", "copied"]

_IMMUTABLE = frozenset({str, int, float, bool, type(None), bytes, complex, frozenset})


def copied(value: Any) -> Any:
    """Copy a value so that writing into either one leaves the other alone.

    Tensors (without their autograd history), numpy arrays, PackedTensors, lists, tuples, dicts, sets, bytes and
    their subclasses are copied with all that is in them. Any other object is kept as it is, by reference.

    >>> tag = {"turns": [1, 2]}
    >>> copied(tag)["turns"].append(3)
    >>> tag
    {'turns': [1, 2]}
    """
    kind = type(cast("object", value))
    if kind in _IMMUTABLE:
        return value
    copy_exact = _COPY_EXACT.get(kind)
    return _copied_subclass(value) if copy_exact is None else copy_exact(value)


def _copied_tensor(value: torch.Tensor) -> torch.Tensor:
    value = value.detach()
    return clone_nested(value) if value.is_nested else value.clone()


def _copied_packed(value: PackedTensor) -> PackedTensor:
    return value.map_segments(_copied_tensor)


def _copied_array(value: NDArray[Any]) -> NDArray[Any]:
    made = value.copy()
    if made.dtype.hasobject and made.dtype.names is None:
        flat = made.reshape(-1)
        for at, item in enumerate(flat.tolist()):
            flat[at] = copied(item)
        return flat.reshape(made.shape)
    return made


def _copied_list(value: list[Any]) -> list[Any]:
    return value.copy() if _IMMUTABLE.issuperset(map(type, value)) else [copied(item) for item in value]


def _copied_dict(value: dict[Any, Any]) -> dict[Any, Any]:
    return {key: copied(item) for key, item in value.items()}


def _copied_tuple(value: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(_copied_list(list(value)))


_COPY_EXACT: dict[type, Callable[[Any], Any]] = {
    torch.Tensor: _copied_tensor,
    PackedTensor: _copied_packed,
    np.ndarray: _copied_array,
    list: _copied_list,
    tuple: _copied_tuple,
    dict: _copied_dict,
    set: set,
    bytearray: bytearray,
}


def _copied_subclass(value: Any) -> Any:
    """Copy an instance of a subclass (a named tuple, a defaultdict, a jagged tensor), keeping its class."""
    if isinstance(value, torch.Tensor):
        return _copied_tensor(value)
    if isinstance(value, PackedTensor):
        return _copied_packed(value)
    if isinstance(value, np.ndarray):
        return _copied_array(cast("NDArray[Any]", value))
    if isinstance(value, dict):
        made: Any = copy.copy(cast("dict[Any, Any]", value))
        for key, item in made.items():
            made[key] = copied(item)
        return made
    if isinstance(value, list):
        made = copy.copy(cast("list[Any]", value))
        made[:] = [copied(item) for item in made]
        return made
    if isinstance(value, tuple):
        items = _copied_list(list(cast("tuple[Any, ...]", value)))
        make: Any = getattr(type(cast("object", value)), "_make", type(cast("object", value)))
        return make(items)
    if isinstance(value, set | bytearray):
        return copy.copy(cast("Any", value))
    return value


def bytes_by_device(value: Any) -> dict[str, int]:
    """Say how many bytes of memory the data of a value takes, a device each.

    Tensors, arrays and PackedTensors count with their items, strings with their UTF-8 form and bytes with their
    length; of lists, tuples, sets and dicts what is in them counts, of all else nothing.

    >>> bytes_by_device({"ids": torch.zeros(2, 3), "source": ["a", "bc"]})
    {'cpu': 27}
    """
    sizes: dict[str, int] = {}
    _add_bytes(value, sizes)
    return sizes


def _add_bytes(value: Any, sizes: dict[str, int]) -> None:
    if isinstance(value, torch.Tensor):
        dense = value.values() if value.is_nested and value.layout == torch.jagged else value
        device = str(value.device)
        sizes[device] = sizes.get(device, 0) + dense.nbytes
    elif isinstance(value, PackedTensor):
        for segment in value.stored_segments:
            _add_bytes(segment, sizes)
    elif isinstance(value, np.ndarray):
        sizes["cpu"] = sizes.get("cpu", 0) + cast("NDArray[Any]", value).nbytes
    elif isinstance(value, str):
        sizes["cpu"] = sizes.get("cpu", 0) + (len(value) if value.isascii() else len(value.encode(errors="replace")))
    elif isinstance(value, bytes | bytearray):
        sizes["cpu"] = sizes.get("cpu", 0) + len(value)
    elif isinstance(value, Mapping):
        for item in cast("Mapping[Any, Any]", value).values():
            _add_bytes(item, sizes)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in cast("list[Any]", value):
            _add_bytes(item, sizes)
