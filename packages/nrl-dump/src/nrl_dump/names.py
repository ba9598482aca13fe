"""What the files of a step are called, and how shards are ordered.

`N` in a file's name is `step + 1`: the trainer counts completed steps from 0, the files count from 1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_SHARD = r"[A-Za-z0-9._-]{1,128}"
_SHARD_ID = re.compile(_SHARD)
_PUBLISHED = re.compile(r"train_data_step([1-9][0-9]*)\.jsonl")
_MANIFEST = re.compile(r"train_data_step([1-9][0-9]*)\.manifest\.json")
_UNPUBLISHED = re.compile(rf"train_data_step([1-9][0-9]*)\.jsonl\.(?:part-{_SHARD}|partial)")


@dataclass(frozen=True)
class StepFiles:
    """The paths of one step in one folder.

    Attributes:
        folder: The folder of the dump.
        number: `N`, the step's number in file names and rows, from 1.
    """

    folder: Path
    number: int

    @classmethod
    def of_step(cls, folder: Path, step: int) -> StepFiles:
        """The files of the trainer's step, which counts from 0.

        Raises:
            ValueError: `step` is not a non-negative int.
        """
        if type(step) is not int or step < 0:
            raise ValueError(f"step is {step!r}: a whole number from 0 is needed (an int, no bool)")
        return cls(folder, step + 1)

    @classmethod
    def of_published(cls, path: Path) -> StepFiles:
        """The files of the step that `path` publishes.

        Raises:
            ValueError: The name is not that of a published step.
        """
        match = _PUBLISHED.fullmatch(path.name)
        if match is None:
            raise ValueError(f"{path.name!r} is not a published step: such a file is named train_data_step<N>.jsonl")
        return cls(path.parent, int(match[1]))

    @property
    def step(self) -> int:
        """The trainer's step, from 0."""
        return self.number - 1

    @property
    def data(self) -> Path:
        """The published step."""
        return self.folder / f"train_data_step{self.number}.jsonl"

    @property
    def manifest(self) -> Path:
        """What the published step holds."""
        return self.folder / f"train_data_step{self.number}.manifest.json"

    def part(self, shard_id: str) -> Path:
        """One writer's rows."""
        return self.folder / f"train_data_step{self.number}.jsonl.part-{shard_id}"

    def columns(self, shard_id: str) -> Path:
        """One writer's columns."""
        return self.folder / f"train_data_step{self.number}.columns-{shard_id}.json"

    def find_shards(self) -> list[str]:
        """The ids of the shards that have a part in the folder, in merge order."""
        prefix = self.part("").name
        names = (path.name for path in self.folder.iterdir()) if self.folder.is_dir() else ()
        return sorted((name[len(prefix) :] for name in names if _is_shard_file(name, prefix)), key=shard_order)

    def leftovers(self) -> list[Path]:
        """Every unpublished file of the step: column files, parts, whatever a publication was writing."""
        if not self.folder.is_dir():
            return []
        here = sorted(path for path in self.folder.iterdir())
        columns = self.columns("").name.removesuffix(".json")
        return (
            [p for p in here if p.name.endswith(".json") and _is_shard_file(p.name.removesuffix(".json"), columns)]
            + [self.part(shard_id) for shard_id in self.find_shards()]
            + [p for p in here if p.name.endswith(".partial") and p.name.startswith(f"train_data_step{self.number}.")]
        )


def _is_shard_file(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and _SHARD_ID.fullmatch(name[len(prefix) :]) is not None


def check_shard_id(shard_id: str) -> str:
    """Return a usable shard id.

    Raises:
        ValueError: It is not 1 to 128 of the characters A-Z a-z 0-9 . _ - or it is "." or "..".
    """
    if not isinstance(shard_id, str) or not _SHARD_ID.fullmatch(shard_id) or shard_id in {".", ".."}:
        shown = repr(shard_id) if len(repr(shard_id)) < 80 else f"{repr(shard_id)[:60]}... ({len(shard_id)} characters)"
        raise ValueError(
            f"shard_id is {shown}: 1 to 128 characters of A-Z a-z 0-9 . _ - are allowed, and neither '.' nor '..'"
        )
    return shard_id


def shard_order(shard_id: str) -> tuple[bool, int, str]:
    """The sort key of the merge: whole numbers by value, then the rest by text; the same on every machine."""
    is_number = shard_id.isdecimal()
    return (not is_number, int(shard_id) if is_number else 0, shard_id)


def published_steps(folder: Path) -> list[StepFiles]:
    """The published steps of a folder, oldest number first."""
    return _steps(folder, _PUBLISHED)


def described_steps(folder: Path) -> list[StepFiles]:
    """The steps of a folder that have a manifest, oldest number first."""
    return _steps(folder, _MANIFEST)


def unpublished_steps(folder: Path) -> list[StepFiles]:
    """The steps that have parts or an unfinished merge in the folder, oldest number first."""
    return _steps(folder, _UNPUBLISHED)


def _steps(folder: Path, pattern: re.Pattern[str]) -> list[StepFiles]:
    numbers = {int(match[1]) for path in folder.iterdir() if (match := pattern.fullmatch(path.name))}
    return [StepFiles(folder, number) for number in sorted(numbers)]
