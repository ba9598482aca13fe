"""A client's way to the registry and to the storage units."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from nrl_dataplane_tq.config import TransferQueueDataPlaneConfig

try:
    import ray
    from ray.exceptions import RayActorError
    from tensordict import TensorDict
    from transfer_queue.storage.simple_storage import StorageKeyNotFoundError  # pyright: ignore[reportMissingTypeStubs]

    from nrl_dataplane_tq import engine
    from nrl_dataplane_tq.answers import Refusal, Waits
    from nrl_dataplane_tq.columns import own_rows
    from nrl_dataplane_tq.registry import Registry
except ModuleNotFoundError as error:
    raise ImportError(
        f"nrl-dataplane-tq needs Ray and TransferQueue, and {error.name} is missing: pip install nrl-dataplane-tq"
    ) from error

__all__ = ["Connection"]

_CLAIMS_AT_ONCE = 10_000  # claims that wait in the registry at the same time; Ray's own limit is 1,000
_REGISTRY: Any = ray.remote(Registry)


class Connection:
    """What a client says to the registry, and the rows that it moves.

    Attributes:
        waits: The registry's answer to a claim that would wait.
    """

    waits = Waits

    def __init__(self, cfg: TransferQueueDataPlaneConfig) -> None:
        controller = engine.controller_of(cfg.controller_name, cfg.ray_namespace)
        config = engine.queue_config(controller)
        self._plane = cfg.plane
        self._queue: Any = engine.queue_client(controller, config)
        # Other backends keep each row by itself, and take no parser.
        self._has_storage_units = config.backend.storage_backend == "SimpleStorage"
        # Of the cluster and not of this process, which may be a worker that ends soon; it ends with its queue.
        self._registry: Any = _REGISTRY.options(
            name=f"nrl_registry_{controller._actor_id.hex()}",  # noqa: SLF001 - one start of a queue, one registry
            namespace=cfg.ray_namespace,
            get_if_exists=True,
            lifetime="detached",
            num_cpus=0,
            max_concurrency=_CLAIMS_AT_ONCE,
        ).remote(controller, config)
        self.ask("open", cfg.partition_mode, cfg.max_partitions)

    def future(self, operation: str, *args: Any) -> Any:
        """Ask the registry without waiting for the answer."""
        return self._registry.call.remote(operation, self._plane, *args).future()

    def ask(self, operation: str, *args: Any) -> Any:
        """Ask the registry.

        Raises:
            RuntimeError: The queue is gone. Or what the registry refuses.
        """
        try:
            answer = ray.get(self._registry.call.remote(operation, self._plane, *args))
        except RayActorError as error:
            raise RuntimeError(
                "the queue of this data plane is gone, or its registry died: start a queue, and make new clients"
            ) from error
        if isinstance(answer, Refusal):
            raise answer.error
        return answer

    def put_rows(self, columns: Mapping[str, Any], rows: Any) -> None:
        """Send columns to the storage units."""
        data = TensorDict(cast("Any", dict(columns)), batch_size=[rows.size])
        self._queue.put(data, rows, data_parser=own_rows if self._has_storage_units else None)

    def get_rows(self, engine_id: str, numbers: Sequence[int], fields: Sequence[str]) -> Any | None:
        """Get columns from the storage units; None if a row went meanwhile."""
        try:
            return self._queue.get_data(engine.meta_of(engine_id, numbers, fields))
        except StorageKeyNotFoundError:
            return None
