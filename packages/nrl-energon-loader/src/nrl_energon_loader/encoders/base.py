"""The task encoder without any tokenizer: batches, packs, over-long rows. An encoder of one's own subclasses it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from megatron.energon import (  # pyright: ignore[reportMissingTypeStubs]
    Cooker,
    SampleDecoder,
    TaskEncoder,
    stateless,
)
from nrl_interfaces import BatchedDataDict, PackedTensor

from nrl_energon_loader.packing.algorithms import packer
from nrl_energon_loader.packing.packs import batch_of_packs, pack_samples, padded_length
from nrl_energon_loader.sample_errors import take_skips
from nrl_energon_loader.samples import (
    CanonicalSFTSample,
    DeliveredBatch,
    EncodedSFTSample,
    PackedSFTSample,
    source_id,
    source_name,
)

__all__ = ["BaseSFTTaskEncoder", "MediaColumn", "MemberDecoder"]

SHORT_ROW = 4  # tokens of what is left of an over-long conversation


@dataclass(frozen=True)
class MediaColumn:
    """What a media column's tensors have in common, in batches without any image too.

    Attributes:
        dtype: Of every tensor.
        trailing_shape: Of every tensor, without dimension 0, along which they are packed.
    """

    dtype: torch.dtype
    trailing_shape: tuple[int, ...]

    def pack(self, rows: Sequence[list[torch.Tensor] | None]) -> PackedTensor:
        """Make the column of some rows' tensors.

        Raises:
            ValueError: If a tensor has another dtype or trailing shape.
        """
        return PackedTensor(rows, 0, dtype=self.dtype, trailing_shape=self.trailing_shape)


class MemberDecoder(SampleDecoder):
    """Parses a sample's JSON and text members and leaves all others as bytes.

    Images are decoded when their sample is encoded, so that a shuffle buffer holds no pixels.
    """

    def __init__(self) -> None:  # not the parent's, which sets up the decoding of images and videos
        self._config: dict[str, Any] = {"members": "json and txt"}

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Decode a crude sample."""
        return {name: _decoded(name, value) for name, value in sample.items()}


def _decoded(name: str, value: Any) -> Any:
    if not isinstance(value, bytes):
        return value
    suffix = name.rpartition(".")[2]
    if suffix == "json":
        return json.loads(value)
    return value.decode() if suffix == "txt" else value


