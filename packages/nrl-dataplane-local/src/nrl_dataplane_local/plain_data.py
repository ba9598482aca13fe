"""Values as plain data that torch's weights-only unpickler takes, and back.

Tensors, None, bools, numbers, strings, bytes, lists, tuples, dicts and sets stay as they are. An array, a numpy
scalar, a PackedTensor or a frozenset becomes a dict that says its kind under the key `KIND`.
"""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, cast

import numpy as np
import torch
from nrl_interfaces import PackedTensor
from nrl_interfaces.layout import clone_nested
from numpy.typing import NDArray

from nrl_dataplane_local.values import from_numpy

__all__ = ["KIND", "Encoder", "NotSavableError", "decode", "tagged_dict"]

KIND = "__nrl__"
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytearray, torch.dtype, torch.device})
_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_MAX_DEPTH = 200  # far below Python's own limit, at which the unpickler would fail
_ALLOWED = (
    "tensors, numpy arrays, PackedTensors, None, bools, numbers, strings, bytes, lists, tuples, dicts and sets of "
    "these, and classes named in the config's safe_globals"
)


class NotSavableError(TypeError):
    """Raised when something is of a class that a load would refuse.

    Attributes:
        place: Where it stands: the column or tag and the sample id, or the metadata.
        class_name: Its class.
        problem: More about it.
    """

    def __init__(self, place: str, class_name: str, problem: str = "") -> None:
        super().__init__(place, class_name, problem)
        self.place, self.class_name, self.problem = place, class_name, problem

    def __str__(self) -> str:
        more = f" ({self.problem})" if self.problem else ""
        return f"{self.place} has a {self.class_name}, which no load would take{more}; allowed: {_ALLOWED}"


class Encoder:
    """Turns values into plain data, and refuses what is none.

    Args:
        safe_globals: More classes whose objects are taken as they are.
    """

    def __init__(self, safe_globals: Iterable[type]) -> None:
        self._safe_globals = list(safe_globals)

    def encode(self, value: Any, place: Callable[[], str], depth: int = 0) -> Any:
        """Give a value as plain data that shares no memory with a larger tensor.

        Args:
            value: The value.
            place: Says where it stands, for the error.
            depth: How deep in other values it stands.

        Raises:
            NotSavableError: Something in it is of another class, or it is nested too deep.
        """
        kind = type(cast("object", value))
        if kind in _PLAIN:
            return value
        if depth > _MAX_DEPTH:
            raise NotSavableError(place(), kind.__name__, f"nested more than {_MAX_DEPTH} deep, or in a circle")
        if kind in (list, tuple, set):
            is_plain = _PLAIN.issuperset(map(type, value))
            return value if is_plain else cast("Any", kind)(self._items(value, place, depth))
        if kind is bytes:  # empty ones are pickled as a call of `bytes`, which the unpickler refuses
            return value or {KIND: "bytes"}
        if kind is frozenset:
            return {KIND: "frozenset", "items": self._items(value, place, depth)}
        if kind is dict:
            return self._dict(value, place, depth)
        if isinstance(value, torch.Tensor):
            return _own_tensor(value, place)
        if kind is PackedTensor:
            return _packed(value, place)
        if kind is np.ndarray:
            return self._array(value, place, depth)
        if issubclass(kind, np.generic) and kind.__module__ == "numpy":
            return {KIND: "scalar", "dtype": value.dtype.str, "data": value.tobytes()}
        return self._named(value, place)

    def _items(self, items: Iterable[Any], place: Callable[[], str], depth: int) -> list[Any]:
        return [self.encode(item, place, depth + 1) for item in items]

    def _dict(self, value: dict[Any, Any], place: Callable[[], str], depth: int) -> dict[Any, Any]:
        keys = self._items(value, place, depth)
        items = self._items(value.values(), place, depth)
        if KIND in value or not all(map(_is_hashable, keys)):  # nothing but ours may look like ours
            return tagged_dict(keys, items)
        return dict(zip(keys, items, strict=True))

    def _array(self, value: NDArray[Any], place: Callable[[], str], depth: int) -> dict[str, Any]:
        form = {KIND: "array", "shape": list(value.shape)}
        if value.dtype == np.dtype(object):
            return {**form, "dtype": "O", "data": self._items(value.reshape(-1).tolist(), place, depth)}
        if value.dtype.names is not None or value.dtype.hasobject or value.dtype.kind not in "?biufcSUVmM":
            raise NotSavableError(place(), f"numpy array of {value.dtype}", "a dtype of several fields")
        raw = np.frombuffer(bytearray(value.tobytes()), dtype=np.uint8)
        return {**form, "dtype": value.dtype.str, "data": from_numpy(raw)}

    def _named(self, value: object, place: Callable[[], str]) -> object:
        """Take an object of a class named in the config, if the unpickler does, too."""
        if type(value) not in self._safe_globals:
            raise NotSavableError(place(), _full_name(type(value)))
        try:
            content = io.BytesIO()
            torch.save(value, content)
            content.seek(0)
            with torch.serialization.safe_globals(list(self._safe_globals)):
                torch.load(content, weights_only=True)
        except Exception as error:  # whatever the class's own code raises
            first_line = str(error).partition("\n")[0]
            raise NotSavableError(place(), _full_name(type(value)), f"{type(error).__name__}: {first_line}") from error
        return value


