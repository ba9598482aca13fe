"""The steps in a folder, what state each is in, and dropping old ones."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from nrl_interfaces.fileops import FileOps

from nrl_dump.columns import StepColumns
from nrl_dump.manifest import DamagedStepError, InterruptedStepError, Manifest, NotPublishedError, check_size
from nrl_dump.names import StepFiles, published_steps, unpublished_steps
from nrl_dump.publication import prune


class StepState(StrEnum):
    """What is on disk of a step."""

    PUBLISHED = "published"
    """File and manifest are there and fit in size."""
    NO_MANIFEST = "no manifest"
    """Rows of an older logger, or the manifest was lost."""
    UNPUBLISHED = "unpublished"
    """Parts only: being written, or left by a crash."""
    INTERRUPTED = "interrupted"
    """A publication did not come to its end; `finish_step` again mends it."""
    DAMAGED = "damaged"
    """File and manifest disagree and there is nothing to mend it from."""
    MISSING = "missing"
    """Nothing: it was removed while we looked."""


@dataclass(frozen=True)
class StepSummary:
    """One step at a glance.

    Attributes:
        number: `N`, as in the file's name.
        path: Where it is, or will be, published.
        state: What is on disk.
        rows: Rows in it; None where nothing says so without counting.
        bytes: Of the published file; of its parts where there is none.
        shards: Ids of the shards published, or of the parts there are.
        parts: How many unpublished parts are there; beside a published file they are left-overs or its next version.
        columns: Names, in the order of a row, as far as a manifest or column file tells.
    """

    number: int
    path: Path
    state: StepState
    rows: int | None
    bytes: int
    shards: tuple[str, ...]
    parts: int
    columns: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The summary as plain data; `step` is the number in the file's name."""
        data = {**vars(self), "path": str(self.path), "shards": list(self.shards), "columns": list(self.columns)}
        return {"step": data.pop("number"), **data}


def list_steps(folder: Path) -> list[StepSummary]:
    """Every step in a folder, published or not, by number.

    Raises:
        OSError: There is no such folder.
    """
    steps = {step.number: step for step in (*published_steps(folder), *unpublished_steps(folder))}
    return [summarize(steps[number]) for number in sorted(steps)]


def summarize(files: StepFiles) -> StepSummary:
    """Look at one step; reads its manifest, not its rows."""
    state, manifest = look_at(files)
    parts = files.find_shards()
    columns = manifest.columns if manifest else _columns_of_parts(files, parts)
    published = _size(files.data)
    return StepSummary(
        number=files.number,
        path=files.data,
        state=state,
        rows=manifest.rows if manifest else None,
        bytes=published if published is not None else sum(_size(files.part(part)) or 0 for part in parts),
        shards=tuple(shard.shard_id for shard in manifest.shards) if manifest else tuple(parts),
        parts=len(parts),
        columns=tuple(column.name for column in columns.columns) if columns else (),
    )


def find_step(path: Path, number: int | None) -> Path:
    """The file of rows that a command's PATH means: itself, or, in a folder, step `number` or the newest published.

    Raises:
        FileNotFoundError: The folder has no published step.
        ValueError: `number` is given for a path that is no folder.
    """
    if not path.is_dir():
        if number is not None:
            raise ValueError(f"--step {number} goes with a folder, and {path} is none: leave one of them away")
        return path
    if number is not None:
        return StepFiles(path, number).data
    steps = published_steps(path)
    if not steps:
        raise FileNotFoundError(f"there is no published step in {path}")
    return steps[-1].data


def prune_steps(folder: Path, keep_last: int, *, dry_run: bool, ops: FileOps) -> list[Path]:
    """Remove all but the last `keep_last` published steps; what is unpublished stays.

    Returns:
        The data files of the steps that went, or would go, oldest first.
    """
    steps = published_steps(folder)
    if steps and not dry_run:
        prune(folder, steps[-keep_last:][0].number, ops)
    return [step.data for step in steps[:-keep_last]]


def look_at(files: StepFiles) -> tuple[StepState, Manifest | None]:
    """A step's state, and its manifest if it is published."""
    try:
        return StepState.PUBLISHED, check_size(files)
    except InterruptedStepError:
        return StepState.INTERRUPTED, None
    except DamagedStepError:
        lost = files.data.exists() and not files.manifest.exists()
        return (StepState.NO_MANIFEST if lost else StepState.DAMAGED), None
    except NotPublishedError as error:
        return (StepState.UNPUBLISHED if error.shard_ids else StepState.MISSING), None


def _columns_of_parts(files: StepFiles, parts: list[str]) -> StepColumns | None:
    for shard_id in parts:
        with contextlib.suppress(OSError, ValueError):
            return StepColumns.from_bytes(files.columns(shard_id).read_bytes())
    return None


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
