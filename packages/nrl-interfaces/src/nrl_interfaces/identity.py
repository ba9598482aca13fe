"""What was saved against what is now: canonical JSON, fingerprints, differences, and secrets kept out of all three.

An identity is plain JSON data: None, bools, ints, finite floats, strings, lists (tuples count as lists) and dicts with
string keys. ``True``, ``1``, ``1.0`` and ``"1"`` are four values, as they are in JSON, and so are ``0.0`` and
``-0.0``. Nothing here reads or writes files.

>>> saved, current = {"batch_size": 2, "lr": [0.1]}, {"batch_size": 3, "lr": [0.1, 0.2]}
>>> fingerprint(saved) == fingerprint(current)
False
>>> differences(saved, current)
['batch_size 2 -> 3', 'lr[1] <missing> -> 0.2']
"""

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

__all__ = ["REDACTED", "IdentityValueError", "canonical_json", "differences", "fingerprint", "redact"]

REDACTED: Final = "<redacted>"

_Path: TypeAlias = tuple[str | int, ...]
_MISSING: Final = object()
_MAX_DEPTH: Final = 200  # far below Python's own limit, whose error would name no path
_MAX_SHOWN: Final = 160
_CONTEXT: Final = 40  # characters shown before the first difference of two long values
_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


class IdentityValueError(ValueError):
    """Raised when a value can't be part of an identity.

    Attributes:
        path: Where it stands, as in `differences`; ``<root>`` for the whole.
        problem: What it is, and what is allowed.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path, self.problem = path, problem

    def __str__(self) -> str:
        return f"{self.path} is {self.problem}"


def canonical_json(value: Any) -> bytes:
    """Write ``value`` as JSON in one way only: keys sorted, no spaces, UTF-8.

    Args:
        value: Plain JSON data, nested at most 200 deep.

    Raises:
        IdentityValueError: If something is no plain JSON data (a path, an enum, a numpy scalar, a NaN, a key that is
            no string, half of a surrogate pair); names its path.

    >>> canonical_json({"b": (1, 1.0, True), "a": None})
    b'{"a":null,"b":[1,1.0,true]}'
    """
    _check(value, ())
    return _dumps(value).encode()


def fingerprint(value: Any) -> str:
    """Give the SHA-256 of `canonical_json` as 64 hex digits: the same in every process.

    Raises:
        IdentityValueError: As `canonical_json`.
    """
    return hashlib.sha256(canonical_json(value)).hexdigest()


def differences(saved: Any, current: Any) -> list[str]:
    """Say what changed, one line a leaf: ``path saved -> current``.

    Paths are written ``a.b[3]``, keys with other characters than letters, digits, ``_`` and ``-`` as JSON strings in
    brackets, ``a["x.y"]``. Values are JSON, cut to 160 characters around their first difference; an absent one is
    ``<missing>``. Lists are compared by position.

    Returns:
        The lines, by path. Empty if and only if the fingerprints agree.

    Raises:
        IdentityValueError: As `canonical_json`, for either value.

    >>> differences({"a": {"x.y": 1, "z": [True]}}, {"a": {"x.y": "1", "z": [1]}})
    ['a["x.y"] 1 -> "1"', 'a.z[0] true -> 1']
    """
    if canonical_json(saved) == canonical_json(current):
        return []
    return list(_lines(saved, current, ()))


def redact(value: Any) -> Any:
    """Copy ``value`` with `REDACTED` in place of every value, None included, whose key looks like a secret.

    A key is read as words (``HF_TOKEN``, ``hf-token`` and ``hfToken`` are one). It is a secret with a word like
    ``password``, ``secret``, ``credentials`` or ``authorization`` in it, with ``api key``, ``private key``,
    ``access token`` and the like, or with ``token`` at its end, unless the word before makes that a text token, as in
    ``pad_token``. Counts and ids (``max_tokens``, ``eos_token_id``, ``tokenizer``) are none.

    Args:
        value: JSON-like data; mappings and sequences are walked and come back as dicts, lists and tuples. Other
            objects are kept as they are: turn models and dataclasses into dicts before.

    Raises:
        IdentityValueError: If it is nested more than 200 deep.

    >>> redact({"api_key": "k", "max_tokens": 8, "judges": [{"hfToken": None}]})
    {'api_key': '<redacted>', 'max_tokens': 8, 'judges': [{'hfToken': '<redacted>'}]}
    """
    return _redacted(value, ())


def _dumps(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _check(value: Any, path: _Path) -> None:
    _check_depth(path)
    if isinstance(value, dict):
        for key, item in cast("dict[Any, Any]", value).items():
            if type(key) is not str:
                raise IdentityValueError(_show_path(path), f"a dict with the key {key!r}; allowed: string keys")
            _check_leaf(key, (*path, key))
            _check(item, (*path, key))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(cast("Sequence[Any]", value)):
            _check(item, (*path, number))
    else:
        _check_leaf(value, path)


def _check_depth(path: _Path) -> None:
    if len(path) > _MAX_DEPTH:
        where = _show_path(path)[:_MAX_SHOWN]
        raise IdentityValueError(where, f"nested too deep, or in a circle; allowed: {_MAX_DEPTH} levels")


def _check_leaf(value: Any, path: _Path) -> None:
    kind = type(cast("object", value))
    # Exact types: json would write an enum or a numpy float in a form that changes with their versions.
    if kind not in (type(None), bool, int, float, str):
        problem = f"a {kind.__name__}; allowed: None, bool, int, float, str, list, tuple, dict (convert it first)"
    elif kind is float and not math.isfinite(value):
        problem = f"{value!r}; allowed: finite numbers"
    elif kind is int and not _writable(value):
        problem = f"an int of {value.bit_length()} bits; allowed: as many digits as Python converts (4300)"
    elif kind is str and not _encodable(value):
        problem = f"{_cut(json.dumps(value), 0)}, with half of a surrogate pair; allowed: what UTF-8 holds"
    else:
        return
    raise IdentityValueError(_show_path(path), problem)


def _writable(value: int) -> bool:
    try:
        str(value)
    except ValueError:
        return False
    return True


def _encodable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _lines(saved: Any, current: Any, path: _Path) -> Iterator[str]:
    pairs = _children(saved, current)
    if pairs is not None:
        for step, old, new in pairs:
            yield from _lines(old, new, (*path, step))
        return
    old, new = _show(saved), _show(current)
    if old != new:
        yield f"{_show_path(path)} {' -> '.join(_shorten(old, new))}"


def _children(saved: Any, current: Any) -> list[tuple[str | int, Any, Any]] | None:
    """Pair up the items of two containers of one kind; None for leaves, which an empty container is too."""
    present = [value for value in (saved, current) if value is not _MISSING]
    if not any(present):
        return None
    if all(isinstance(value, dict) for value in present):
        empty: dict[str, Any] = {}
        old, new = (empty if value is _MISSING else value for value in (saved, current))
        return [(key, old.get(key, _MISSING), new.get(key, _MISSING)) for key in sorted({*old, *new})]
    if all(isinstance(value, list | tuple) for value in present):
        old, new = (() if value is _MISSING else value for value in (saved, current))
        pairs = itertools.zip_longest(old, new, fillvalue=_MISSING)
        return [(number, *pair) for number, pair in enumerate(pairs)]
    return None


def _show(value: Any) -> str:
    if value is _MISSING:
        return "<missing>"
    text = _dumps(value)
    # Escaped where a line break or an invisible character would spoil the one line.
    return text if text.isprintable() else json.dumps(value, sort_keys=True, separators=(",", ":"))


def _show_path(path: _Path) -> str:
    shown = ""
    for step in path:
        if isinstance(step, int):
            shown += f"[{step}]"
        elif _PLAIN_KEY.fullmatch(step):
            shown += f".{step}" if shown else step
        else:
            shown += f"[{_show(step)}]"
    return shown or "<root>"


def _shorten(old: str, new: str) -> tuple[str, str]:
    short = _cut(old, 0), _cut(new, 0)
    if short[0] != short[1]:
        return short
    pairs = enumerate(zip(old, new, strict=False))
    start = next((at for at, (a, b) in pairs if a != b), min(len(old), len(new))) - _CONTEXT
    return _cut(old, start), _cut(new, start)


def _cut(text: str, start: int) -> str:
    shown = f"…{text[start + 1 :]}" if start > 0 else text
    return shown if len(shown) <= _MAX_SHOWN else f"{shown[: _MAX_SHOWN - 1]}…"


_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# Matched against a key's words, lower case, one space between.
_SECRET: Final = re.compile(
    r"(?:password|passwd|passphrase|passcode|secret|credential"
    r"|(?:api|access|auth|private|secret)(?:key|token))s?\b"
    r"|\b(?:authorization|bearer|cookies?|jwt|dsn|webhooks?|connection string|basic auth|auth headers?|\w+ pwd"
    r"|(?:api|access|auth|private|signing|encryption|ssh) keys?|(?:api|access|auth|refresh) tokens?)\b"
    r"|^auth$"
)
_TOKEN: Final = re.compile(r"(?:^|(\w+) )token$")
# Before "token" these make a token of text (or a count of them), whose change must be seen.
_TEXT_TOKEN_WORD: Final = re.compile(
    r"action|answer|assistant|audio|avg|begin|bos|by|call|channel|chunk|class|cls|code|context|decoder|"
    r"document|draft|each|end|eoi|eom|eos|eot|every|first|frame|generated|image|img|input|instruction|"
    r"last|latent|length|line|logprobs|mask|max|mean|message|min|mm|model|modality|multimodal|n|new|"
    r"newline|next|num|number|object|of|output|pad|padding|patch|per|placeholder|point|prefix|prefill|"
    r"prompt|reasoning|register|response|return|reward|row|sampled|sep|separator|sequence|sink|space|"
    r"special|speech|start|step|stop|suffix|system|text|think|thinking|tool|total|turn|unk|unknown|"
    r"video|vision|visual|vocab"
)


def _is_secret(key: object) -> bool:
    if not isinstance(key, str):
        return False
    words = " ".join(_WORD.findall(key)).lower()
    token = _TOKEN.search(words)
    return bool(_SECRET.search(words)) or (token is not None and not _TEXT_TOKEN_WORD.fullmatch(token[1] or ""))


def _redacted(value: Any, path: _Path) -> Any:
    _check_depth(path)
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {k: REDACTED if _is_secret(k) else _redacted(item, (*path, str(k))) for k, item in items}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        copied = [_redacted(item, (*path, n)) for n, item in enumerate(cast("Sequence[Any]", value))]
        return tuple(copied) if isinstance(value, tuple) else copied
    return value
