"""The task encoder `utf8_bytes`: no tokenizer; the bytes of a conversation are its tokens."""

from __future__ import annotations

import json

import torch
from megatron.energon import stateless  # pyright: ignore[reportMissingTypeStubs]

from nrl_energon_loader.encoders.base import BaseSFTTaskEncoder
from nrl_energon_loader.samples import CanonicalSFTSample, EncodedSFTSample

__all__ = ["Utf8BytesTaskEncoder"]


class Utf8BytesTaskEncoder(BaseSFTTaskEncoder):
    """For checking a dataset and a resume without a model: no byte of a conversation or of its media goes unseen."""

    @stateless
    def encode_conversation(self, sample: CanonicalSFTSample) -> EncodedSFTSample:
        """Give each message's JSON, then each medium, as a message of its bytes (int64, 0 to 255)."""
        texts = [json.dumps(message, sort_keys=True, ensure_ascii=False).encode() for message in sample.messages]
        media = [medium if isinstance(medium, bytes) else repr(medium).encode() for medium in sample.media]
        roles = [message["role"] for message in sample.messages] + ["user"] * len(media)
        message_log = [
            {"role": role, "content": "", "token_ids": torch.tensor(list(part), dtype=torch.int64)}
            for role, part in zip(roles, [*texts, *media], strict=True)
        ]
        return EncodedSFTSample.of(sample, message_log)
