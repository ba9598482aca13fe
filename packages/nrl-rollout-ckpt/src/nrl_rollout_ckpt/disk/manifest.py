"""The manifest of a snapshot: what it is of, and the size and digest of every file in it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path, PurePosixPath
from typing import Any, Final, Self, cast

from nrl_interfaces.identity import canonical_json

from nrl_rollout_ckpt.disk.digests import digest_of_bytes, digest_of_file
from nrl_rollout_ckpt.disk.layout import TRAINING_INFO
from nrl_rollout_ckpt.state.rollout_state import CheckpointKind

__all__ = [
    "MANIFEST",
    "SUPPORTED_VERSIONS",
    "TRAINER_MANIFEST",
    "FileRecord",
    "NewerFormatError",
    "RolloutSnapshotManifest",
    "SnapshotCounts",
    "describe_files",
    "digest_of_anchor",
    "manifest_name",
    "read_manifest",
    "refuse_newer_format",
    "verify_files",
]

MANIFEST: Final = "manifest.json"
TRAINER_MANIFEST: Final = "rollout_manifest.json"
"""The name within a trainer checkpoint, where other files may have a manifest of their own."""
SUPPORTED_VERSIONS: Final = (1,)
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}|xxh3_128:[0-9a-f]{32}")


class NewerFormatError(ValueError):
    """Raised when a file was written by a later version of this package.

    Attributes:
        what: The file.
        version: Its format version.
        supported: The versions that this package reads.
    """

    def __init__(self, what: str, version: int, supported: tuple[int, ...]) -> None:
        super().__init__(what, version, supported)
        self.what, self.version, self.supported = what, version, supported

    def __str__(self) -> str:
        supported = ", ".join(map(str, self.supported))
        return (
            f"{self.what} has format version {self.version}; this version of nrl-rollout-ckpt reads {supported}:"
            " update it"
        )


def refuse_newer_format(what: str, version: object, supported: tuple[int, ...] = SUPPORTED_VERSIONS) -> None:
    """Check a format version.

    Raises:
        NewerFormatError: It is above the supported ones.
        ValueError: It is no version at all.
    """
    if type(version) is int and version > max(supported):
        raise NewerFormatError(what, version, supported)
    if type(version) is not int or version not in supported:
        raise ValueError(f"{what}: schema_version is {version!r}; allowed: {', '.join(map(str, supported))}")


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of a snapshot.

    Attributes:
        path: Relative to the snapshot's folder, with ``/``.
        size: Bytes.
        digest: ``sha256:<hex>`` for JSON, ``xxh3_128:<hex>`` for everything else.

    Raises:
        ValueError: If a value is not allowed.
    """

    path: str
    size: int
    digest: str

    def __post_init__(self) -> None:
        _check("files.path", self.path, "a relative path within the folder", _is_inner_path(self.path))
        _check("files.size", self.size, "an int from 0", _is_int(self.size, 0))
        digest = isinstance(self.digest, str) and _DIGEST.fullmatch(self.digest) is not None
        _check("files.digest", self.digest, "'sha256:<64 hex digits>' or 'xxh3_128:<32 hex digits>'", digest)


@dataclass(frozen=True, slots=True)
class SnapshotCounts:
    """What a snapshot holds, for people and for the account of what is lost where it can't be restored.

    Attributes:
        replay_groups: Complete groups.
        ledger_groups: Groups that were not complete.
        reserve: Prompts of the replacement reserve.
        rows: Rows in the data plane.
        environment_episodes: Episodes that the environment saved.

    Raises:
        ValueError: If a value is not allowed.
    """

    replay_groups: int = 0
    ledger_groups: int = 0
    reserve: int = 0
    rows: int = 0
    environment_episodes: int = 0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            _check(f"counts.{name}", value, "an int from 0", _is_int(value, 0))


