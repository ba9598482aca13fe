"""What the tests of nrl-dataplane-tq share: one Ray, and real queues in it, started when they are needed."""

import gc
import itertools
import os
import warnings
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # else Ray writes a token into the home folder
os.environ.setdefault("TQ_NUM_THREADS", "1")  # else TransferQueue warns at each call on a machine with few cores
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns of what it will do some day

import pytest
import ray
import torch
from nrl_dataplane_tq import TransferQueueDataPlaneClient, TransferQueueDataPlaneConfig

torch.set_num_threads(1)
_numbers = itertools.count(1)


@dataclass
class Queue:
    """A TransferQueue of its own in the same Ray."""

    name: str
    actors: list[Any]
    planes: set[str] = field(default_factory=set)

    def client(self, plane: str | None = None, **config: Any) -> TransferQueueDataPlaneClient:
        """Make a client, of a new plane if none is named."""
        cfg = TransferQueueDataPlaneConfig(
            **config, plane=plane or f"plane{next(_numbers)}", controller_name=self.name, ray_namespace="tests"
        )
        client = TransferQueueDataPlaneClient(cfg)
        self.planes.add(cfg.plane)
        return client

    def drop(self, client: TransferQueueDataPlaneClient) -> None:
        """Forget a client's plane."""
        client._connection.ask("reset")
        client.close()
        self.planes.discard(client._cfg.plane)

    def stop(self) -> None:
        for actor in self.actors:
            ray.kill(actor)


def start_queue(storage_units: int = 1) -> Queue:
    """Start a queue as transfer_queue.init does, but under a name of its own: that has one name for all."""
    from omegaconf import OmegaConf
    from transfer_queue.controller import TransferQueueController
    from transfer_queue.storage.simple_storage import SimpleStorageUnit
    from transfer_queue.utils.zmq_utils import process_zmq_server_info

    name = f"queue{next(_numbers)}"
    controller: Any = TransferQueueController.options(name=name, namespace="tests", num_cpus=0).remote()
    storage: Any = {"total_storage_size": None, "num_data_storage_units": storage_units}
    units = {
        f"{name}-{at}": SimpleStorageUnit.options(name=f"{name}-{at}", num_cpus=0).remote(config=storage)
        for at in range(storage_units)
    }
    config = OmegaConf.create(
        {
            "controller": {"sampler": "SequentialSampler", "zmq_info": process_zmq_server_info(controller)},
            "backend": {
                "storage_backend": "SimpleStorage",
                "SimpleStorage": {**storage, "zmq_info": process_zmq_server_info(units)},
            },
        },
        flags={"allow_objects": True},
    )
    ray.get(controller.store_config.remote(config))
    return Queue(name, [controller, *units.values()])


class Queues:
    """Queues that tests take and give back."""

    def __init__(self) -> None:
        self._queues: list[Queue] = []

    def free(self) -> Queue:
        """Give a queue in which no plane is."""
        for queue in self._queues:
            if not queue.planes:
                return queue
        self._queues.append(start_queue())
        return self._queues[-1]

    def start(self, storage_units: int) -> Queue:
        """Start a queue that no other test gets."""
        return start_queue(storage_units)

    def drop(self, client: TransferQueueDataPlaneClient) -> None:
        """Forget a client's plane, in whatever queue it is."""
        next(queue for queue in self._queues if queue.name == client._cfg.controller_name).drop(client)


@pytest.fixture(scope="session")
def queues() -> Generator[Queues]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's and torch's own, at import
        ray.init(
            num_cpus=4,
            include_dashboard=False,
            object_store_memory=100 * 2**20,
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
        )
    yield Queues()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # older Rays drop the handles of processes that still end
        ray.shutdown()
        gc.collect()


@pytest.fixture
def queue(queues: Queues) -> Generator[Queue]:
    """A queue for one test, with nothing in it."""
    queue = queues.free()
    clients: list[TransferQueueDataPlaneClient] = []
    make = queue.client

    def client(plane: str | None = None, **config: Any) -> TransferQueueDataPlaneClient:
        clients.append(make(plane, **config))
        return clients[-1]

    queue.client = client  # type: ignore[method-assign]
    yield queue
    queue.client = make  # type: ignore[method-assign]
    for made in clients:
        queue.drop(made)
