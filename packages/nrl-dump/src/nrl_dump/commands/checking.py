"""Checking steps and folders of them, with a verdict in place of an error."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nrl_dump.commands.steps import list_steps
from nrl_dump.commands.text import counted
from nrl_dump.manifest import DamagedStepError, InterruptedStepError, NotPublishedError, verify
from nrl_dump.names import StepFiles


@dataclass(frozen=True)
class Verdict:
    """What `verify` found.

    Attributes:
        path: The published file.
        state: "whole", "unpublished", "interrupted", "damaged" or "missing".
        detail: What to know or do about it.
        ok: Nothing needs mending.
    """

    path: Path
    state: str
    detail: str
    ok: bool

    def to_json(self) -> dict[str, Any]:
        """The verdict as plain data."""
        return {**vars(self), "path": str(self.path)}


def steps_to_verify(paths: list[Path]) -> list[StepFiles]:
    """The steps that paths of files and folders mean, unpublished ones of folders included.

    Raises:
        FileNotFoundError: A folder has no step.
        ValueError: A path does not name a published step.
    """
    steps: list[StepFiles] = []
    for path in paths:
        found = [StepFiles(path, summary.number) for summary in list_steps(path)] if path.is_dir() else []
        if path.is_dir() and not found:
            raise FileNotFoundError(f"there is no step in {path}")
        steps += found or [StepFiles.of_published(path)]
    return steps


def judge(files: StepFiles, *, named: bool) -> Verdict:
    """Check a step, every byte of it.

    Args:
        files: The step.
        named: Whether the caller asked for this very step: then it is to be there.
    """
    try:
        manifest = verify(files.data)
    except InterruptedStepError as error:
        return Verdict(files.data, "interrupted", f"{error.reason}; call finish_step({error.step}) again", ok=False)
    except DamagedStepError as error:
        detail = f"{error.reason}; restore it from a copy, or write the step again"
        return Verdict(files.data, "damaged", detail, ok=False)
    except FileNotFoundError as error:
        parts = error.shard_ids if isinstance(error, NotPublishedError) else []
        if not parts:
            return Verdict(files.data, "missing", "nothing of that step is there", ok=False)
        detail = f"{counted(len(parts), 'part')}; finish_step({files.step}) publishes"
        return Verdict(files.data, "unpublished", detail, ok=not named)
    left = len(files.find_shards())
    beside = f"; {counted(left, 'part')} beside it: left over, or its next version" if left else ""
    detail = f"{counted(manifest.rows, 'row')}, {manifest.bytes} bytes{beside}"
    return Verdict(files.data, "whole", detail, ok=True)