@dataclass(frozen=True)
class RolloutSnapshotManifest:
    """What a snapshot, or the rollout state of a trainer checkpoint, is of.

    Attributes:
        kind: What wrote it.
        created: Seconds since the epoch.
        base_train_step: The step of the trainer checkpoint that it belongs to; 0 under the bootstrap anchor.
        trainer_version: The version of the weights.
        current_epoch: The epoch of the prompt source.
        sampler_name: The sampler's name.
        sampler_dispatch_index: The sampler's cursor, from -1.
        mutation_version: The barrier's.
        rolled_back_train_group_count: Groups of an open train step, which a restart trains on again.
        bootstrap_fingerprint: The run's fingerprint before its first trainer checkpoint; None afterwards.
        anchor_digest: Of the trainer checkpoint that a snapshot belongs to, see `digest_of_anchor`.
        counts: What it holds.
        files: Every file but the manifest, by path.
        schema_version: The version of the format.

    Raises:
        ValueError: If a value is not allowed; names the field.
    """

    kind: CheckpointKind
    created: float
    base_train_step: int
    trainer_version: int
    current_epoch: int
    sampler_name: str
    sampler_dispatch_index: int
    mutation_version: int
    rolled_back_train_group_count: int
    bootstrap_fingerprint: str | None = None
    anchor_digest: str | None = None
    counts: SnapshotCounts = field(default_factory=SnapshotCounts)
    files: tuple[FileRecord, ...] = ()
    schema_version: int = SUPPORTED_VERSIONS[-1]

    def __post_init__(self) -> None:
        refuse_newer_format("a manifest", self.schema_version)
        kinds = [kind.value for kind in CheckpointKind]
        _check("kind", self.kind, f"one of {kinds}", self.kind in kinds)
        object.__setattr__(self, "kind", CheckpointKind(self.kind))
        created = type(self.created) in (int, float) and 0 <= self.created < float("inf")
        _check("created", self.created, "seconds since the epoch", created)
        for name in ("base_train_step", "trainer_version", "current_epoch"):
            _check(name, getattr(self, name), "an int from 0", _is_int(getattr(self, name), 0))
        for name in ("mutation_version", "rolled_back_train_group_count"):
            _check(name, getattr(self, name), "an int from 0", _is_int(getattr(self, name), 0))
        _check(
            "sampler_dispatch_index",
            self.sampler_dispatch_index,
            "an int from -1",
            _is_int(self.sampler_dispatch_index, -1),
        )
        _check("sampler_name", self.sampler_name, "a string", isinstance(self.sampler_name, str))
        marked = self.bootstrap_fingerprint
        _check("bootstrap_fingerprint", marked, "a string or None", marked is None or isinstance(marked, str))
        anchor = self.anchor_digest
        is_digest = isinstance(anchor, str) and _DIGEST.fullmatch(anchor) is not None
        _check("anchor_digest", anchor, "'sha256:<64 hex digits>' or None", anchor is None or is_digest)
        paths = [record.path for record in self.files]
        _check("files", paths, "each path once", len(set(paths)) == len(paths))
        object.__setattr__(self, "files", tuple(sorted(self.files, key=lambda record: record.path)))

    @property
    def file_names(self) -> frozenset[str]:
        """The paths of all files."""
        return frozenset(record.path for record in self.files)

    @property
    def total_bytes(self) -> int:
        """The size of all files."""
        return sum(record.size for record in self.files)

    def to_json(self) -> bytes:
        """Write it: sorted, indented, with a digest of everything else in it, and one line break at the end."""
        content = asdict(self)
        content["kind"] = self.kind.value
        content["digest"] = _self_digest(content)
        return (json.dumps(content, sort_keys=True, indent=2, allow_nan=False) + "\n").encode()

    @classmethod
    def from_mapping(cls, content: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote, parsed.

        Raises:
            NewerFormatError: It was written by a later version.
            ValueError: A field is missing, not known, or has a value that is not allowed; or the digest differs.
        """
        if not isinstance(content, Mapping):
            raise ValueError(f"a manifest is a {type(content).__name__}; allowed: an object")
        refuse_newer_format("a manifest", content.get("schema_version"))
        known = {item.name for item in fields(cls)} | {"digest"}
        for name in sorted(known ^ set(content)):
            raise ValueError(f"{name} {'is missing' if name in known else 'is no field of a manifest'}")
        values = {name: value for name, value in content.items() if name != "digest"}
        if content["digest"] != _self_digest(values):
            raise ValueError("digest is not that of the other fields: the manifest was changed")
        values["counts"] = _build(SnapshotCounts, "counts", values["counts"])
        if not isinstance(values["files"], list):
            raise ValueError(f"files is {values['files']!r}; allowed: a list")
        values["files"] = tuple(_build(FileRecord, "files", item) for item in cast("list[Any]", values["files"]))
        return cls(**values)


def manifest_name(kind: CheckpointKind) -> str:
    """The manifest's file name: a trainer checkpoint may hold a ``manifest.json`` of somebody else."""
    return TRAINER_MANIFEST if kind is CheckpointKind.TRAINER_CHECKPOINT else MANIFEST


def digest_of_anchor(anchor: Path) -> str | None:
    """Tell a trainer checkpoint from one of the same step that another run saved.

    Returns:
        The digest of its ``rollout_manifest.json``, which names the moment it was made; without one, that of its
        counters. None for the bootstrap anchor, which has neither, and is told by its fingerprint.

    Raises:
        OSError: The file can't be read.
    """
    for name in (TRAINER_MANIFEST, TRAINING_INFO):
        if (anchor / name).is_file():
            return digest_of_file(anchor / name)
    return None


def read_manifest(path: Path) -> RolloutSnapshotManifest:
    """Read a manifest file.

    Raises:
        NewerFormatError: It was written by a later version.
        ValueError: It is damaged.
        OSError: There is none, or it can't be read.
    """
    if path.is_symlink():
        raise ValueError(f"{path}: it is a symbolic link")
    data = path.read_bytes()
    try:
        manifest = RolloutSnapshotManifest.from_mapping(json.loads(data))
    except NewerFormatError as error:
        raise NewerFormatError(str(path), error.version, error.supported) from None
    except RecursionError:
        raise ValueError(f"{path}: nested too deep") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if manifest.to_json() != data:
        raise ValueError(f"{path}: it says what a manifest says, in another form: it was changed")
    return manifest


def describe_files(folder: Path, names: Iterable[str] | None = None) -> tuple[FileRecord, ...]:
    """Measure the files of a snapshot, one pass over their bytes.

    Args:
        folder: The snapshot, or the trainer checkpoint.
        names: Files and folders in it that belong to the rollout state; None: everything in it but a manifest.

    Raises:
        ValueError: A symbolic link, or what is neither a file nor a folder, is among them.
        OSError: One is missing or can't be read.
    """
    found = _files_in(folder) if names is None else (path for name in names for path in _files_at(folder / name))
    paths = {path.relative_to(folder).as_posix(): path for path in found}
    return tuple(
        FileRecord(name, path.stat().st_size, digest_of_file(path))
        for name, path in sorted(paths.items())
        if name not in (MANIFEST, TRAINER_MANIFEST)
    )


def verify_files(folder: Path, manifest: RolloutSnapshotManifest, *, digests: bool = True) -> list[str]:
    """Compare the files with the manifest, one pass over their bytes; other files in the folder don't matter.

    Args:
        folder: Where the files are.
        manifest: What they should be.
        digests: False compares the sizes only.

    Returns:
        What is wrong, one line a file; empty where nothing is.
    """
    problems = ((record.path, _problem_of(folder, record, digests=digests)) for record in manifest.files)
    return [f"{path} {problem}" for path, problem in problems if problem]


def _problem_of(folder: Path, record: FileRecord, *, digests: bool) -> str | None:
    path = folder
    for part in PurePosixPath(record.path).parts:
        path = path / part
        if path.is_symlink():
            return "is reached over a symbolic link"
    try:
        if not path.is_file():
            return "is no file" if path.exists() else "is missing"
        size = path.stat().st_size
        if size != record.size:
            return f"has {size} bytes; the manifest says {record.size}"
        return "has other bytes than the manifest says" if digests and digest_of_file(path) != record.digest else None
    except OSError as error:
        return f"can't be read: {error.strerror}"


def _files_at(path: Path) -> Iterator[Path]:
    return _files_in(path) if path.is_dir() and not path.is_symlink() else iter([_regular(path)])


def _files_in(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        for entry in entries:
            path = folder / entry.name
            if entry.is_dir(follow_symlinks=False):
                yield from _files_in(path)
            else:
                yield _regular(path)


def _regular(path: Path) -> Path:
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise ValueError(f"{path} is neither a regular file nor a folder: only these can be in a snapshot")
    return path


def _self_digest(content: Mapping[str, Any]) -> str:
    return f"sha256:{digest_of_bytes(canonical_json(content))}"


def _build(kind: type[Any], name: str, content: Any) -> Any:
    if not isinstance(content, dict):
        raise ValueError(f"{name} is {content!r}; allowed: an object")
    known = {item.name for item in fields(kind)}
    for key in sorted(known ^ set(cast("dict[str, Any]", content))):
        raise ValueError(f"{name}.{key} {'is missing' if key in known else 'is no field of a manifest'}")
    return kind(**content)


def _is_int(value: object, lowest: int) -> bool:
    return type(value) is int and value >= lowest


def _is_inner_path(path: object) -> bool:
    if not isinstance(path, str) or not path or "\\" in path or "\0" in path:
        return False
    return str(PurePosixPath(path)) == path and not path.startswith("/") and ".." not in PurePosixPath(path).parts


def _check(name: str, value: object, allowed: str, holds: bool) -> None:  # noqa: FBT001
    if not holds:
        raise ValueError(f"{name} is {value!r}; allowed: {allowed}")
