"""The names in a checkpoint folder, the paths of the next snapshot, and the folder's one owner."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from nrl_interfaces.fileops import WRITE_NEW, FileOps, OutputFile
from nrl_interfaces.ownership import FolderInUseError, Owner, lock, unlock
from nrl_interfaces.publish import make_folder, publish_folder

from nrl_rollout_ckpt.disk.trash import remove_leftover

if TYPE_CHECKING:
    from types import TracebackType

__all__ = [
    "BOOTSTRAP",
    "CONFIG",
    "DATA_PLANE",
    "ENVIRONMENT",
    "ENVIRONMENT_EPISODES",
    "OWNER_LOCK",
    "PROMPTS",
    "PROMPT_SOURCE",
    "RECOVERY",
    "REPLAY_INDEX",
    "RESERVE",
    "RESULTS",
    "SNAPSHOTS",
    "TRAINING_INFO",
    "FolderInUseError",
    "FolderOwner",
    "SnapshotPaths",
    "commit_snapshot",
    "leftovers",
    "list_snapshots",
    "prepare_snapshot_paths",
    "snapshot_entries",
    "snapshot_number",
    "snapshots_folder",
    "step_folders",
    "step_of",
    "sweep",
]

BOOTSTRAP: Final = "bootstrap"
SNAPSHOTS: Final = "rollout_snapshots"
OWNER_LOCK: Final = ".owner.lock"
TRAINING_INFO: Final = "training_info.json"
CONFIG: Final = "config.yaml"
DATA_PLANE: Final = "data_plane"
ENVIRONMENT: Final = "environment"
ENVIRONMENT_EPISODES: Final = "environment.json"
REPLAY_INDEX: Final = "replay_index.json"
RECOVERY: Final = "rollout_recovery.json"
RESERVE: Final = "replacement_reserve.json"
PROMPT_SOURCE: Final = "train_dataloader.pt"
PROMPTS: Final = "prompts.pt"
RESULTS: Final = "results.pt"

_SNAPSHOT: Final = re.compile(r"(tmp_|trash_|)snapshot_([0-9]+)")


class SnapshotPaths(NamedTuple):
    """Where a snapshot is written, and where it is once it is published.

    Attributes:
        temporary: An empty folder.
        final: Its name afterwards.
        sequence: Its number.
    """

    temporary: Path
    final: Path
    sequence: int


def step_of(name: str) -> int | None:
    """The step of a trainer checkpoint's folder name; None for any other name.

    >>> step_of("step_12"), step_of("step_012"), step_of("tmp_step_12")
    (12, None, None)
    """
    digits = name.removeprefix("step_")
    return int(digits) if digits.isascii() and digits.isdigit() and name == f"step_{int(digits)}" else None


def snapshot_number(name: str) -> int | None:
    """The number of a snapshot's folder name; None for any other name.

    >>> snapshot_number("snapshot_000007"), snapshot_number("snapshot_7"), snapshot_number("tmp_snapshot_000007")
    (7, None, None)
    """
    match = _SNAPSHOT.fullmatch(name)
    return int(match[2]) if match and name == f"snapshot_{int(match[2]):06d}" else None


def snapshots_folder(anchor: Path) -> Path:
    """Where the snapshots of an anchor are."""
    return anchor / SNAPSHOTS


def step_folders(checkpoint_dir: Path) -> dict[int, Path]:
    """The trainer checkpoints by step, the newest first; ``old_step_N`` where a replacement left no ``step_N``."""
    found: dict[int, Path] = {}
    for prefix in ("old_", ""):  # step_N comes second and wins
        for path in _folders(checkpoint_dir):
            step = step_of(path.name.removeprefix(prefix)) if path.name.startswith(prefix) else None
            if step is not None:
                found[step] = path
    return dict(sorted(found.items(), reverse=True))


def list_snapshots(anchor: Path) -> list[Path]:
    """The snapshots of an anchor, complete or not, the newest first; symbolic links are none."""
    return [path for path in snapshot_entries(anchor) if path.name.startswith("snapshot_") and _is_folder(path)]


def leftovers(anchor: Path) -> list[Path]:
    """Folders of snapshots that were never published, or whose removal has begun, the newest first."""
    return [path for path in snapshot_entries(anchor) if not path.name.startswith("snapshot_") and _is_folder(path)]


def snapshot_entries(anchor: Path) -> list[Path]:
    """Whatever has the name of a snapshot, also ``tmp_`` and ``trash_``, the newest first."""
    try:
        paths = list(snapshots_folder(anchor).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted((path for path in paths if _is_exact(path.name)), key=_number, reverse=True)


def prepare_snapshot_paths(anchor: Path, ops: FileOps) -> SnapshotPaths:
    """Make the folder that the next snapshot is written into; only the checkpoint folder's owner may.

    What earlier attempts left behind is removed first. The number is above that of every folder that is there, so that
    no name comes twice, not even that of a damaged snapshot.

    Raises:
        OSError: The disk refused.
    """
    folder = snapshots_folder(anchor)
    make_folder(folder, ops)
    sweep(anchor, ops)
    sequence = max((_number(folder / name) for name in os.listdir(folder)), default=-1)  # noqa: PTH208 - links too
    sequence = max(sequence, 0) + 1
    temporary = folder / f"tmp_snapshot_{sequence:06d}"
    ops.mkdir(temporary)
    return SnapshotPaths(temporary, folder / f"snapshot_{sequence:06d}", sequence)


def commit_snapshot(temporary: Path, final: Path, ops: FileOps) -> None:
    """Publish a snapshot: everything in it is durable before its name is there.

    Raises:
        OSError: The disk refused; unless its last fsync failed, the snapshot is still under its temporary name.
        ValueError: Something in it is neither a regular file nor a folder.
    """
    publish_folder(temporary, final, ops)


def sweep(anchor: Path, ops: FileOps) -> None:
    """Remove what earlier attempts and interrupted removals left; what can't be removed is a warning."""
    for path in leftovers(anchor):
        remove_leftover(path, ops)


