"""The registry: the one place where the clients of a queue agree, whatever process they are in.

An asyncio actor with a name, one a queue. TransferQueue keeps rows, tags, which fields a row has, each task's cursor
and the files of checkpoints; it does not know what was declared, generations, the order of puts (its numbers are used
again), groups, or that a put or a claim needs a look and a change with nothing in between. That is what is here.
Rows go between clients and storage units and never through it.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from nrl_interfaces.data_plane import ClaimExplanation
from nrl_interfaces.fileops import FileOps

from nrl_dataplane_tq.answers import Begun, Claimed, Located, Refusal, Waits
from nrl_dataplane_tq.checkpoint import current_state, new_state
from nrl_dataplane_tq.claims import have_lengths, look_at
from nrl_dataplane_tq.columns import Kind
from nrl_dataplane_tq.declaration import Declaration
from nrl_dataplane_tq.engine import Engine, meta_of
from nrl_dataplane_tq.partition import Partition
from nrl_dataplane_tq.plane import Plane
from nrl_dataplane_tq.puts import PUT_LIMIT_S, check_not_there, forget, give_up_late_puts

__all__ = ["Registry"]

logger = logging.getLogger(__name__)
_ANSWERS = (KeyError, NotImplementedError, OSError, RuntimeError, TypeError, ValueError)


class Registry:
    """The actor. `call` runs one of the other methods for a plane.

    Args:
        controller: The queue's controller.
        config: The queue's config.
        watch_s: How often it looks whether the queue is still there, in seconds; it ends with it.
        clock: Seconds, monotonic, for the time limit of puts.
        file_ops: The operations on files.
    """

    def __init__(
        self,
        controller: Any,
        config: Any,
        *,
        watch_s: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
        file_ops: FileOps | None = None,
    ) -> None:
        self._engine = Engine(controller, config)
        self._watch_s = watch_s
        self._clock = clock
        self._file_ops = file_ops or FileOps()
        self._planes: dict[str, Plane] = {}
        self._next_generation = 1
        self._changed = asyncio.Condition()  # also the lock around each look and change
        self._put_numbers = itertools.count(1)
        self._is_saving = False
        self._watch: asyncio.Task[None] | None = None

    async def call(self, operation: str, plane: str, *args: Any) -> Any:
        """Run an operation for a plane; an error comes back as a `Refusal`."""
        try:
            if operation in ("open", "reset"):
                return await getattr(self, operation)(plane, *args)
            if plane not in self._planes:
                raise RuntimeError(f"plane {plane!r} was reset; make a new client")
            return await getattr(self, operation)(self._planes[plane], *args)
        except _ANSWERS as error:
            if not isinstance(error, KeyError | ValueError):
                logger.info("%s was refused", operation, exc_info=error)
            return Refusal(error)

    async def open(self, name: str, mode: str, limit: int) -> None:
        """Let a client in.

        Raises:
            ValueError: Clients that are there already have other settings.
        """
        async with self._changed:
            if self._watch is None:
                await self._engine.start()
                self._watch = asyncio.create_task(self._end_with_queue())
            plane = self._planes.setdefault(name, Plane(mode, limit))
            if (plane.mode, plane.limit) != (mode, limit):
                raise ValueError(
                    f"plane {name!r} has partition_mode={mode!r} and max_partitions={limit} here; allowed: "
                    f"{plane.mode!r} and {plane.limit}, as its first client had, or another plane"
                )

    async def reset(self, name: str) -> None:
        """Drop a plane with all that it holds."""
        async with self._changed:
            plane = self._planes.get(name, Plane("", 0))
            for partition_id in list(plane.partitions):
                partition = await self._once_free(plane, partition_id, None, None)
                await self._engine.clear_partition(partition.declaration.engine_id, is_empty=not partition.rows)
                del plane.partitions[partition_id]
            self._planes.pop(name, None)
            self._changed.notify_all()

    async def _end_with_queue(self) -> None:
        while await self._engine.is_alive():  # noqa: ASYNC110 - nobody tells of a queue's end
            await asyncio.sleep(self._watch_s)
        self._engine.end_registry()

    # ---- Registering ----

    async def declare(self, plane: Plane, declared: Declaration, name: str) -> None:
        """Register a partition; see `DataPlaneClient.register_partition`."""
        async with self._changed:
            partition_id = declared.partition_id
            if partition_id in plane.partitions:
                raise ValueError(
                    f"partition {partition_id!r} is registered already; clear_samples(None, {partition_id!r}) drops it"
                )
            if len(plane.partitions) >= plane.limit:
                raise RuntimeError(
                    f"{len(plane.partitions)} partitions are registered: {sorted(plane.partitions)}; allowed: "
                    f"{plane.limit}, so clear one, or set max_partitions in the config"
                )
            number, is_stream = self._next_generation, plane.mode == "stream"
            engine_id = f"{name}/{partition_id}#{number}"
            plane.partitions[partition_id] = Partition(
                dataclasses.replace(declared, generation=number, engine_id=engine_id, is_stream=is_stream)
            )
            self._next_generation += 1
            plane.is_used = True
            self._changed.notify_all()

    async def declaration(self, plane: Plane, partition_id: str) -> Declaration:
        """Give what was declared, KeyError for an unknown partition."""
        return plane.current(partition_id).declaration

    # ---- Putting ----

    async def begin_put(
        self,
        plane: Plane,
        partition_id: str,
        generation: int,
        sample_ids: list[str],
        kinds: dict[str, Kind],
        tags: list[dict[str, Any]] | None,
        replace: bool,  # noqa: FBT001
    ) -> Begun:
        """Check a put and hold its rows for it; puts of the same rows come one after the other."""
        async with self._changed:
            partition = await self._once_free(plane, partition_id, generation, sample_ids)
            put = partition.checked_put(sample_ids, kinds, replace=replace)
            if not sample_ids:
                return Begun(None, meta_of(partition.declaration.engine_id, []), has_lengths=False)
            await check_not_there(self._engine, partition, put)
            engine_id = partition.declaration.engine_id
            rows = await self._engine.numbered(engine_id, sample_ids)
            put.numbers = list(rows.global_indexes)
            has_lengths = await have_lengths(self._engine, partition, sample_ids if not put.new_ids else [])
            if kinds:
                if tags is not None:
                    rows.update_custom_meta(tags)
                number, put.began = next(self._put_numbers), self._clock()
                partition.puts[number] = put
                return Begun(number, rows, has_lengths)
            await self._engine.set_tags(rows, tags or [])
            partition.add(put)
            self._changed.notify_all()
            return Begun(None, rows, has_lengths)

    async def end_put(self, plane: Plane, partition_id: str, generation: int, number: int, is_done: bool) -> None:  # noqa: FBT001
        """Let the rows of a put be seen, or forget them where it failed."""
        async with self._changed:
            partition = plane.current(partition_id, generation)
            put = partition.puts.pop(number, None)
            if put is None:
                raise RuntimeError(f"the put took more than {PUT_LIMIT_S:.0f} s and was given up; put the rows again")
            if is_done:
                partition.add(put)
            else:
                await forget(self._engine, partition, put)
            self._changed.notify_all()

    async def _once_free(
        self, plane: Plane, partition_id: str, generation: int | None, sample_ids: Sequence[str] | None
    ) -> Partition:
        """Wait until no put of these rows and no save is under way, and give the partition."""
        while True:
            partition = plane.current(partition_id, generation)
            await give_up_late_puts(self._engine, partition, self._clock())
            if not partition.overlaps(sample_ids) and not self._is_saving:
                return partition
            await self._next_change(5.0)

    async def _next_change(self, within_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._changed.wait()

    # ---- Reading ----

    async def locate(
        self, plane: Plane, partition_id: str, generation: int | None, sample_ids: list[str], fields: list[str]
    ) -> Located:
        """Find rows that have these fields; KeyError that names what is not there."""
        async with self._changed:
            partition = plane.current(partition_id, generation)
            declared = partition.declaration
            if not fields:
                raise ValueError(f"select_fields is {fields!r}; allowed: some of {list(declared.fields)}")
            declared.check_fields(fields)
            numbers = partition.numbers_of(sample_ids)
            if unknown := [name for name in fields if name not in partition.kinds]:
                raise KeyError(f"field {unknown[0]!r} is not put yet for any row of partition {partition_id!r}")
            rows = np.array(numbers, dtype=np.int64)
            every = await asyncio.gather(*(self._engine.having(declared.engine_id, name, rows) for name in fields))
            for name, there in zip(fields, every, strict=True):
                if not there.all():
                    lacking = sample_ids[int(there.argmin())]
                    raise KeyError(f"field {name!r} is not put yet for sample id {lacking!r}")
            kinds = {name: partition.kinds[name] for name in fields}
            return Located(declared.engine_id, numbers, kinds, partition.clears)

    async def clears(self, plane: Plane, partition_id: str) -> int | None:
        """Say how often rows were cleared, None for a partition that is gone: a read looks before and after."""
        partition = plane.partitions.get(partition_id)
        return None if partition is None else partition.clears

    async def sample_ids(self, plane: Plane, partition_id: str) -> list[str]:
        """Give the ids of a partition, sorted."""
        return sorted(plane.partitions[partition_id].rows) if partition_id in plane.partitions else []

    # ---- Claiming ----

    async def claim(
        self,
        plane: Plane,
        partition_id: str,
        generation: int,
        task: str,
        fields: list[str],
        batch_size: int,
        may_wait: bool,  # noqa: FBT001
    ) -> Claimed | Waits:
        """Claim rows, or say why not."""
        async with self._changed:
            partition = plane.current(partition_id, generation)
            look = await look_at(self._engine, partition, task, fields)
            positions, would_wait = look.taken(batch_size)
            if would_wait and may_wait:
                return Waits(look.explain(fields, batch_size), partition.version)
            every_id = list(partition.rows)
            at_once: list[int] = positions.tolist()
            sample_ids = [every_id[at] for at in at_once]
            if not sample_ids:
                return Claimed([], [], has_lengths=False)
            has_lengths = await have_lengths(self._engine, partition, sample_ids)
            numbers = partition.numbers_of(sample_ids)
            tags = await self._engine.take(partition.declaration.engine_id, task, fields, numbers)
            partition.has_changed()  # for another claim there may be no more to wait for
            self._changed.notify_all()
            return Claimed(sample_ids, tags, has_lengths)

    async def wait(self, plane: Plane, partition_id: str, generation: int, version: int, within_s: float) -> None:
        """Return when a partition has another version, or is gone, or time is up.

        A claim waits here and then looks again. What waits holds nothing, so the death of its process loses nothing.
        """

        def is_over() -> bool:
            partition = plane.partitions.get(partition_id)
            current = partition and (partition.declaration.generation, partition.version)
            return current != (generation, version)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s), self._changed:
                await self._changed.wait_for(is_over)

    async def release(self, plane: Plane, partition_id: str, sample_ids: list[str], task: str) -> None:
        """Give rows back; see `DataPlaneClient.release_claims`."""
        async with self._changed:
            partition = plane.current(partition_id)
            declared = partition.declaration
            declared.check_tasks([task])
            (await look_at(self._engine, partition, task, [])).check_release(sample_ids)
            if sample_ids:
                await self._engine.give_back(declared.engine_id, task, partition.numbers_of(sample_ids))
            partition.has_changed()
            self._changed.notify_all()

    async def explain(
        self, plane: Plane, partition_id: str, task: str, fields: list[str], batch_size: int
    ) -> ClaimExplanation:
        """Say why a claim would wait."""
        async with self._changed:
            partition = plane.current(partition_id)
            partition.declaration.check_claim(task, fields, batch_size)
            return (await look_at(self._engine, partition, task, fields)).explain(fields, batch_size)

    async def are_consumed(self, plane: Plane, partition_id: str, tasks: list[str]) -> bool:
        """Tell whether each task has claimed all rows."""
        async with self._changed:
            partition = plane.current(partition_id)
            partition.declaration.check_tasks(tasks)
            looks = [await look_at(self._engine, partition, task, []) for task in tasks]
            return bool(partition.rows) and all(bool(look.claimed.all()) for look in looks)

    # ---- Clearing ----

    async def clear(self, plane: Plane, partition_id: str, sample_ids: list[str] | None) -> None:
        """Drop rows; see `DataPlaneClient.clear_samples`."""
        async with self._changed:
            partition = await self._once_free(plane, partition_id, None, sample_ids)
            declared = partition.declaration
            numbers = [] if sample_ids is None else partition.numbers_of(sample_ids)
            gone = list(partition.rows) if sample_ids is None else sample_ids
            is_last = partition.is_started and not declared.is_stream and len(gone) == len(partition.rows)
            if sample_ids is None or is_last:
                await self._engine.clear_partition(declared.engine_id, is_empty=not partition.rows)
                del plane.partitions[partition_id]
            else:
                await self._engine.clear(declared.engine_id, numbers)
            partition.remove(gone)
            self._changed.notify_all()

    async def sizes(self, plane: Plane) -> tuple[int, int]:
        """Count partitions and rows."""
        return len(plane.partitions), sum(len(partition.rows) for partition in plane.partitions.values())

    # ---- Checkpoints ----

    async def save(self, plane: Plane, folder: Path, owner: str | None, metadata: bytes) -> None:
        """Write everything that is held; nothing changes meanwhile."""
        async with self._changed:
            self._check_alone(plane, "save")
            self._is_saving = True
            try:
                while any(partition.puts for partition in plane.partitions.values()):
                    await self._next_change(5.0)
                    for partition in plane.partitions.values():
                        await give_up_late_puts(self._engine, partition, self._clock())
                with new_state(folder, owner, self._file_ops) as state:
                    await self._engine.save(state.path)
                    partitions = [partition.saved() for partition in plane.partitions.values()]
                    contract = {
                        "partitions": partitions,
                        "next_generation": self._next_generation,
                        "metadata": metadata,
                    }
                    await asyncio.to_thread(state.publish, contract, self._engine.storage_units)
            finally:
                self._is_saving = False
                self._changed.notify_all()

    async def load(self, plane: Plane, folder: Path, owner: str | None) -> bytes:
        """Load what `save` wrote, and give its metadata."""
        async with self._changed:
            if plane.is_used:
                raise RuntimeError("the plane was used before; allowed: load_checkpoint into a queue that is new")
            self._check_alone(plane, "load")
            if others := await self._engine.partitions():
                raise RuntimeError(
                    f"the queue holds partitions {sorted(others)}, which load_checkpoint would drop; allowed: a queue "
                    f"that is empty, as TransferQueue loads all of it or nothing"
                )
            with current_state(folder, owner, self._engine.storage_units) as state:
                contract = state.contract()
                partitions = [Partition.loaded(data) for data in contract["partitions"]]
                numbers = [row.number for partition in partitions for row in partition.rows.values()]
                await self._engine.load(state.path, numbers)
            plane.partitions = {partition.declaration.partition_id: partition for partition in partitions}
            self._next_generation = max(self._next_generation, contract["next_generation"])
            plane.is_used = True
            self._changed.notify_all()
            return contract["metadata"]

    def _check_alone(self, plane: Plane, what: str) -> None:
        """Refuse checkpoints beside other planes: TransferQueue saves and loads the whole queue."""
        others = [name for name, other in self._planes.items() if other is not plane and other.partitions]
        if others:
            raise RuntimeError(
                f"planes {sorted(others)} hold partitions in the same queue, and {what}_checkpoint is of all of it; "
                f"clear them, or give each plane a queue of its own"
            )
