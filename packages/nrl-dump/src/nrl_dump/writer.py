"""`TrainDataDump`: chunks in, whole steps out."""

from __future__ import annotations

import functools
import math
import os
import time
import uuid
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from nrl_interfaces.fileops import FileOps
from nrl_interfaces.metrics import Metrics, emit

from nrl_dump.chunk import Chunk, check_chunk
from nrl_dump.columns import InfNan, check_inf_nan
from nrl_dump.errors import close_at_exit, do_all, raise_first
from nrl_dump.manifest import Manifest
from nrl_dump.names import StepFiles, check_shard_id
from nrl_dump.open_step import OpenStep
from nrl_dump.part import Part, remove_part
from nrl_dump.publication import Publisher
from nrl_dump.queue import ChunkQueue


class TrainDataDump:
    """Write chunks to a part file and publish only a completed optimizer step.

    A step's rows are written by one writer per shard and merged by `finish_step`, on the controller, which may have
    written nothing itself; all must see the same folder. Each writer owns `train_data_step<N>.jsonl.part-<shard_id>`
    and `train_data_step<N>.columns-<shard_id>.json` and touches no other; `N` is `step + 1`. A failed step leaves
    parts, never a file that looks complete.

    One thread at a time may call a writer. After a fork, make a new one.

    Args:
        log_dir: The folder; made when the first row is written.
        shard_id: This writer's name among those of a step: 1 to 128 of `A-Z a-z 0-9 . _ -`.
        inf_nan: How NaN and infinities are written: "constants" (`NaN`, `Infinity`, `-Infinity`, which Python's json
            reads back), "strings" (the same in quotes), or "null" (strict JSON that loses which it was).
        chunk_rows: Rows that come off a device, or are converted, at a time; None for what 1 MiB holds.
        queue_bytes: None writes in the caller's thread. A number hands chunks over to a background thread, copied;
            while so many bytes wait, `add_chunk` blocks.
        keep_last: How many published steps stay in the folder; None for all. Older ones go after a publication.
        file_ops: Operations on files.
        clock: Monotonic seconds, for time limits.
        sleep: Waits for some seconds.
        now: Seconds since the epoch, for who wrote a part when.
        new_token: Gives a text that is new each time, for telling two attempts at a part apart.
        metrics: Called with one flat event per chunk and publication.

    Raises:
        ValueError: An argument is not usable; nothing is made anywhere.

    Example:
        >>> import tempfile, torch
        >>> folder = tempfile.mkdtemp()
        >>> with TrainDataDump(folder) as dump:
        ...     dump.add_chunk(
        ...         step=0,
        ...         sample_ids=["a", "b"],
        ...         tags=None,
        ...         input_lengths=torch.tensor([2, 1]),
        ...         sequences={"token_ids": torch.tensor([[5, 6, 0], [7, 0, 0]])},
        ...         scalars={"reward": torch.tensor([0.5, -1.0])},
        ...     )
        ...     dump.finish_step(0, expected_rows=2).rows
        2
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str],
        *,
        shard_id: str = "0",
        inf_nan: InfNan = "constants",
        chunk_rows: int | None = None,
        queue_bytes: int | None = None,
        keep_last: int | None = None,
        file_ops: FileOps | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        now: Callable[[], float] = time.time,
        new_token: Callable[[], str] = lambda: uuid.uuid4().hex,
        metrics: Metrics | None = None,
    ) -> None:
        self._folder = Path(log_dir)
        self._shard_id = check_shard_id(shard_id)
        self._inf_nan: InfNan = check_inf_nan(inf_nan)
        self._chunk_rows = _check_count("chunk_rows", chunk_rows)
        self._ops = file_ops or FileOps()
        self._clock = clock
        self._now = now
        self._new_token = new_token
        self._metrics = metrics
        self._publisher = Publisher(self._ops, clock, sleep, _check_count("keep_last", keep_last), metrics)
        self._steps: dict[int, OpenStep] = {}
        self._publications: list[Future[Manifest]] = []
        self._pool: ThreadPoolExecutor | None = None
        self._queue_bytes = _check_count("queue_bytes", queue_bytes)
        self._queue: ChunkQueue | None = None
        self._closed = False
        self._pid = os.getpid()

    def add_chunk(
        self,
        *,
        step: int,
        sample_ids: list[str],
        tags: list[dict[str, Any]] | None,
        input_lengths: torch.Tensor,
        sequences: dict[str, torch.Tensor],
        scalars: dict[str, torch.Tensor],
    ) -> None:
        """Write some rows of a step: all of them, or none.

        Args:
            step: The trainer's step, from 0.
            sample_ids: `B` ids, each used once in the step.
            tags: `B` dicts of JSON values, numpy scalars and 0-d tensors; None for empty ones.
            input_lengths: `[B]` whole numbers: how many items of each sequence row are no padding.
            sequences: Columns of `[B, L]` or more dimensions, or jagged, cut to `input_lengths`.
            scalars: Columns written per row as given: `[B]` a number, `[B, K]` a list, jagged a list of its own length.
                Dtypes: float64, 32, 16, bfloat16, float8, whole numbers of 8 to 64 bits with or without sign, bool.

        Raises:
            ValueError: Something does not fit, or differs from the step's other chunks, or an id was added before;
                nothing was written.
            FolderInUseError: Another writer has this shard's part.
            OSError: The disk refused; the part ends where it did before.
        """
        began = self._clock()
        self._check_open()
        files = StepFiles.of_step(self._folder, step)
        chunk = check_chunk(
            sample_ids=sample_ids,
            tags=tags,
            input_lengths=input_lengths,
            sequences=sequences,
            scalars=scalars,
            inf_nan=self._inf_nan,
        )
        self._forget_gone_steps()
        open_step = self._steps.get(step) or self._new_step(files, chunk)
        chunk = open_step.take_in(chunk)
        try:
            self._write(open_step, chunk)
        except BaseException:
            open_step.give_back(chunk)
            if step not in self._steps:
                open_step.part.release()
            raise
        self._steps[step] = open_step
        emit(self._metrics, op="add_chunk", step=step, rows=len(chunk), wall_ms=1e3 * (self._clock() - began))

    def flush(self, step: int) -> int:
        """Wait for this writer's rows of a step, make them durable, close the part, and return how many there are.

        Only this number may be reported to the controller as written.

        Raises:
            ValueError: The step is not a whole number from 0.
            OSError: The disk refused, now or in the background thread; so does everything else raised there.
        """
        self._check_open()
        StepFiles.of_step(self._folder, step)
        return self._flush(step)

    def restart_step(self, step: int) -> None:
        """Take away what this shard has written of a step, for a retry on the same object.

        Raises:
            FolderInUseError: Another writer has this shard's part.
        """
        self._check_open()
        files = StepFiles.of_step(self._folder, step)
        self._forget(step)
        remove_part(files, self._shard_id, self._ops)

    def discard_step(self, step: int) -> list[str]:
        """Remove the parts, of every shard, of a step that will not be retried; what is published stays.

        Returns:
            The names of the files removed.
        """
        self._check_open()
        files = StepFiles.of_step(self._folder, step)
        self._forget(step)
        return self._publisher.discard(files)

    def finish_step(
        self,
        step: int,
        expected_rows: int | None = None,
        *,
        shard_ids: Sequence[str] | None = None,
        visibility_timeout_s: float = 30,
    ) -> Manifest:
        """Merge every shard's part and publish the step in one move.

        A crash at any point leaves the published file absent, old in full, or new in full; call again afterwards.
        How a trainer goes on without the step is for its author to say: nothing is swallowed here.

        Args:
            step: The trainer's step, from 0.
            expected_rows: The sum of what the shards' `flush` returned. Checking it is what turns a pool with
                another file system into a failure, and a chunk that a killed writer left unfinished.
            shard_ids: The shards that must be there, no more and no fewer, opened by name; one that is missing or
                short is looked at again until the time limit. None takes the parts that are there, at once.
            visibility_timeout_s: The time limit in seconds.

        Returns:
            What the published file holds.

        Raises:
            StepIncompleteError: A RuntimeError: parts or rows are missing, torn or too many; the parts stay.
            RuntimeError: Shards disagree on a column.
            FolderInUseError: Somebody else is publishing this step.
            ValueError: An argument is not usable.
            OSError: The disk refused.
        """
        return self._prepare_publication(step, expected_rows, shard_ids, visibility_timeout_s)()

    def publish_in_background(
        self,
        step: int,
        expected_rows: int | None = None,
        *,
        shard_ids: Sequence[str] | None = None,
        visibility_timeout_s: float = 30,
    ) -> Future[Manifest]:
        """Do what `finish_step` does while writers go on with the next step.

        Returns:
            A future of the manifest. Its error is raised by the next call on this object, too.
        """
        publish = self._prepare_publication(step, expected_rows, shard_ids, visibility_timeout_s)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="nrl-dump publisher")
        future = self._pool.submit(publish)
        self._publications.append(future)
        return future

    def close(self) -> None:
        """Flush every open step, wait for publications, and end the threads; safe to call twice.

        Does nothing in a forked child: what is open is its parent's.

        Raises:
            OSError: As `flush` and `finish_step` do; everything is closed all the same.
        """
        if self._closed or self._pid != os.getpid():
            return
        flushes = [functools.partial(self._flush, step) for step in self._steps]
        try:
            do_all((*flushes, functools.partial(self._raise_background_errors, wait=True)))
        finally:
            self._shut_down()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        close_at_exit(self.close, error, "the dump")

    def _part_path(self, step: int, shard_id: str) -> Path:
        return StepFiles.of_step(self._folder, step).part(check_shard_id(shard_id))

    def _new_step(self, files: StepFiles, chunk: Chunk) -> OpenStep:
        columns = chunk.step_columns(self._inf_nan)
        part = Part(files, self._shard_id, columns, self._ops, self._now, self._new_token)
        return OpenStep(files, columns, part, self._chunk_rows)

    def _write(self, open_step: OpenStep, chunk: Chunk) -> None:
        if self._queue_bytes is None:
            open_step.write(chunk)
            return
        if self._queue is None:
            self._queue = ChunkQueue(self._queue_bytes)
            weakref.finalize(self, self._queue.close)  # at exit, too: what was handed over is written
        copy = chunk.snapshot(self._inf_nan)
        self._queue.put(copy.n_bytes, functools.partial(open_step.write_later, copy))

    def _flush(self, step: int) -> int:
        if self._queue is not None:
            self._queue.drain()
        self._forget_gone_steps()
        open_step = self._steps.get(step)
        if open_step is None:
            return 0
        open_step.part.flush()
        return open_step.part.rows

    def _prepare_publication(
        self, step: int, expected_rows: int | None, shard_ids: Sequence[str] | None, timeout_s: float
    ) -> Callable[[], Manifest]:
        """Check the arguments, flush this writer, and return what is left to do, which needs none of its state."""
        files = StepFiles.of_step(self._folder, step)
        if expected_rows is not None and (type(expected_rows) is not int or expected_rows < 0):
            raise ValueError(f"expected_rows is {expected_rows!r}: a whole number from 0, or None, is needed")
        if not timeout_s >= 0 or math.isinf(timeout_s):
            raise ValueError(f"visibility_timeout_s is {timeout_s!r}: seconds from 0 are needed")
        if shard_ids is not None and (not shard_ids or isinstance(shard_ids, str)):
            shown = repr(shard_ids) if shard_ids else "empty"
            raise ValueError(f"shard_ids is {shown}: a list of one id or more, or None, is needed")
        ids = None if shard_ids is None else [check_shard_id(shard_id) for shard_id in shard_ids]
        self.flush(step)
        return functools.partial(self._publisher.publish, files, expected_rows, ids, timeout_s)

    def _forget(self, step: int) -> None:
        if self._queue is not None:
            self._queue.drain()
        if step in self._steps:
            self._steps.pop(step).part.release()

    def _forget_gone_steps(self) -> None:
        for step in [step for step, open_step in self._steps.items() if open_step.part.is_gone()]:
            self._steps.pop(step).part.release()

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise RuntimeError(f"this dump belongs to process {self._pid}: make a new TrainDataDump after a fork")
        if self._closed:
            raise RuntimeError(f"the dump of shard {self._shard_id!r} in {self._folder} is closed: make a new one")
        if self._queue is not None:
            self._queue.check()
        self._raise_background_errors()

    def _raise_background_errors(self, *, wait: bool = False) -> None:
        ended = [future for future in self._publications if wait or future.done()]
        self._publications = [future for future in self._publications if future not in ended]
        errors = (future.exception() for future in ended if not future.cancelled())
        raise_first([error for error in errors if error is not None])

    def _shut_down(self) -> None:
        self._closed = True
        while self._steps:
            self._steps.popitem()[1].part.release()
        if self._queue is not None:
            self._queue.close()
        if self._pool is not None:
            self._pool.shutdown()


def _check_count(name: str, value: int | None) -> int | None:
    if value is not None and (type(value) is not int or value < 1):
        raise ValueError(f"{name} is {value!r}: a whole number from 1, or None, is needed")
    return value