def _folders(path: Path) -> list[Path]:
    try:
        return [child for child in path.iterdir() if child.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _number(path: Path) -> int:
    match = _SNAPSHOT.fullmatch(path.name)
    return int(match[2]) if match else -1


def _is_exact(name: str) -> bool:
    return snapshot_number(name.removeprefix("tmp_").removeprefix("trash_")) is not None


# ---- The owner ----


class FolderOwner:
    """Holds a checkpoint folder, for as long as the block runs: one process saves into it, others read.

    The lock ends with the process, however that ends. It stands in ``.owner.lock``, with host, process id and start.

    Raises:
        FolderInUseError: Somebody else holds it; says who and since when.
        OSError: The folder can't be made or written.
    """

    def __init__(self, checkpoint_dir: Path, ops: FileOps, now: Callable[[], float] = time.time) -> None:
        make_folder(checkpoint_dir, ops)
        path = checkpoint_dir / OWNER_LOCK
        self._file = OutputFile(path, WRITE_NEW, ops)
        try:
            lock(self._file, lambda: read_owner(checkpoint_dir))
            self._file.truncate(0)
            self._file.write(json.dumps(Owner.this_process(now).to_json()).encode() + b"\n")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the folder up; safe to call twice. The file stays: removing it would let two owners in."""
        if not self._file.closed:
            unlock(self._file)
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_owner(checkpoint_dir: Path) -> Owner | None:
    """Who holds the folder, or held it last; None where that is not on disk."""
    try:
        content: dict[str, Any] = json.loads((checkpoint_dir / OWNER_LOCK).read_bytes())
        return Owner.from_json(content)
    except (OSError, KeyError, TypeError, ValueError):
        return None
