"""All that is asked of Ray and TransferQueue. Imported by the first client, since it takes seconds."""

import atexit
import contextlib
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
import transfer_queue.sampler  # pyright: ignore[reportMissingTypeStubs]
from nrl_interfaces.data_plane import UnsupportedByAdapterError
from numpy.typing import NDArray
from ray.exceptions import RayActorError
from transfer_queue import TransferQueueClient  # pyright: ignore[reportMissingTypeStubs]
from transfer_queue.client import AsyncTransferQueueClient  # pyright: ignore[reportMissingTypeStubs]
from transfer_queue.metadata import BatchMeta  # pyright: ignore[reportMissingTypeStubs]
from transfer_queue.sampler import BaseSampler  # pyright: ignore[reportMissingTypeStubs]

from nrl_dataplane_tq.sampler import GIVE_BACK, TAKE, ChosenRowsSampler

__all__ = ["BatchMeta", "Engine", "controller_of", "meta_of", "queue_client", "queue_config"]

_CONFIG_LIMIT_S = 60.0
_ray: Any = ray  # Ray types it in part only
_clients: dict[str, TransferQueueClient] = {}  # one a queue: each has threads and sockets of its own
_clients_lock = threading.Lock()


def controller_of(name: str, namespace: str) -> Any:
    """Find a queue's controller.

    Raises:
        RuntimeError: Ray or the queue is not started; says how to.
    """
    start = "transfer_queue.init() in one process of the Ray cluster, and keep that process alive"
    if not ray.is_initialized():
        raise RuntimeError(
            f"Ray is not started in this process: call ray.init() (address='auto' joins a cluster), then {start}"
        )
    try:
        return _ray.get_actor(name, namespace=namespace)
    except ValueError as error:
        raise RuntimeError(
            f"no TransferQueue is started: Ray has no actor {name!r} in namespace {namespace!r}. Call {start}"
        ) from error


def queue_config(controller: Any) -> Any:
    """Get a queue's config, once its start is over.

    Raises:
        RuntimeError: The start is not over after a minute.
    """
    until = time.monotonic() + _CONFIG_LIMIT_S
    while (config := _ray.get(controller.get_config.remote())) is None:
        if time.monotonic() > until:
            raise RuntimeError(f"the TransferQueue is still starting after {_CONFIG_LIMIT_S:.0f} s; look at Ray's logs")
        time.sleep(0.1)
    return config


def queue_client(controller: Any, config: Any) -> TransferQueueClient:
    """Give this process's client of a queue, which moves the rows."""
    key = controller._actor_id.hex()  # noqa: SLF001 - Ray has no other name for one start of an actor
    with _clients_lock:
        if key not in _clients:
            client = TransferQueueClient(client_id=f"nrl_{key[:8]}", controller_info=config.controller.zmq_info)
            _add_storage(client, config)
            _clients[key] = client
        return _clients[key]


@atexit.register
def _close_queue_clients() -> None:
    """End the clients' threads; left alone, they may keep the process from ending."""
    for client in _clients.values():
        client.close()


def _add_storage(client: Any, config: Any) -> None:
    backend = config.backend.storage_backend
    client.initialize_storage_manager(manager_type=backend, config=config.backend[backend])


def meta_of(engine_id: str, numbers: Sequence[int], fields: Sequence[str] = ()) -> Any:
    """Name rows and fields of them for TransferQueue."""
    size = len(numbers)
    return BatchMeta(list(numbers), [engine_id] * size, {name: {} for name in fields}, np.ones(size, dtype=np.int8))


