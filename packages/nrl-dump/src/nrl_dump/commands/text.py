"""Rows and tables for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

_MANY, _SHOWN = 8, 6
_LONG = 200


def printable(text: str) -> str:
    """The text with everything escaped that would move a terminal's cursor, hide, or turn the line around."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def render(value: Any, *, full: bool) -> str:
    """A JSON value on one line; long lists and strings are cut, with their length, unless `full`."""
    if isinstance(value, list):
        items = cast("list[Any]", value)
        cut = not full and len(items) > _MANY
        shown = [render(item, full=full) for item in (items[:_SHOWN] if cut else items)]
        return f"[{', '.join([*shown, f'... {len(items)} in all'] if cut else shown)}]"
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value).items()
        return f"{{{', '.join(f'{render(key, full=full)}: {render(item, full=full)}' for key, item in pairs)}}}"
    if isinstance(value, str) and not full and len(value) > _LONG:
        return f"{render(value[:_LONG], full=True)}... {len(value)} characters in all"
    return printable(json.dumps(value, ensure_ascii=False))


def row_lines(row: dict[str, Any], *, full: bool) -> Iterator[str]:
    """A row of a step, a column a line, the lists of one taken off."""
    first = {key: row[key] for key in ("idx", "step") if key in row}
    yield "  ".join(f"{key} {render(value, full=full)}" for key, value in first.items())
    names = [key for key in row if key not in first]
    width = max(map(len, map(printable, names)), default=0)
    for name in names:
        yield f"  {printable(name):{width}}  {render(_plain(row[name]), full=full)}"


def table_lines(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """A table with aligned columns, numbers to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    right = [all(isinstance(value, (int, float, type(None))) for value in column) for column in zip(*rows, strict=True)]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    for line in (list(header), *cells):
        aligned = [
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(line, widths, right or [False] * len(widths), strict=True)
        ]
        yield "  ".join(aligned).rstrip()


def size_text(size: int) -> str:
    """A size in bytes as people say it."""
    number = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def counted(amount: int, thing: str) -> str:
    """An amount of a thing, in the plural where it takes that."""
    return f"{amount} {thing}{'' if amount == 1 else 's'}"


def _plain(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    items = cast("list[Any]", value)
    return items[0] if len(items) == 1 else items


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else printable(str(value))
