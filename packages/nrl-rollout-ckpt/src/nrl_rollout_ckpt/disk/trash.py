"""Removal of whole folders: renamed first, so that one half removed never looks like one that is whole."""

import logging
import os
from pathlib import Path
from typing import Final

from nrl_interfaces.fileops import FileOps
from nrl_interfaces.publish import remove_folder

__all__ = ["TRASH", "discard", "move_to_trash", "remove_leftover"]

TRASH: Final = "trash_"

logger = logging.getLogger(__name__)


def discard(path: Path, ops: FileOps) -> bool:
    """Remove a folder; whether its name is gone. What the disk refuses is a warning: a later attempt may do it."""
    trash = move_to_trash(path, ops)
    if trash is not None:
        remove_leftover(trash, ops)
    return trash is not None


def move_to_trash(path: Path, ops: FileOps) -> Path | None:
    """Take a folder's name away, durably, before anything in it goes; None where it is a link, or the disk refuses."""
    trash = path.with_name(TRASH + path.name)
    if path.is_symlink() or (os.path.lexists(trash) and not remove_leftover(trash, ops)):
        return None
    try:
        ops.rename(path, trash)
        ops.fsync_folder(path.parent)
    except OSError as error:
        logger.warning("%s can't be removed: %s", path, error)
        return None
    return trash


def remove_leftover(path: Path, ops: FileOps) -> bool:
    """Remove a folder under a name that nobody reads; whether it is gone. What the disk refuses is a warning."""
    try:
        remove_folder(path, ops)
        ops.fsync_folder(path.parent)
    except OSError as error:
        logger.warning("%s can't be removed, the next attempt tries again: %s", path, error)
        return False
    return True
