"""What is said where something is missing, and what an import loads."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from nrl_dataplane_tq import TransferQueueDataPlaneClient, TransferQueueDataPlaneConfig
from nrl_interfaces import build_data_plane_client
from nrl_interfaces.plugins import data_plane_adapters


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_an_import_loads_neither_ray_nor_transfer_queue() -> None:
    code = "import sys, nrl_dataplane_tq; print(*{name.partition('.')[0] for name in sys.modules})"
    assert not {"ray", "transfer_queue", "tensordict"} & set(run(code).split())


@pytest.mark.parametrize("module", ["ray", "transfer_queue"])
def test_a_package_that_is_missing_is_named(module: str) -> None:
    code = f"""
import sys
sys.modules[{module!r}] = None
from nrl_interfaces import build_data_plane_client
try:
    build_data_plane_client({{"impl": "transfer_queue"}})
except ImportError as error:
    print(error)
"""
    text = run(code)
    assert module in text
    assert "pip install nrl-dataplane-tq" in text


def test_ray_that_is_not_started() -> None:
    code = """
from nrl_interfaces import build_data_plane_client
try:
    build_data_plane_client({"impl": "transfer_queue"})
except RuntimeError as error:
    print(error)
"""
    assert "Ray is not started in this process: call ray.init()" in run(code)


def test_a_queue_that_is_not_started(queues: Any) -> None:
    with pytest.raises(RuntimeError, match=r"no actor 'nobody' in namespace 'tests'\. Call transfer_queue\.init\(\)"):
        TransferQueueDataPlaneClient(TransferQueueDataPlaneConfig(controller_name="nobody", ray_namespace="tests"))


def test_it_is_found_by_its_name(queue: Any) -> None:
    assert "transfer_queue" in data_plane_adapters()
    config = {"impl": "transfer_queue", "controller_name": queue.name, "ray_namespace": "tests", "plane": "named"}
    with build_data_plane_client(config) as plane:
        assert isinstance(plane, TransferQueueDataPlaneClient)
        assert plane.stats().partitions == 0
        plane.reset()


def test_clients_of_a_plane_agree(queue: Any) -> None:
    plane = queue.client(max_partitions=3)
    with pytest.raises(ValueError, match=r"max_partitions=2 here; allowed: 'batch' and 3, as its first client had"):
        queue.client(plane._cfg.plane)
    assert queue.client(plane._cfg.plane, max_partitions=3).stats().partitions == 0


@pytest.mark.parametrize(
    "config",
    [
        {"max_partitions": 0},
        {"max_partitions": True},
        {"partition_mode": "both"},
        {"owner": 1},
        {"plane": ""},
        {"controller_name": None},
        {"plan": "p"},
    ],
)
def test_a_config_that_is_wrong_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(config))):
        TransferQueueDataPlaneConfig.from_mapping(config)


def test_a_plane_that_is_reset_is_as_new(queue: Any, tmp_path: Path) -> None:
    import torch

    plane = queue.client()
    plane.register_partition("p", ["x"], 1, ["train"])
    old = plane.put_samples(["a"], "p", {"x": torch.tensor([1])})
    plane.save_checkpoint(tmp_path)
    other = queue.client(plane._cfg.plane)
    plane.reset()
    with pytest.raises(RuntimeError, match="was reset; make a new client"):
        other.stats()
    new = queue.client(plane._cfg.plane, partition_mode="stream")
    new.load_checkpoint(tmp_path)
    assert new.get_data(old)["x"].tolist() == [1]


def test_the_sampler_of_the_queue_still_serves_others(queue: Any) -> None:
    """Whoever uses the queue without a data plane claims as before."""
    import torch
    from tensordict import TensorDict

    plane = queue.client()
    client = plane._connection._queue
    rows = client.kv_retrieve_meta(keys=["a", "b", "c"], partition_id="plain", create=True)
    client.put(TensorDict({"x": torch.arange(6).reshape(3, 2)}, batch_size=[3]), rows)
    meta = client.get_meta(["x"], 2, "plain", task_name="train")
    assert client.kv_retrieve_keys(meta.global_indexes, "plain") == ["a", "b"]
    client.clear_partition("plain")
