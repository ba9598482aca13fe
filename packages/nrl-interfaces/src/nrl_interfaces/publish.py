"""Publication of files: whole or not at all, whatever moment a crash comes at.

A file is written beside its target, under the target's name with `.partial` behind it, fsynced, and renamed over
the target; then its folder is fsynced. So a crash leaves one of these states and no other:

| on disk | target holds | next attempt |
| --- | --- | --- |
| no `.partial` | the old file, or none | as if nothing had been tried |
| `.partial`, torn or whole | the old file, or none | writes the `.partial` anew |
| no `.partial`, renamed | the new file | nothing is left to do |

A folder is filled under another name and renamed when every byte and every name in it was fsynced, so its own name is
there only when all of it is.

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


def publish_folder(temporary: Path, final: Path, ops: FileOps) -> None:
    """Make a folder and everything in it durable, then give it the name under which it is looked for.

    Both names have to be on one file system. A crash or an error leaves the folder whole under one of the two names;
    only when the last operation fails, the fsync of ``final.parent``, it is already `final`.

    Args:
        temporary: The folder, filled; nobody writes in it any more.
        final: Its name from now on.
        ops: The operations on files.

    Raises:
        FileExistsError: Something is at `final`.
        NotADirectoryError: `temporary` is a file or a symlink.
        ValueError: Something in it is neither a regular file nor a folder; what a link points at can't be made
            durable with it.
        OSError: The disk refused.
        RuntimeError: On Windows.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> make_folder(folder / "tmp_snapshot" / "data", FileOps())
    >>> publish_folder(folder / "tmp_snapshot", folder / "snapshot", FileOps())
    >>> [path.name for path in folder.rglob("*")]
    ['snapshot', 'data']
    """
    refuse_windows(sys.platform)
    if os.path.lexists(final):
        raise FileExistsError(f"{final} is there already: a folder is published under a new name")
    _sync_tree(temporary, ops)
    ops.rename(temporary, final)
    ops.fsync_folder(final.parent)


def _sync_tree(folder: Path, ops: FileOps) -> None:
    """Fsync what is in `folder`, from the bottom up, and then its names."""
    for entry in _entries(folder):
        path = folder / entry.name
        if entry.is_dir(follow_symlinks=False):
            _sync_tree(path, ops)
        elif entry.is_file(follow_symlinks=False):
            with OutputFile(path, os.O_RDONLY | os.O_NOFOLLOW, ops) as file:
                file.fsync()
        else:
            raise ValueError(f"{path} is neither a regular file nor a folder: only these can be published")
    ops.fsync_folder(folder)


def remove_folder(path: Path, ops: FileOps) -> None:
    """Remove a folder and everything in it, from the bottom up; what is already gone is left aside.

    A symlink in it is removed, what it points at stays. A crash or an error leaves a part of the folder, which the
    next call removes: where somebody looks for the folder by its name, rename it first.

    Raises:
        NotADirectoryError: `path` is a file or a symlink.
        OSError: The disk refused.
    """
    with contextlib.suppress(FileNotFoundError):
        for entry in _entries(path):
            child = path / entry.name
            if entry.is_dir(follow_symlinks=False):
                remove_folder(child, ops)
            else:
                remove([child], ops)
        ops.rmdir(path)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """List a folder by name; a symlink to one is refused, since what it points at belongs to somebody else."""
    if folder.is_symlink():
        raise NotADirectoryError(f"{folder} is a symlink: the folder itself is needed")
    with os.scandir(folder) as entries:
        return sorted(entries, key=lambda entry: entry.name)


def refuse_windows(platform: str) -> None:
    """Raise RuntimeError on Windows, which has neither flock nor a rename that is safe over open files."""
    if platform == "win32":
        raise RuntimeError(
            f"crash-safe publication works on Linux and macOS, not on {platform} ({os.name}): use WSL there"
        )
