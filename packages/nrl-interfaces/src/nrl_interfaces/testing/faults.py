"""File operations that fail or kill, and the record of those that ran.

The pattern, for an action that takes a `FileOps`:

1. `operations(action)` runs it once and returns the names of its operations in order;
2. for each position, run it on a fresh folder with `FailingOps(at, errno)`, or in a forked child (`run_in_child`)
   with `KillingOps(at, moment)`, and look at what is on the disk.
"""

from __future__ import annotations

import contextlib
import os
import signal
import traceback
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nrl_interfaces.fileops import FileOps

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

Moment = Literal["before", "during", "after"]
"""When a kill comes. "during" is "after half of the bytes" for a write and "before" for everything else."""


class RecordingOps(FileOps):
    """The real operations, each noted in `calls` as (name, file name) when it begins."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self._paths: dict[int, Path] = {}

    @contextlib.contextmanager
    def _operation(self, name: str, path: Path, half: Callable[[], object] = lambda: None) -> Generator[None]:
        """Where the faults come in; `half` does half of the work."""
        del half
        self.calls.append((name, path.name))
        yield

    def open(self, path: Path, flags: int) -> int:
        """See `FileOps.open`."""
        with self._operation("open", path):
            fd = super().open(path, flags)
            self._paths[fd] = path
            return fd

    def write(self, fd: int, data: ReadableBuffer) -> int:
        """See `FileOps.write`."""
        view = memoryview(data)

        def half() -> None:
            os.write(fd, view[: len(view) // 2])

        with self._operation("write", self._paths[fd], half):
            return super().write(fd, data)

    def truncate(self, fd: int, size: int) -> None:
        """See `FileOps.truncate`."""
        with self._operation("truncate", self._paths[fd]):
            super().truncate(fd, size)

    def fsync(self, fd: int) -> None:
        """See `FileOps.fsync`."""
        with self._operation("fsync", self._paths[fd]):
            super().fsync(fd)

    def rename(self, source: Path, target: Path) -> None:
        """See `FileOps.rename`."""
        with self._operation("rename", source):
            super().rename(source, target)

    def unlink(self, path: Path) -> None:
        """See `FileOps.unlink`."""
        with self._operation("unlink", path):
            super().unlink(path)

    def mkdir(self, path: Path) -> None:
        """See `FileOps.mkdir`."""
        with self._operation("mkdir", path):
            super().mkdir(path)

    def rmdir(self, path: Path) -> None:
        """See `FileOps.rmdir`."""
        with self._operation("rmdir", path):
            super().rmdir(path)

    def fsync_folder(self, path: Path) -> None:
        """See `FileOps.fsync_folder`."""
        with self._operation("fsync_folder", path):
            super().fsync_folder(path)


class FailingOps(RecordingOps):
    """Operation number `at` (from 0) raises OSError; a write does half of its work first, as a full disk would.

    Attributes:
        failed: The name of the operation that failed, None as long as none has.
    """

    def __init__(self, at: int, code: int) -> None:
        super().__init__()
        self._at = at
        self._code = code
        self.failed: str | None = None

    @contextlib.contextmanager
    def _operation(self, name: str, path: Path, half: Callable[[], object] = lambda: None) -> Generator[None]:
        with super()._operation(name, path):
            if len(self.calls) - 1 == self._at:
                half()
                self.failed = name
                raise OSError(self._code, os.strerror(self._code), str(path))
            yield


class KillingOps(RecordingOps):
    """The process gets SIGKILL before, during or after operation number `at` (from 0)."""

    def __init__(self, at: int, moment: Moment) -> None:
        super().__init__()
        self._at = at
        self._moment = moment

    @contextlib.contextmanager
    def _operation(self, name: str, path: Path, half: Callable[[], object] = lambda: None) -> Generator[None]:
        with super()._operation(name, path):
            here = len(self.calls) - 1 == self._at
            if here and self._moment != "after":
                if self._moment == "during":
                    half()
                os.kill(os.getpid(), signal.SIGKILL)
            yield
            if here:
                os.kill(os.getpid(), signal.SIGKILL)


def operations(action: Callable[[FileOps], object]) -> list[str]:
    """Run `action` once with the real operations and return their names in order."""
    ops = RecordingOps()
    action(ops)
    return [name for name, _ in ops.calls]


def run_in_child(action: Callable[[], object]) -> int:
    """Run `action` in a forked child and return the signal that ended it, 0 if it came to its end.

    After a parallel torch operation the child would hang in its own first one, so call `torch.set_num_threads(1)`
    in the parent before any.

    Raises:
        RuntimeError: The action raised; the child has written its traceback to stderr.
    """
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            action()
            code = 0
        except BaseException:  # noqa: BLE001 - a child must never return into its parent's test run
            traceback.print_exc()
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status > 0:
        raise RuntimeError(f"the child raised, see its traceback on stderr (exit status {status})")
    return -status
