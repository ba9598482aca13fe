"""Which snapshots go: the older ones, those that nobody can restore any more, and what a disk budget does not hold."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from nrl_interfaces.fileops import FileOps

from nrl_rollout_ckpt.disk.layout import (
    BOOTSTRAP,
    list_snapshots,
    snapshots_folder,
    step_folders,
    sweep,
)
from nrl_rollout_ckpt.disk.manifest import MANIFEST, NewerFormatError, digest_of_anchor, read_manifest, verify_files
from nrl_rollout_ckpt.disk.trash import discard

__all__ = [
    "fit_disk_budget",
    "folder_bytes",
    "free_bytes_of",
    "is_complete",
    "prune_bootstrap_snapshots",
    "prune_older_anchors",
    "prune_snapshots",
    "require_free_space",
]

logger = logging.getLogger(__name__)


def prune_snapshots(anchor: Path, keep_latest_k: int, ops: FileOps) -> list[Path]:
    """Keep the newest complete snapshots of an anchor, remove every older one, damaged ones with them.

    A damaged one that is newer than the oldest kept stays to be looked at. What the disk refuses is a warning.

    Args:
        anchor: The trainer checkpoint or the bootstrap anchor.
        keep_latest_k: How many complete ones stay, from 1.
        ops: The operations on files.

    Returns:
        Those that are gone.

    Raises:
        ValueError: If `keep_latest_k` is not allowed.
    """
    if type(keep_latest_k) is not int or keep_latest_k < 1:
        raise ValueError(f"keep_latest_k is {keep_latest_k!r}; allowed: an int from 1")
    sweep(anchor, ops)
    snapshots = list_snapshots(anchor)
    kept = [at for at, path in enumerate(snapshots) if is_complete(path)][:keep_latest_k]
    older = snapshots[kept[-1] + 1 :] if kept else []
    return _discard(older, ops)


def prune_older_anchors(checkpoint_dir: Path, newest_step: int, ops: FileOps) -> list[Path]:
    """Remove the snapshots of trainer checkpoints before `newest_step`, once that one is durable.

    Nobody restores them: a start goes on from the newest trainer checkpoint. What else is in these stays.

    Returns:
        The snapshots that are gone.
    """
    steps = step_folders(checkpoint_dir)
    if newest_step not in steps:
        return []
    older = [path for step, path in steps.items() if step < newest_step and not path.is_symlink()]
    return [gone for anchor in older for gone in _clear_anchor(anchor, ops)]


def prune_bootstrap_snapshots(checkpoint_dir: Path, durable_trainer_checkpoint: Path, ops: FileOps) -> bool:
    """Remove the snapshots from before the first trainer checkpoint, once there is one; their anchor's manifest stays.

    Returns:
        Whether any is gone.

    Raises:
        NotADirectoryError: `durable_trainer_checkpoint` is no folder.
    """
    if not durable_trainer_checkpoint.is_dir():
        raise NotADirectoryError(f"{durable_trainer_checkpoint} is no folder: the bootstrap snapshots stay")
    return bool(_clear_anchor(checkpoint_dir / BOOTSTRAP, ops))


def fit_disk_budget(checkpoint_dir: Path, max_disk_bytes: int, ops: FileOps, *, reserve_bytes: int = 0) -> list[Path]:
    """Remove snapshots until the rest fits: damaged ones first, then the oldest; the newest complete one always stays.

    Args:
        checkpoint_dir: The folder of the trainer checkpoints.
        max_disk_bytes: What all snapshots together may take.
        ops: The operations on files.
        reserve_bytes: What a snapshot that is about to be written will take of it.

    Returns:
        Those that are gone.
    """
    anchors = [checkpoint_dir / BOOTSTRAP, *reversed(step_folders(checkpoint_dir).values())]
    oldest_first = [path for anchor in anchors for path in reversed(list_snapshots(anchor))]
    complete = [path for path in oldest_first if is_complete(path)]
    doomed = [*(path for path in oldest_first if path not in complete), *complete[:-1]]
    sizes = {path: folder_bytes(path) for path in oldest_first}
    total, gone = sum(sizes.values()), list[Path]()
    for path in doomed:
        if total + reserve_bytes > max_disk_bytes and _discard([path], ops):
            gone.append(path)
            total -= sizes[path]
    if total > max_disk_bytes and not reserve_bytes:
        logger.warning("snapshots in %s take %d bytes, max_disk_bytes is %d", checkpoint_dir, total, max_disk_bytes)
    return gone


def is_complete(snapshot: Path) -> bool:
    """Whether a snapshot is one of its anchor, with every file there in its size; their bytes are not read."""
    try:
        manifest = read_manifest(snapshot / MANIFEST)
        is_of_anchor = manifest.anchor_digest == digest_of_anchor(snapshot.parent.parent)
        return is_of_anchor and not verify_files(snapshot, manifest, digests=False)
    except (OSError, ValueError):
        return False


def folder_bytes(folder: Path) -> int:
    """The size of all files in a folder, in bytes; links count for nothing, and so does what goes meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            try:
                total += 0 if path.is_symlink() else path.stat().st_size
            except FileNotFoundError:
                continue
    return total


def free_bytes_of(folder: Path) -> int:
    """What the file system of a folder has left, in bytes."""
    return shutil.disk_usage(folder).free


def require_free_space(folder: Path, needed_bytes: int, free_bytes: Callable[[Path], int] = free_bytes_of) -> None:
    """Refuse to begin what would not fit.

    Raises:
        OSError: With errno ENOSPC, if the file system of `folder` has less left than `needed_bytes`.
    """
    free = free_bytes(folder)
    if free < needed_bytes:
        text = f"a snapshot needs about {needed_bytes} bytes and {free} are left: set max_disk_bytes, or make room"
        raise OSError(errno.ENOSPC, text, str(folder))


def _clear_anchor(anchor: Path, ops: FileOps) -> list[Path]:
    """Remove all snapshots of an anchor; their folder goes with them if nothing else is in it."""
    if anchor.is_symlink() or snapshots_folder(anchor).is_symlink():
        return []
    sweep(anchor, ops)
    gone = _discard(list_snapshots(anchor), ops)
    folder = snapshots_folder(anchor)
    if folder.is_dir() and not any(folder.iterdir()):
        try:
            ops.rmdir(folder)
            ops.fsync_folder(anchor)
        except OSError as error:
            logger.warning("%s can't be removed: %s", folder, error)
    return gone


def _discard(snapshots: Iterable[Path], ops: FileOps) -> list[Path]:
    return [path for path in snapshots if not _is_newer_format(path) and discard(path, ops)]


def _is_newer_format(snapshot: Path) -> bool:
    """Whether a later version wrote it, which alone can tell what it is worth."""
    try:
        read_manifest(snapshot / MANIFEST)
    except NewerFormatError:
        return True
    except (OSError, ValueError):
        pass
    return False
