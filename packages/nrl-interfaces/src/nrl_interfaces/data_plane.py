"""The contract of a data plane: where producers put rows and consumer tasks claim and read them.

A *partition* is declared with its fields, its number of rows and its consumer tasks. Rows have ids; producers put
columns for them, in one go or field by field; each task claims every row once. What an adapter must keep to stands
here in numbered clauses; `nrl_interfaces.testing.data_plane` has a test for each.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

from nrl_interfaces.batch_meta import KVBatchMeta
from nrl_interfaces.data_plane_errors import CheckpointDamagedError, StaleMetaError, UnsupportedByAdapterError

if TYPE_CHECKING:
    from tensordict import TensorDict

    Fields: TypeAlias = TensorDict | Mapping[str, Any]
    """Columns by field: a TensorDict of batch size [B], or a mapping of columns of B rows."""
else:
    Fields = Mapping[str, Any]

__all__ = [
    "CheckpointDamagedError",
    "ClaimExplanation",
    "DataPlaneClient",
    "DataPlaneStats",
    "DataPlaneView",
    "Fields",
    "KVBatchMeta",
    "StaleMetaError",
    "UnsupportedByAdapterError",
]


@dataclass(frozen=True)
class ClaimExplanation:
    """Why a claim would wait, or that it would not.

    Attributes:
        partition_id: The partition.
        task_name: The consumer task.
        required_fields: The fields asked for.
        batch_size: How many rows were asked for.
        rows: Rows in the partition.
        rows_ready: Rows that a claim could take now.
        rows_claimed: Rows that this task has claimed already.
        rows_missing: Of the rows that are not claimed, how many lack each required field; fields that none lacks are
            left out.
        rows_expected: Rows that producers may still put.
        would_wait: Whether a blocking claim would wait.
    """

    partition_id: str
    task_name: str
    required_fields: tuple[str, ...]
    batch_size: int
    rows: int
    rows_ready: int
    rows_claimed: int
    rows_missing: Mapping[str, int]
    rows_expected: int
    would_wait: bool

    def __str__(self) -> str:
        lacking = [f"field {name!r} is missing for {count} rows" for name, count in self.rows_missing.items()]
        if self.rows_expected:
            lacking.append(f"{self.rows_expected} rows are not put yet")
        reasons = "; ".join(lacking) or "nothing is missing"
        return (
            f"task {self.task_name!r} wants {self.batch_size} rows of partition {self.partition_id!r} with fields "
            f"{list(self.required_fields)}: {self.rows_ready} of {self.rows} rows are ready, "
            f"{self.rows_claimed} are claimed already; {reasons}"
        )


@dataclass(frozen=True)
class DataPlaneStats:
    """What a data plane holds and has done.

    Attributes:
        partitions: Partitions registered now.
        rows: Rows held now.
        bytes_held: Bytes of the data held now, by device.
        peak_bytes: The most bytes that were held at any time, all devices together.
        operations: Calls that succeeded, by method.
    """

    partitions: int
    rows: int
    bytes_held: Mapping[str, int]
    peak_bytes: int
    operations: Mapping[str, int]


class DataPlaneView(Protocol):
    """An immutable view of the partitions at one moment, by `DataPlaneClient.freeze`."""

    def save(self, checkpoint_dir: str | Path, metadata: dict[str, Any] | None = None) -> None:
        """Write the checkpoint that `DataPlaneClient.save_checkpoint` would have written at that moment."""
        ...


class DataPlaneClient(ABC):
    """A data plane.

    Clause 14. A meta of an older generation, one without a generation, or one of a partition that is gone:
    StaleMetaError with ``partition_id``, ``meta_generation`` and ``current_generation`` (None when it is gone).

    Clause 25. `close` may be called twice. Any other call after it: RuntimeError; a claim that waits is woken and
    raises it.

    Every call is safe from any thread. A call that raises has changed nothing.
    """

    @abstractmethod
    def register_partition(
        self,
        partition_id: str,
        fields: list[str],
        num_samples: int,
        consumer_tasks: list[str],
        grpo_group_size: int | None = None,
        enums: dict[str, list[str]] | None = None,
    ) -> None:
        """Declare a partition.

        Clause 1. Empty or duplicate names, ``num_samples`` below 1 or a bool, a ``grpo_group_size`` that does not
        divide ``num_samples``: ValueError, and nothing is registered. The arguments are copied.

        Clause 2. An id that is live: ValueError. After ``clear_samples(None, id)`` it may be registered again, and
        gets a new generation.

        Clause 3. More partitions than the adapter's limit: RuntimeError with the limit and the ids that are held.

        Clause 4. Each registration gets a generation number that this client never used before, nor did a checkpoint
        that it loaded.

        Args:
            partition_id: The partition's id.
            fields: Every field that any producer may put.
            num_samples: How many rows: those of the one batch, or the capacity of a stream.
            consumer_tasks: The tasks that claim rows, each with claims of its own.
            grpo_group_size: Rows come and are claimed in groups of so many; None for single rows.
            enums: The vocabulary of fields that hold strings.
        """

    @abstractmethod
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
        """Mark rows as claimed by a task and say which.

        Clause 16. ``sequence_lengths`` of the meta come from the field ``input_lengths``; None where there is none.

        Clause 17. Up to ``batch_size`` rows whose ``required_fields`` are all there, in the order in which they were
        put, for that task alone. No id is ever claimed twice by one task, whatever the threads do.

        Clause 18. Blocking waits until ``batch_size`` rows can be claimed, or until no more can come: then it gives
        the tail at once, and an empty meta when all rows have been claimed. In a stream more can always come, so there
        it waits for the whole of ``batch_size``. It wakes when a put arrives; it does not poll. If the partition is
        cleared meanwhile: StaleMetaError.

        Clause 19. A wait that runs out: TimeoutError, which says which fields of how many rows were missing; nothing
        is claimed. ``timeout_s`` counts on a monotonic clock; 0 looks once; negative or NaN: ValueError.

        Clause 20. Not blocking: what is there, perhaps an empty meta, at once.

        Clause 21. An unknown partition or task, or a field that is not declared: KeyError at once, not after the time
        limit. No field, or ``batch_size`` below 1: ValueError.

        Clause 22. With groups of g rows: each put brings whole groups of g consecutive ids, they stay groups when
        other rows go, and claims hand out whole groups, of a group that has lost rows what is left of it; as many as
        fit into ``batch_size`` rows. A ``batch_size`` that g does not divide: ValueError. ``dp_rank`` is kept in the
        meta's ``extra_info`` and changes nothing else.

        Args:
            partition_id: The partition.
            task_name: One of its consumer tasks.
            required_fields: What the rows must have; also the meta's ``fields``.
            batch_size: How many rows.
            dp_rank: The data-parallel rank that claims.
            blocking: Whether to wait.
            timeout_s: How long, in seconds.
        """

    @abstractmethod
    def release_claims(self, sample_ids: Sequence[str], partition_id: str, task_name: str) -> None:
        """Make rows that a task has claimed claimable again, at their old place in the order.

        Clause 17. (release) An id that is not claimed: ValueError, and none is released. With groups: whole groups.
        """

    @abstractmethod
    def get_data(self, meta: KVBatchMeta, select_fields: list[str] | None = None) -> "TensorDict":
        """Read the rows of a meta.

        Clause 13. Fields come from the argument, else from the meta, else ValueError: never all fields by accident.
        """

    @abstractmethod
    def check_consumption_status(self, partition_id: str, task_names: list[str]) -> bool:
        """Tell whether tasks are through with a partition.

        Clause 23. True only when there are rows and each task named has claimed them all. An unknown partition or
        task: KeyError. No task named: ValueError.
        """

    @abstractmethod
    def put_samples(
        self,
        sample_ids: list[str],
        partition_id: str,
        fields: Fields | None = None,
        tags: list[dict[str, Any]] | None = None,
        *,
        replace: bool = False,
    ) -> KVBatchMeta:
        """Put columns, tags or both for rows.

        Clause 5. A put is all or nothing: one that is refused leaves ids, rows, tags and counters as they were.

        Clause 6. In a batch partition the first put holds exactly ``num_samples`` ids. In a stream ``num_samples`` is
        the capacity: puts bring new ids as they come, cleared rows make room, a put over the capacity is refused
        whole. In both, later puts for ids that are there may add columns that are not there yet and may replace tags;
        a column that is there already: ValueError, unless ``replace`` is True: then the ids get new storage, and
        results and views handed out before keep the old values.

        Clause 7. A field that is not declared, a batch size that does not fit, a duplicate or empty id, tags of
        another length, neither fields nor tags: ValueError that names it. An unknown partition: KeyError.

        Clause 8. A put of tags alone keeps the rows.

        Clause 9. Nothing of the caller's is kept: what the caller does to its tensors, lists, tags and enums
        afterwards changes nothing here, and what is done to a result changes nothing here, for full and partial reads
        alike. Tensors, numpy arrays, PackedTensors, lists, tuples, dicts, sets, strings, bytes and numbers are
        copied; any other object is kept and handed out by reference.

        Clause 10. Strings of a field with ``enums`` must be in its vocabulary: ValueError with value, field and
        vocabulary.

        Args:
            sample_ids: B ids, each once.
            partition_id: The partition.
            fields: Columns of B rows.
            tags: B dicts, which replace the rows' tags.
            replace: Whether columns that are there already may be written again.

        Returns:
            A meta of these rows, with the fields of this put.
        """

    @abstractmethod
    def get_samples(self, sample_ids: list[str], partition_id: str, select_fields: list[str]) -> "TensorDict":
        """Read rows by their ids.

        Clause 11. Rows come in the order asked, every column in step with the ids: tensors, lists, tuples, strings,
        dicts, packed values, jagged tensors. An unknown partition, id or field, a field that a row lacks: KeyError
        that names it. Duplicate ids: ValueError.

        Clause 12. No ids: a result of 0 rows that keeps dtype and trailing shape.

        Returns:
            A TensorDict of batch size [B]. Columns that are no tensors are one NonTensorData each, which holds the
            whole column.
        """

    @abstractmethod
    def list_sample_ids(self, partition_id: str) -> list[str]:
        """List the ids of a partition.

        Clause 15. Sorted; no row is read; [] for an unknown partition.
        """

    @abstractmethod
    def clear_samples(self, sample_ids: list[str] | None, partition_id: str) -> None:
        """Drop rows.

        Clause 24. A batch partition goes with its last row. None drops all rows and the partition. An unknown
        partition or id: KeyError, and nothing is dropped.
        """

    @abstractmethod
    def save_checkpoint(self, checkpoint_dir: str | Path, *, metadata: dict[str, Any] | None = None) -> None:
        """Write everything that is held into a folder.

        Clause 26. The state in the folder is replaced in one step: at every moment a loader finds the old state or
        the new one. Left-overs of a crash never stop the next save; other files in the folder are left alone; a folder
        that is a symlink: ValueError, with the folder intact. A folder belongs to one owner, by the adapter's config: a
        load, or a save over the file, of another owner: ValueError that names both.

        Clause 28. Whatever `load_checkpoint` would refuse is refused before anything is written: TypeError that names
        the column or tag, the sample id and the class. Views are saved as their rows, not their storage. A checkpoint
        that is damaged, truncated, foreign or of a newer format: CheckpointDamagedError when it is loaded, and the
        client is unchanged. Nothing is unpickled but classes known to be safe.

        Args:
            checkpoint_dir: The folder; made where it is missing.
            metadata: Plain data that `load_checkpoint` gives back.
        """

    @abstractmethod
    def load_checkpoint(self, checkpoint_dir: str | Path) -> dict[str, Any]:
        """Load what `save_checkpoint` wrote, and return its metadata.

        Clause 27. Only in a client that was never used (one that is empty again is still used): RuntimeError, and it
        is unchanged. Afterwards new generations are above every one from before the save, and metas from before it
        are good in the client that loaded it.
        """

    @abstractmethod
    def explain(
        self, partition_id: str, task_name: str, required_fields: list[str], batch_size: int
    ) -> ClaimExplanation:
        """Say why a claim would wait.

        Clause 29. Rows that are ready, rows that miss which fields, rows that are claimed already. Bad arguments: as
        `claim_meta`.
        """

    @abstractmethod
    def stats(self) -> DataPlaneStats:
        """Say what is held and what was done.

        Clause 30. Partitions, rows, bytes held on each device, the most bytes held at any time, operations.
        """

    def freeze(self) -> DataPlaneView:
        """Give an immutable view of the partitions at this moment.

        Clause 31. Its cost grows with rows and puts, not with bytes. ``view.save(dir, metadata=None)`` writes it
        later, whatever happens to the client meanwhile.

        Raises:
            UnsupportedByAdapterError: If the adapter has no views.
        """
        raise UnsupportedByAdapterError(type(self).__name__, "freeze")

    @abstractmethod
    def close(self) -> None:
        """Let go of everything; see clause 25."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
