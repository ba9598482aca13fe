"""A progress bar on a terminal, and nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, cast

import tqdm


def show_progress(things: Iterable[Any], total: int, unit: str = "row") -> Iterable[Any]:
    """Go through things; a bar on stderr shows how far, where stderr is a terminal."""
    bar: Any = tqdm.tqdm  # has no types
    return cast("Iterable[Any]", bar(things, total=total, unit=unit, file=sys.stderr, disable=None, leave=False))
