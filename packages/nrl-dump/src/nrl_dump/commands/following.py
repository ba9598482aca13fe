"""Following a folder as steps are published into it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from nrl_dump.commands.steps import StepState, StepSummary, summarize
from nrl_dump.names import StepFiles, published_steps


def follow(
    folder: Path, *, last: int = 10, sleep: Callable[[float], object], interval_s: float = 1.0
) -> Iterator[StepSummary]:
    """Yield the last few published steps, then, for ever, each one as it is published or replaced.

    Args:
        folder: The folder of the dump.
        last: How many of the steps already there are given.
        sleep: Waits for some seconds.
        interval_s: Time between two looks at the folder.

    Raises:
        OSError: There is no such folder.
    """
    there = published_steps(folder)
    seen: dict[int, object] = {step.number: _stamp(step) for step in there[: max(0, len(there) - last)]}
    while True:
        for files in published_steps(folder):
            stamp = _stamp(files)
            if stamp is None or seen.get(files.number) == stamp:
                continue
            summary = summarize(files)
            if summary.state in (StepState.PUBLISHED, StepState.NO_MANIFEST):  # else between two renames: look again
                seen[files.number] = stamp
                yield summary
        sleep(interval_s)


def _stamp(files: StepFiles) -> tuple[int, int, int] | None:
    """Tells one publication of a step from the next."""
    try:
        status = files.data.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
