"""What the benchmarks of all packages share: ways that take turns, ratios, tables.

nox.py puts this folder on their path.
"""

import statistics
import time
from collections.abc import Callable


def turns(ways: dict[str, Callable[[], object]], count: int, calls: int = 1) -> dict[str, list[float]]:
    """Seconds a call of each way in each round, of so many calls; the garbage collector is on.

    The ways take turns, so that a slow moment of the machine meets all of them.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(count):
        for name, way in ways.items():
            began = time.perf_counter()
            for _ in range(calls):
                way()
            seconds[name].append((time.perf_counter() - began) / calls)
    return seconds


def ratio(seconds: dict[str, list[float]], over: str, under: str) -> float:
    """The median, over the rounds, of how many times as long `over` took as `under`."""
    return statistics.median(a / b for a, b in zip(seconds[over], seconds[under], strict=True))


def spread(values: list[float], digits: int) -> str:
    """Median, with minimum and maximum behind it."""
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def table(head: list[str], *rows: list[str]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))
