"""A task encoder that does next to nothing, for the benchmark's both sides."""

import torch
from megatron.energon import stateless
from nrl_energon_loader.encoders.base import BaseSFTTaskEncoder
from nrl_energon_loader.samples import CanonicalSFTSample, EncodedSFTSample


class MinimalEncoder(BaseSFTTaskEncoder):
    """One tensor a message, of its bytes."""

    @stateless
    def encode_conversation(self, sample: CanonicalSFTSample) -> EncodedSFTSample:
        texts = [message["content"] for message in sample.messages]
        tokens = [torch.frombuffer(bytearray(text, "utf-8"), dtype=torch.uint8).long() for text in texts]
        log = [
            {"role": message["role"], "content": "", "token_ids": ids}
            for message, ids in zip(sample.messages, tokens, strict=True)
        ]
        return EncodedSFTSample.of(sample, log)
