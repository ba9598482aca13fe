"""The packed row, the batch of rows, and the unpacked batch made into padded tensors."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from megatron.energon import SourceInfo
from nrl_energon_loader.loss_mask import loss_mask
from nrl_energon_loader.packing.packs import batch_of_packs, pack_samples, padded_length
from nrl_energon_loader.samples import EncodedSFTSample
from nrl_energon_loader.sft_batch import prepare_sft_batch
from nrl_interfaces import BatchedDataDict, PackedTensor

PAD = 0
ROLES = ("system", "user", "assistant", "tool")


def encoded(number: int, log: Any, multiplier: float = 1.0, **media: Any) -> EncodedSFTSample:
    source = SourceInfo(dataset_path="/data/a", index=number, shard_name="s.tar", file_names=())
    return EncodedSFTSample(
        __key__=f"{number:02}",
        __restore_key__=("Webdataset", number),
        __sources__=(source,),
        message_log=[{"role": role, "content": "", "token_ids": torch.tensor(ids)} for role, ids in log],
        loss_multiplier=multiplier,
        media=media,
    )


tokens = st.lists(st.integers(1, 99), min_size=1, max_size=5)
logs = st.lists(st.tuples(st.sampled_from(ROLES), tokens), min_size=1, max_size=5)
groups = st.lists(st.tuples(logs, st.sampled_from([1.0, 0.0])), min_size=1, max_size=5)


def trained(log: Any, final: bool) -> list[bool]:
    last = max((number for number, (role, _) in enumerate(log) if role == "assistant"), default=-1)
    chosen = [role == "assistant" and (not final or number == last) for number, (role, _) in enumerate(log)]
    return [mark for mark, (_, ids) in zip(chosen, log, strict=True) for _ in ids]


@given(log=logs, final=st.booleans())
def test_the_loss_mask_marks_assistant_tokens_only(log: Any, final: bool) -> None:
    mask = loss_mask(encoded(0, log).message_log, only_unmask_final=final)
    assert mask.dtype == torch.bool
    assert mask.tolist() == trained(log, final)


@given(group=groups, multiple=st.integers(1, 8), final=st.booleans())
def test_a_pack_holds_each_conversation_padded_and_masked(group: Any, multiple: int, final: bool) -> None:
    samples = [encoded(number, log, multiplier) for number, (log, multiplier) in enumerate(group)]
    pack = pack_samples(samples, pad_token_id=PAD, pad_multiple=multiple, only_unmask_final=final)

    row, mask, starts, ends = [], [], [0], [0]
    for log, multiplier in group:
        ids = [token for _, message in log for token in message]
        padding = -len(ids) % multiple
        row += [*ids, *[PAD] * padding]
        mask += [mark and multiplier == 1.0 for mark in trained(log, final)] + [False] * padding
        starts.append(len(row))
        ends.append(ends[-1] + len(ids))
    assert pack.input_ids.tolist() == row
    assert pack.token_mask.tolist() == mask
    assert (pack.cu_seqlens_padded.tolist(), pack.cu_seqlens.tolist()) == (starts, ends)
    dtypes = [one.dtype for one in (pack.input_ids, pack.token_mask, pack.cu_seqlens, pack.cu_seqlens_padded)]
    assert dtypes == [torch.int64, torch.bool, torch.int32, torch.int32]
    assert pack.sample_mask == max(multiplier for _, multiplier in group)
    assert pack.source_ids == [f"s.tar/{number:02}" for number in range(len(group))]
    assert pack.source_names == ["/data/a"] * len(group)
    assert [source.index for source in pack.__sources__ or ()] == list(range(len(group)))


def test_a_packs_media_stand_in_the_order_of_its_conversations() -> None:
    log = [("user", [1])]
    samples = [
        encoded(0, log, pixels=[torch.full((2, 3), 0.0)]),
        encoded(1, log),
        encoded(2, log, pixels=[torch.full((1, 3), 1.0), torch.full((1, 3), 2.0)], grids=[torch.ones(1)]),
    ]
    pack = pack_samples(samples, pad_token_id=PAD, pad_multiple=1, only_unmask_final=False)
    assert torch.cat(pack.media["pixels"])[:, 0].tolist() == [0, 0, 1, 2]
    assert [len(one) for one in pack.media["grids"]] == [1]


def test_packs_become_a_batch_of_rows() -> None:
    packs = [
        pack_samples(group, pad_token_id=9, pad_multiple=2, only_unmask_final=False)
        for group in (
            [encoded(0, [("user", [1, 2]), ("assistant", [3])]), encoded(1, [("assistant", [4, 5])])],
            [encoded(2, [("assistant", [6, 7])], 0.0)],
        )
    ]
    batch = batch_of_packs(packs, pad_token_id=9)
    assert batch.size == 2
    assert batch["input_ids"].tolist() == [[1, 2, 3, 9, 4, 5], [6, 7, 9, 9, 9, 9]]
    assert batch["token_mask"].int().tolist() == [[0, 0, 1, 0, 1, 1], [0] * 6]
    assert batch["input_lengths"].tolist() == [6, 2]
    assert batch["sample_mask"].tolist() == [1.0, 0.0]
    assert [row[0].tolist() for row in batch["cu_seqlens"]] == [[0, 3, 5], [0, 2]]
    assert [row[0].tolist() for row in batch["cu_seqlens_padded"]] == [[0, 4, 6], [0, 2]]
    assert batch["input_lengths"].dtype == torch.int64
    assert batch["sample_mask"].dtype == torch.float32


@given(length=st.integers(0, 100), multiple=st.integers(1, 20))
def test_padded_length_is_the_next_multiple(length: int, multiple: int) -> None:
    padded = padded_length(length, multiple)
    assert padded % multiple == 0
    assert 0 <= padded - length < multiple


# ---- prepare_sft_batch ----


def unpacked(group: Any) -> BatchedDataDict[Any]:
    samples = [encoded(number, log, multiplier) for number, (log, multiplier) in enumerate(group)]
    return BatchedDataDict(
        message_log=[sample.message_log for sample in samples],
        loss_multiplier=torch.tensor([sample.loss_multiplier for sample in samples]),
        source_ids=[sample.__key__ for sample in samples],
        pixels=PackedTensor([None] * len(samples), 0, dtype=torch.float32, trailing_shape=(3,)),
    )


@given(group=groups, divisor=st.integers(1, 8), final=st.booleans())
def test_prepared_rows_hold_each_conversation_padded_and_masked(group: Any, divisor: int, final: bool) -> None:
    given_batch = unpacked(group)
    batch = prepare_sft_batch(given_batch, SimpleNamespace(pad_token_id=PAD), final, divisor)
    rows = [[token for _, message in log for token in message] for log, _ in group]
    length = batch["input_ids"].size(1)
    assert length % divisor == 0
    assert 0 <= length - max(map(len, rows)) < divisor
    assert batch["input_ids"].tolist() == [row + [PAD] * (length - len(row)) for row in rows]
    masks = [trained(log, final) for log, _ in group]
    assert batch["token_mask"].tolist() == [mask + [False] * (length - len(mask)) for mask in masks]
    assert batch["input_lengths"].tolist() == [len(row) for row in rows]
    assert batch["sample_mask"].tolist() == [multiplier for _, multiplier in group]
    assert [batch[name].dtype for name in ("input_ids", "input_lengths", "token_mask", "sample_mask")] == [
        torch.int64,
        torch.int64,
        torch.bool,
        torch.float32,
    ]
    assert batch["source_ids"] == given_batch["source_ids"]
    assert batch["pixels"] is given_batch["pixels"]
    assert batch.size == len(group)
    assert sorted(given_batch) == ["loss_multiplier", "message_log", "pixels", "source_ids"]  # left as it was


def test_bad_input_is_refused() -> None:
    batch, tokenizer = unpacked([([("user", [1])], 1.0)]), SimpleNamespace(pad_token_id=PAD)
    with pytest.raises(ValueError, match="pad_token is None; allowed: any token"):
        prepare_sft_batch(batch, SimpleNamespace(pad_token_id=None), False, 1)
    with pytest.raises(ValueError, match="make_sequence_length_divisible_by is 0; allowed: 1 or more"):
        prepare_sft_batch(batch, tokenizer, False, 0)
    with pytest.raises(ValueError, match=r"the batch has \['input_ids'\]; allowed: an unpacked one"):
        prepare_sft_batch(BatchedDataDict(input_ids=torch.ones(1, 1)), tokenizer, False, 1)
