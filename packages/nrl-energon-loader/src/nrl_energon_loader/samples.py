"""What travels between the stages: a conversation, the same as tokens, a pack of several, and a batch with its counts.

All but the last are Energon samples: they have `__key__`, `__restore_key__`, `__subflavors__` and `__sources__`.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import torch
from megatron.energon import (  # pyright: ignore[reportMissingTypeStubs]
    Batch,
    Sample,
    SourceInfo,
    edataclass,  # pyright: ignore[reportUnknownVariableType]
)
from nrl_interfaces import BatchedDataDict, PackedTensor

from nrl_energon_loader.transfer import received, to_send

__all__ = [
    "CanonicalSFTSample",
    "DeliveredBatch",
    "EncodedSFTSample",
    "Message",
    "PackedSFTSample",
    "source_id",
    "source_name",
]

Message: TypeAlias = dict[str, Any]


@edataclass
class CanonicalSFTSample(Sample):
    """A conversation, as cookers make it from whatever a dataset holds.

    Attributes:
        messages: Each a dict with `role` (system, user, assistant or tool) and `content`: a string, or a list of parts
            like `{"type": "text", "text": ...}` and `{"type": "image"}`. What else a chat template reads
            (`tool_calls`, `name`) stands beside them.
        media: The bytes (or decoded values) of the parts that are no text, in the order of the parts.
        tools: JSON schemas of the tools, for the chat template; None without any.
    """

    messages: list[Message]
    media: list[Any]
    tools: list[dict[str, Any]] | None = None


@edataclass
class EncodedSFTSample(Sample):
    """A conversation as tokens.

    Attributes:
        message_log: Each message's `role`, `content` (its text as rendered) and `token_ids` (int64, [tokens]).
        loss_multiplier: 1.0, or 0.0 where the sample counts for nothing (an over-long one).
        media: For each media column the tensors of this sample, in the order of the images.
    """

    message_log: list[Message]
    loss_multiplier: float
    media: dict[str, list[torch.Tensor]]

    @classmethod
    def of(
        cls,
        sample: Sample,
        message_log: list[Message],
        media: dict[str, list[torch.Tensor]] | None = None,
        *,
        loss_multiplier: float = 1.0,
    ) -> "EncodedSFTSample":
        """Take Energon's fields from the conversation, the rest as given.

        Args:
            sample: The conversation.
            message_log: As in the class.
            media: As in the class; None without any.
            loss_multiplier: As in the class.
        """
        fields = {"message_log": message_log, "media": media or {}, "loss_multiplier": loss_multiplier}
        return cls.derive_from(sample, **fields)  # pyright: ignore[reportUnknownMemberType]

    @property
    def length(self) -> int:
        """The number of tokens."""
        return sum(len(message["token_ids"]) for message in self.message_log)


@edataclass
class PackedSFTSample(Sample):
    """Several conversations in one row.

    Attributes:
        input_ids: int64, [tokens], each conversation padded to a multiple.
        token_mask: bool, [tokens]: what is trained on.
        cu_seqlens: int32, [conversations + 1]: where each would begin without padding, and the end.
        cu_seqlens_padded: int32, [conversations + 1]: where each begins in `input_ids`, and the end.
        sample_mask: 1.0, or 0.0 where no conversation counts.
        media: For each media column the tensors of the conversations, in order.
        source_ids: One for each conversation.
        source_names: For the counters, one for each conversation.
    """

    input_ids: torch.Tensor
    token_mask: torch.Tensor
    cu_seqlens: torch.Tensor
    cu_seqlens_padded: torch.Tensor
    sample_mask: float
    media: dict[str, list[torch.Tensor]]
    source_ids: list[str]
    source_names: list[str]


@edataclass
class DeliveredBatch(Batch):
    """A batch on its way from the worker that made it to the loader that hands it out.

    Attributes:
        batch: What the trainer gets.
        samples: How many conversations are in it.
        samples_by_source: The same by `source_name`.
        skips_by_source: How many samples the worker has skipped since its batch before.
    """

    batch: BatchedDataDict[Any]
    samples: int
    samples_by_source: dict[str, int]
    skips_by_source: dict[str, int]

    @classmethod
    def of(
        cls, batch: BatchedDataDict[Any], samples: Sequence[Sample], names: Sequence[str], skips: dict[str, int]
    ) -> "DeliveredBatch":
        """Put a batch together with what Energon and the counters want of its samples.

        Args:
            batch: What the trainer gets.
            samples: The samples or packs that Energon gave to be batched.
            names: The `source_name` of every conversation.
            skips: How many samples were skipped since the batch before, by `source_name`.
        """
        return cls(
            __key__=[sample.__key__ for sample in samples],
            __restore_key__=(),  # Energon sets it
            batch=batch,
            samples=len(names),
            samples_by_source=dict(Counter(names)),
            skips_by_source=skips,
        )

    def __reduce__(self) -> Any:
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return _received_batch, (type(self), to_send(fields))

    def pin_memory(self) -> "DeliveredBatch":
        """Pin the batch's tensors; Energon's own way would lose the types of dict and column."""
        batch: BatchedDataDict[Any] = BatchedDataDict(_mapped(self.batch, torch.Tensor.pin_memory))
        return type(self).extend(self, batch=batch)  # pyright: ignore[reportUnknownMemberType]


def source_name(sources: Sequence[SourceInfo] | None) -> str:
    """Give the name under which a sample's source is counted: the path of its dataset."""
    return str(sources[0].dataset_path) if sources else "unknown"


def source_id(sample: Sample) -> str:
    """Give the id of a sample in its dataset: shard and key, wherever the dataset lies."""
    shard = sample.__sources__[0].shard_name if sample.__sources__ else "unknown"
    return f"{shard}/{sample.__key__}"


def _received_batch(kind: type[DeliveredBatch], sent: bytes) -> DeliveredBatch:
    return kind(**received(sent))


def _mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Change every tensor of a column."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, PackedTensor):
        return value.map_segments(change)
    if isinstance(value, list):
        return [_mapped(item, change) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: _mapped(item, change) for key, item in cast("dict[str, Any]", value).items()}
    return value
