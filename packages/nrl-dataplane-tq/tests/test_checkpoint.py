"""Checkpoints of a real queue: how big they are, what they bring back, and what they are refused for."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from nrl_dataplane_tq import StorageUnitsError
from ray.exceptions import RayActorError


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("row", [512, 4096])  # 2 and 16 KiB
def test_a_checkpoint_is_about_as_big_as_its_rows(queue: Any, tmp_path: Path, row: int) -> None:
    plane = queue.client()
    plane.register_partition("p", ["x"], 256, ["train"])
    column = torch.randn(256, row)
    plane.put_samples([f"s{at}" for at in range(256)], "p", {"x": column})
    plane.save_checkpoint(tmp_path)
    assert column.nbytes < size_of(tmp_path) < 1.25 * column.nbytes


def test_a_plain_put_makes_a_checkpoint_many_times_as_big(queue: Any, tmp_path: Path) -> None:
    """What `own_rows` is for: rows of a dense batch are views, each pickled with the whole batch."""
    from tensordict import TensorDict

    plane = queue.client()
    column, ids = torch.randn(64, 512), [f"s{at}" for at in range(64)]
    queue_client = plane._connection._queue
    rows = queue_client.kv_retrieve_meta(keys=ids, partition_id="plain", create=True)
    queue_client.put(TensorDict({"x": column}, batch_size=[64]), rows)
    plane.save_checkpoint(tmp_path)
    queue_client.clear_partition("plain")
    assert size_of(tmp_path) > 20 * column.nbytes


def test_all_of_it_comes_back(queues: Any, queue: Any, tmp_path: Path) -> None:
    plane = queue.client(partition_mode="stream")
    plane.register_partition("p", ["x", "f8"], 8, ["train", "eval"], grpo_group_size=2)
    columns = {"x": torch.arange(4), "f8": torch.ones(4, 3).to(torch.float8_e4m3fn)}
    plane.put_samples(list("abcd"), "p", columns, [{"n": (at,)} for at in range(4)])
    plane.clear_samples(["a", "b"], "p")
    plane.put_samples(["e", "a"], "p", {"x": torch.tensor([8, 9])})  # on numbers that were used
    before = plane.claim_meta("p", "train", ["x"], 2)
    plane.save_checkpoint(tmp_path, metadata={"step": 1, "pair": (1, 2)})
    plane.put_samples(["f", "g"], "p", {"x": torch.tensor([0, 0])})
    queue.drop(plane)

    loaded = queue.client(partition_mode="stream")
    assert loaded.load_checkpoint(tmp_path) == {"step": 1, "pair": (1, 2)}
    assert loaded.list_sample_ids("p") == ["a", "c", "d", "e"]
    assert loaded.get_data(before)["x"].tolist() == [2, 3]
    assert loaded.explain("p", "train", ["x"], 2).rows_claimed == 2
    meta = loaded.claim_meta("p", "train", ["x"], 2, timeout_s=5)
    assert (meta.sample_ids, meta.tags) == (["e", "a"], None)
    meta = loaded.claim_meta("p", "eval", ["f8"], 2, timeout_s=5)
    assert (meta.sample_ids, meta.tags) == (["c", "d"], [{"n": (2,)}, {"n": (3,)}])
    assert loaded.get_data(meta)["f8"].dtype == torch.float8_e4m3fn
    with pytest.raises(RuntimeError, match="the plane was used before"):
        loaded.load_checkpoint(tmp_path)


def test_a_registry_that_dies_while_it_saves_leaves_the_old_state(queues: Any, tmp_path: Path) -> None:
    """The process that writes is killed between TransferQueue's part and the switch."""
    queue = queues.free()
    plane = queue.client()
    plane.register_partition("p", ["x"], 1, ["train"])
    plane.put_samples(["a"], "p", {"x": torch.tensor([1])})
    plane.save_checkpoint(tmp_path, metadata={"n": 1})
    (tmp_path / "tq_data_plane.json.partial").mkdir()  # the switch can't be written: the save fails at its last step
    with pytest.raises(OSError, match=r"tq_data_plane\.json\.partial"):
        plane.save_checkpoint(tmp_path, metadata={"n": 2})
    (tmp_path / "tq_data_plane.json.partial").rmdir()
    assert len(list(tmp_path.glob("tq_state_*"))) == 1
    queue.drop(plane)
    loaded = queue.client()
    assert loaded.load_checkpoint(tmp_path) == {"n": 1}
    queue.drop(loaded)


