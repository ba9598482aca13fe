"""What a published step holds, and whether it still does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash
from nrl_interfaces.publish import partial_path

from nrl_dump.columns import StepColumns
from nrl_dump.names import StepFiles
from nrl_dump.sealed import seal, unseal

_BLOCK_BYTES = 4 << 20
_FORMAT = "nrl-dump manifest"


class DamagedStepError(ValueError):
    """Raised when a published step is not what its manifest says.

    Attributes:
        path: The published file.
        reason: What differs.
    """

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path} is damaged: {reason}; restore it from a copy, or write the step again")

    def __reduce__(self) -> tuple[type[DamagedStepError], tuple[Path, str]]:
        return type(self), (self.path, self.reason)


class InterruptedStepError(RuntimeError):
    """Raised when a step's publication did not come to its end; its parts are still there.

    Attributes:
        path: The published file.
        step: The trainer's step.
        reason: What differs.
    """

    def __init__(self, path: Path, step: int, reason: str) -> None:
        self.path = path
        self.step = step
        self.reason = reason
        super().__init__(f"the publication of {path} was interrupted ({reason}): call finish_step({step}) again")

    def __reduce__(self) -> tuple[type[InterruptedStepError], tuple[Path, int, str]]:
        return type(self), (self.path, self.step, self.reason)


class NotPublishedError(FileNotFoundError):
    """Raised when a step is not published and nobody has tried to.

    Attributes:
        path: Where it would be.
        step: The trainer's step.
        shard_ids: The shards that have parts of it there.
    """

    def __init__(self, path: Path, step: int, shard_ids: list[str]) -> None:
        self.path = path
        self.step = step
        self.shard_ids = shard_ids
        if shard_ids:
            what = f"is not published: parts of the shards {shard_ids} are there; finish_step({step}) publishes them"
        else:
            what = "is not there, nor any part of that step"
        super().__init__(f"{path} {what}")

    def __reduce__(self) -> tuple[type[NotPublishedError], tuple[Path, int, list[str]]]:
        return type(self), (self.path, self.step, self.shard_ids)


@dataclass(frozen=True)
class ShardEntry:
    """What one shard gave to a published step.

    Attributes:
        shard_id: Which.
        rows: Its rows.
        bytes: Their size in the published file.
        attempt: The writing of the part that they come from, as its column file named it.
    """

    shard_id: str
    rows: int
    bytes: int
    attempt: str


@dataclass(frozen=True)
class Manifest:
    """What a published step holds.

    Attributes:
        number: `N`, as in the file's name and rows; the trainer's step + 1.
        rows: Rows in the file.
        bytes: Size of the file.
        xxh3_128: Digest of the file, as hex.
        columns: Dtypes, kinds and settings of the rows.
        shards: In the order of the rows.
        replaces: What the step held when this was published over it. Should a crash keep the file from following its
            manifest, this still tells what the file is.
    """

    number: int
    rows: int
    bytes: int
    xxh3_128: str
    columns: StepColumns
    shards: tuple[ShardEntry, ...]
    replaces: Manifest | None = None

    def to_bytes(self) -> bytes:
        """The manifest file's content."""
        return seal(_FORMAT, self.to_json())

    @classmethod
    def from_bytes(cls, content: bytes) -> Manifest:
        """Read a manifest.

        Raises:
            ValueError: The content is damaged, foreign, or of a newer format.
        """
        return unseal(_FORMAT, content, cls.from_json)

    def to_json(self) -> dict[str, Any]:
        """The manifest as plain data."""
        data = {
            "step": self.number,
            "rows": self.rows,
            "bytes": self.bytes,
            "xxh3_128": self.xxh3_128,
            **self.columns.settings(),
            "shards": [vars(shard) for shard in self.shards],
        }
        return data | ({"replaces": self.replaces.to_json()} if self.replaces else {})

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Manifest:
        """The inverse of `to_json`; KeyError, TypeError, AttributeError or ValueError if it is not that."""
        columns = StepColumns.from_settings(data)
        shards = tuple(ShardEntry(**shard) for shard in data["shards"])
        replaces = cls.from_json(data["replaces"]) if "replaces" in data else None
        return cls(data["step"], data["rows"], data["bytes"], data["xxh3_128"], columns, shards, replaces)


def read_manifest(files: StepFiles) -> Manifest | None:
    """The step's manifest, None if there is none.

    Raises:
        DamagedStepError: It can't be read.
    """
    try:
        return Manifest.from_bytes(files.manifest.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DamagedStepError(files.data, f"{files.manifest.name} can't be read: {error}") from error


def digest_of(path: Path) -> str:
    """A file's xxh3-128 as hex, read a block at a time."""
    digest = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def verify(path: str | Path) -> Manifest:
    """Check a published step against its manifest, every byte of it, and return the manifest.

    Args:
        path: The published file, `train_data_step<N>.jsonl`.

    Raises:
        NotPublishedError: A FileNotFoundError: the step is not there, or only in parts.
        InterruptedStepError: A publication did not come to its end; `finish_step` again mends it.
        DamagedStepError: File and manifest disagree and there is nothing to mend it from.
        ValueError: The path does not name a published step.
    """
    files = StepFiles.of_published(Path(path))
    manifest = check_size(files)
    digest = digest_of(files.data)
    if digest != manifest.xxh3_128:
        raise _disagreement(files, f"its digest is {digest} and not {manifest.xxh3_128}")
    return manifest


def check_size(files: StepFiles) -> Manifest:
    """The cheap half of `verify`: manifest and file are there and the size fits."""
    manifest = read_manifest(files)
    if not files.data.exists():
        if manifest is None and not partial_path(files.data).exists():
            raise NotPublishedError(files.data, files.step, files.find_shards())
        raise _disagreement(files, "the file is not there")
    if manifest is None:
        raise _disagreement(files, f"{files.manifest.name} is not there")
    if held_by_file(files, manifest) is not manifest:
        raise _disagreement(files, f"{files.data.stat().st_size} bytes are not the {manifest.bytes} of its manifest")
    return manifest


def held_by_file(files: StepFiles, manifest: Manifest) -> Manifest | None:
    """Which of a manifest and the one that it replaces the file is, by its size; None if neither."""
    size = files.data.stat().st_size
    fitting = [one for one in (manifest, manifest.replaces) if one is not None and one.bytes == size]
    if len({one.xxh3_128 for one in fitting}) == 2:  # the same size is no proof then
        digest = digest_of(files.data)
        fitting = [one for one in fitting if one.xxh3_128 == digest]
    return fitting[0] if fitting else None


def _disagreement(files: StepFiles, reason: str) -> DamagedStepError | InterruptedStepError:
    if files.find_shards():
        return InterruptedStepError(files.data, files.step, reason)
    return DamagedStepError(files.data, reason)
