"""Retention by hand."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from nrl_interfaces.fileops import FileOps

from nrl_rollout_ckpt.disk.layout import BOOTSTRAP, FolderOwner, leftovers, step_folders
from nrl_rollout_ckpt.disk.retention import prune_bootstrap_snapshots, prune_older_anchors, prune_snapshots


class _Renames(FileOps):
    """Notes what was renamed, which is how a snapshot goes; a rehearsal changes nothing."""

    def __init__(self, *, rehearsal: bool) -> None:
        self.renamed: list[Path] = []
        self._rehearsal = rehearsal

    def rename(self, source: Path, target: Path) -> None:
        if not self._rehearsal:
            super().rename(source, target)
        self.renamed.append(source)

    def unlink(self, path: Path) -> None:
        if not self._rehearsal:
            super().unlink(path)

    def rmdir(self, path: Path) -> None:
        if not self._rehearsal:
            super().rmdir(path)

    def fsync_folder(self, path: Path) -> None:
        if not self._rehearsal:
            super().fsync_folder(path)


def prune(checkpoint_dir: Path, keep_latest_k: int, *, dry_run: bool) -> list[Path]:
    """Remove what a run would remove after its next snapshot: older snapshots of the newest anchor, all of older ones.

    What attempts left behind that did not come to their end goes, too. It is done as the folder's owner; a dry run
    only looks, and takes no lock.

    Args:
        checkpoint_dir: The folder of the trainer checkpoints.
        keep_latest_k: How many complete snapshots of the newest anchor stay.
        dry_run: Only say what would go.

    Returns:
        What is gone.

    Raises:
        FolderInUseError: A run holds the folder.
        OSError: The folder can't be read or locked.
    """
    ops = _Renames(rehearsal=dry_run)
    with contextlib.nullcontext() if dry_run else FolderOwner(checkpoint_dir, FileOps(), time.time):
        steps = step_folders(checkpoint_dir)
        bootstrap = checkpoint_dir / BOOTSTRAP
        unfinished = [path for anchor in (bootstrap, *steps.values()) for path in leftovers(anchor)]
        if steps:
            newest_step, newest = next(iter(steps.items()))
            prune_snapshots(newest, keep_latest_k, ops)
            prune_older_anchors(checkpoint_dir, newest_step, ops)
            prune_bootstrap_snapshots(checkpoint_dir, newest, ops)
        else:
            prune_snapshots(bootstrap, keep_latest_k, ops)
        return [*ops.renamed, *(path for path in unfinished if dry_run or not path.exists())]
