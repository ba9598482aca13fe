"""TransferQueueDataPlaneClient: the data plane of many processes. It checks, moves rows, and asks the registry."""

import concurrent.futures
import pickle
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nrl_interfaces import KVBatchMeta, StaleMetaError
from nrl_interfaces.data_plane import ClaimExplanation, DataPlaneClient, DataPlaneStats, Fields

from nrl_dataplane_tq.config import TransferQueueDataPlaneConfig
from nrl_dataplane_tq.declaration import Declaration, checked_ids, checked_tags, checked_timeout

if TYPE_CHECKING:
    from tensordict import TensorDict

    from nrl_dataplane_tq.columns import Kind

__all__ = ["GENERATION_KEY", "TransferQueueDataPlaneClient", "build_client"]

GENERATION_KEY = "transfer_queue_partition_generation"
_TAGS = "nrl_tags"  # the key of a row's tags, pickled, in what TransferQueue calls custom meta
_WAIT_S = 20.0  # how long the registry is asked to wait in one go
_Result = TypeVar("_Result")


def build_client(config: Mapping[str, Any]) -> "TransferQueueDataPlaneClient":
    """Build a client from plain data; what `nrl_interfaces.build_data_plane_client` calls for ``impl: transfer_queue``.

    Raises:
        ValueError: As `TransferQueueDataPlaneConfig.from_mapping`.
    """
    return TransferQueueDataPlaneClient(TransferQueueDataPlaneConfig.from_mapping(config))


