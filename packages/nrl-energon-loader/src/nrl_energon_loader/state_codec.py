"""Energon's state objects as plain data, and back: tagged dicts of their fields, from a closed list of classes.

Nothing is ever unpickled, so a state loads with `torch.load`'s default, which allows plain data and tensors only. A
class that is not in the list is an error when a state is saved, not when it is needed.
"""
# Energon is typed in parts.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np
import torch
from megatron.energon.flavors.webdataset.sample_loader import SliceState
from megatron.energon.rng import SystemRngState
from megatron.energon.savable_loader import SavableDataLoaderState, SavableDatasetCheckpoint, SavableDatasetState
from megatron.energon.state import FlexState

__all__ = ["StateFormatError", "decode", "digest", "encode"]

_CLASS: Final = "__class__"
_FIELDS: Final = "fields"
_ITEMS: Final = "items"
_LATIN1: Final = "latin1"
_DATACLASSES: Final[dict[str, type[Any]]] = {
    kind.__name__: kind
    for kind in (SavableDataLoaderState, SavableDatasetCheckpoint, SavableDatasetState, SystemRngState, SliceState)
}
_DICTS: Final[dict[str, type[dict[Any, Any]]]] = {"FlexState": FlexState, "dict": dict}
_ARRAY_DTYPES: Final = ("uint32",)  # numpy's Mersenne Twister
_LEAVES: Final = (type(None), bool, int, float, str)


