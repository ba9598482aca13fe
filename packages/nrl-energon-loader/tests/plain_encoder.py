"""A task encoder without transformers: the words of the last message are the token ids. Found by its path."""

import signal

import torch
from megatron.energon import SkipSample, stateless
from nrl_energon_loader.encoders.base import BaseSFTTaskEncoder
from nrl_energon_loader.samples import CanonicalSFTSample, EncodedSFTSample


class PlainEncoder(BaseSFTTaskEncoder):
    """Raises what a conversation's words ask for."""

    @stateless
    def encode_conversation(self, sample: CanonicalSFTSample) -> EncodedSFTSample:
        text = sample.messages[-1]["content"]
        errors = {"bad": ValueError, "interrupt": KeyboardInterrupt, "exit": SystemExit, "skip": SkipSample}
        if text in errors:
            raise errors[text](f"{text} of {sample.__key__}")
        if text == "killed":
            signal.raise_signal(signal.SIGKILL)
        token_ids = torch.tensor([int(word) for word in text.split()])
        message = {"role": "assistant", "content": text, "token_ids": token_ids}
        return EncodedSFTSample.of(sample, [message])
