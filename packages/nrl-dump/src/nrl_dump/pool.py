"""Writers in a pool of Ray actors, a shard each, and the controller that publishes what they wrote."""

from __future__ import annotations

import functools
import logging
import os
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from nrl_interfaces.metrics import Metrics
from nrl_interfaces.ownership import Owner

from nrl_dump.chunk import check_chunk
from nrl_dump.columns import InfNan
from nrl_dump.errors import close_at_exit, do_all
from nrl_dump.manifest import Manifest
from nrl_dump.names import StepFiles
from nrl_dump.pool_actors import SentCall, ShardDiedError, ShippedChunk, WriterHandle, check_options, check_ray_runs
from nrl_dump.pool_steps import PoolStep
from nrl_dump.writer import TrainDataDump

__all__ = ["DumpPool", "ShardDiedError"]

logger = logging.getLogger(__name__)

_DYING_PATIENCE_S = 30.0
"""How long a new writer waits for the lock of the one that it replaces."""


class DumpPool:
    """Write a step's rows through Ray actors, one a shard, and publish the step from this process.

    Chunks go to the writers in the order of the calls and are written while the caller goes on. What goes wrong in a
    writer is raised by the next call that concerns its shard, `flush` and `finish_step` included, never lost. A row
    that its writer did not write, or took to its grave, is owed: a step is published only when each row given to the
    pool is in it.

    A step begins with its first chunk: what an earlier attempt, perhaps of another process, left of it in this pool's
    shards is taken away, in shards that get no row, too. One thread at a time may call a pool.

    Args:
        log_dir: The folder, the same one for every actor and this process. A relative one is relative to this process.
        num_shards: How many actors; their shard ids are "0" to "num_shards - 1".
        actor_options: Ray's options of each actor, such as `{"scheduling_strategy": "SPREAD"}`.
            A writer takes no share of a processor (`num_cpus`) unless they say so.
        inf_nan: As for `TrainDataDump`.
        chunk_rows: The same.
        queue_bytes: The same; in each actor.
        keep_last: The same.
        max_in_flight: How many chunks may be on their way to a shard; `add_chunk` then waits for the oldest.
        start_timeout_s: How long an actor may take to start, in seconds.
        metrics: Called with one flat event per publication.

    Raises:
        ValueError: An argument is not usable; nothing is started.
        RuntimeError: Ray does not run in this process, or an actor ended at once.
        TimeoutError: An actor did not start in time.

    Example:
        >>> import ray, tempfile, torch
        >>> _ = ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR")
        >>> with DumpPool(tempfile.mkdtemp(), num_shards=2) as pool:
        ...     for shard in pool.shard_ids:
        ...         pool.add_chunk(
        ...             shard,
        ...             step=0,
        ...             sample_ids=[f"sample {shard}"],
        ...             tags=None,
        ...             input_lengths=torch.tensor([2]),
        ...             sequences={"token_ids": torch.tensor([[5, 6, 0]])},
        ...             scalars={"reward": torch.tensor([0.5])},
        ...         )
        ...     pool.finish_step(0).rows
        2
        >>> ray.shutdown()
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str],
        num_shards: int,
        *,
        actor_options: Mapping[str, Any] | None = None,
        inf_nan: InfNan = "constants",
        chunk_rows: int | None = None,
        queue_bytes: int | None = None,
        keep_last: int | None = None,
        max_in_flight: int = 2,
        start_timeout_s: float = 120,
        metrics: Metrics | None = None,
    ) -> None:
        for name, value in {"num_shards": num_shards, "max_in_flight": max_in_flight}.items():
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} is {value!r}: a whole number from 1 is needed")
        self._folder = Path(log_dir).absolute()  # an actor may run in another one
        self._inf_nan: InfNan = inf_nan
        self._settings = {"inf_nan": inf_nan, "chunk_rows": chunk_rows, "queue_bytes": queue_bytes}
        self._controller = TrainDataDump(  # writes nothing, but checks the settings here
            self._folder,
            inf_nan=inf_nan,
            chunk_rows=chunk_rows,
            queue_bytes=queue_bytes,
            keep_last=keep_last,
            metrics=metrics,
        )
        self._options = check_options(actor_options or {})
        self._max_in_flight = max_in_flight
        self._start_timeout_s = start_timeout_s
        self._steps: dict[int, PoolStep] = {}
        self._closed = False
        check_ray_runs()
        self._writers = {shard_id: self._new_writer(shard_id) for shard_id in map(str, range(num_shards))}
        try:
            for writer in self._writers.values():
                writer.wait_until_started(start_timeout_s)
        except BaseException:
            self._end_writers()
            raise

    @property
    def shard_ids(self) -> tuple[str, ...]:
        """The shards, "0" first."""
        return tuple(self._writers)

    @property
    def owners(self) -> dict[str, Owner]:
        """The process that writes each shard."""
        return {shard_id: writer.owner for shard_id, writer in self._writers.items() if writer.owner is not None}

    def add_chunk(
        self,
        shard: str,
        *,
        step: int,
        sample_ids: list[str],
        tags: list[dict[str, Any]] | None,
        input_lengths: torch.Tensor,
        sequences: dict[str, torch.Tensor],
        scalars: dict[str, torch.Tensor],
    ) -> None:
        """Check some rows of a step and send them to a shard's writer; arguments are those of `TrainDataDump`.

        Returns once the rows are on their way; the tensors may change afterwards.

        Raises:
            ValueError: Something does not fit, or a shard has one of the rows already; nothing was sent.
            ShardDiedError: The shard's writer died: `restart_shard` says which rows to write again. These were not
                sent.
            RuntimeError: The step is being published.
            Exception: What an earlier chunk of this shard met in the writer; these rows were not sent.
        """
        self._check_open()
        self._check_shard(shard)
        StepFiles.of_step(self._folder, step)
        chunk = check_chunk(
            sample_ids=sample_ids,
            tags=tags,
            input_lengths=input_lengths,
            sequences=sequences,
            scalars=scalars,
            inf_nan=self._inf_nan,
        )
        writer = self._writers[shard]
        self._settle(shard, lambda: len(writer.sent) >= self._max_in_flight)
        known = self._begun(step)
        known.give(shard, chunk.sample_ids)
        try:
            writer.send("add_chunk", step, ShippedChunk.of(chunk), chunk.sample_ids)
        except BaseException:
            known.lose(chunk.sample_ids)
            raise

    def flush(self, step: int) -> dict[str, int]:
        """Wait until every shard's rows of a step are durable, and return how many each has.

        A shard whose writer dies after this still has them.

        Raises:
            ShardDiedError: A writer died that had rows of the step, or was about to begin it.
            StepIncompleteError: A shard does not have what it was given.
            Exception: What went wrong in a writer.
        """
        self._check_open()
        StepFiles.of_step(self._folder, step)
        known = self._steps.get(step)
        if known is None:
            return dict.fromkeys(self._writers, 0)
        if not known.is_publishing:
            self._on_each_shard(lambda shard: self._settle_step(shard, step))
            to_do = [shard for shard in self._writers if shard not in known.flushed and known.rows_given(shard)]
            refs = {shard: self._writers[shard].call("flush", step) for shard in to_do}
            self._on_each_shard(lambda shard: known.note_flush(shard, self._writers[shard].result(refs[shard])), to_do)
        return {shard: known.flushed.get(shard, 0) for shard in self._writers}

    def finish_step(self, step: int, *, visibility_timeout_s: float = 30) -> Manifest:
        """Flush every shard, and publish the step in one move with exactly the rows that were given to the pool.

        Raises:
            ShardDiedError: As `flush`.
            StepIncompleteError: Rows are owed; or parts or rows are not in this process's folder, see
                `TrainDataDump.finish_step`. The parts stay: mend the cause and call again.
            Exception: As `TrainDataDump.finish_step`, and what went wrong in a writer.
        """
        rows = self._whole(step)
        manifest = self._controller.finish_step(
            step, sum(rows.values()), shard_ids=list(rows), visibility_timeout_s=visibility_timeout_s
        )
        del self._steps[step]
        return manifest

    def publish_in_background(self, step: int, *, visibility_timeout_s: float = 30) -> Future[Manifest]:
        """Flush every shard, and then publish the step while the caller goes on with the next one.

        Returns:
            A future of the manifest. Its error is raised by the next call on this pool, too; `finish_step` tries again.

        Raises:
            Exception: As `finish_step` before it merges.
        """
        rows = self._whole(step)
        future = self._controller.publish_in_background(
            step, sum(rows.values()), shard_ids=list(rows), visibility_timeout_s=visibility_timeout_s
        )
        self._steps[step].publication = future
        return future

    def restart_shard(self, shard: str, *, drop_rows: bool = False) -> dict[int, list[str]]:
        """Start a new writer for a shard, in the place of one that died, or of one that is then ended.

        What the shard has of steps that are not published, nor being published, is void and taken away: its rows are
        to be written again, to this shard or to others. Until they are, those steps are not published.

        Args:
            shard: The shard.
            drop_rows: Go on without them instead: they will not be written, or under other ids.

        Returns:
            The ids of the rows that the shard lost, by step.

        Raises:
            TimeoutError, RuntimeError: The new writer did not start; call again.
        """
        self._check_open()
        self._check_shard(shard)
        self._writers[shard].kill()
        void = [known for known in self._steps.values() if not known.is_publishing]
        lost = {known.step: known.lose_shard(shard) for known in void}
        self._writers[shard] = self._new_writer(shard)
        self._writers[shard].wait_until_started(self._start_timeout_s)
        for known in void:
            self._begin(shard, known.step)
            if drop_rows:
                known.forgive(lost[known.step])
        return {step: sample_ids for step, sample_ids in lost.items() if sample_ids}

    def discard_step(self, step: int) -> list[str]:
        """Remove the parts, of every shard, of a step that will not be retried; what is published stays.

        A publication of it in the background is waited for.

        Returns:
            The names of the files removed.
        """
        self._check_open()
        StepFiles.of_step(self._folder, step)
        known = self._steps.get(step)
        if known is not None:
            if known.publication is not None:
                wait([known.publication])
            for shard, writer in self._writers.items():
                try:  # whatever is still on its way must not write the parts anew
                    writer.result(writer.call("flush", step))
                except Exception as error:  # noqa: BLE001 - of rows that are not wanted; of others, their flush tells
                    logger.warning("shard %s, while step %d was discarded: %r", shard, step, error)
                writer.sent = deque(call for call in writer.sent if call.step != step)
            del self._steps[step]
        return self._controller.discard_step(step)

    def close(self) -> None:
        """Flush every open step, wait for publications, and end the actors; safe to call twice.

        Raises:
            Exception: As `flush` and `publish_in_background` do; everything is closed all the same.
        """
        if self._closed:
            return
        try:
            do_all((*(functools.partial(self._close_shard, shard) for shard in self._writers), self._controller.close))
        finally:
            self._closed = True
            self._end_writers()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        close_at_exit(self.close, error, "the pool")

    def _new_writer(self, shard: str) -> WriterHandle:
        return WriterHandle(self._folder, shard, self._settings, self._options)

    def _begun(self, step: int) -> PoolStep:
        known = self._steps.get(step)
        if known is None:
            known = self._steps[step] = PoolStep(step)
            for shard in self._writers:
                self._begin(shard, step)
        elif known.is_publishing:
            raise RuntimeError(f"step {step} is being published: wait for its future before you write it again")
        return known

    def _begin(self, shard: str, step: int) -> None:
        self._writers[shard].send("begin_step", step, _DYING_PATIENCE_S, [])

    def _settle(self, shard: str, must_wait: Callable[[], bool]) -> None:
        self._writers[shard].settle(must_wait, self._lose)

    def _settle_step(self, shard: str, step: int) -> None:
        self._settle(shard, lambda: any(call.step == step for call in self._writers[shard].sent))

    def _lose(self, call: SentCall) -> None:
        if call.step in self._steps:
            self._steps[call.step].lose(call.sample_ids)

    def _on_each_shard(self, do: Callable[[str], object], shards: list[str] | None = None) -> None:
        """Do something for every shard, whatever it meets in one, and then raise what it met first."""
        do_all(functools.partial(do, shard) for shard in (self._writers if shards is None else shards))

    def _whole(self, step: int) -> dict[str, int]:
        """The rows of each shard that has some, all of them durable and none owed."""
        rows = self.flush(step)
        known = self._steps.get(step) or PoolStep(step)
        if known.is_publishing:
            raise RuntimeError(f"step {step} is being published: its future tells when that is done")
        known.check_whole()
        return {shard: n for shard, n in rows.items() if n}

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(f"the pool of {self._folder} is closed: make a new one")
        for known in list(self._steps.values()):
            publication = known.publication
            if publication is not None and publication.done():
                if not publication.cancelled() and publication.exception() is None:
                    del self._steps[known.step]
                known.publication = None
        self._controller.flush(0)  # has no rows, and raises what went wrong in a publication

    def _check_shard(self, shard: str) -> None:
        if shard not in self._writers:
            raise ValueError(f"shard is {shard!r}: {', '.join(map(repr, self._writers))} are there")

    def _close_shard(self, shard: str) -> None:
        writer = self._writers[shard]
        try:
            try:
                self._settle(shard, lambda: True)
            finally:
                writer.result(writer.call("close"))
        except ShardDiedError:
            if any(known.rows_given(shard) for known in self._steps.values()):
                raise

    def _end_writers(self) -> None:
        for writer in self._writers.values():
            writer.kill()