class TransferQueueDataPlaneClient(DataPlaneClient):
    """A data plane on TransferQueue: clients in any process of a Ray cluster share what one queue holds.

    What each call keeps to stands in `DataPlaneClient`. The client can be pickled: a Ray task that gets one connects
    anew. Tensors go to the CPU.

    Args:
        cfg: Which queue and plane, and how they work.
        clock: Seconds, monotonic, for the time limit of claims.

    Raises:
        ImportError: Ray or TransferQueue is not installed.
        RuntimeError: Ray or the queue is not started; says how to.
        ValueError: The plane has clients with other settings.
    """

    def __init__(self, cfg: TransferQueueDataPlaneConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        from nrl_dataplane_tq.connection import Connection

        self._cfg = cfg
        self._clock = clock
        self._connection = Connection(cfg)
        self._declarations: dict[str, Declaration] = {}
        self._operations: Counter[str] = Counter()
        self._closing: concurrent.futures.Future[None] = concurrent.futures.Future()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._cfg,)

    def _require_open(self) -> None:
        if self._closing.done():
            raise RuntimeError("the data plane is closed; allowed: close() again, or a new client")

    def _ask(self, operation: str, *args: Any) -> Any:
        self._require_open()
        return self._connection.ask(operation, *args)

    def _count(self, operation: str) -> None:
        self._operations[operation] += 1

    def _with_declaration(self, partition_id: str, call: Callable[[Declaration], _Result]) -> _Result:
        """Call with what was declared; once more where what was kept of it is out of date."""
        self._require_open()
        kept = self._declarations.get(partition_id)
        if kept is not None:
            try:
                return call(kept)
            except (KeyError, ValueError):  # by this registration, or by the one before?
                self._declarations.pop(partition_id, None)
                if self._ask("declaration", partition_id) == kept:
                    raise
        declared: Declaration = self._ask("declaration", partition_id)
        self._declarations[partition_id] = declared
        return call(declared)

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
        self._require_open()
        declared = Declaration.checked(partition_id, fields, num_samples, consumer_tasks, grpo_group_size, enums)
        self._ask("declare", declared, self._cfg.plane)
        self._count("register_partition")

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
        from nrl_dataplane_tq.columns import columns_of

        self._require_open()
        ids = checked_ids(sample_ids)
        columns = {} if fields is None else columns_of(fields, len(ids))
        if not columns and tags is None:
            raise ValueError("the put has neither fields nor tags; allowed: one of them, or both")
        own_tags = None if tags is None else [_packed_tag(tag) for tag in checked_tags(tags, ids)]
        meta = self._with_declaration(
            partition_id, lambda declared: self._put(declared, ids, columns, own_tags, replace=replace)
        )
        self._count("put_samples")
        return meta

    def _put(
        self,
        declared: Declaration,
        ids: list[str],
        columns: Mapping[str, Any],
        tags: list[dict[str, Any]] | None,
        *,
        replace: bool,
    ) -> KVBatchMeta:
        from nrl_dataplane_tq.columns import kind_of, to_wire

        declared.check_columns(columns)
        kinds = {name: kind_of(column) for name, column in columns.items()}
        wire = {name: to_wire(name, column, kinds[name], ids) for name, column in columns.items()}
        where = (declared.partition_id, declared.generation)
        begun = self._ask("begin_put", *where, ids, kinds, tags, replace)
        if begun.number is not None:
            try:
                self._connection.put_rows(wire, begun.rows)
            except Exception:
                self._connection.ask("end_put", *where, begun.number, False)  # noqa: FBT003
                raise
            # Whoever is interrupted may still be putting: the registry gives such a put up when that must be over.
            self._connection.ask("end_put", *where, begun.number, True)  # noqa: FBT003
        lengths = _whole_numbers(columns.get("input_lengths"))
        if lengths is None and begun.has_lengths:
            lengths = self._lengths(declared, ids)
        return self._meta(declared, None, ids, list(columns), begun.rows.custom_meta, lengths)

    def _meta(
        self,
        declared: Declaration,
        task: str | None,
        ids: list[str],
        fields: list[str],
        tags: Sequence[Mapping[str, Any]],
        lengths: list[int] | None,
    ) -> KVBatchMeta:
        return KVBatchMeta(
            partition_id=declared.partition_id,
            task_name=task,
            sample_ids=list(ids),
            fields=fields,
            sequence_lengths=lengths,
            extra_info={GENERATION_KEY: declared.generation},
            tags=[_unpacked_tag(tag) for tag in tags] if any(_TAGS in tag for tag in tags) else None,
        )

    def _lengths(self, declared: Declaration, ids: list[str]) -> list[int] | None:
        """Read ``input_lengths``; None where the rows went meanwhile, or it is no column of whole numbers."""
        name = "input_lengths"
        try:
            return _whole_numbers(self._read(declared.partition_id, declared.generation, ids, [name])[name])
        except KeyError:
            return None

    # ---- Reading ----

    def get_samples(self, sample_ids: list[str], partition_id: str, select_fields: list[str]) -> "TensorDict":
        """See `DataPlaneClient.get_samples`."""
        from nrl_dataplane_tq.columns import wrap

        self._require_open()
        ids = checked_ids(sample_ids)
        columns = self._read(partition_id, None, ids, list(select_fields))
        self._count("get_samples")
        return wrap(columns, len(ids))

    def get_data(self, meta: KVBatchMeta, select_fields: list[str] | None = None) -> "TensorDict":
        """See `DataPlaneClient.get_data`."""
        from nrl_dataplane_tq.columns import wrap

        self._require_open()
        fields = meta.fields if select_fields is None else select_fields
        generation = meta.extra_info.get(GENERATION_KEY)
        if generation is None:
            declared = self._ask_declaration(meta.partition_id)
            raise StaleMetaError(meta.partition_id, None, declared and declared.generation)
        if fields is None:
            raise ValueError("neither select_fields nor the meta names a field; allowed: fields in one of them")
        columns = self._read(meta.partition_id, generation, checked_ids(meta.sample_ids), list(fields))
        self._count("get_data")
        return wrap(columns, meta.size)

    def _ask_declaration(self, partition_id: str) -> Declaration | None:
        try:
            return self._ask("declaration", partition_id)
        except KeyError:
            return None

    def _read(self, partition_id: str, generation: int | None, ids: list[str], fields: list[str]) -> dict[str, Any]:
        from nrl_dataplane_tq.columns import from_wire

        while True:
            found = self._ask("locate", partition_id, generation, ids, fields)
            kinds: dict[str, Kind] = found.kinds
            if not ids:
                return {name: kind.empty() for name, kind in kinds.items()}
            rows = self._connection.get_rows(found.engine_id, found.numbers, fields)
            # TransferQueue uses a cleared row's number again: without this look a read might give somebody else's row.
            if rows is not None and self._ask("clears", partition_id) == found.clears:
                return {name: from_wire(rows.get(name), kind) for name, kind in kinds.items()}

    def list_sample_ids(self, partition_id: str) -> list[str]:
        """See `DataPlaneClient.list_sample_ids`."""
        ids: list[str] = self._ask("sample_ids", partition_id)
        self._count("list_sample_ids")
        return ids

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
        """See `DataPlaneClient.claim_meta`. It waits in the registry, which each change wakes, in any process."""
        self._require_open()
        until = self._clock() + checked_timeout(timeout_s)

        def first(declared: Declaration) -> tuple[Declaration, Any]:
            declared.check_claim(task_name, required_fields, batch_size)
            return declared, self._claim(declared, task_name, required_fields, batch_size, may_wait=blocking)

        declared, answer = self._with_declaration(partition_id, first)
        while isinstance(answer, self._connection.waits):
            left = until - self._clock()
            if left <= 0:
                raise TimeoutError(f"waited {timeout_s} s: {answer.explanation}")
            self._wait(declared, answer.version, min(left, _WAIT_S))
            answer = self._claim(declared, task_name, required_fields, batch_size, may_wait=True)
        lengths = self._lengths(declared, answer.sample_ids) if answer.has_lengths else None
        meta = self._meta(declared, task_name, answer.sample_ids, list(required_fields), answer.tags, lengths)
        if dp_rank is not None:
            meta.extra_info["dp_rank"] = dp_rank
        self._count("claim_meta")
        return meta

    def _claim(self, declared: Declaration, task: str, fields: list[str], batch_size: int, *, may_wait: bool) -> Any:
        where = (declared.partition_id, declared.generation)
        return self._ask("claim", *where, task, list(dict.fromkeys(fields)), batch_size, may_wait)

    def _wait(self, declared: Declaration, version: int, within_s: float) -> None:
        """Wait for a change of the partition, the end of the client, or the end of the time."""
        change = self._connection.future("wait", declared.partition_id, declared.generation, version, within_s)
        concurrent.futures.wait([change, self._closing], return_when=concurrent.futures.FIRST_COMPLETED)
        self._require_open()

    def release_claims(self, sample_ids: Sequence[str], partition_id: str, task_name: str) -> None:
        """See `DataPlaneClient.release_claims`."""
        self._require_open()
        self._ask("release", partition_id, checked_ids(sample_ids), task_name)
        self._count("release_claims")

    def check_consumption_status(self, partition_id: str, task_names: list[str]) -> bool:
        """See `DataPlaneClient.check_consumption_status`."""
        are_consumed: bool = self._ask("are_consumed", partition_id, list(task_names))
        self._count("check_consumption_status")
        return are_consumed

    def explain(
        self, partition_id: str, task_name: str, required_fields: list[str], batch_size: int
    ) -> ClaimExplanation:
        """See `DataPlaneClient.explain`."""
        why: ClaimExplanation = self._ask("explain", partition_id, task_name, list(required_fields), batch_size)
        self._count("explain")
        return why

    # ---- Clearing and ending ----

    def clear_samples(self, sample_ids: list[str] | None, partition_id: str) -> None:
        """See `DataPlaneClient.clear_samples`. It waits for puts of the same rows that are under way."""
        self._require_open()
        self._ask("clear", partition_id, None if sample_ids is None else checked_ids(sample_ids))
        self._count("clear_samples")

    def stats(self) -> DataPlaneStats:
        """See `DataPlaneClient.stats`. Operations are this client's; TransferQueue counts no bytes."""
        partitions, rows = self._ask("sizes")
        self._count("stats")
        return DataPlaneStats(partitions, rows, bytes_held={}, peak_bytes=0, operations=dict(self._operations))

    def close(self) -> None:
        """End this client. What the plane holds stays, for the other clients and for new ones."""
        if not self._closing.done():
            self._closing.set_result(None)

    def reset(self) -> None:
        """Drop all that the plane holds and make it as new, for a start on a queue that has outlived its clients.

        This client and the others of the plane are of no use afterwards: make new ones.
        """
        self._require_open()
        self._connection.ask("reset")
        self.close()

    # ---- Checkpoints ----

    def save_checkpoint(self, checkpoint_dir: str | Path, *, metadata: dict[str, Any] | None = None) -> None:
        """Write the whole queue into a folder, that all processes of the queue see, by TransferQueue's own checkpoint.

        No row comes, goes or is claimed meanwhile: a put that is under way is waited for, and all else waits.

        Raises:
            OtherOwnerError: What is in the folder belongs to another owner.
            RuntimeError: Another plane holds partitions in the same queue, or a part of the queue failed to save.
            TypeError: ``metadata`` can't be pickled.
            UnsupportedByAdapterError: The queue's storage backend has no checkpoints.
            ValueError: The folder is a symlink.
        """
        self._require_open()
        try:
            packed = pickle.dumps(dict(metadata or {}))
        except Exception as error:
            raise TypeError(f"metadata can't be pickled ({error}); allowed: plain data") from error
        self._ask("save", Path(checkpoint_dir).absolute(), self._cfg.owner, packed)
        self._count("save_checkpoint")

    def load_checkpoint(self, checkpoint_dir: str | Path) -> dict[str, Any]:
        """Load what `save_checkpoint` wrote into a queue that is new, and return its metadata.

        TransferQueue's files are pickles: load none that somebody else may have written.

        Raises:
            CheckpointDamagedError: A file is missing or was changed since it was written, or the format is newer.
            FileNotFoundError: There is no checkpoint.
            OtherOwnerError: It belongs to another owner.
            RuntimeError: The plane was used, or the queue holds anything.
            StorageUnitsError: The queue has another number of storage units than the one that was saved.
        """
        packed: bytes = self._ask("load", Path(checkpoint_dir).absolute(), self._cfg.owner)
        self._count("load_checkpoint")
        return pickle.loads(packed)  # noqa: S301 - as above


def _packed_tag(tag: dict[str, Any]) -> dict[str, Any]:
    """Pickle a tag: the wire's own format would make lists of tuples and sets."""
    from nrl_dataplane_tq.columns import dumped

    try:
        return {_TAGS: dumped(tag)}
    except Exception as error:
        raise TypeError(f"the tag {tag!r} can't be pickled ({error}); allowed: what pickle takes") from error


def _unpacked_tag(tag: Mapping[str, Any]) -> dict[str, Any]:
    from nrl_dataplane_tq.columns import loaded

    return loaded(tag[_TAGS]) if _TAGS in tag else {}


def _whole_numbers(column: Any) -> list[int] | None:
    """Give a column's items as ints; None where it is none of whole numbers."""
    if column is None or getattr(column, "is_nested", False):
        return None
    items: list[Any] = column.tolist() if hasattr(column, "tolist") else list(column)
    are_whole = all(isinstance(item, int) and not isinstance(item, bool) for item in items)
    return items if are_whole else None
