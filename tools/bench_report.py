"""What the benchmarks of all packages share: ratios and tables.

nox.py puts this folder on their path.
"""

import statistics


def ratio(seconds: dict[str, list[float]], over: str, under: str) -> float:
    """The median, over the rounds, of how many times as long `over` took as `under`."""
    return statistics.median(a / b for a, b in zip(seconds[over], seconds[under], strict=True))


def spread(values: list[float], digits: int) -> str:
    """Median, with minimum and maximum behind it."""
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def table(head: list[str], *rows: list[str]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))
