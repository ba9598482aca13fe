"""Small JSON files that carry a digest of themselves, so that a changed byte in one is not believed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import orjson
import xxhash

_T = TypeVar("_T")

FORMAT_VERSION = 1
"""Of part, column file, published file and manifest together."""


def seal(format_name: str, data: Mapping[str, Any]) -> bytes:
    """A file's content: its format and version, the data, and a digest of all that."""
    named = {"format": format_name, "format_version": FORMAT_VERSION, **data}
    return orjson.dumps({**named, "seal": _digest(named)}, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def unseal(format_name: str, content: bytes, parse: Callable[[dict[str, Any]], _T]) -> _T:
    """What `parse` makes of the data in a file's content.

    Raises:
        ValueError: The content is damaged, foreign, or of a newer format.
    """
    loaded: object = orjson.loads(content)
    if not isinstance(loaded, dict):
        raise ValueError(f"a JSON object is needed, not {content[:20]!r}")
    data = cast("dict[str, Any]", loaded)
    if data.get("format") != format_name:
        raise ValueError(f"format is {data.get('format')!r}: {format_name!r} is needed")
    version = data.get("format_version")
    if type(version) is not int or not 1 <= version <= FORMAT_VERSION:
        raise ValueError(f"format version is {version!r}: this nrl-dump reads 1 to {FORMAT_VERSION}; update it")
    if data.pop("seal", None) != _digest(data):
        raise ValueError("its seal does not fit its content: something in it has changed")
    try:
        return parse(data)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is no {format_name}: {error!r}") from error


def _digest(data: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(orjson.dumps(data))
