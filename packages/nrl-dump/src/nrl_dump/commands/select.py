"""Choosing rows of a step: by number, by sample id, by a small language of conditions."""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from nrl_dump.columns import DTYPES, RESERVED
from nrl_dump.manifest import Manifest
from nrl_dump.reader import find_manifest, numeric_columns, read_step, unwrap

_CONDITION = re.compile(r"\s*(?P<column>.+?)\s*(?P<op><=|>=|==|!=|<|>)\s*(?P<value>.*?)\s*", re.DOTALL)
_ORDERINGS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf, None: math.nan}
_MISSING = object()


@dataclass(frozen=True)
class Condition:
    """`column op value`, for columns of one value a row and for tags.

    Attributes:
        column: `idx`, `step`, `sample_id`, `input_lengths`, a scalar column, or `metadata.KEY` (`metadata.KEY.KEY`).
        op: One of `< <= > >= == !=`.
        value: A number, a string, True, False or None.
    """

    column: str
    op: str
    value: Any

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Read a condition; a value that is not JSON is a string.

        Raises:
            ValueError: The text is no condition.

        Example:
            >>> Condition.parse("reward < 0.5")
            Condition(column='reward', op='<', value=0.5)
            >>> Condition.parse("metadata.task==math")
            Condition(column='metadata.task', op='==', value='math')
        """
        match = _CONDITION.fullmatch(text)
        if match is None:
            raise ValueError(f"condition {text!r} can't be read: COLUMN OP VALUE is needed, OP one of < <= > >= == !=")
        try:
            value = json.loads(match["value"])
        except ValueError:
            value = match["value"]
        if isinstance(value, (list, dict)):
            raise ValueError(
                f"condition {text!r} has a value of many: a number, a string, true, false or null is needed"
            )
        return cls(match["column"], match["op"], value)

    def matches(self, row: dict[str, Any], float_columns: Collection[str] = ()) -> bool:
        """Whether a row meets the condition; values of different kinds are unequal, and in no order.

        Args:
            row: As `read_step` yields it.
            float_columns: The columns in which strings and null stand for NaN and infinities.

        Raises:
            ValueError: Rows have no such column, or a list in it.
        """
        value = self._value(row)
        if self.column in float_columns and (value is None or isinstance(value, str)):
            value = _WORDS.get(value, value)
        if value is _MISSING:
            return False
        if self.op in ("==", "!="):
            return _equal(value, self.value) == (self.op == "==")
        comparable = all(isinstance(v, (int, float)) for v in (value, self.value)) or all(
            isinstance(v, str) for v in (value, self.value)
        )
        return comparable and _ORDERINGS[self.op](value, self.value)

    def _value(self, row: dict[str, Any]) -> Any:
        if self.column in ("idx", "step"):
            return row.get(self.column, _MISSING)
        if self.column not in row:
            return self._tag(row)
        value = unwrap(row, self.column)
        if isinstance(value, (list, dict)):
            raise ValueError(f"column {self.column!r} holds more than one value a row: conditions can't be put on it")
        return value

    def _tag(self, row: dict[str, Any]) -> Any:
        first, *keys = self.column.split(".")
        if first != "metadata" or not keys:
            raise ValueError(
                f"rows have no column {self.column!r}: they have {', '.join(row)}, and metadata.KEY for tags"
            )
        value: Any = unwrap(row, "metadata")
        for key in keys:
            value = cast("dict[str, Any]", value).get(key, _MISSING) if isinstance(value, dict) else _MISSING
        return value


def select_rows(
    path: Path,
    *,
    idx: Collection[int] = (),
    sample_ids: Collection[str] = (),
    conditions: Sequence[Condition] = (),
    limit: int | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the rows that meet everything asked for, as `read_step` yields them.

    Args:
        path: The file of rows.
        idx: The rows of these numbers; empty for any.
        sample_ids: The rows of these samples; empty for any.
        conditions: All of them are to be met.
        limit: Stop after so many rows.

    Raises:
        ValueError: A condition does not fit the rows.
    """
    floats = _float_columns(find_manifest(path))
    last = max(idx, default=-1)
    for row in read_step(path) if limit != 0 else ():
        if idx and row.get("idx") not in idx:
            continue
        if sample_ids and unwrap(row, "sample_id") not in sample_ids:
            continue
        if all(condition.matches(row, floats) for condition in conditions):
            yield row
            limit = None if limit is None else limit - 1
            if limit == 0:
                return
        if row.get("idx") == last:
            return


def _float_columns(manifest: Manifest | None) -> set[str]:
    specs = numeric_columns(manifest) if manifest else []
    return {spec.name for spec in specs if DTYPES[spec.dtype].is_floating_point and spec.name not in RESERVED}


def _equal(one: Any, other: Any) -> bool:
    both_nan = all(isinstance(v, float) and math.isnan(v) for v in (one, other))
    return both_nan or one == other
