"""A packed row, and a batch of packed rows."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from megatron.energon import SourceInfo  # pyright: ignore[reportMissingTypeStubs]
from nrl_interfaces import BatchedDataDict, PackedTensor
from torch.nn.utils.rnn import pad_sequence

from nrl_energon_loader.loss_mask import loss_mask
from nrl_energon_loader.samples import EncodedSFTSample, PackedSFTSample, source_id, source_name

__all__ = ["batch_of_packs", "pack_samples", "padded_length"]


def padded_length(length: int, multiple: int) -> int:
    """Give the smallest multiple that is not below ``length``."""
    return -(-length // multiple) * multiple


def pack_samples(
    samples: Sequence[EncodedSFTSample], *, pad_token_id: int, pad_multiple: int, only_unmask_final: bool
) -> PackedSFTSample:
    """Put conversations into one row, each padded to a multiple; padding is not trained on."""
    lengths = [sample.length for sample in samples]
    padded = [padded_length(length, pad_multiple) for length in lengths]
    starts = [0, *accumulate(padded)]
    input_ids = torch.full((starts[-1],), pad_token_id, dtype=torch.int64)
    token_mask = torch.zeros(starts[-1], dtype=torch.bool)
    for sample, start, length in zip(samples, starts, lengths, strict=False):
        input_ids[start : start + length] = torch.cat([message["token_ids"] for message in sample.message_log])
        if sample.loss_multiplier:
            mask = loss_mask(sample.message_log, only_unmask_final=only_unmask_final)
            token_mask[start : start + length] = mask
    sources: list[SourceInfo] = [source for sample in samples for source in sample.__sources__ or ()]
    return PackedSFTSample(
        __key__=",".join(sample.__key__ for sample in samples),
        __restore_key__=(),  # Energon sets it
        __sources__=tuple(sources),
        input_ids=input_ids,
        token_mask=token_mask,
        cu_seqlens=torch.tensor([0, *accumulate(lengths)], dtype=torch.int32),
        cu_seqlens_padded=torch.tensor(starts, dtype=torch.int32),
        sample_mask=max(sample.loss_multiplier for sample in samples),
        media={
            name: [segment for sample in samples for segment in sample.media.get(name, ())]
            for name in dict.fromkeys(name for sample in samples for name in sample.media)
        },
        source_ids=[source_id(sample) for sample in samples],
        source_names=[source_name(sample.__sources__) for sample in samples],
    )


def batch_of_packs(packs: Sequence[PackedSFTSample], *, pad_token_id: int) -> BatchedDataDict[Any]:
    """Put packed rows into a batch, padded on the right to the longest; without the media columns and source ids."""
    return BatchedDataDict(
        input_ids=pad_sequence([pack.input_ids for pack in packs], batch_first=True, padding_value=pad_token_id),
        input_lengths=torch.tensor([len(pack.input_ids) for pack in packs]),
        token_mask=pad_sequence([pack.token_mask for pack in packs], batch_first=True),
        sample_mask=torch.tensor([pack.sample_mask for pack in packs], dtype=torch.float32),
        cu_seqlens=PackedTensor([pack.cu_seqlens for pack in packs], 0),
        cu_seqlens_padded=PackedTensor([pack.cu_seqlens_padded for pack in packs], 0),
    )
