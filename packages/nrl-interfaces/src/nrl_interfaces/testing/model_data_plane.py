"""A model of the data plane's contract in plain Python: slow, small, and read in one sitting.

The contract's random runs compare an adapter with it, and it shows the contract to people who write one.
"""

import contextlib
import io
import math
import pickle
import threading
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch

from nrl_interfaces.data_plane import (
    CheckpointDamagedError,
    ClaimExplanation,
    DataPlaneClient,
    DataPlaneStats,
    Fields,
    KVBatchMeta,
    StaleMetaError,
)
from nrl_interfaces.fileops import FileOps
from nrl_interfaces.publish import make_folder, publish
from nrl_interfaces.testing.data_plane_clauses.ground import Mode
from nrl_interfaces.testing.model_columns import tensordict_of
from nrl_interfaces.testing.model_partition import ModelPartition
from nrl_interfaces.values import bytes_by_device

__all__ = ["ModelDataPlane"]

_FILE = "model_data_plane.pkl"


class ModelDataPlane(DataPlaneClient):
    """A data plane that keeps to all clauses but one: its checkpoints are loaded by pickle (28).

    Args:
        partition_mode: "batch" or "stream".
        max_partitions: How many partitions it holds at most.
        owner: Whose checkpoints it saves and loads.
        safe_globals: Unused: pickle loads everything.
    """

    def __init__(
        self,
        *,
        partition_mode: Mode = "batch",
        max_partitions: int = 2,
        owner: str | None = None,
        safe_globals: tuple[type, ...] = (),
    ) -> None:
        del safe_globals
        self._mode = partition_mode
        self._max_partitions = max_partitions
        self._owner = owner
        self._partitions: dict[str, ModelPartition] = {}
        self._last_generation = 0
        self._peak_bytes = 0
        self._operations: Counter[str] = Counter()
        self._used = False
        self._closed = False
        self._changed = threading.Condition()

    @property
    def partitions(self) -> list[ModelPartition]:
        """What is held, to look at."""
        return list(self._partitions.values())

    @contextlib.contextmanager
    def _operation(self, name: str) -> Generator[None]:
        """One call: alone, refused after close, counted if it succeeds; waiting claims look again."""
        with self._changed:
            self._check_open()
            yield
            self._operations[name] += 1
            self._changed.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this data plane is closed; make a new one")

    def _partition(self, partition_id: str) -> ModelPartition:
        if partition_id not in self._partitions:
            raise KeyError(f"partition {partition_id!r} is not registered; registered: {list(self._partitions)}")
        return self._partitions[partition_id]

    def _claimable(self, partition_id: str, task: str, fields: Sequence[str], size: int) -> ModelPartition:
        """Check the arguments of a claim."""
        partition = self._partition(partition_id)
        if task not in partition.tasks:
            raise KeyError(f"task {task!r} is not one of {partition.tasks}")
        if unknown := [name for name in fields if name not in partition.fields]:
            raise KeyError(f"field {unknown[0]!r} is not declared; declared: {partition.fields}")
        if not fields:
            raise ValueError("there are no required fields; allowed: one or more")
        if size < 1 or size % partition.group_size:
            raise ValueError(f"batch_size is {size}; allowed: {partition.group_size} and its multiples")
        return partition

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
        group = 1 if grpo_group_size is None else grpo_group_size
        with self._operation("register_partition"):
            for what, names in (("id", [partition_id]), ("fields", fields), ("consumer_tasks", consumer_tasks)):
                if not all(names) or len(set(names)) != len(names):
                    raise ValueError(f"{what}: {names}; allowed: names that are not empty, each once")
            if isinstance(num_samples, bool) or num_samples < 1:
                raise ValueError(f"num_samples is {num_samples!r}; allowed: 1 or more")
            if group < 1 or num_samples % group:
                raise ValueError(f"grpo_group_size is {group}; allowed: a divisor of num_samples, {num_samples}")
            if partition_id in self._partitions:
                raise ValueError(f"partition {partition_id!r} is live; clear_samples(None, {partition_id!r}) first")
            if len(self._partitions) >= self._max_partitions:
                raise RuntimeError(
                    f"{self._max_partitions} partitions is the limit, and {list(self._partitions)} are held; clear one"
                )
            self._used = True
            self._last_generation += 1
            self._partitions[partition_id] = ModelPartition(
                partition_id=partition_id,
                is_stream=self._mode == "stream",
                fields=list(fields),
                num_samples=num_samples,
                tasks=list(consumer_tasks),
                group_size=group,
                enums={name: list(words) for name, words in (enums or {}).items()},
                generation=self._last_generation,
                claimed={task: set() for task in consumer_tasks},
            )

    # ---- Rows ----

    def put_samples(
        self,
        sample_ids: list[str],
        partition_id: str,
        fields: "Fields | None" = None,
        tags: list[dict[str, Any]] | None = None,
        *,
        replace: bool = False,
    ) -> KVBatchMeta:
        """See `DataPlaneClient.put_samples`."""
        with self._operation("put_samples"):
            partition, ids = self._partition(partition_id), list(sample_ids)
            _check_ids(ids)
            # A TensorDict is a mapping in all but name, and gives what its non-tensor columns hold.
            given = cast("Any", fields)
            columns = None if fields is None else {name: given[name] for name in given.keys()}  # noqa: SIM118
            partition.put(ids, columns, tags, again=replace)
            self._peak_bytes = max(self._peak_bytes, sum(self._bytes_held().values()))
            return partition.meta(None, ids, None if columns is None else list(columns))

    def get_samples(self, sample_ids: list[str], partition_id: str, select_fields: list[str]) -> Any:
        """See `DataPlaneClient.get_samples`."""
        with self._operation("get_samples"):
            _check_ids(sample_ids)
            return tensordict_of(self._partition(partition_id).read(sample_ids, select_fields), len(sample_ids))

    def get_data(self, meta: KVBatchMeta, select_fields: list[str] | None = None) -> Any:
        """See `DataPlaneClient.get_data`."""
        with self._operation("get_data"):
            partition = self._partitions.get(meta.partition_id)
            current = None if partition is None else partition.generation
            if partition is None or meta.generation != current:
                raise StaleMetaError(meta.partition_id, meta.generation, current)
            fields = meta.fields if select_fields is None else select_fields
            if fields is None:
                raise ValueError("neither select_fields nor the meta names fields; name those to read")
            return tensordict_of(partition.read(meta.sample_ids, fields), meta.size)

    def list_sample_ids(self, partition_id: str) -> list[str]:
        """See `DataPlaneClient.list_sample_ids`."""
        with self._operation("list_sample_ids"):
            return sorted(self._partitions[partition_id].rows) if partition_id in self._partitions else []

    def clear_samples(self, sample_ids: list[str] | None, partition_id: str) -> None:
        """See `DataPlaneClient.clear_samples`."""
        with self._operation("clear_samples"):
            partition = self._partition(partition_id)
            ids = list(partition.rows) if sample_ids is None else sample_ids
            if unknown := [sample_id for sample_id in ids if sample_id not in partition.rows]:
                raise KeyError(f"sample id {unknown[0]!r} is not in partition {partition_id!r}; nothing is dropped")
            partition.drop(list(dict.fromkeys(ids)))
            if sample_ids is None or (partition.was_put and not partition.rows and not partition.is_stream):
                del self._partitions[partition_id]

    # ---- Claims ----

    def claim_meta(
        self,
        partition_id: str,
        task_name: str,
        required_fields: list[str],
        batch_size: int,
        dp_rank: int | None = None,
        blocking: bool = True,  # noqa: FBT001, FBT002 - the signature that users have
        timeout_s: float = 60.0,
    ) -> KVBatchMeta:
        """See `DataPlaneClient.claim_meta`."""
        if math.isnan(timeout_s) or timeout_s < 0:
            raise ValueError(f"timeout_s is {timeout_s}; allowed: 0 seconds or more")
        until = time.monotonic() + timeout_s
        with self._operation("claim_meta"):
            partition = self._claimable(partition_id, task_name, required_fields, batch_size)
            while blocking and (why := partition.explain(task_name, required_fields, batch_size)).would_wait:
                left = until - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"after {timeout_s} s {why}")
                self._changed.wait(min(left, threading.TIMEOUT_MAX))
                self._check_open()
                if self._partitions.get(partition_id) is not partition:
                    current = self._partitions.get(partition_id)
                    raise StaleMetaError(partition_id, partition.generation, current and current.generation)
            ids, _ = partition.look(task_name, required_fields, batch_size)
            partition.claimed[task_name].update(ids)
            return partition.meta(task_name, ids, required_fields, dp_rank)

    def release_claims(self, sample_ids: Sequence[str], partition_id: str, task_name: str) -> None:
        """See `DataPlaneClient.release_claims`."""
        with self._operation("release_claims"):
            partition = self._partition(partition_id)
            if task_name not in partition.tasks:
                raise KeyError(f"task {task_name!r} is not one of {partition.tasks}")
            partition.release(sample_ids, task_name)

    def check_consumption_status(self, partition_id: str, task_names: list[str]) -> bool:
        """See `DataPlaneClient.check_consumption_status`."""
        with self._operation("check_consumption_status"):
            partition = self._partition(partition_id)
            if not task_names:
                raise ValueError("no task is named; allowed: one or more")
            if unknown := [task for task in task_names if task not in partition.tasks]:
                raise KeyError(f"task {unknown[0]!r} is not one of {partition.tasks}")
            rows = len(partition.rows)
            return rows > 0 and all(len(partition.claimed[task]) == rows for task in task_names)

    # ---- Seeing ----

    def explain(
        self, partition_id: str, task_name: str, required_fields: list[str], batch_size: int
    ) -> ClaimExplanation:
        """See `DataPlaneClient.explain`."""
        with self._operation("explain"):
            partition = self._claimable(partition_id, task_name, required_fields, batch_size)
            return partition.explain(task_name, required_fields, batch_size)

    def _bytes_held(self) -> dict[str, int]:
        return bytes_by_device([[partition.rows, partition.tags] for partition in self._partitions.values()])

    def stats(self) -> DataPlaneStats:
        """See `DataPlaneClient.stats`."""
        with self._operation("stats"):
            return DataPlaneStats(
                partitions=len(self._partitions),
                rows=sum(len(partition.rows) for partition in self._partitions.values()),
                bytes_held=self._bytes_held(),
                peak_bytes=self._peak_bytes,
                operations=dict(self._operations),
            )

    # ---- Checkpoints ----

    def freeze(self) -> "_View":
        """See `DataPlaneClient.freeze`."""
        with self._operation("freeze"):
            partitions = {name: partition.copy() for name, partition in self._partitions.items()}
            return _View({"partitions": partitions, "generation": self._last_generation, "owner": self._owner})

    def save_checkpoint(self, checkpoint_dir: str | Path, *, metadata: dict[str, Any] | None = None) -> None:
        """See `DataPlaneClient.save_checkpoint`."""
        with self._operation("save_checkpoint"):
            self.freeze().save(checkpoint_dir, metadata=metadata)

    def load_checkpoint(self, checkpoint_dir: str | Path) -> dict[str, Any]:
        """See `DataPlaneClient.load_checkpoint`."""
        with self._operation("load_checkpoint"):
            if self._used:
                raise RuntimeError("this data plane was used; load into a new one")
            state = _read(Path(checkpoint_dir) / _FILE)
            _check_owner(state["owner"], self._owner, Path(checkpoint_dir))
            self._used = True
            self._partitions = state["partitions"]
            self._last_generation = state["generation"]
            return state["metadata"]

    def close(self) -> None:
        """See `DataPlaneClient.close`."""
        with self._changed:
            self._closed = True
            self._partitions.clear()
            self._changed.notify_all()


