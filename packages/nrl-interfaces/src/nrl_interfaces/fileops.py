"""The operations on files that publication is made of, as one small object that tests replace.

Whatever these packages change on a disk goes through a `FileOps`, so that a test can make each operation fail, or
kill the process before or after it, and then look at what is left (`nrl_interfaces.testing.faults`).
"""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

WRITE_NEW = os.O_WRONLY | os.O_CREAT
"""Open for writing, made if missing, not truncated: the lock on a file comes before its truncation."""
APPEND = WRITE_NEW | os.O_APPEND
"""The same, every write at the end."""


class FileOps:
    """The real operations. Each may raise OSError, as the `os` function of that name does."""

    def open(self, path: Path, flags: int) -> int:
        """Open `path` and return the file descriptor."""
        return os.open(path, flags, 0o666)

    def write(self, fd: int, data: ReadableBuffer) -> int:
        """Write some of `data`, at least one byte, and return how many bytes."""
        return os.write(fd, data)

    def truncate(self, fd: int, size: int) -> None:
        """Cut the file to `size` bytes."""
        os.ftruncate(fd, size)

    def fsync(self, fd: int) -> None:
        """Hand the file's bytes to the device. How far down they get is the system's promise, not ours."""
        os.fsync(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Move `source` over `target` in one step."""
        source.replace(target)

    def unlink(self, path: Path) -> None:
        """Remove a file's name."""
        path.unlink()

    def mkdir(self, path: Path) -> None:
        """Make one folder; FileExistsError if it is there."""
        path.mkdir()

    def rmdir(self, path: Path) -> None:
        """Remove an empty folder."""
        path.rmdir()

    def fsync_folder(self, path: Path) -> None:
        """Hand a folder's names to the device, so that a rename in it survives a power cut."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a file system that has no fsync of folders has nothing to lose here
                raise
        finally:
            os.close(fd)


class OutputFile(io.RawIOBase):
    """A file open for writing whose bytes go through a `FileOps`; what `torch.save` and the writers are given.

    Unbuffered: no byte waits in this process, so there is no flush that could fail late.
    """

    def __init__(self, path: Path, flags: int, ops: FileOps) -> None:
        self.path = path
        self._ops = ops
        self._fd = -1
        self._fd = ops.open(path, flags)

    def fileno(self) -> int:
        """The file descriptor; ValueError once closed."""
        if self.closed:
            raise ValueError(f"{self.path} is closed")
        return self._fd

    def writable(self) -> bool:
        """True: the file is open for nothing else."""
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all of `data`, in as many operations as the system needs, and return its size in bytes."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest:
            rest = rest[self._ops.write(self.fileno(), rest) :]
        return size

    def truncate(self, size: int | None = None, /) -> int:
        """Cut the file to `size` bytes (default: nothing is cut) and return its size."""
        kept = self.size if size is None else size
        self._ops.truncate(self.fileno(), kept)
        return kept

    def fsync(self) -> None:
        """Hand the bytes written so far to the device."""
        self._ops.fsync(self.fileno())

    @property
    def size(self) -> int:
        """Bytes in the file now."""
        return os.fstat(self.fileno()).st_size

    def is_still_at_its_path(self) -> bool:
        """Whether the path still names this file: False once it was renamed, removed or replaced."""
        try:
            there = self.path.stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(self.fileno()))

    def close(self) -> None:
        """Close the descriptor; safe to call twice."""
        if not self.closed:
            super().close()
            if self._fd >= 0:  # opening it may have failed
                os.close(self._fd)
