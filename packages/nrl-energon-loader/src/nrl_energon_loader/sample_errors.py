"""Bad samples: skipped, counted, and told in one short line."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

from megatron.energon import SourceInfo  # pyright: ignore[reportMissingTypeStubs]

from nrl_energon_loader.samples import source_name

__all__ = ["compact_sample_error_handler", "take_skips"]

_log = logging.getLogger(__name__)
_MAX_PART = 120

# In this process: a worker, or the trainer's own without workers.
_skips: Counter[str] = Counter()


def compact_sample_error_handler(
    exception: Exception, sample: Any | list[Any], sources: list[SourceInfo] | None = None
) -> None:
    """Log a bad sample in one line of a few hundred characters and count it, so that Energon takes the next one.

    Energon calls it in the process that reads the sample, and ends with a `FatalSampleError` after 100 bad ones in a
    row. It never raises.

    Args:
        exception: What the sample raised.
        sample: The sample, or those that were to become one pack or batch.
        sources: Where they came from, where Energon knows.
    """
    count = max(len(cast("list[Any]", sample)), 1) if type(sample) is list else 1
    names, key, place = ["unknown"] * count, "unknown", "unknown"
    with contextlib.suppress(Exception):
        each = [[source] for source in sources] if sources and len(sources) == count else [sources] * count
        names = [source_name(its) for its in each]
    with contextlib.suppress(Exception):
        key = _key(sample)
    with contextlib.suppress(Exception):
        place = _place(sources)
    _skips.update(names)
    with contextlib.suppress(Exception):
        what = "a sample" if count == 1 else f"{count} samples"
        _log.warning(
            "skipped %s: %s: key %s, source %s", what, _error_text(exception), _cut(key), _cut(place, tail=True)
        )


def take_skips() -> dict[str, int]:
    """Give the samples skipped in this process since the last call, by `source_name`, and forget them."""
    taken = dict(_skips)
    _skips.clear()
    return taken


def _error_text(exception: Exception) -> str:
    text = ""
    with contextlib.suppress(Exception):
        text = str(exception)
    return f"{type(exception).__name__}: {_cut(text)}" if text else type(exception).__name__


def _key(sample: Any) -> str:
    first: Any = cast("list[Any]", sample)[0] if type(sample) is list else sample
    key: Any = cast("dict[str, Any]", first).get("__key__") if isinstance(first, dict) else first.__key__
    return str(key) if isinstance(key, str | int) else "unknown"


def _place(sources: Sequence[SourceInfo] | None) -> str:
    return f"{sources[0].dataset_path}/{sources[0].shard_name}[{sources[0].index}]" if sources else "unknown"


def _cut(text: str, *, tail: bool = False) -> str:
    line = " ".join(text[: 4 * _MAX_PART].split()) if not tail else text
    if len(line) <= _MAX_PART:
        return line
    return f"…{line[1 - _MAX_PART :]}" if tail else f"{line[: _MAX_PART - 1]}…"
