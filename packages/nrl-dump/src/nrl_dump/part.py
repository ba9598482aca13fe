"""One writer's part of one step on disk: all rows of a chunk, or none of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from nrl_interfaces import ownership
from nrl_interfaces.fileops import APPEND, FileOps, OutputFile
from nrl_interfaces.ownership import Owner
from nrl_interfaces.publish import make_folder, publish, remove

from nrl_dump.columns import StepColumns
from nrl_dump.names import StepFiles


class Part:
    """The part and the column file of one shard in one step.

    Nothing is on disk before the first `append`; it locks and truncates the part, so that a retried step replaces the
    rows of the attempt before it, and has the column file whole on disk before the first row.

    Attributes:
        path: Where the rows stand.
        rows: Rows written.
    """

    def __init__(
        self,
        files: StepFiles,
        shard_id: str,
        columns: StepColumns,
        ops: FileOps,
        now: Callable[[], float],
        new_token: Callable[[], str],
    ) -> None:
        self.path = files.part(shard_id)
        self.rows = 0
        self._columns_path = files.columns(shard_id)
        self._columns = columns
        self._ops = ops
        self._now = now
        self._new_token = new_token
        self._file: OutputFile | None = None
        self._inode: os.stat_result | None = None
        self._attempt = ""
        self._size = 0
        self._unsynced = False
        self._pid = os.getpid()

    def append(self, lines: Iterable[bytes], rows: int) -> None:
        """Write a chunk's lines; on any error the part ends where it did before, and is let go.

        Raises:
            FolderInUseError: Another writer has this part.
            OSError: The disk refused.
        """
        file = self._open()
        self._unsynced = True
        self._check_not_gone()
        self._cut_back(file)  # where an earlier cut failed, too
        size = self._size
        try:
            for data in lines:
                size += file.write(data)
        except BaseException:
            with contextlib.suppress(OSError):  # the error that is on its way says more; the next append cuts again
                self._cut_back(file)
            self.release()  # whoever retries may have a new object while a traceback keeps this one alive
            raise
        self._size = size
        self.rows += rows

    def flush(self) -> None:
        """Make the rows durable and close the part; a later `append` opens it again."""
        if self._unsynced:
            try:
                file = self._open()
                self._cut_back(file)
                file.fsync()
                self._unsynced = False
            finally:
                self.release()

    def release(self) -> None:
        """Close the part and give its lock up, nothing written."""
        if self._file is not None:
            if self._pid == os.getpid():  # a forked child shares the lock and must leave it to its parent
                ownership.unlock(self._file)
            self._file.close()
            self._file = None

    def is_gone(self) -> bool:
        """Whether the part that was written has been taken away: published, discarded, or replaced."""
        if self._inode is None:
            return False
        try:
            return not os.path.samestat(self.path.stat(), self._inode)
        except FileNotFoundError:
            return True

    def _open(self) -> OutputFile:
        if self._file is None:
            make_folder(self.path.parent, self._ops)
            file = OutputFile(self.path, APPEND, self._ops)
            try:
                ownership.lock(file, lambda: read_writer(self._columns_path))
                if self._inode is None:
                    self._begin(file)
                else:
                    self._check_same_attempt()
            except BaseException:
                file.close()
                raise
            self._file = file
        return self._file

    def _begin(self, file: OutputFile) -> None:
        if file.size:
            file.truncate(0)
        self._attempt = self._new_token()
        columns = replace(self._columns, attempt=self._attempt, writer=Owner.this_process(self._now))
        publish(self._columns_path, columns.to_bytes(), self._ops)
        self._inode = os.fstat(file.fileno())

    def _check_not_gone(self) -> None:
        if self.is_gone():
            raise RuntimeError(f"{self.path} was published or discarded while chunks of it were on their way")

    def _check_same_attempt(self) -> None:
        """An inode's number is used again at once, so a part opened once more is told by its column file."""
        columns = _read_columns(self._columns_path)
        if columns is None or columns.attempt != self._attempt:
            raise RuntimeError(f"{self.path} was written anew by another TrainDataDump: restart_step begins again here")

    def _cut_back(self, file: OutputFile) -> None:
        if file.size != self._size:
            file.truncate(self._size)


def remove_part(files: StepFiles, shard_id: str, ops: FileOps) -> None:
    """Remove what a shard has on disk of a step, unless another writer is at it.

    Raises:
        FolderInUseError: Another writer has this part.
    """
    path = files.part(shard_id)
    if path.exists():
        with OutputFile(path, APPEND, ops) as file:
            ownership.lock(file, lambda: read_writer(files.columns(shard_id)))
            try:
                remove([files.columns(shard_id), path], ops)
            finally:
                ownership.unlock(file)


def read_writer(columns_path: Path) -> Owner | None:
    """Who a column file says is writing, None where there is none that can be read."""
    columns = _read_columns(columns_path)
    return columns and columns.writer


def _read_columns(path: Path) -> StepColumns | None:
    with contextlib.suppress(OSError, ValueError):
        return StepColumns.from_bytes(path.read_bytes())
    return None
