"""LocalDataPlaneClient: the data plane inside one process. It locks, checks and delegates."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from nrl_interfaces import KVBatchMeta, StaleMetaError
from nrl_interfaces.data_plane import ClaimExplanation, DataPlaneClient, DataPlaneStats, Fields
from nrl_interfaces.fileops import FileOps
from nrl_interfaces.values import copied
from tensordict import TensorDict

from nrl_dataplane_local import checks
from nrl_dataplane_local.checkpoint import load
from nrl_dataplane_local.claims import Wanted, explain, look
from nrl_dataplane_local.columns import Bytes, Found, Slots
from nrl_dataplane_local.config import LocalDataPlaneConfig
from nrl_dataplane_local.partition import Partition
from nrl_dataplane_local.tensordicts import columns_of, wrap
from nrl_dataplane_local.values import whole_numbers
from nrl_dataplane_local.view import LocalDataPlaneView

__all__ = ["LOCAL_GENERATION_KEY", "LocalDataPlaneClient", "build_client", "is_local_batch_meta"]

LOCAL_GENERATION_KEY = "local_partition_generation"


def is_local_batch_meta(meta: KVBatchMeta) -> bool:
    """Tell whether a meta is of rows in a process-local data plane."""
    return LOCAL_GENERATION_KEY in meta.extra_info


def build_client(config: Mapping[str, Any]) -> "LocalDataPlaneClient":
    """Build a client from plain data; what `nrl_interfaces.build_data_plane_client` calls for ``impl: local``.

    Raises:
        ValueError: As `LocalDataPlaneConfig.from_mapping`.
    """
    return LocalDataPlaneClient(LocalDataPlaneConfig.from_mapping(config))


class LocalDataPlaneClient(DataPlaneClient):
    """A data plane inside one process, safe for threads; what each call keeps to stands in `DataPlaneClient`.

    Values keep the device that they come with. Arguments beyond those of the contract are for tests.

    Args:
        cfg: How it works.
        clock: Seconds, monotonic, for the time limit of claims.
        file_ops: The operations on files.

    >>> from nrl_dataplane_local import local_batch_to_tensordict
    >>> with LocalDataPlaneClient(LocalDataPlaneConfig()) as plane:
    ...     plane.register_partition("p", ["source"], 2, ["train"])
    ...     _ = plane.put_samples(["a", "b"], "p", local_batch_to_tensordict({"source": ["x", "y"]}, batch_size=2))
    ...     plane.get_data(plane.claim_meta("p", "train", ["source"], 1))["source"]
    ['x']
    """

    def __init__(
        self,
        cfg: LocalDataPlaneConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        file_ops: FileOps | None = None,
    ) -> None:
        self._cfg = cfg
        self._clock = clock
        self._file_ops = file_ops or FileOps()
        self._changed = threading.Condition()  # also the lock of everything below
        self._partitions: dict[str, Partition] = {}
        self._next_generation = 1
        self._is_used = False
        self._is_open = True
        self._held = Bytes()
        self._operations: Counter[str] = Counter()

    # ---- Checks that others patch and log ----

    def _require_open(self) -> None:
        if not self._is_open:
            raise RuntimeError("the data plane is closed; allowed: close() again, or a new client")

    def _partition(self, partition_id: str) -> Partition:
        if partition_id not in self._partitions:
            raise KeyError(f"partition {partition_id!r} is not registered; registered: {sorted(self._partitions)}")
        return self._partitions[partition_id]

    def _validate_meta(self, meta: KVBatchMeta) -> Partition:
        partition = self._partitions.get(meta.partition_id)
        generation = meta.extra_info.get(LOCAL_GENERATION_KEY)
        if partition is None or partition.generation != generation:
            raise StaleMetaError(meta.partition_id, generation, None if partition is None else partition.generation)
        return partition

    @staticmethod
    def _sequence_lengths(partition: Partition, indices: Sequence[int] | Slots) -> list[int] | None:
        """The ``input_lengths`` of the rows at slots ``indices``; None where not all have one, a whole number."""
        group = partition.columns.get("input_lengths")
        if group is None:
            return None
        places = group.places_of(np.asarray(indices, dtype=np.int64))
        if (places < 0).any():
            return None
        return whole_numbers(group.find(places).read("input_lengths", copy=False), len(places))

    # ---- Registering ----

    def register_partition(
        self,
        partition_id: str,
        fields: list[str],
        num_samples: int,
        consumer_tasks: list[str],
        grpo_group_size: int | None = None,
        enums: dict[str, list[str]] | None = None,
    ) -> None:
        """See `DataPlaneClient.register_partition`."""
        with self._changed:
            self._require_open()
            checks.check_declaration(partition_id, fields, num_samples, consumer_tasks, grpo_group_size, enums)
            if partition_id in self._partitions:
                raise ValueError(
                    f"partition {partition_id!r} is registered already; clear_samples(None, {partition_id!r}) drops it"
                )
            if len(self._partitions) >= self._cfg.max_partitions:
                raise RuntimeError(
                    f"{len(self._partitions)} partitions are registered: {sorted(self._partitions)}; allowed: "
                    f"{self._cfg.max_partitions}, so clear one, or set max_partitions in the config"
                )
            self._partitions[partition_id] = Partition(
                partition_id=partition_id,
                fields=tuple(fields),
                num_samples=num_samples,
                consumer_tasks=tuple(consumer_tasks),
                grpo_group_size=grpo_group_size,
                enums={name: tuple(vocabulary) for name, vocabulary in (enums or {}).items()},
                generation=self._next_generation,
                is_stream=self._cfg.partition_mode == "stream",
                held=self._held,
            )
            self._next_generation += 1
            self._is_used = True
            self._operations["register_partition"] += 1

    # ---- Writing ----

    def put_samples(
        self,
        sample_ids: list[str],
        partition_id: str,
        fields: Fields | None = None,
        tags: list[dict[str, Any]] | None = None,
        *,
        replace: bool = False,
    ) -> KVBatchMeta:
        """See `DataPlaneClient.put_samples`."""
        self._require_open()
        ids = checks.numbered_ids(sample_ids)
        checks.check_tags(ids, fields, tags)
        values = {} if fields is None else columns_of(fields, len(ids))
        try:
            own_tags = None if tags is None else [copied(dict(tag)) for tag in tags]
            own_values = values if self._cfg.zero_copy else {name: copied(value) for name, value in values.items()}
            with self._changed:
                return self._put(ids, partition_id, own_values, own_tags, replace=replace)
        except RecursionError:
            raise ValueError("a value or tag is nested too deep, or holds itself; allowed: neither") from None

    def _put(
        self,
        ids: dict[str, int],
        partition_id: str,
        values: dict[str, Any],
        tags: list[dict[str, Any]] | None,
        *,
        replace: bool,
    ) -> KVBatchMeta:
        self._require_open()
        partition = self._partition(partition_id)
        slots = partition.apply(partition.check_put(ids, values, tags, replace=replace))
        self._operations["put_samples"] += 1
        self._changed.notify_all()
        return self._meta(partition, list(ids), slots, None, list(values))

    def _meta(
        self, partition: Partition, ids: list[str], slots: Slots, task: str | None, fields: list[str]
    ) -> KVBatchMeta:
        return KVBatchMeta(
            partition_id=partition.partition_id,
            task_name=task,
            sample_ids=ids,
            fields=fields,
            sequence_lengths=self._sequence_lengths(partition, slots),
            extra_info={LOCAL_GENERATION_KEY: partition.generation},
            tags=partition.tags_of(slots),
        )

    # ---- Reading ----

    def get_samples(self, sample_ids: list[str], partition_id: str, select_fields: list[str]) -> TensorDict:
        """See `DataPlaneClient.get_samples`."""
        with self._changed:
            self._require_open()
            found = checks.find_rows(self._partition(partition_id), sample_ids, select_fields)
            self._operations["get_samples"] += 1
        return self._read(found, len(sample_ids))

    def get_data(self, meta: KVBatchMeta, select_fields: list[str] | None = None) -> TensorDict:
        """See `DataPlaneClient.get_data`."""
        with self._changed:
            self._require_open()
            partition = self._validate_meta(meta)
            fields = meta.fields if select_fields is None else select_fields
            if fields is None:
                raise ValueError("neither select_fields nor the meta names a field; allowed: fields in one of them")
            found = checks.find_rows(partition, meta.sample_ids, fields)
            self._operations["get_data"] += 1
        return self._read(found, meta.size)

    def _read(self, found: Mapping[str, Found], rows: int) -> TensorDict:
        """Read rows that were found; without the lock, as what was put never changes."""
        copy = not self._cfg.zero_copy
        return wrap({name: where.read(name, copy=copy) for name, where in found.items()}, rows)

    def list_sample_ids(self, partition_id: str) -> list[str]:
        """See `DataPlaneClient.list_sample_ids`."""
        with self._changed:
            self._require_open()
            self._operations["list_sample_ids"] += 1
            return sorted(self._partitions[partition_id].slots) if partition_id in self._partitions else []

    # ---- Claiming ----

    def claim_meta(
        self,
        partition_id: str,
        task_name: str,
        required_fields: list[str],
        batch_size: int,
        dp_rank: int | None = None,
        blocking: bool = True,  # noqa: FBT001, FBT002 - the contract's signature
        timeout_s: float = 60.0,
    ) -> KVBatchMeta:
        """See `DataPlaneClient.claim_meta`."""
        self._require_open()
        if not timeout_s >= 0:  # NaN, too
            raise ValueError(f"timeout_s is {timeout_s}; allowed: 0 or more seconds")
        with self._changed:
            self._require_open()
            partition = self._partition(partition_id)
            wanted = checks.checked_claim(partition, task_name, required_fields, batch_size)
            slots = self._wait_for_rows(partition, wanted, timeout_s) if blocking else look(partition, wanted)[0]
            meta = self._meta(partition, partition.ids_at(slots), slots, task_name, list(required_fields))
            if dp_rank is not None:
                meta.extra_info["dp_rank"] = dp_rank
            partition.claim(slots, task_name)
            self._operations["claim_meta"] += 1
            self._changed.notify_all()  # for another claim there may be no more to wait for
            return meta

    def _wait_for_rows(self, partition: Partition, wanted: Wanted, timeout_s: float) -> Slots:
        deadline = self._clock() + timeout_s
        while True:
            slots, is_enough = look(partition, wanted)
            if is_enough:
                return slots
            left = deadline - self._clock()
            if left <= 0:
                raise TimeoutError(f"waited {timeout_s} s: {explain(partition, wanted)}")
            self._changed.wait(min(left, threading.TIMEOUT_MAX))
            self._require_open()
            current = self._partitions.get(partition.partition_id)
            if current is not partition:
                raise StaleMetaError(
                    partition.partition_id, partition.generation, None if current is None else current.generation
                )

    def release_claims(self, sample_ids: Sequence[str], partition_id: str, task_name: str) -> None:
        """See `DataPlaneClient.release_claims`."""
        with self._changed:
            self._require_open()
            partition = self._partition(partition_id)
            partition.release(checks.claimed_slots(partition, sample_ids, task_name), task_name)
            self._operations["release_claims"] += 1
            self._changed.notify_all()

    def check_consumption_status(self, partition_id: str, task_names: list[str]) -> bool:
        """See `DataPlaneClient.check_consumption_status`."""
        with self._changed:
            self._require_open()
            partition = self._partition(partition_id)
            if not task_names:
                raise ValueError(f"no task is named; allowed: some of {list(partition.consumer_tasks)}")
            for task in task_names:
                checks.check_task(partition, task)
            self._operations["check_consumption_status"] += 1
            rows = len(partition.slots)
            return rows > 0 and all(partition.claims[task] == rows for task in task_names)

    def explain(
        self, partition_id: str, task_name: str, required_fields: list[str], batch_size: int
    ) -> ClaimExplanation:
        """See `DataPlaneClient.explain`."""
        with self._changed:
            self._require_open()
            partition = self._partition(partition_id)
            self._operations["explain"] += 1
            return explain(partition, checks.checked_claim(partition, task_name, required_fields, batch_size))

    # ---- Clearing and ending ----

    def clear_samples(self, sample_ids: list[str] | None, partition_id: str) -> None:
        """See `DataPlaneClient.clear_samples`."""
        with self._changed:
            self._require_open()
            partition = self._partition(partition_id)
            if sample_ids is not None:
                ids = checks.checked_ids(sample_ids)
                checks.check_there(partition, ids)
                partition.clear(ids)
            is_over = sample_ids is None or not (partition.slots or partition.is_stream or not partition.started)
            if is_over:
                partition.let_go()
                del self._partitions[partition_id]
            self._operations["clear_samples"] += 1
            self._changed.notify_all()

    def close(self) -> None:
        """See `DataPlaneClient.close`."""
        with self._changed:
            self._is_open = False
            self._partitions.clear()
            self._held = Bytes()
            self._changed.notify_all()

    # ---- Checkpoint ----

    def save_checkpoint(self, checkpoint_dir: str | Path, *, metadata: dict[str, Any] | None = None) -> None:
        """Write everything that is held; see `DataPlaneClient.save_checkpoint` and `LocalDataPlaneView.save`.

        The client can be used by other threads meanwhile: what is written is what it held when this was called.
        """
        self.freeze().save(checkpoint_dir, metadata=metadata)
        with self._changed:
            self._operations["save_checkpoint"] += 1

    def load_checkpoint(self, checkpoint_dir: str | Path) -> dict[str, Any]:
        """See `DataPlaneClient.load_checkpoint`. Tensors come back on the CPU.

        Raises:
            CheckpointDamagedError: The file is damaged, foreign, of a newer format, or a symbolic link.
            FileNotFoundError: There is none.
            RuntimeError: The client was used before, or holds fewer partitions than there are.
            ValueError: It is of another owner.
        """
        with self._changed:
            self._require_open()
            if self._is_used:
                raise RuntimeError("the data plane was used already; allowed: load_checkpoint in a new client")
            held = Bytes()
            partitions, next_generation, metadata = load(Path(checkpoint_dir), self._cfg, held)
            if len(partitions) > self._cfg.max_partitions:
                raise RuntimeError(
                    f"the checkpoint has {len(partitions)} partitions: "
                    f"{sorted(partition.partition_id for partition in partitions)}; allowed: "
                    f"{self._cfg.max_partitions}, so set max_partitions in the config"
                )
            self._partitions = {partition.partition_id: partition for partition in partitions}
            self._next_generation, self._held, self._is_used = next_generation, held, True
            self._operations["load_checkpoint"] += 1
            return metadata

    # ---- Seeing ----

    def stats(self) -> DataPlaneStats:
        """See `DataPlaneClient.stats`. Bytes of rows that went count until their segment goes or is compacted."""
        with self._changed:
            self._require_open()
            return DataPlaneStats(
                partitions=len(self._partitions),
                rows=sum(len(partition.slots) for partition in self._partitions.values()),
                bytes_held={device: size for device, size in self._held.held.items() if size},
                peak_bytes=self._held.peak,
                operations=dict(self._operations),
            )

    def freeze(self) -> LocalDataPlaneView:
        """See `DataPlaneClient.freeze`."""
        with self._changed:
            self._require_open()
            partitions = [partition.copy() for partition in self._partitions.values()]
            self._operations["freeze"] += 1
            return LocalDataPlaneView(partitions, self._next_generation, self._cfg, self._file_ops)