class BaseSFTTaskEncoder(TaskEncoder[CanonicalSFTSample, Any, DeliveredBatch, DeliveredBatch]):
    """Batches and packs conversations; a subclass says in `encode_conversation` how one becomes tokens.

    Args:
        cookers: Energon's cookers; see `nrl_energon_loader.cookers.make_cookers`.
        max_sequence_length: The most tokens of a conversation, and the capacity of a pack.
        adapter: What the processor adapter made of the processor; None without a processor.
        tokenizer: Its `pad_token_id` fills rows; without a tokenizer 0 does.
        include_source_ids: Whether batches have `source_ids`.
        packing_algorithm: A name from `nrl_energon_loader.packing.algorithms`; None: no packing.
        max_sequences_per_bin: The most conversations in a pack; None: no bound but the capacity.
        sequence_length_pad_multiple: In a pack each conversation is padded to a multiple of this.
        only_unmask_final: In a pack only the last assistant message of each conversation is trained on. (Without
            packing, `prepare_sft_batch` says this.)

    Raises:
        ValueError: If a number is below 1, there is no such algorithm, the capacity is not a multiple of
            ``sequence_length_pad_multiple``, or the tokenizer has no pad token.
    """

    decoder = MemberDecoder()

    def __init__(
        self,
        *,
        cookers: Sequence[Cooker[Any]],
        max_sequence_length: int,
        adapter: Any = None,
        tokenizer: Any = None,
        include_source_ids: bool = True,
        packing_algorithm: str | None = None,
        max_sequences_per_bin: int | None = None,
        sequence_length_pad_multiple: int = 1,
        only_unmask_final: bool = False,
    ) -> None:
        _check_number("max_sequence_length", max_sequence_length)
        _check_number("max_sequences_per_bin", max_sequences_per_bin)
        _check_number("sequence_length_pad_multiple", sequence_length_pad_multiple)
        if packing_algorithm is not None and max_sequence_length % sequence_length_pad_multiple:
            raise ValueError(
                f"max_sequence_length is {max_sequence_length}, the capacity of a pack; "
                f"allowed: a multiple of sequence_length_pad_multiple, {sequence_length_pad_multiple}"
            )
        self.cookers = cookers
        self.adapter, self.tokenizer = adapter, tokenizer
        self.pad_token_id: int = 0 if tokenizer is None else _pad_token_id(tokenizer)
        self._max_length, self._include_source_ids = max_sequence_length, include_source_ids
        self._pad_multiple, self._only_unmask_final = sequence_length_pad_multiple, only_unmask_final
        self._max_in_bin = max_sequence_length if max_sequences_per_bin is None else max_sequences_per_bin
        self.media_columns: Mapping[str, MediaColumn] = {} if adapter is None else adapter.media_columns
        self._packer = None if packing_algorithm is None else packer(packing_algorithm)

    def encode_conversation(self, sample: CanonicalSFTSample) -> EncodedSFTSample:
        """Turn a conversation into tokens. The same sample must always give the same tokens.

        A subclass ends with ``return EncodedSFTSample.of(sample, message_log)``. What it raises skips the sample.
        """
        raise NotImplementedError(f"{type(self).__name__} has no encode_conversation; a task encoder needs one")

    def identity(self) -> dict[str, Any]:
        """Plain JSON of what changes the batches, beside the file or version of the class and the packing settings."""
        return {"max_sequence_length": self._max_length, "include_source_ids": self._include_source_ids}

    # ---- What Energon calls ----

    @stateless
    def encode_sample(self, sample: CanonicalSFTSample) -> EncodedSFTSample:
        """Encode a conversation; one that is too long becomes a short row that counts for nothing.

        It is kept, so that which other samples share its batch does not hang on the tokenizer. Its media are dropped,
        and with them every token, as some of these stand for media.
        """
        encoded = self.encode_conversation(sample)
        if encoded.length == 0:
            raise ValueError(f"sample {sample.__key__!r} has 0 tokens; allowed: 1 or more")
        self._check_media(sample.__key__, encoded.media)
        if encoded.length <= self._max_length:
            return encoded
        filler = torch.full((min(SHORT_ROW, self._max_length),), self.pad_token_id)
        message_log = [{"role": "user", "content": "", "token_ids": filler}]
        return EncodedSFTSample.of(sample, message_log, loss_multiplier=0.0)

    def select_samples_to_pack(self, samples: list[EncodedSFTSample]) -> list[list[EncodedSFTSample]]:
        """Choose which conversations of the packing buffer share a row."""
        if self._packer is None:
            raise ValueError("packing_algorithm is None; allowed with a packing buffer: the name of an algorithm")
        lengths = [padded_length(sample.length, self._pad_multiple) for sample in samples]
        bins = self._packer(lengths, self._max_length, self._max_in_bin)
        return [[samples[position] for position in one] for one in bins]

    @stateless
    def pack_selected_samples(self, samples: list[EncodedSFTSample]) -> PackedSFTSample:
        """Make the row."""
        return pack_samples(
            samples,
            pad_token_id=self.pad_token_id,
            pad_multiple=self._pad_multiple,
            only_unmask_final=self._only_unmask_final,
        )

    @stateless
    def batch(self, samples: list[Any]) -> DeliveredBatch:
        """Make the batch: columns of conversations, or of packs."""
        if self._packer is None:
            return self._batch_of_samples(cast("list[EncodedSFTSample]", samples))
        return self._batch_of_packs(cast("list[PackedSFTSample]", samples))

    def _check_media(self, key: str, media: dict[str, list[torch.Tensor]]) -> None:
        """Refuse here what would spoil a whole batch later."""
        for name, tensors in media.items():
            if name not in self.media_columns:
                raise ValueError(
                    f"sample {key!r} has media {name!r}; allowed: what media_columns has, {list(self.media_columns)}"
                )
            self.media_columns[name].pack([tensors])

    def _batch_of_samples(self, samples: list[EncodedSFTSample]) -> DeliveredBatch:
        batch: BatchedDataDict[Any] = BatchedDataDict(
            message_log=[sample.message_log for sample in samples],
            loss_multiplier=torch.tensor([sample.loss_multiplier for sample in samples], dtype=torch.float32),
        )
        names = [source_name(sample.__sources__) for sample in samples]
        return self._delivered(batch, samples, [source_id(sample) for sample in samples], names)

    def _batch_of_packs(self, packs: list[PackedSFTSample]) -> DeliveredBatch:
        batch = batch_of_packs(packs, pad_token_id=self.pad_token_id)
        names = [name for pack in packs for name in pack.source_names]
        return self._delivered(batch, packs, [pack.source_ids for pack in packs], names)

    def _delivered(
        self,
        batch: BatchedDataDict[Any],
        samples: Sequence[EncodedSFTSample] | Sequence[PackedSFTSample],
        source_ids: Sequence[Any],
        names: list[str],
    ) -> DeliveredBatch:
        if self._include_source_ids:
            batch["source_ids"] = list(source_ids)
        for name, column in self.media_columns.items():
            batch[name] = column.pack([sample.media.get(name) for sample in samples])
        return DeliveredBatch.of(batch, samples, names, take_skips())


def _check_number(name: str, value: int | None) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError(f"{name} is {value!r}; allowed: an int from 1")


def _pad_token_id(tokenizer: Any) -> int:
    if tokenizer.pad_token_id is None:
        raise ValueError(
            "the tokenizer's pad_token is None; allowed: any token (as in tokenizer.pad_token = tokenizer.eos_token)"
        )
    return tokenizer.pad_token_id