def test_other_planes_and_other_users_of_the_queue_are_not_overwritten(queue: Any, tmp_path: Path) -> None:
    plane, other = queue.client(), queue.client()
    for each in (plane, other):
        each.register_partition("p", ["x"], 1, ["train"])
        each.put_samples(["a"], "p", {"x": torch.tensor([1])})
    with pytest.raises(RuntimeError, match=rf"planes \['{other._cfg.plane}'\] hold partitions in the same queue"):
        plane.save_checkpoint(tmp_path)
    assert list(tmp_path.iterdir()) == []
    other.clear_samples(None, "p")
    plane.save_checkpoint(tmp_path)
    with pytest.raises(RuntimeError, match="hold partitions in the same queue, and load_checkpoint is of all of it"):
        queue.client().load_checkpoint(tmp_path)
    plane.clear_samples(None, "p")
    queue_client = plane._connection._queue
    queue_client.kv_retrieve_meta(keys=["mine"], partition_id="somebody's", create=True)
    new = queue.client()
    with pytest.raises(RuntimeError, match=r"""the queue holds partitions \["somebody's"\]"""):
        new.load_checkpoint(tmp_path)
    queue_client.clear_partition("somebody's")
    new.load_checkpoint(tmp_path)


def test_metadata_that_can_t_be_pickled_is_refused(queue: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="metadata can't be pickled"):
        queue.client().save_checkpoint(tmp_path, metadata={"g": (n for n in ())})
    assert list(tmp_path.iterdir()) == []


def test_a_queue_of_two_storage_units(queues: Any, queue: Any, tmp_path: Path) -> None:
    """Rows are spread, come back in order, and a checkpoint fits only as many units; then the queue ends."""
    from nrl_dataplane_tq.registry import Registry

    two = queues.start(storage_units=2)
    plane = two.client()
    plane.register_partition("p", ["x", "c"], 5, ["train"])
    ids = ["e", "a", "d", "b", "c"]
    plane.put_samples(ids, "p", {"x": torch.arange(5), "c": list("EADBC")})
    read = plane.get_samples(["b", "e", "c"], "p", ["x", "c"])
    assert (read["x"].tolist(), read["c"]) == ([3, 0, 4], ["B", "E", "C"])
    plane.save_checkpoint(tmp_path)

    one = queue.client()
    with pytest.raises(StorageUnitsError, match="of a queue with 2 storage units, and this one has 1") as caught:
        one.load_checkpoint(tmp_path)
    assert (caught.value.saved, caught.value.current) == (2, 1)
    assert one.stats().partitions == 0
    one.register_partition("p", ["x"], 1, ["train"])

    two.drop(plane)
    again = two.client()
    config = two.actors[0].get_config.remote()
    again.load_checkpoint(tmp_path)
    assert again.get_samples(["b", "e", "c"], "p", ["x"])["x"].tolist() == [3, 0, 4]
    # A registry that looks often; that of the clients looks every 15 s.
    watching = ray.remote(Registry).options(num_cpus=0).remote(two.actors[0], ray.get(config), watch_s=0.01)
    ray.get(watching.call.remote("open", "watching", "batch", 1))
    two.stop()
    with pytest.raises(RuntimeError, match="no TransferQueue is started"):
        two.client()
    until = time.monotonic() + 60
    with pytest.raises(RayActorError):
        while time.monotonic() < until:
            ray.get(watching.call.remote("sizes", "watching"))
    registry = ray.get_actor(f"nrl_registry_{two.actors[0]._actor_id.hex()}", namespace="tests")
    os.kill(ray.get(registry.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)
    with pytest.raises(RuntimeError, match="the queue of this data plane is gone, or its registry died"):
        again.stats()
