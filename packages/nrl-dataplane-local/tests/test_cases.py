"""Cases behind public bug reports of data planes, one a test."""

import errno
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from nrl_dataplane_local import (
    LocalDataPlaneClient,
    LocalDataPlaneConfig,
    StaleMetaError,
    local_batch_to_tensordict,
    materialize_local,
)
from nrl_interfaces import KVBatchMeta
from nrl_interfaces.fileops import FileOps
from nrl_interfaces.testing.data_plane_clauses.ground import Waiting
from nrl_interfaces.testing.faults import FailingOps, operations

ABD = ["a", "b", "d"]


def make(**config: Any) -> LocalDataPlaneClient:
    return LocalDataPlaneClient(LocalDataPlaneConfig(**config))


def filled(client: LocalDataPlaneClient, **columns: Any) -> LocalDataPlaneClient:
    """Three rows a, b, d in partition p."""
    client.register_partition("p", ["x", "y", "c"], 3, ["train", "eval"])
    client.put_samples(ABD, "p", local_batch_to_tensordict(columns, batch_size=3))
    return client


def read(client: LocalDataPlaneClient, ids: list[str], *fields: str) -> dict[str, Any]:
    batch = materialize_local(client.get_samples(ids, "p", list(fields)))
    return {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def claim(client: LocalDataPlaneClient, task: str, fields: list[str], size: int, **more: Any) -> list[str]:
    return client.claim_meta("p", task, fields, size, **more).sample_ids


# ---- P01: one object holding a whole column is not indexed ----


def test_p01_columns_that_are_no_tensors_are_in_step_with_the_ids() -> None:
    client = filled(make(), x=torch.tensor([1, 2, 3]), c=["A", "B", "D"])
    assert read(client, ["d", "a"], "x", "c") == {"x": [3, 1], "c": ["D", "A"]}
    assert read(client, ["b", "d", "a"], "x", "c") == {"x": [2, 3, 1], "c": ["B", "D", "A"]}  # all, in another order


def test_p01_one_row_is_a_list_of_one() -> None:
    client = filled(make(), x=torch.tensor([1, 2, 3]), c=["A", "B", "D"])
    assert read(client, ["d"], "x", "c") == {"x": [3], "c": ["D"]}


@pytest.mark.parametrize("c", [["A", "B"], ["A", "B", "D", "E"]])
def test_p01_a_size_that_does_not_fit_raises(c: list[str]) -> None:
    client = make()
    client.register_partition("p", ["x", "c"], 3, ["train"])
    with pytest.raises(ValueError, match=rf"'c' has {len(c)} rows; allowed: 3"):
        local_batch_to_tensordict({"x": torch.tensor([1, 2, 3]), "c": c}, batch_size=3)
    with pytest.raises(ValueError, match=rf"'c' has {len(c)} rows; allowed: 3"):
        client.put_samples(ABD, "p", {"x": torch.tensor([1, 2, 3]), "c": c})
    assert client.list_sample_ids("p") == []


# ---- P03: metadata from before a partition was cleared and registered again ----


def two_rows(client: LocalDataPlaneClient, values: list[int]) -> LocalDataPlaneClient:
    client.register_partition("p", ["x"], 2, ["train"])
    client.put_samples(["a", "b"], "p", {"x": torch.tensor(values)})
    return client


def test_p03_a_meta_of_the_partition_before_is_stale() -> None:
    client = two_rows(make(), [1, 2])
    old = client.claim_meta("p", "train", ["x"], 2)
    client.clear_samples(None, "p")
    two_rows(client, [9, 9])
    with pytest.raises(
        StaleMetaError, match=r"stale.* generation 1 of partition 'p', which is at generation 2"
    ) as caught:
        client.get_data(old)
    error = caught.value
    assert (error.partition_id, error.meta_generation, error.current_generation) == ("p", 1, 2)


def test_p03_a_fresh_claim_reads_the_new_rows_and_only_they_count() -> None:
    client = two_rows(make(), [1, 2])
    claim(client, "train", ["x"], 2)
    client.clear_samples(None, "p")
    two_rows(client, [9, 9])
    assert not client.check_consumption_status("p", ["train"])
    new = client.claim_meta("p", "train", ["x"], 2)
    assert materialize_local(client.get_data(new))["x"].tolist() == [9, 9]
    assert client.check_consumption_status("p", ["train"])


def test_p03_a_meta_edited_to_the_new_fields_is_stale_all_the_same() -> None:
    client = two_rows(make(), [1, 2])
    old = client.claim_meta("p", "train", ["x"], 2)
    client.clear_samples(None, "p")
    client.register_partition("p", ["z"], 2, ["train"])
    client.put_samples(["a", "b"], "p", {"z": torch.tensor([9, 9])})
    for edited in (old.with_fields(["z"]), KVBatchMeta("p", "train", ["a", "b"], fields=["z"])):
        with pytest.raises(StaleMetaError):
            client.get_data(edited)


def test_p03_a_meta_of_a_partition_that_is_gone_is_stale() -> None:
    client = two_rows(make(), [1, 2])
    old = client.claim_meta("p", "train", ["x"], 2)
    client.clear_samples(None, "p")
    with pytest.raises(StaleMetaError, match=r"generation 1 of partition 'p', which is gone") as caught:
        client.get_data(old)
    assert caught.value.current_generation is None


# ---- P05: what a full read hands out ----


def spoil(batch: Any) -> None:
    batch["x"].add_(10)
    batch["c"][0] = "Z"
    del batch["c"]
    batch["x"] = torch.zeros(len(batch["x"]))
    batch.to("meta")


@pytest.mark.parametrize("ids", [ABD, ["a"], ["a", "b"], ["d", "a"]])
def test_p05_nothing_that_is_done_to_a_result_reaches_the_store(ids: list[str]) -> None:
    """The rule is the same for full and for partial reads: the store keeps what was put."""
    client = filled(make(), x=torch.tensor([1, 2, 3]), c=["A", "B", "D"])
    spoil(materialize_local(client.get_samples(ids, "p", ["x", "c"])))
    assert read(client, ABD, "x", "c") == {"x": [1, 2, 3], "c": ["A", "B", "D"]}
    assert read(client, ["a"], "x", "c") == {"x": [1], "c": ["A"]}


def test_p05_nothing_that_is_done_to_what_was_put_reaches_the_store() -> None:
    x, c = torch.tensor([1, 2, 3]), ["A", "B", "D"]
    client = filled(make(), x=x, c=c)
    x.add_(10)
    c[0] = "Z"
    assert read(client, ABD, "x", "c") == {"x": [1, 2, 3], "c": ["A", "B", "D"]}


def test_p05_the_checkpoint_holds_what_was_put(tmp_path: Path) -> None:
    x = torch.tensor([1, 2, 3])
    client = filled(make(), x=x, c=["A", "B", "D"])
    x.add_(10)
    spoil(materialize_local(client.get_samples(ABD, "p", ["x", "c"])))
    client.save_checkpoint(tmp_path)
    loaded = make()
    loaded.load_checkpoint(tmp_path)
    assert read(loaded, ABD, "x", "c") == {"x": [1, 2, 3], "c": ["A", "B", "D"]}


# ---- P07: the rename fails after the old checkpoint was deleted ----


def saving(value: int, folder: Path, ops: FileOps, tags: list[dict[str, Any]] | None = None) -> None:
    client = LocalDataPlaneClient(LocalDataPlaneConfig(), file_ops=ops)
    client.register_partition("p", ["x"], 1, ["train"])
    client.put_samples(["a"], "p", {"x": torch.tensor([value])}, tags)
    client.save_checkpoint(folder, metadata={"x": value})


def loading(folder: Path) -> tuple[dict[str, Any], list[int]]:
    client = make()
    metadata = client.load_checkpoint(folder)
    return metadata, read(client, ["a"], "x")["x"]


@pytest.mark.parametrize(("operation", "code"), [("rename", errno.EIO), ("write", errno.ENOSPC)])
def test_p07_a_save_that_fails_leaves_the_old_checkpoint(tmp_path: Path, operation: str, code: int) -> None:
    saving(1, tmp_path, FileOps())
    files = sorted(path.name for path in tmp_path.iterdir())
    ops = FailingOps(operations(lambda ops: saving(1, tmp_path, ops)).index(operation), code)
    with pytest.raises(OSError) as caught:
        saving(2, tmp_path, ops)
    assert (caught.value.errno, ops.failed) == (code, operation)
    assert loading(tmp_path) == ({"x": 1}, [1])
    assert sorted(path.name for path in tmp_path.iterdir()) == files  # no left-overs
    saving(2, tmp_path, FileOps())
    assert loading(tmp_path) == ({"x": 2}, [2])


def test_p07_an_object_that_cannot_be_pickled_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    saving(1, tmp_path, FileOps())
    files = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(TypeError, match="'a'"):
        saving(2, tmp_path, FileOps(), [{"score": lambda: None}])
    assert loading(tmp_path) == ({"x": 1}, [1])
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    saving(2, tmp_path, FileOps())
    assert loading(tmp_path) == ({"x": 2}, [2])


# ---- P09: two partitions share state that belongs to the caller or to a default ----


def test_p09_partitions_share_nothing_with_each_other_or_the_caller() -> None:
    fields, tasks, enums = ["x", "k"], ["train"], {"k": ["u"]}
    client = make()
    client.register_partition("p1", fields, 1, tasks, enums=enums)
    fields.append("y")
    tasks.append("eval")
    enums["k"].append("v")
    client.register_partition("p2", fields, 1, tasks, enums=enums)
    tags = [{"n": 1}]
    client.put_samples(["a"], "p1", {"x": torch.tensor([1])}, tags)
    client.put_samples(["a"], "p2", {"x": torch.tensor([1])}, tags)
    tags[0]["n"] = 2
    claimed = client.claim_meta("p1", "train", ["x"], 1)

    with pytest.raises(ValueError, match="'y'"):  # p1 keeps its fields, tasks and vocabulary
        client.put_samples(["a"], "p1", {"y": torch.tensor([1])})
    with pytest.raises(KeyError, match="eval"):
        client.claim_meta("p1", "eval", ["x"], 1)
    with pytest.raises(ValueError, match="'v'"):
        client.put_samples(["a"], "p1", {"k": ["v"]})
    client.put_samples(["a"], "p2", {"y": torch.tensor([1]), "k": ["v"]})
    assert client.check_consumption_status("p1", ["train"])
    assert not client.check_consumption_status("p2", ["train"])  # what is consumed in p1 is not seen in p2

    other = client.claim_meta("p2", "train", ["x"], 1)
    assert (claimed.tags, other.tags) == ([{"n": 1}], [{"n": 1}])
    assert claimed.tags is not None
    claimed.tags[0]["n"] = 3  # tags of a meta can be changed without changing the store
    client.release_claims(["a"], "p1", "train")
    assert client.claim_meta("p1", "train", ["x"], 1).tags == [{"n": 1}]


def test_p09_a_default_is_shared_by_none() -> None:
    client = make()
    for partition in ("p1", "p2"):
        client.register_partition(partition, ["x"], 1, ["train"])
    client.put_samples(["a"], "p1", {"x": torch.tensor([1])})
    client.claim_meta("p1", "train", ["x"], 1)
    assert client.list_sample_ids("p2") == []
    assert client.explain("p2", "train", ["x"], 1).rows_claimed == 0
    assert KVBatchMeta("p", None, []).extra_info is not KVBatchMeta("p", None, []).extra_info


# ---- P11: the last rows, a time limit and two threads ----


def test_p11_two_threads_share_the_rows_and_the_tail() -> None:
    client = make()
    client.register_partition("p", ["x", "y"], 3, ["train", "eval"])
    threads = [Waiting(lambda: claim(client, "train", ["x"], 2, blocking=True, timeout_s=5)) for _ in range(2)]
    put_at: list[float] = []

    def put() -> None:
        threading.Event().wait(0.2)
        put_at.append(time.monotonic())
        client.put_samples(ABD, "p", {"x": torch.tensor([1, 2, 3])})

    Waiting(put).result()
    got = sorted((thread.result() for thread in threads), key=len)
    assert [len(ids) for ids in got] == [1, 2]
    assert sorted(got[0] + got[1]) == ABD  # all different
    assert all(thread.ended_at - put_at[0] < 2.5 for thread in threads)  # soon after the put, not at the limit
    began = time.monotonic()
    assert claim(client, "train", ["x"], 2, timeout_s=5) == []  # an empty meta
    assert time.monotonic() - began < 2.5  # at once


def test_p11_a_wait_that_runs_out_says_why_and_claims_nothing() -> None:
    client = filled(make(), x=torch.tensor([1, 2, 3]))
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="'y' is missing for 3 rows"):
        claim(client, "eval", ["x", "y"], 1, timeout_s=0.5)
    assert 0.4 <= time.monotonic() - began < 2
    assert claim(client, "eval", ["x", "y"], 1, blocking=False) == []
    with pytest.raises(TimeoutError, match="'y' is missing for 3 rows"):
        claim(client, "eval", ["x", "y"], 1, timeout_s=0)
    assert claim(client, "eval", ["x"], 3) == ABD  # nothing of that was consumed
