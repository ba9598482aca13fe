"""The task encoder `generic_sft`: any processor with a chat template, text and images."""

from itertools import islice
from typing import Any, cast

import torch

from nrl_energon_loader.encoders.base import BaseSFTTaskEncoder
from nrl_energon_loader.samples import CanonicalSFTSample, EncodedSFTSample, Message

__all__ = ["GenericSFTTaskEncoder"]


class GenericSFTTaskEncoder(BaseSFTTaskEncoder):
    """Tokenizes one message at a time, so that each token belongs to one message and the loss mask is exact.

    Raises:
        ValueError: As `BaseSFTTaskEncoder`; or if there is no adapter.
    """

    def __init__(self, *, adapter: Any, **settings: Any) -> None:
        if adapter is None:
            raise ValueError("generic_sft has processor None; allowed: a Hugging Face processor or tokenizer")
        super().__init__(adapter=adapter, **settings)

    def encode_conversation(self, sample: CanonicalSFTSample) -> EncodedSFTSample:
        """Render and tokenize each message, with the images that it holds.

        Raises:
            ValueError: If a part is video or audio, there are more or fewer media than parts for them, or as
                `HFProcessorAdapter.render` and `tokenize`. Skips the sample.
        """
        counts = [_count_images(message) for message in sample.messages]
        if sum(counts) != len(sample.media):
            raise ValueError(f"there are {len(sample.media)} media and {sum(counts)} parts for them; allowed: as many")
        media, images = iter(sample.media), cast("list[Any]", [])
        message_log: list[Message] = []
        columns: dict[str, list[torch.Tensor]] = {}
        texts = self.adapter.render(sample.messages, sample.tools)
        for message, text, count in zip(sample.messages, texts, counts, strict=True):
            images += islice(media, count)
            first = not any(message["content"] for message in message_log)
            token_ids, tensors = self.adapter.tokenize(text, images if text else [], first=first)
            images = [] if text else images  # a message without text of its own: the next one's text shows its images
            message_log.append({"role": message["role"], "content": text, "token_ids": token_ids})
            for name, tensor in tensors.items():
                columns.setdefault(name, []).append(tensor)
        return EncodedSFTSample.of(sample, message_log, columns)


def _count_images(message: Message) -> int:
    content = message.get("content")
    kinds = [part["type"] for part in cast("list[Message]", content)] if isinstance(content, list) else []
    for kind in kinds:
        if kind not in {"text", "image"}:
            raise ValueError(f"a part is {kind}; allowed, for now: text and image")
    return kinds.count("image")
