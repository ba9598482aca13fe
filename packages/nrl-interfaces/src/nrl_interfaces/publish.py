"""Publication of files: whole or not at all, whatever moment a crash comes at.

A file is written beside its target, under the target's name with `.partial` behind it, fsynced, and renamed over
the target; then its folder is fsynced. So a crash leaves one of these states and no other:

| on disk | target holds | next attempt |
| --- | --- | --- |
| no `.partial` | the old file, or none | as if nothing had been tried |
| `.partial`, torn or whole | the old file, or none | writes the `.partial` anew |
| no `.partial`, renamed | the new file | nothing is left to do |

POSIX promises little about power cuts: what fsync means depends on system, file system and device (on macOS it
does not empty the drive's own cache). Against what gets past it the digests of the manifests stand.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from nrl_interfaces import ownership
from nrl_interfaces.fileops import WRITE_NEW, FileOps, OutputFile

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def partial_path(target: Path) -> Path:
    """Where `target` is written before it is published."""
    return target.with_name(target.name + ".partial")


class StagedFile(OutputFile):
    """A target's next content, written beside it; `commit` publishes it.

    Attributes:
        target: The path that `commit` replaces.
    """

    def __init__(self, target: Path, ops: FileOps) -> None:
        super().__init__(partial_path(target), WRITE_NEW, ops)
        self.target = target
        self.committed = False
        self._sealed = False

    def seal(self) -> None:
        """Make the bytes durable; nothing may be written afterwards."""
        if not self._sealed:
            self.fsync()
            self._sealed = True

    def commit(self) -> None:
        """Seal, then rename over the target. The name is durable once `FileOps.fsync_folder` ran on the folder."""
        self.seal()
        self._ops.rename(self.path, self.target)
        self.committed = True


@contextlib.contextmanager
def stage(target: Path, ops: FileOps) -> Generator[StagedFile]:
    """Write `target`'s next content beside it, under a lock; what is not committed in the block is removed.

    Raises:
        FolderInUseError: Somebody else is writing the same target.
        OSError: The disk refused; the target is as it was.
        RuntimeError: On Windows.
    """
    refuse_windows(sys.platform)
    with StagedFile(target, ops) as file:
        ownership.lock(file)
        try:
            file.truncate(0)
            yield file
        finally:
            if not file.committed:
                with contextlib.suppress(OSError):  # the next attempt overwrites it
                    ops.unlink(file.path)
            ownership.unlock(file)


def publish(target: Path, data: ReadableBuffer, ops: FileOps) -> None:
    """Stage, commit and make durable a small file in one call."""
    with stage(target, ops) as file:
        file.write(data)
        file.commit()
    ops.fsync_folder(target.parent)


def remove(paths: Iterable[Path], ops: FileOps) -> list[Path]:
    """Unlink files, those already gone left aside; returns the ones it removed."""
    removed: list[Path] = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            ops.unlink(path)
            removed.append(path)
    return removed


def make_folder(path: Path, ops: FileOps) -> None:
    """Make a folder and its missing parents, each one's name durable; does nothing where it is there.

    Raises:
        NotADirectoryError: A file is in the way.
    """
    refuse_windows(sys.platform)
    if path.is_dir():
        return
    make_folder(path.parent, ops)
    try:
        ops.mkdir(path)
    except FileExistsError:  # somebody else was faster
        if not path.is_dir():
            raise NotADirectoryError(f"{path} is a file: a folder is needed there") from None
    ops.fsync_folder(path.parent)


def refuse_windows(platform: str) -> None:
    """Raise RuntimeError on Windows, which has neither flock nor a rename that is safe over open files."""
    if platform == "win32":
        raise RuntimeError(
            f"crash-safe publication works on Linux and macOS, not on {platform} ({os.name}): use WSL there"
        )