class _View:
    """What `ModelDataPlane.freeze` gives."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._state = state

    def save(self, checkpoint_dir: str | Path, metadata: dict[str, Any] | None = None) -> None:
        """See `DataPlaneView.save`."""
        folder, content = Path(checkpoint_dir), io.BytesIO()
        if folder.is_symlink():
            raise ValueError(f"{folder} is a symlink; allowed: a folder, or a path that is free")
        if (folder / _FILE).exists():
            with contextlib.suppress(CheckpointDamagedError):
                _check_owner(_read(folder / _FILE)["owner"], self._state["owner"], folder)
        torch.save({**self._state, "metadata": metadata or {}}, content)
        make_folder(folder, FileOps())
        publish(folder / _FILE, content.getbuffer(), FileOps())


def _read(file: Path) -> dict[str, Any]:
    try:
        return torch.load(file, weights_only=False)
    except (pickle.UnpicklingError, EOFError, RuntimeError) as error:
        raise CheckpointDamagedError(file, None, str(error)) from error


def _check_owner(saved: str | None, current: str | None, folder: Path) -> None:
    if saved != current:
        raise ValueError(f"the checkpoint in {folder} is of owner {saved!r}; this data plane is of owner {current!r}")


def _check_ids(sample_ids: Sequence[str]) -> None:
    if "" in sample_ids:
        raise ValueError("a sample id is empty; allowed: names")
    if doubled := [sample_id for sample_id, count in Counter(sample_ids).items() if count > 1]:
        raise ValueError(f"sample id {doubled[0]!r} stands there more than once; allowed: once")