def tagged_dict(keys: Iterable[Any], items: Iterable[Any]) -> dict[str, Any]:
    """A dict of encoded keys and items, in the form that holds any keys."""
    return {KIND: "dict", "keys": list(keys), "items": list(items)}


def _full_name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _is_hashable(key: object) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True


def _own_tensor(value: torch.Tensor, place: Callable[[], str]) -> torch.Tensor:
    if not (type(value) in _TENSORS or value.is_nested) or value.is_meta:
        raise NotSavableError(place(), _full_name(type(value)), "a tensor without data" if value.is_meta else "")
    value = value.detach().cpu()
    if value.is_nested:
        return clone_nested(value)
    own = value.layout != torch.strided or value.untyped_storage().nbytes() == value.numel() * value.element_size()
    return value if own else value.clone(memory_format=torch.contiguous_format)


def _packed(value: PackedTensor, place: Callable[[], str]) -> dict[str, Any]:
    """One tensor for all segments: a record each would cost more than small ones hold."""
    positions = {id(segment): at for at, segment in enumerate(value.stored_segments)}
    dim = value.dim_to_pack
    form = {KIND: "packed", "dim": dim, "rows": [[positions[id(segment)] for segment in row] for row in value]}
    if value.template is None:
        return {**form, "segments": None, "sizes": []}
    pieces = [_own_tensor(segment, place) for segment in (value.template, *value.stored_segments)]
    sizes = [segment.size(dim) for segment in value.stored_segments]
    return {**form, "segments": torch.cat(pieces, dim), "sizes": sizes}


def decode(value: Any) -> Any:
    """Give back what was encoded.

    Raises:
        KeyError, TypeError, ValueError: It is not what `Encoder` writes.
    """
    if isinstance(value, dict):
        plain = cast("dict[Any, Any]", value)
        if KIND in plain:
            return _DECODERS[plain[KIND]](plain)
        return {decode(key): decode(item) for key, item in plain.items()}
    if type(value) in (list, tuple, set):
        items = cast("Sequence[Any]", value)
        return value if _PLAIN.issuperset(map(type, items)) else type(value)(map(decode, items))
    return value


def _decode_array(value: Mapping[str, Any]) -> NDArray[Any]:
    shape = tuple(value["shape"])
    if value["dtype"] == "O":
        made = np.empty(len(value["data"]), dtype=object)
        for at, item in enumerate(value["data"]):
            made[at] = decode(item)
        return made.reshape(shape)
    return np.frombuffer(bytearray(value["data"].numpy().tobytes()), dtype=np.dtype(value["dtype"])).reshape(shape)


def _decode_packed(value: Mapping[str, Any]) -> PackedTensor:
    dim, joined = value["dim"], value["segments"]
    if joined is None:
        return PackedTensor([None] * len(value["rows"]), dim)
    ends = [0, *accumulate(value["sizes"])]
    segments = [joined.narrow(dim, start, end - start).clone() for start, end in pairwise(ends)]
    rows = [[segments[at] for at in row] for row in value["rows"]]
    shape = [*joined.shape[:dim], *joined.shape[dim + 1 :]]
    return PackedTensor(rows, dim, dtype=joined.dtype, trailing_shape=shape)


_DECODERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "array": _decode_array,
    "bytes": lambda _: b"",
    "dict": lambda value: dict(zip(map(decode, value["keys"]), map(decode, value["items"]), strict=True)),
    "frozenset": lambda value: frozenset(map(decode, value["items"])),
    "packed": _decode_packed,
    "scalar": lambda value: np.frombuffer(value["data"], dtype=np.dtype(value["dtype"]))[0],
}
