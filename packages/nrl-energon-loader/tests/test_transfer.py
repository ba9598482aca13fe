"""A batch on its way from a worker: small tensors by value, nothing lost, pinned without losing its types."""

from collections.abc import Iterator
from multiprocessing import resource_sharer
from typing import Any

import pytest
import torch
import torch.multiprocessing
from megatron.energon import SourceInfo
from nrl_energon_loader.samples import CanonicalSFTSample, DeliveredBatch, _mapped, source_id, source_name
from nrl_energon_loader.transfer import LARGE, received, to_send
from nrl_interfaces import BatchedDataDict, PackedTensor


@pytest.fixture(autouse=True)
def no_sharing_thread_stays() -> Iterator[None]:
    """Sending a large tensor starts a thread that hands its file over: in a worker ordinarily, but here in the test."""
    yield
    resource_sharer.stop(timeout=10)


def make_batch() -> DeliveredBatch:
    log = [{"role": "user", "content": "x", "token_ids": torch.arange(3)}]
    pixels = PackedTensor([torch.ones(2, 4), None], 0)
    batch: BatchedDataDict[Any] = BatchedDataDict(message_log=[log, log], pixels=pixels, source_ids=["a", "b"])
    sample = CanonicalSFTSample(__key__="k", __restore_key__=(), messages=[], media=[])
    made = DeliveredBatch.of(batch, [sample], ["s", "t", "s"], {"t": 4})
    made.__restore_key__ = ("BatchDataset", 1, ("Webdataset", 7))
    return made


def check(batch: DeliveredBatch) -> None:
    assert (batch.__key__, batch.__restore_key__) == (["k"], ("BatchDataset", 1, ("Webdataset", 7)))
    assert (batch.samples, batch.samples_by_source, batch.skips_by_source) == (3, {"s": 2, "t": 1}, {"t": 4})
    assert type(batch.batch) is BatchedDataDict
    assert batch.batch["message_log"][1][0]["token_ids"].tolist() == [0, 1, 2]
    assert [len(row) for row in batch.batch["pixels"]] == [1, 0]
    assert batch.batch["pixels"].as_tensor().shape == (2, 4)
    assert batch.batch["source_ids"] == ["a", "b"]


def send(queue: Any, done: Any) -> None:
    queue.put(make_batch())
    done.wait(60)  # its shared memory must live until it is read


def test_a_batch_crosses_a_queue_whole_and_can_be_written_to() -> None:
    context = torch.multiprocessing.get_context("fork")
    queue, done = context.Queue(), context.Event()
    process = context.Process(target=send, args=(queue, done))
    process.start()
    batch = queue.get(timeout=60)
    done.set()
    process.join(60)
    assert process.exitcode == 0
    check(batch)
    batch.batch["message_log"][0][0]["token_ids"] += 1
    assert batch.batch["message_log"][0][0]["token_ids"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.float32, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3), (LARGE,)])
def test_every_tensor_arrives_as_it_was(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.randint(0, 2, shape).to(dtype)
    arrived = received(to_send({"x": tensor, "strided": tensor.T if tensor.ndim == 2 else tensor}))
    assert (arrived["x"].dtype, arrived["x"].shape) == (dtype, shape)
    assert torch.equal(arrived["x"], tensor)


def test_small_tensors_open_no_file() -> None:
    small = [torch.arange(10) for _ in range(100)]
    assert len(to_send(small)) > 100 * 80  # the values are in the bytes
    large = torch.zeros(LARGE // 8, dtype=torch.int64)
    assert len(to_send(large)) < 2_000  # and those of a large one are not
    assert torch.equal(received(to_send(large)), large)


@pytest.mark.skipif(not torch.accelerator.is_available(), reason="memory is pinned for an accelerator; there is none")
def test_a_pinned_batch_keeps_its_types() -> None:
    pinned = make_batch().pin_memory()
    check(pinned)
    assert pinned.batch["message_log"][0][0]["token_ids"].is_pinned()
    assert all(segment.is_pinned() for segment in pinned.batch["pixels"].stored_segments)


def test_a_change_of_every_tensor_keeps_types_and_reaches_all() -> None:
    batch = make_batch()
    batch.batch = BatchedDataDict(_mapped(batch.batch, torch.clone))
    check(batch)
    before = make_batch().batch["message_log"]
    changed = _mapped(before, lambda tensor: tensor + 1)
    assert [log[0]["token_ids"].tolist() for log in changed] == [[1, 2, 3]] * 2
    assert [log[0]["token_ids"].tolist() for log in before] == [[0, 1, 2]] * 2


def test_sources_are_named_by_their_dataset_and_samples_by_shard_and_key() -> None:
    sample = CanonicalSFTSample(__key__="0001", __restore_key__=(), messages=[], media=[])
    assert (source_name(sample.__sources__), source_id(sample)) == ("unknown", "unknown/0001")
    sample.__sources__ = (SourceInfo(dataset_path="/data/a", index=0, shard_name="x/s.tar", file_names=()),)
    assert (source_name(sample.__sources__), source_id(sample)) == ("/data/a", "x/s.tar/0001")
