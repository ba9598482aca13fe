"""One owner at a time for a file or folder, by an advisory lock (`flock`) that ends with its process."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from nrl_interfaces.fileops import OutputFile

logger = logging.getLogger(__name__)

_NO_LOCKS_HERE = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


@dataclass(frozen=True)
class Owner:
    """Who holds something.

    Attributes:
        host: The machine's host name.
        pid: The process id on that machine.
        started: When it took hold, in UTC, as ISO 8601 to the second.
    """

    host: str
    pid: int
    started: str

    @classmethod
    def this_process(cls, now: Callable[[], float] = time.time) -> Owner:
        """This process, taking hold at `now()` (seconds since the epoch)."""
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now()))
        return cls(host=socket.gethostname(), pid=os.getpid(), started=started)

    def to_json(self) -> dict[str, Any]:
        """The owner as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Owner:
        """The inverse of `to_json`; KeyError if a field is missing."""
        return cls(host=str(data["host"]), pid=int(data["pid"]), started=str(data["started"]))


class FolderInUseError(BlockingIOError):
    """Raised when another owner holds the file or folder.

    Attributes:
        path: What is held.
        owner: Who holds it, or None where that is not on disk (yet).
    """

    def __init__(self, path: Path, owner: Owner | None = None) -> None:
        who = f"process {owner.pid} on {owner.host} since {owner.started}" if owner else "another process"
        self.path = path
        self.owner = owner
        super().__init__(errno.EWOULDBLOCK, f"{path} is in use by {who}: end that one first, or use another name")

    def __reduce__(self) -> tuple[type[FolderInUseError], tuple[Path, Owner | None]]:
        return type(self), (self.path, self.owner)


def lock(file: OutputFile, read_owner: Callable[[], Owner | None] = lambda: None) -> None:
    """Take the advisory lock on an open file, for as long as it is open or until `unlock`.

    Where the file system has no locks, one warning is logged for the folder and nothing is locked.

    Args:
        file: The open file.
        read_owner: Called for the error's text when somebody else has the lock.

    Raises:
        FolderInUseError: Another open file, in this process or in any other, has the lock.
    """
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FolderInUseError(file.path, read_owner()) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS_HERE:
            raise
        _warn_no_locks(file.path.parent)
    if not file.is_still_at_its_path():  # its owner renamed or removed it between our open and our lock
        unlock(file)
        raise FolderInUseError(file.path, read_owner())


def unlock(file: OutputFile) -> None:
    """Give the lock up. Closing alone does not, while a forked child holds a copy of the descriptor."""
    with contextlib.suppress(OSError):  # no lock to give up, on a file system that has none
        fcntl.flock(file.fileno(), fcntl.LOCK_UN)


@functools.cache
def _warn_no_locks(folder: Path) -> None:
    logger.warning("%s is on a file system without locks: a second writer would not be noticed", folder)
