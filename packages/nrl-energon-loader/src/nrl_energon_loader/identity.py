"""What a state must agree with, and what differs when it does not."""
# Other modules of the package use the names with an underscore.
# pyright: reportUnusedFunction=false

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from nrl_interfaces.identity import differences, fingerprint

__all__ = ["RECORDED", "StateMismatchError"]

RECORDED = "recorded"
"""The part of an identity that is told and not compared: where the data lies."""

_MAX_BRIEF = 160


class StateMismatchError(ValueError):
    """Raised when a state belongs to another stream than the loader that is to load it.

    Attributes:
        differences: What differs, one line a leaf, as ``batch_size 2 -> 3``.
    """

    def __init__(self, differences: Sequence[str], advice: str = "") -> None:
        super().__init__(tuple(differences), advice)
        self.differences = tuple(differences)
        self._advice = advice

    def __str__(self) -> str:
        lines = [
            "this state belongs to another stream than this loader (saved -> current):",
            *(f"  {line}" for line in self.differences),
            *([self._advice] if self._advice else []),
        ]
        return "\n".join(lines)


def _compared(identity: Any) -> Any:
    if not isinstance(identity, Mapping):
        return identity
    items = cast("Mapping[str, Any]", identity).items()
    return {key: value for key, value in items if key != RECORDED}


def _identity_fingerprint(identity: Mapping[str, Any]) -> str:
    """Give 64 hex digits that are the same for equal identities, in every process."""
    return fingerprint(_compared(identity))


def _brief(value: Any) -> str:
    """Give a value as JSON on one line, cut to 160 characters."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, default=repr)
    return text if len(text) <= _MAX_BRIEF else f"{text[: _MAX_BRIEF - 1]}…"


def _identity_differences(saved: Any, current: Any, path: str = "") -> list[str]:
    """List the leaves that differ, as ``key saved -> current``; empty if and only if the fingerprints agree.

    Args:
        saved: What the state says.
        current: What is now.
        path: Put before each key, as in ``identity.batch_size``.
    """
    lines = differences(_compared(saved), _compared(current))
    return [_under(path, line) for line in lines] if path else lines


def _under(path: str, line: str) -> str:
    if line.startswith("<root> "):
        return path + line.removeprefix("<root>")
    return f"{path}{'' if line.startswith('[') else '.'}{line}"
