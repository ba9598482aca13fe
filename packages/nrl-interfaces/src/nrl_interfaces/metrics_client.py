"""MetricsDataPlaneClient: one event for each operation of any data plane."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from nrl_interfaces.batch_meta import KVBatchMeta
from nrl_interfaces.data_plane import ClaimExplanation, DataPlaneClient, DataPlaneStats, DataPlaneView, Fields
from nrl_interfaces.metrics import Metrics, emit
from nrl_interfaces.values import bytes_by_device

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["MetricsDataPlaneClient"]

_Result = TypeVar("_Result")


class MetricsDataPlaneClient(DataPlaneClient):
    """Wraps a data plane and reports each operation on it.

    An event has ``op`` (the method), ``partition_id`` (None where there is none), ``n_samples``, ``n_bytes`` (of the
    columns put or read; 0 elsewhere), ``wall_ms`` and ``status``: "ok", or the name of the error's class. Errors go
    on to the caller.

    Args:
        client: The data plane.
        metrics: The callback.
        clock: Seconds, monotonic.
    """

    def __init__(
        self, client: DataPlaneClient, metrics: Metrics, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._client = client
        self._metrics = metrics
        self._clock = clock

    def _watch(
        self,
        op: str,
        partition_id: str | None,
        call: Callable[[], _Result],
        rows_of: Callable[[_Result], int] = lambda _: 0,
        bytes_of: Callable[[_Result], int] = lambda _: 0,
    ) -> _Result:
        began, status, n_samples, n_bytes = self._clock(), "ok", 0, 0
        ended: float | None = None
        try:
            result = call()
            ended = self._clock()  # the counting below is not the operation's
            n_samples, n_bytes = rows_of(result), bytes_of(result)
        except BaseException as error:
            status = type(error).__name__
            raise
        else:
            return result
        finally:
            wall_ms = 1e3 * ((self._clock() if ended is None else ended) - began)
            emit(
                self._metrics,
                op=op,
                partition_id=partition_id,
                n_samples=n_samples,
                n_bytes=n_bytes,
                wall_ms=wall_ms,
                status=status,
            )

    def register_partition(
        self,
        partition_id: str,
        fields: list[str],
        num_samples: int,
        consumer_tasks: list[str],
        grpo_group_size: int | None = None,
        enums: dict[str, list[str]] | None = None,
    ) -> None:
        """See `DataPlaneClient.register_partition`; ``n_samples`` is ``num_samples``."""
        self._watch(
            "register_partition",
            partition_id,
            lambda: self._client.register_partition(
                partition_id, fields, num_samples, consumer_tasks, grpo_group_size, enums
            ),
            lambda _: num_samples,
        )

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
        """See `DataPlaneClient.claim_meta`; ``wall_ms`` has the wait in it."""
        return self._watch(
            "claim_meta",
            partition_id,
            lambda: self._client.claim_meta(
                partition_id, task_name, required_fields, batch_size, dp_rank, blocking, timeout_s
            ),
            lambda meta: meta.size,
        )

    def release_claims(self, sample_ids: Sequence[str], partition_id: str, task_name: str) -> None:
        """See `DataPlaneClient.release_claims`."""
        self._watch(
            "release_claims",
            partition_id,
            lambda: self._client.release_claims(sample_ids, partition_id, task_name),
            lambda _: len(sample_ids),
        )

    def get_data(self, meta: KVBatchMeta, select_fields: list[str] | None = None) -> "TensorDict":
        """See `DataPlaneClient.get_data`."""
        return self._watch(
            "get_data",
            meta.partition_id,
            lambda: self._client.get_data(meta, select_fields),
            lambda _: meta.size,
            _bytes_in,
        )

    def check_consumption_status(self, partition_id: str, task_names: list[str]) -> bool:
        """See `DataPlaneClient.check_consumption_status`."""
        return self._watch(
            "check_consumption_status",
            partition_id,
            lambda: self._client.check_consumption_status(partition_id, task_names),
        )

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
        return self._watch(
            "put_samples",
            partition_id,
            lambda: self._client.put_samples(sample_ids, partition_id, fields, tags, replace=replace),
            lambda meta: meta.size,
            lambda _: 0 if fields is None else _bytes_in(fields),
        )

    def get_samples(self, sample_ids: list[str], partition_id: str, select_fields: list[str]) -> "TensorDict":
        """See `DataPlaneClient.get_samples`."""
        return self._watch(
            "get_samples",
            partition_id,
            lambda: self._client.get_samples(sample_ids, partition_id, select_fields),
            lambda _: len(sample_ids),
            _bytes_in,
        )

    def list_sample_ids(self, partition_id: str) -> list[str]:
        """See `DataPlaneClient.list_sample_ids`."""
        return self._watch("list_sample_ids", partition_id, lambda: self._client.list_sample_ids(partition_id), len)

    def clear_samples(self, sample_ids: list[str] | None, partition_id: str) -> None:
        """See `DataPlaneClient.clear_samples`; ``n_samples`` is 0 where the partition was dropped whole."""
        self._watch(
            "clear_samples",
            partition_id,
            lambda: self._client.clear_samples(sample_ids, partition_id),
            lambda _: len(sample_ids or ()),
        )

    def save_checkpoint(self, checkpoint_dir: str | Path, *, metadata: dict[str, Any] | None = None) -> None:
        """See `DataPlaneClient.save_checkpoint`."""
        self._watch("save_checkpoint", None, lambda: self._client.save_checkpoint(checkpoint_dir, metadata=metadata))

    def load_checkpoint(self, checkpoint_dir: str | Path) -> dict[str, Any]:
        """See `DataPlaneClient.load_checkpoint`."""
        return self._watch("load_checkpoint", None, lambda: self._client.load_checkpoint(checkpoint_dir))

    def explain(
        self, partition_id: str, task_name: str, required_fields: list[str], batch_size: int
    ) -> ClaimExplanation:
        """See `DataPlaneClient.explain`."""
        return self._watch(
            "explain",
            partition_id,
            lambda: self._client.explain(partition_id, task_name, required_fields, batch_size),
            lambda explanation: explanation.rows,
        )

    def stats(self) -> DataPlaneStats:
        """See `DataPlaneClient.stats`."""
        return self._watch("stats", None, self._client.stats, lambda stats: stats.rows)

    def freeze(self) -> DataPlaneView:
        """See `DataPlaneClient.freeze`."""
        return self._watch("freeze", None, self._client.freeze)

    def close(self) -> None:
        """See `DataPlaneClient.close`."""
        self._watch("close", None, self._client.close)


def _bytes_in(fields: Fields) -> int:
    """Bytes of all columns. A TensorDict is a mapping in all but name; only an item of it is what a column holds."""
    columns = cast("Mapping[str, Any]", fields)
    return sum(sum(bytes_by_device(columns[name]).values()) for name in columns.keys())  # noqa: SIM118 - has no __iter__
