"""Every data plane that an installed package announces keeps to the contract, made by its name as a config does it."""

import contextlib
import importlib.util
import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from nrl_interfaces import DataPlaneClient, build_data_plane_client
from nrl_interfaces.plugins import data_plane_adapters
from nrl_interfaces.testing.data_plane import check_data_plane

PACKAGES = Path(__file__).resolve().parent.parent / "packages"


@contextlib.contextmanager
def local() -> Iterator[dict[str, Any]]:
    yield {"make_client": lambda **config: build_data_plane_client({"impl": "local", **config})}


@contextlib.contextmanager
def transfer_queue() -> Iterator[dict[str, Any]]:
    """A queue for each client, as checkpoints are of whole queues; the package's tests know how to start more."""
    tests = PACKAGES / "nrl-dataplane-tq" / "tests"
    helpers, own_contract = load(tests / "conftest.py"), load(tests / "test_contract.py")
    numbers = itertools.count()

    import ray

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's and torch's own, at import
        ray.init(
            num_cpus=4,
            include_dashboard=False,
            object_store_memory=100 * 2**20,
            log_to_driver=False,
            _node_ip_address="127.0.0.2",  # loopback; Ray takes 127.0.0.1 for the address of the machine
        )
    queues = helpers.Queues()

    def make_client(*, safe_globals: tuple[type, ...], **config: Any) -> DataPlaneClient:
        queue, plane = queues.free(), f"integration-{next(numbers)}"
        queue.planes.add(plane)
        where = {"plane": plane, "controller_name": queue.name, "ray_namespace": "tests"}
        return build_data_plane_client({"impl": "transfer_queue", **where, **config})

    left_out = own_contract.TestTransferQueueDataPlane.left_out
    try:
        yield {"make_client": make_client, "drop_client": queues.drop, "left_out": left_out, "random_runs": 2}
    finally:
        ray.shutdown()


ADAPTERS: dict[str, Callable[[], AbstractContextManager[dict[str, Any]]]] = {
    "local": local,
    "transfer_queue": transfer_queue,
}
"""For each adapter what gives the arguments of `check_data_plane`, with all that its clients need running meanwhile."""


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{path.stem}_of_an_adapter", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_adapters_of_this_repository_are_announced() -> None:
    assert data_plane_adapters().keys() >= ADAPTERS.keys()


@pytest.mark.parametrize("impl", sorted(data_plane_adapters()))
def test_every_adapter_keeps_the_contract(impl: str) -> None:
    if impl not in ADAPTERS:
        where = data_plane_adapters()[impl].value
        pytest.fail(f"{where} announces the data plane {impl!r}: say in ADAPTERS of {__file__} how clients are made")
    with ADAPTERS[impl]() as arguments:
        report = check_data_plane(**arguments)
    if not report.ok:
        pytest.fail(str(report))
    reasons = arguments.get("left_out", {}).values()
    assert [r for r in report.left_out if not any(reason in r.reason for reason in reasons)] == [], report
