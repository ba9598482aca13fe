"""A row's tags, as JSON.

Tags hold what JSON holds: objects with string keys, arrays (lists, tuples), strings, integers of any size, floats,
true, false and null; numpy scalars and 0-d tensors count as their numbers. Anything else is refused by name.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import orjson
import torch

from nrl_dump.columns import InfNan

WORDS: dict[InfNan, dict[str, bytes]] = {
    "constants": {"nan": b"NaN", "inf": b"Infinity", "-inf": b"-Infinity"},
    "strings": {"nan": b'"NaN"', "inf": b'"Infinity"', "-inf": b'"-Infinity"'},
    "null": {"nan": b"null", "inf": b"null", "-inf": b"null"},
}
"""The spelling of each non-finite number, by its Python repr."""

_DEEPEST = 100
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1


def encode_tag(tag: Any, sample_id: str, inf_nan: InfNan) -> bytes:
    """One row's tags as a JSON object.

    Args:
        tag: The tag dict.
        sample_id: Whose it is, for errors.
        inf_nan: How non-finite numbers are written.

    Raises:
        ValueError: Something in it is not JSON; names sample and key path.
    """
    walk = _Walk(sample_id, inf_nan)
    plain = walk.object(tag, "tags")
    if walk.beyond_orjson:
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode()
    return orjson.dumps(plain)


def check_text(text: Any, what: str) -> str:
    """Return a string that can be written as UTF-8; ValueError naming `what` for anything else."""
    if not isinstance(text, str):
        raise ValueError(f"{what} is {_shown(text)}: a string is needed")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{what} is {_shown(text)}, which UTF-8 can't hold: {error.reason}") from None
    return text


class _Walk:
    """Turns one tag dict into plain JSON values and notes whether they need more than orjson writes."""

    def __init__(self, sample_id: str, inf_nan: InfNan) -> None:
        self._sample_id = sample_id
        self._inf_nan: InfNan = inf_nan
        self.beyond_orjson = False

    def object(self, value: Any, path: str, depth: int = 0) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._refused(value, path, "a dict is needed")
        items: dict[Any, Any] = value  # pyright: ignore[reportUnknownVariableType]
        for key in items:
            check_text(key, f"key of {path} of sample {self._sample_id!r}")
        return {str(key): self._any(item, f"{path}.{key}", depth + 1) for key, item in items.items()}

    def _any(self, value: Any, path: str, depth: int) -> Any:
        if depth > _DEEPEST:
            raise self._refused(value, path, f"at most {_DEEPEST} levels are allowed")
        if isinstance(value, (np.generic, torch.Tensor)):
            value = self._number(value, path)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return str(check_text(value, f"{path} of sample {self._sample_id!r}"))
        if isinstance(value, int):
            return self._integer(int(value), path)
        if isinstance(value, float):
            return self._float(float(value))
        if isinstance(value, (list, tuple)):
            items: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
            return [self._any(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(items)]
        if isinstance(value, dict):
            return self.object(value, path, depth)
        raise self._refused(value, path, "JSON has no such value")

    def _number(self, value: Any, path: str) -> Any:
        if isinstance(value, torch.Tensor) and value.dim() > 0:
            raise self._refused(value, path, "of tensors only 0-d ones are allowed; give .tolist()")
        return value.item()

    def _integer(self, value: int, path: str) -> int:
        if not _SMALLEST <= value <= _LARGEST:
            self.beyond_orjson = True
            try:
                str(value)
            except ValueError:  # Python's own limit, for its json as for everything
                what = f"{path} of sample {self._sample_id!r}"
                raise ValueError(
                    f"{what} is an integer of {value.bit_length()} bits: Python writes no longer ones than"
                    f" sys.set_int_max_str_digits says"
                ) from None
        return value

    def _float(self, value: float) -> float | str | None:
        if math.isfinite(value):
            return value
        if self._inf_nan == "null":
            return None
        if self._inf_nan == "strings":
            return WORDS["strings"][repr(value)].decode().strip('"')
        self.beyond_orjson = True
        return value

    def _refused(self, value: Any, path: str, why: str) -> ValueError:
        return ValueError(f"{path} of sample {self._sample_id!r} is {_shown(value)}: {why}")


def _shown(value: Any) -> str:
    text = ascii(value)
    return f"{text if len(text) < 80 else text[:60] + '...'} ({type(value).__name__})"
