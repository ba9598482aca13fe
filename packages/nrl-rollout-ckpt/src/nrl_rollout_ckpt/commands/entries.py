"""What is in a checkpoint folder: trainer checkpoints with rollout state, the bootstrap anchor, and snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from nrl_rollout_ckpt.disk.bootstrap import read_bootstrap_anchor
from nrl_rollout_ckpt.disk.layout import BOOTSTRAP, snapshot_entries, snapshot_number, step_folders, step_of
from nrl_rollout_ckpt.disk.manifest import (
    MANIFEST,
    TRAINER_MANIFEST,
    NewerFormatError,
    RolloutSnapshotManifest,
    read_manifest,
    verify_files,
)
from nrl_rollout_ckpt.disk.retention import folder_bytes

State = Literal["complete", "damaged", "unpublished", "being removed", "newer format", "no rollout state"]


@dataclass(frozen=True)
class Entry:
    """One thing that may be restored, or was meant to be.

    Attributes:
        path: Its folder.
        anchor: The name of the anchor that it belongs to, or is.
        state: "unpublished" is being written, or was left by a process that ended.
        problems: Why it is not complete.
        size: Bytes: of all files of a snapshot, of the rollout state of a trainer checkpoint.
        manifest: What it says of itself; None where that can't be read.
    """

    path: Path
    anchor: str
    state: State
    problems: tuple[str, ...] = ()
    size: int = 0
    manifest: RolloutSnapshotManifest | None = None

    def age_s(self, now: float) -> float | None:
        """Seconds from its creation to `now` (since the epoch); None where that is not known."""
        return None if self.manifest is None else max(0.0, now - self.manifest.created)

    def to_json(self, now: float) -> dict[str, Any]:
        """It as plain data."""
        manifest = self.manifest
        return {
            "anchor": self.anchor,
            "path": str(self.path),
            "state": self.state,
            "problems": list(self.problems),
            "bytes": self.size,
            "created": manifest and manifest.created,
            "age_s": self.age_s(now),
            "train_step": manifest and manifest.base_train_step,
            "counts": manifest and asdict(manifest.counts),
        }


def list_entries(checkpoint_dir: Path, *, digests: bool) -> Iterator[Entry]:
    """Look at everything in a checkpoint folder, the oldest first; with `digests` every byte is read."""
    bootstrap = checkpoint_dir / BOOTSTRAP
    anchors = [*([bootstrap] if bootstrap.is_dir() else []), *reversed(step_folders(checkpoint_dir).values())]
    for anchor in anchors:
        yield look_at(anchor, digests=digests)
        for path in reversed(snapshot_entries(anchor)):
            yield look_at(path, digests=digests)


class _Verify(Protocol):
    def __call__(self, folder: Path, manifest: RolloutSnapshotManifest, /, *, digests: bool) -> list[str]: ...


def look_at(path: Path, *, digests: bool, verify: _Verify = verify_files) -> Entry:
    """Look at one thing; its kind is told by its name."""
    name = path.name
    if name == BOOTSTRAP:
        return _bootstrap_anchor(path)
    if is_trainer_checkpoint(path):
        return _trainer_checkpoint(path, digests, verify)
    anchor, size = path.absolute().parent.parent.name, folder_bytes(path)
    if name.startswith("tmp_"):
        return Entry(path, anchor, "unpublished", ("is being written, or its process ended before",), size)
    if name.startswith("trash_"):
        return Entry(path, anchor, "being removed", ("the next attempt goes on with it",), size)
    return _judged(path, anchor, MANIFEST, size, digests, verify)


def is_trainer_checkpoint(path: Path) -> bool:
    """Whether a folder is named as a trainer checkpoint."""
    return step_of(path.name.removeprefix("old_")) is not None


def is_snapshot(path: Path) -> bool:
    """Whether a folder is named as a snapshot, be it one that is written or removed."""
    return snapshot_number(path.name.removeprefix("tmp_").removeprefix("trash_")) is not None


def is_checkpoint_folder(path: Path) -> bool:
    """Whether anything is in a folder that is in checkpoint folders."""
    return (path / BOOTSTRAP).is_dir() or bool(step_folders(path))


def _bootstrap_anchor(path: Path) -> Entry:
    size = (path / MANIFEST).stat().st_size if (path / MANIFEST).is_file() else 0
    try:
        anchor = read_bootstrap_anchor(path.parent)
    except NewerFormatError as error:
        return Entry(path, BOOTSTRAP, "newer format", (str(error),), size)
    except (OSError, ValueError) as error:
        return Entry(path, BOOTSTRAP, "damaged", (str(error),), size)
    if anchor is None:
        return Entry(path, BOOTSTRAP, "damaged", (f"has no {MANIFEST}",))
    return Entry(path, BOOTSTRAP, "complete", size=size)


def _trainer_checkpoint(path: Path, digests: bool, verify: _Verify) -> Entry:  # noqa: FBT001
    if not (path / TRAINER_MANIFEST).exists():
        return Entry(path, path.name, "no rollout state", (f"has no {TRAINER_MANIFEST}",))
    entry = _judged(path, path.name, TRAINER_MANIFEST, 0, digests, verify)
    size = 0 if entry.manifest is None else entry.manifest.total_bytes
    return Entry(path, path.name, entry.state, entry.problems, size, entry.manifest)


def _judged(path: Path, anchor: str, manifest_name: str, size: int, digests: bool, verify: _Verify) -> Entry:  # noqa: FBT001
    if path.is_symlink() or not path.is_dir():
        return Entry(path, anchor, "damaged", ("is no folder of its own",))
    try:
        manifest = read_manifest(path / manifest_name)
    except NewerFormatError as error:
        return Entry(path, anchor, "newer format", (str(error),), size)
    except FileNotFoundError:
        return Entry(path, anchor, "damaged", (f"has no {manifest_name}: it is not complete",), size)
    except (OSError, ValueError) as error:
        return Entry(path, anchor, "damaged", (str(error),), size)
    problems = tuple(verify(path, manifest, digests=digests))
    if problems and not path.exists():
        return Entry(path, anchor, "being removed", ("went while it was read",), size, manifest)
    return Entry(path, anchor, "damaged" if problems else "complete", problems, size, manifest)
