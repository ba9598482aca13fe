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
import json
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
_ARRAYS: Final[dict[str, type[Any]]] = {"ndarray": np.ndarray, "Tensor": torch.Tensor}
_DTYPES: Final = ("bool", "uint8", "uint32", "int32", "int64", "float32", "float64")
_LEAVES: Final = frozenset((type(None), bool, int, float, str))


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
    """Write a state of Energon's as plain data; the result shares nothing with `value` that can change.

    Args:
        value: What Energon gave.
        path: Where it stands, for messages.

    Raises:
        StateFormatError: If a class is in it that is not in the list; names it.
    """
    kind = type(value)
    if kind in _LEAVES or _is_plain_tuple(value):
        return value
    if kind is list or kind is tuple:
        # Paths cost more than what they lead to: a shuffle buffer's state is thousands of plain tuples.
        return kind(
            item if _is_plain_tuple(item) else encode(item, f"{path}[{number}]") for number, item in enumerate(value)
        )
    if kind is bytes:  # not as they are: torch's reader refuses empty ones
        return {_CLASS: "bytes", _LATIN1: value.decode("latin1")}
    name = kind.__name__
    if _ARRAYS.get(name) is kind:
        return _encode_array(name, value, path)
    if _DICTS.get(name) is kind:
        items = cast("dict[Any, Any]", value).items()
        pairs = [[encode(key, f"{path} (a key)"), encode(item, f"{path}.{key}")] for key, item in items]
        return {_CLASS: name, _ITEMS: pairs}
    if _DATACLASSES.get(name) is kind:
        names = [field.name for field in dataclasses.fields(value)]
        return {_CLASS: name, _FIELDS: {each: encode(getattr(value, each), f"{path}.{each}") for each in names}}
    raise StateFormatError(path, f"a {kind.__module__}.{kind.__qualname__}; allowed: {_known()}")


def decode(value: Any, path: str = "loader_state") -> Any:
    """Build Energon's state again from what `encode` gave; the result shares nothing with `value` that can change.

    Raises:
        StateFormatError: If anything is there that `encode` doesn't write.
    """
    kind = type(value)
    if kind in _LEAVES or _is_plain_tuple(value):
        return value
    if kind is list or kind is tuple:
        return kind(
            item if _is_plain_tuple(item) else decode(item, f"{path}[{number}]") for number, item in enumerate(value)
        )
    if kind is dict:
        return _decode_tagged(cast("dict[Any, Any]", value), path)
    raise StateFormatError(path, f"a {kind.__name__}; allowed: what was saved")


def digest(value: Any) -> str:
    """Give the SHA-256 of plain data as 64 hex digits: what a damaged state does not have.

    Args:
        value: What `encode` gave, or dicts with string keys and lists of it.

    Raises:
        StateFormatError: If it is no plain data.
    """
    try:
        text = json.dumps(value, sort_keys=True)
    except (RecursionError, TypeError, ValueError) as error:
        raise StateFormatError("", f"no plain data ({error}); allowed: what state_dict gave") from None
    return hashlib.sha256(text.encode()).hexdigest()


def _is_plain_tuple(value: Any) -> bool:
    if type(value) is not tuple:
        return False
    for item in cast("tuple[Any, ...]", value):  # noqa: SIM110 - all() is half as fast
        if type(item) not in _LEAVES and not _is_plain_tuple(item):
            return False
    return True


def _known() -> str:
    leaves = ["None", "bool", "int", "float", "str"]
    arrays = [f"{name} of {', '.join(_DTYPES)}" for name in _ARRAYS]
    return "; ".join([", ".join([*_DATACLASSES, *_DICTS, *leaves, "bytes", "list", "tuple"]), *arrays])


def _encode_array(name: str, value: Any, path: str) -> dict[str, Any]:
    array: Any = value.detach().cpu().numpy() if name == "Tensor" else value
    if str(array.dtype) not in _DTYPES:
        raise StateFormatError(path, f"a {name} of {array.dtype}; allowed: {', '.join(_DTYPES)}")
    fields = {"dtype": str(array.dtype), "shape": list(array.shape), _LATIN1: array.tobytes().decode("latin1")}
    return {_CLASS: name, _FIELDS: fields}


def _decode_tagged(value: dict[Any, Any], path: str) -> Any:
    name = str(value.get(_CLASS))
    if name == "bytes":
        return _decode_bytes(_part(value, _LATIN1, str, path), path)
    if name in _ARRAYS:
        array = _decode_array(_part(value, _FIELDS, dict, path), path)
        return torch.from_numpy(array) if name == "Tensor" else array
    if name in _DICTS:
        return _decode_items(_DICTS[name], _part(value, _ITEMS, list, path), path)
    if name not in _DATACLASSES:
        raise StateFormatError(path, f"a {name!r}; allowed: {_known()}")
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
    decoded: dict[Any, Any] = kind()
    for number, pair in enumerate(pairs):
        if type(pair) is not list or len(cast("list[Any]", pair)) != 2:
            raise StateFormatError(path, f"a {kind.__name__} whose item {number} is no pair; allowed: key and value")
        key, item = cast("list[Any]", pair)
        if type(key) not in _LEAVES and not _is_plain_tuple(key):
            raise StateFormatError(path, f"a {kind.__name__} with the key {key!r}; allowed: plain data")
        decoded[key] = decode(item, f"{path}.{key}")
    return decoded


def _decode_bytes(text: str, path: str) -> bytes:
    try:
        return text.encode("latin1")
    except UnicodeEncodeError:
        raise StateFormatError(path, "bytes with a character above 255; allowed: what was saved") from None


def _decode_array(fields: dict[Any, Any], path: str) -> Any:
    dtype = fields.get("dtype")
    if dtype not in _DTYPES:
        raise StateFormatError(path, f"an array of {dtype!r}; allowed: {', '.join(_DTYPES)}")
    try:
        shape, data = fields["shape"], _decode_bytes(fields[_LATIN1], path)
        return np.frombuffer(data, dtype=dtype).reshape(shape).copy()
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StateFormatError(path, f"an array that can't be built ({error})") from None
