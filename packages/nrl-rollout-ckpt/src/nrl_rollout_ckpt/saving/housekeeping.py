"""Room on the disk: before a snapshot, and what goes after it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from nrl_interfaces.fileops import FileOps

from nrl_rollout_ckpt.config import RolloutCheckpointConfig
from nrl_rollout_ckpt.disk.layout import list_snapshots
from nrl_rollout_ckpt.disk.retention import (
    fit_disk_budget,
    folder_bytes,
    prune_bootstrap_snapshots,
    prune_older_anchors,
    prune_snapshots,
    require_free_space,
)

_log = logging.getLogger(__name__)


def make_room(
    anchor: Path,
    saved_bytes: int,
    max_disk_bytes: int | None,
    ops: FileOps,
    free_bytes: Callable[[Path], int],
) -> None:
    """See to it that a snapshot as large as the last one fits; the newest complete one stays in any case.

    Args:
        anchor: What the snapshot goes under; its parent is the checkpoint folder.
        saved_bytes: The size of the last one; 0 where this process has saved none: then the newest on disk counts.
        max_disk_bytes: The budget of all snapshots together.
        ops: The operations on files.
        free_bytes: What the file system of a folder has left.

    Raises:
        OSError: With errno ENOSPC, if it does not fit.
    """
    expected = saved_bytes or sum(map(folder_bytes, list_snapshots(anchor)[:1]))
    if max_disk_bytes is not None:
        fit_disk_budget(anchor.parent, max_disk_bytes, ops, reserve_bytes=expected)
    require_free_space(anchor, expected, free_bytes)


def prune(anchor: Path, step: int, config: RolloutCheckpointConfig, ops: FileOps) -> None:
    """Remove what retention does not keep, once a newer snapshot is durable; what the disk refuses is a warning.

    Args:
        anchor: What the newer snapshot is under; its parent is the checkpoint folder.
        step: The anchor's step, 0 for the bootstrap anchor.
        config: How much is kept.
        ops: The operations on files.
    """
    try:
        prune_snapshots(anchor, config.keep_latest_k, ops)
        if step > 0:
            prune_older_anchors(anchor.parent, step, ops)
            prune_bootstrap_snapshots(anchor.parent, anchor, ops)
        if config.max_disk_bytes is not None:
            fit_disk_budget(anchor.parent, config.max_disk_bytes, ops)
    except (OSError, ValueError):
        _log.warning("older snapshots in %s are left for the next time", anchor.parent, exc_info=True)