class Engine:
    """The registry's side of a queue: numbers, cursors, tags and checkpoints, but no rows."""

    def __init__(self, controller: Any, config: Any) -> None:
        self._controller = controller
        self._sampler = config.controller.sampler
        self._backend = config.backend.storage_backend
        self._client: Any = AsyncTransferQueueClient("nrl_registry", controller_info=config.controller.zmq_info)
        _add_storage(self._client, config)
        units = getattr(self._client.storage_manager, "storage_unit_infos", None)
        self.storage_units = 0 if units is None else len(units)

    async def start(self) -> None:
        """Let the queue move its cursors as the registry says."""
        inner: Any = self._sampler
        if isinstance(inner, str):
            inner = getattr(transfer_queue.sampler, inner)
        inner = inner if isinstance(inner, BaseSampler) else inner()
        await self._controller.register_sampler.remote(ChosenRowsSampler(inner))

    async def is_alive(self) -> bool:
        """Tell whether the queue is there."""
        try:
            await self._controller.get_config.remote()
        except RayActorError:
            return False
        return True

    def end_registry(self) -> None:
        """End the actor that runs this."""
        context: Any = ray.get_runtime_context()
        _ray.kill(context.current_actor)

    # ---- Looking ----

    async def having(self, engine_id: str, field: str, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell which rows have a field."""
        known, status = await self._client.async_get_production_status([field], engine_id)
        return _status_of(known, status, numbers)

    async def claimed(self, engine_id: str, task: str, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell which rows a task has claimed."""
        known, status = await self._client.async_get_consumption_status(task, engine_id)
        return _status_of(known, status, numbers)

    async def partitions(self) -> list[str]:
        """List the queue's partitions, also those of others."""
        return await self._client.async_get_partition_list()

    # ---- Changing ----

    async def numbered(self, engine_id: str, sample_ids: list[str]) -> Any:
        """Give rows their numbers, new ones to those that have none; the meta says them, and has the rows' tags."""
        return await self._client.async_kv_retrieve_meta(keys=sample_ids, partition_id=engine_id, create=True)

    async def set_tags(self, meta: Any, tags: list[dict[str, Any]]) -> None:
        """Replace the rows' tags."""
        meta.update_custom_meta(tags)
        await self._client.async_set_custom_meta(meta)

    async def take(self, engine_id: str, task: str, fields: list[str], numbers: list[int]) -> list[dict[str, Any]]:
        """Move a task's cursor over rows, and give their tags."""
        meta = await self._client.async_get_meta(
            fields, len(numbers), engine_id, task_name=task, sampling_config={TAKE: numbers}
        )
        return meta.custom_meta

    async def give_back(self, engine_id: str, task: str, numbers: list[int]) -> None:
        """Move a task's cursor back from rows."""
        await self._client.async_get_meta(
            [], 0, engine_id, task_name=task, sampling_config={GIVE_BACK: [numbers, task]}
        )

    async def clear(self, engine_id: str, numbers: Sequence[int]) -> None:
        """Drop rows."""
        if numbers:
            await self._client.async_clear_samples(meta_of(engine_id, numbers))

    async def clear_partition(self, engine_id: str, *, is_empty: bool) -> None:
        """Drop a partition, if TransferQueue has it: it makes one with its first rows."""
        if engine_id not in await self.partitions():
            return
        if is_empty:  # it clears none without rows
            await self.numbered(engine_id, ["the last"])
        await self._client.async_clear_partition(engine_id)

    # ---- Checkpoints ----

    async def save(self, folder: Path) -> None:
        """Write TransferQueue's part of a checkpoint.

        Raises:
            UnsupportedByAdapterError: The storage backend can't.
            RuntimeError: A part of the queue failed to.
        """
        await self._client.async_save_controller_checkpoint(str(folder / "controller_state.pkl"))
        try:
            await self._client.async_save_storage_checkpoint(str(folder))
        except NotImplementedError as error:
            raise UnsupportedByAdapterError(f"storage backend {self._backend}", "checkpoint") from error

    async def load(self, folder: Path, numbers: Sequence[int]) -> None:
        """Load TransferQueue's part of a checkpoint; rows of one that fails halfway are dropped again."""
        try:
            await self._client.async_load_storage_checkpoint(str(folder))
            await self._client.async_load_controller_checkpoint(str(folder / "controller_state.pkl"))
        except RuntimeError:
            with contextlib.suppress(Exception):
                await self._client.storage_manager.clear_data(meta_of("", numbers))
            raise


def _status_of(known: Any, status: Any, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Give one item a row from TransferQueue's answer, which is sorted by number and has None for what it never saw."""
    if known is None or not len(known):
        return np.zeros(len(numbers), dtype=np.bool_)
    flat: NDArray[Any] = status.numpy().reshape(len(known), -1)[:, 0]
    return flat[np.searchsorted(known.numpy(), numbers)] == 1