class StateFormatError(ValueError):
    """Raised when a state is none of ours, is damaged, or holds what this version can't write down.

    Attributes:
        path: Where, as ``loader_state.worker_states[0]``; empty for the whole.
        problem: What is there, and what is allowed.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path, self.problem = path, problem

    def __str__(self) -> str:
        return f"the state is not usable: {self.path + ' is ' if self.path else ''}{self.problem}"


def encode(value: Any, path: str = "loader_state") -> Any:
    """Write a state of Energon's as plain data; the result shares nothing with `value`.

    Args:
        value: What Energon gave.
        path: Where it stands, for messages.

    Raises:
        StateFormatError: If a class is in it that is not in the list; names it.
    """
    kind = type(value)
    if kind in _LEAVES:
        return value
    if kind is list or kind is tuple:
        return kind(encode(item, f"{path}[{number}]") for number, item in enumerate(value))
    if kind is bytes:  # not as they are: torch's reader refuses empty ones
        return {_CLASS: "bytes", _LATIN1: value.decode("latin1")}
    if kind is torch.Tensor:
        return value.detach().cpu().clone()
    if kind is np.ndarray and str(value.dtype) in _ARRAY_DTYPES:
        fields = {"dtype": str(value.dtype), "shape": list(value.shape), _LATIN1: value.tobytes().decode("latin1")}
        return {_CLASS: "ndarray", _FIELDS: fields}
    name = kind.__name__
    if _DICTS.get(name) is kind:
        items = cast("dict[Any, Any]", value).items()
        pairs = [[encode(key, f"{path} (a key)"), encode(item, f"{path}.{key}")] for key, item in items]
        return {_CLASS: name, _ITEMS: pairs}
    if _DATACLASSES.get(name) is kind:
        names = [field.name for field in dataclasses.fields(value)]
        return {_CLASS: name, _FIELDS: {each: encode(getattr(value, each), f"{path}.{each}") for each in names}}
    what = f"a {value.dtype} array" if isinstance(value, np.ndarray) else f"a {kind.__module__}.{kind.__qualname__}"
    raise StateFormatError(path, f"{what}, which is not written down; allowed: {', '.join(_known())}")


def decode(value: Any, path: str = "loader_state") -> Any:
    """Build Energon's state again from what `encode` gave; the result shares nothing with `value`.

    Raises:
        StateFormatError: If anything is there that `encode` doesn't write.
    """
    kind = type(value)
    if kind in _LEAVES:
        return value
    if kind is list or kind is tuple:
        return kind(decode(item, f"{path}[{number}]") for number, item in enumerate(value))
    if kind is torch.Tensor:
        return value.clone()
    if kind is dict:
        return _decode_tagged(cast("dict[Any, Any]", value), path)
    raise StateFormatError(path, f"a {kind.__name__}; allowed: what was saved")


def digest(value: Any) -> str:
    """Give the SHA-256 of plain data and tensors as 64 hex digits: what a damaged state does not have.

    Args:
        value: What `encode` gave, or dicts, lists and tuples of it.
    """
    hashed = hashlib.sha256()
    _feed(value, hashed.update)
    return hashed.hexdigest()


def _known() -> list[str]:
    leaves = ["None" if leaf is type(None) else leaf.__name__ for leaf in _LEAVES]
    arrays = [f"{name} array" for name in _ARRAY_DTYPES]
    return [*_DATACLASSES, *_DICTS, *leaves, "bytes", "list", "tuple", "torch.Tensor", *arrays]


def _decode_tagged(value: dict[Any, Any], path: str) -> Any:
    name = str(value.get(_CLASS))
    if name == "bytes":
        return _decode_bytes(_part(value, _LATIN1, str, path), path)
    if name == "ndarray":
        return _decode_array(_part(value, _FIELDS, dict, path), path)
    if name in _DICTS:
        return _decode_items(_DICTS[name], _part(value, _ITEMS, list, path), path)
    if name not in _DATACLASSES:
        raise StateFormatError(path, f"a {name!r}, which is not a known class; allowed: {', '.join(_known())}")
    fields = _part(value, _FIELDS, dict, path)
    wanted = sorted(field.name for field in dataclasses.fields(_DATACLASSES[name]))
    if sorted(map(str, fields)) != wanted:
        raise StateFormatError(path, f"a {name} with the fields {sorted(map(str, fields))}; allowed: {wanted}")
    return _DATACLASSES[name](**{key: decode(item, f"{path}.{key}") for key, item in fields.items()})


def _part(value: dict[Any, Any], key: str, kind: type[Any], path: str) -> Any:
    if set(value) != {_CLASS, key} or type(value[key]) is not kind:
        raise StateFormatError(path, f"a dict with the keys {list(value)!r}; allowed: {_CLASS!r} and {key!r}")
    return value[key]


def _decode_items(kind: type[dict[Any, Any]], pairs: list[Any], path: str) -> dict[Any, Any]:
    try:
        return kind((decode(key, f"{path} (a key)"), decode(item, f"{path}.{key}")) for key, item in pairs)
    except (TypeError, ValueError) as error:
        if isinstance(error, StateFormatError):
            raise
        raise StateFormatError(path, f"a dict that can't be built ({error})") from None


def _decode_bytes(text: str, path: str) -> bytes:
    try:
        return text.encode("latin1")
    except UnicodeEncodeError:
        raise StateFormatError(path, "bytes with a character above 255; allowed: what was saved") from None


def _decode_array(fields: dict[Any, Any], path: str) -> Any:
    dtype = fields.get("dtype")
    if dtype not in _ARRAY_DTYPES:
        raise StateFormatError(path, f"an array of dtype {dtype!r}; allowed: {', '.join(_ARRAY_DTYPES)}")
    try:
        shape, data = fields["shape"], _decode_bytes(fields[_LATIN1], path)
        return np.frombuffer(data, dtype=dtype).reshape(shape).copy()
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StateFormatError(path, f"an array that can't be built ({error})") from None


def _feed(value: Any, update: Callable[[bytes], None]) -> None:
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value)
        update(b"d%d:" % len(items))
        for key in sorted(items, key=str):
            _feed(key, update)
            _feed(items[key], update)
    elif isinstance(value, list | tuple):
        update(b"%s%d:" % (b"l" if isinstance(value, list) else b"t", len(cast("list[Any]", value))))
        for item in cast("list[Any]", value):
            _feed(item, update)
    elif isinstance(value, torch.Tensor):
        update(f"T{value.dtype}{tuple(value.shape)}:".encode())
        update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, bytes):
        update(b"b%d:" % len(value))
        update(value)
    else:
        update(f"{type(value).__name__}:{value!r};".encode("utf-8", "backslashreplace"))
