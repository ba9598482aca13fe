"""Tables and amounts for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

_AGES = (("d", 86_400), ("h", 3_600), ("min", 60))


def printable(text: str) -> str:
    """The text on one line, with everything escaped that would move a terminal's cursor, hide, or turn the line."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def table_lines(header: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """A table with aligned columns."""
    cells = [list(header), *([("-" if value is None else printable(str(value))) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def field_lines(fields: Mapping[str, object]) -> Iterator[str]:
    """Names and values, one a line."""
    width = max(map(len, fields))
    for name, value in fields.items():
        yield f"{name:{width}}  {'-' if value is None else printable(str(value))}"


def size_text(size: int) -> str:
    """A size in bytes as people say it.

    >>> size_text(999), size_text(1_500_000)
    ('999 B', '1.5 MB')
    """
    number = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{size} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def age_text(seconds: float | None) -> str | None:
    """An age as people say it; None stays None.

    >>> age_text(59.4), age_text(7_300)
    ('59 s', '2 h')
    """
    if seconds is None:
        return None
    for unit, length in _AGES:
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{int(seconds)} s"


def time_text(seconds: float) -> str:
    """A moment in seconds since the epoch, as UTC.

    >>> time_text(1_700_000_000.5)
    '2023-11-14T22:13:20Z'
    """
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def path_within(path: Path, folder: Path) -> str:
    """A path as it is called within a folder.

    >>> path_within(Path("ckpt/step_3"), Path("ckpt"))
    'step_3'
    """
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
