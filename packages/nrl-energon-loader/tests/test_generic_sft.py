"""The task encoder generic_sft: the loss mask against transformers' own, images, over-long conversations, batches."""

import random
from collections.abc import Iterator
from typing import Any

import hf
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from megatron.energon import SourceInfo
from megatron.energon.task_encoder.base import get_stateless
from nrl_energon_loader.encoders.base import BaseSFTTaskEncoder, MediaColumn
from nrl_energon_loader.encoders.generic_sft import GenericSFTTaskEncoder
from nrl_energon_loader.encoders.hf_processor import HFProcessorAdapter
from nrl_energon_loader.sample_errors import compact_sample_error_handler, take_skips
from nrl_energon_loader.samples import CanonicalSFTSample, EncodedSFTSample
from nrl_energon_loader.sft_batch import prepare_sft_batch
from nrl_interfaces import PackedTensor

SOURCE = SourceInfo(dataset_path="/data/a", index=3, shard_name="s.tar", file_names=())
TOOLS = [{"type": "function", "function": {"name": "f"}}]
CALL = {"id": "a", "function": {"name": "f", "arguments": {"x": 1}}}


@pytest.fixture(autouse=True)
def no_skips_of_others() -> Iterator[None]:
    take_skips()
    yield
    take_skips()


def conversation(messages: Any, media: Any = (), tools: Any = None, key: str = "0003") -> CanonicalSFTSample:
    keys = {"__key__": key, "__restore_key__": ("Webdataset", 3), "__sources__": (SOURCE,)}
    return CanonicalSFTSample(**keys, messages=messages, media=list(media), tools=tools)


def encoder(processor: Any, *, add: tuple[str, ...] = ("generation_prompt",), **settings: Any) -> GenericSFTTaskEncoder:
    flags = {f"add_{name}": name in add for name in ("bos", "eos", "generation_prompt")}
    adapter = HFProcessorAdapter(processor, **flags)
    settings = {"max_sequence_length": 4096, "cookers": [], **settings}
    return GenericSFTTaskEncoder(adapter=adapter, tokenizer=adapter.tokenizer, **settings)


def ids_of(sample: EncodedSFTSample) -> list[int]:
    return torch.cat([message["token_ids"] for message in sample.message_log]).tolist()


# ---- The loss mask ----

TOKENIZER = hf.make_tokenizer()
ENCODER = encoder(TOKENIZER)
WITH_SPACES = encoder(hf.make_tokenizer_with_spaces())

word_texts = st.lists(st.sampled_from(hf.TEXT.split()), min_size=1, max_size=6).map(" ".join)
any_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@st.composite
def conversations(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> tuple[list[dict[str, Any]], Any]:
    """A system message or none, then turns of the user, perhaps a tool, and the assistant."""
    messages = [{"role": "system", "content": draw(texts)}] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 3))):
        messages.append({"role": "user", "content": draw(texts)})
        if draw(st.booleans()):
            messages.append({"role": "assistant", "content": draw(texts), "tool_calls": [CALL]})
            messages.append({"role": "tool", "content": draw(texts), "tool_call_id": "a"})
        messages.append({"role": "assistant", "content": draw(texts)})
    return messages, draw(st.sampled_from([None, TOOLS]))


@pytest.mark.parametrize("made", [ENCODER, WITH_SPACES], ids=["bytes", "spaces"])
@given(case=conversations(word_texts))
def test_tokens_and_mask_are_those_of_the_template_rendered_whole(made: GenericSFTTaskEncoder, case: Any) -> None:
    messages, tools = case
    whole = made.tokenizer.apply_chat_template(
        messages, tools=tools, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    sample = made.encode_sample(conversation(messages, tools=tools))
    batch = prepare_sft_batch(made.batch([sample]).batch, made.tokenizer, False, 1)
    assert batch["input_ids"][0].tolist() == whole["input_ids"]
    assert batch["token_mask"][0].int().tolist() == whole["assistant_masks"]


@given(case=conversations(any_texts))
def test_with_any_text_the_mask_is_on_what_the_assistant_writes_and_nothing_else(case: Any) -> None:
    """Texts with line breaks and spaces at their ends are tokenized otherwise when whole, so characters count here."""
    messages, tools = case
    sample = ENCODER.encode_sample(conversation(messages, tools=tools))
    batch = prepare_sft_batch(ENCODER.batch([sample]).batch, TOKENIZER, False, 1)
    ids, mask = batch["input_ids"][0], batch["token_mask"][0]
    replies = "".join(
        m["content"] + ('[call] {"name": "f", "arguments": {"x": 1}}' if "tool_calls" in m else "") + "<|im_end|>\n"
        for m in messages
        if m["role"] == "assistant"
    )
    assert TOKENIZER.decode(ids[mask]) == replies
    assert TOKENIZER.decode(ids) == TOKENIZER.apply_chat_template(messages, tools=tools, tokenize=False)
    final = prepare_sft_batch(ENCODER.batch([sample]).batch, TOKENIZER, True, 1)["token_mask"][0]
    assert TOKENIZER.decode(ids[final]) == messages[-1]["content"] + "<|im_end|>\n"


def test_without_the_generation_prompt_its_tokens_are_the_assistants() -> None:
    made = encoder(TOKENIZER, add=("bos", "eos"))
    sample = made.encode_sample(conversation(hf.make_messages(0)))
    batch = prepare_sft_batch(made.batch([sample]).batch, TOKENIZER, True, 1)
    text = TOKENIZER.decode(batch["input_ids"][0][batch["token_mask"][0]])
    assert text == f"<|im_start|>assistant\n{hf.make_messages(0)[-1]['content']}<|im_end|>"
    assert batch["input_ids"][0][0] == TOKENIZER.bos_token_id


# ---- Images ----


@pytest.mark.parametrize("make", [hf.make_processor, hf.make_patch_processor], ids=["crops", "patches"])
def test_images_become_the_columns_that_the_processor_makes_of_the_whole(make: Any) -> None:
    processor = make()
    image, text = {"type": "image"}, {"type": "text", "text": "the cat"}
    messages = [
        {"role": "system", "content": "see"},
        {"role": "user", "content": [image, text, image]},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": [text, image]},
        {"role": "assistant", "content": [text]},
    ]
    media = [hf.image_bytes(0, 60, 40), hf.image_bytes(1, 90, 120), hf.image_bytes(2, 200, 50)]
    made = encoder(processor)
    batch = made.batch([made.encode_sample(conversation(messages, media))]).batch
    images = [hf.make_image(0, 60, 40), hf.make_image(1, 90, 120), hf.make_image(2, 200, 50)]
    rendered = processor.apply_chat_template(messages, tokenize=False)
    whole = processor(text=[rendered], images=images, add_special_tokens=False, return_tensors="pt")
    prepared = prepare_sft_batch(batch, made.tokenizer, False, 1)
    assert torch.equal(prepared["input_ids"], whole["input_ids"])
    assert set(made.media_columns) == set(whole) - {"input_ids", "attention_mask"}
    for name in made.media_columns:
        assert torch.equal(batch[name].as_tensor(), whole[name]), name
    shown = made.tokenizer.decode(prepared["input_ids"][0][prepared["token_mask"][0]])
    assert shown == "two<|im_end|>\nthe cat<|im_end|>\n"


def test_images_of_a_message_that_has_no_text_of_its_own_stand_in_the_next() -> None:
    template = """{% if messages[-1].role == 'system' %}{{ raise_exception('alone') }}{% endif %}
{%- for m in messages %}{% if m.content is string %}{{ m.content }}
{%- else %}{% for p in m.content %}{{ '<|image|>' if p.type == 'image' else p.text }}{% endfor %}{% endif %};
{%- endfor %}"""
    processor = hf.make_processor()
    processor.chat_template = template
    image = [{"type": "image"}]
    messages = [{"role": role, "content": image} for role in ("system", "user")]
    messages.append({"role": "assistant", "content": "x"})
    sample = encoder(processor).encode_sample(conversation(messages, [hf.image_bytes(0), hf.image_bytes(1)]))
    assert [message["content"] for message in sample.message_log] == ["", "<|image|>;<|image|>;", "x;"]
    assert [len(tensor) for tensor in sample.media["pixel_values"]] == [2]


def test_every_batch_has_the_media_columns() -> None:
    made = encoder(hf.make_processor())
    with_images = made.encode_sample(conversation(hf.make_messages(0, images=2), [hf.image_bytes(0)] * 2))
    without = made.encode_sample(conversation(hf.make_messages(1)))
    for samples, sizes in (([without, without], [0, 0]), ([without, with_images], [0, 2])):
        column = made.batch(samples).batch["pixel_values"]
        assert isinstance(column, PackedTensor)
        assert [sum(len(segment) for segment in row) for row in column] == sizes
        assert (column.dtype, column.trailing_shape, column.dim_to_pack) == (torch.float32, (3, 28, 28), 0)
    assert sorted(encoder(TOKENIZER).batch([without]).batch) == ["loss_multiplier", "message_log", "source_ids"]


@pytest.mark.parametrize("kind", ["video", "audio"])
def test_video_and_audio_are_refused(kind: str) -> None:
    messages = [{"role": "user", "content": [{"type": kind}]}]
    with pytest.raises(ValueError, match=f"a part is {kind}; allowed, for now: text and image"):
        encoder(hf.make_processor()).encode_sample(conversation(messages, [b""]))


def test_images_need_an_image_processor() -> None:
    with pytest.raises(ValueError, match=r"there are 1 images and .* has no image processor"):
        ENCODER.encode_sample(conversation(hf.make_messages(0, images=1), [hf.image_bytes(0)]))
    for count in (0, 2):  # a cooker of one's own may be wrong
        with pytest.raises(ValueError, match=f"there are {count} media and 1 parts for them"):
            ENCODER.encode_sample(conversation(hf.make_messages(0, images=1), [hf.image_bytes(0)] * count))
    with pytest.raises(ValueError, match="generic_sft has processor None"):
        GenericSFTTaskEncoder(adapter=None, cookers=[], max_sequence_length=8)


# ---- Over-long conversations ----


def test_an_over_long_conversation_is_kept_as_a_short_row_that_counts_for_nothing() -> None:
    processor = hf.make_processor()
    sample = conversation(hf.make_messages(0, images=1), [hf.image_bytes(0)])
    length = encoder(processor).encode_sample(sample).length
    fits, short = (encoder(processor, max_sequence_length=size) for size in (length, length - 1))
    assert fits.encode_sample(sample).loss_multiplier == 1.0
    encoded = short.encode_sample(sample)
    assert (encoded.__key__, encoded.__restore_key__, encoded.__sources__) == ("0003", ("Webdataset", 3), (SOURCE,))
    batch = short.batch([encoded]).batch
    assert batch["loss_multiplier"].tolist() == [0.0]
    assert [len(row) for row in batch["pixel_values"]] == [0]
    prepared = prepare_sft_batch(batch, short.tokenizer, False, 1)
    assert prepared["input_lengths"].tolist() == [4]
    assert processor.image_token_id not in prepared["input_ids"]
    assert not prepared["token_mask"].any()
    assert encoder(TOKENIZER, max_sequence_length=2).encode_sample(conversation(hf.make_messages(0))).length == 2


def test_a_pack_with_an_over_long_conversation_trains_on_the_others() -> None:
    settings = {"packing_algorithm": "concatenative", "max_sequence_length": 64, "sequence_length_pad_multiple": 8}
    made = encoder(TOKENIZER, **settings)
    samples = [made.encode_sample(conversation(hf.make_messages(0, turns=turns))) for turns in (1, 9)]
    assert [sample.loss_multiplier for sample in samples] == [1.0, 0.0]
    (chosen,) = made.select_samples_to_pack(samples)
    batch = made.batch([made.pack_selected_samples(chosen)]).batch
    start = int(next(iter(batch["cu_seqlens_padded"]))[0][1])
    assert batch["sample_mask"].tolist() == [1.0]
    assert batch["token_mask"][0][:start].any()
    assert not batch["token_mask"][0][start:].any()


# ---- Batches ----


def test_a_delivered_batch_counts_samples_and_skips_by_source() -> None:
    bad = conversation([], key="bad")
    compact_sample_error_handler(ValueError("x"), bad, [SOURCE])
    sample = ENCODER.encode_sample(conversation(hf.make_messages(0)))
    first, second = ENCODER.batch([sample, sample]), ENCODER.batch([sample])
    assert (first.samples, first.samples_by_source, first.skips_by_source) == (2, {"/data/a": 2}, {"/data/a": 1})
    assert (second.samples, second.skips_by_source) == (1, {})
    assert first.batch["source_ids"] == ["s.tar/0003"] * 2
    assert first.__key__ == ["0003"] * 2
    assert "source_ids" not in encoder(TOKENIZER, include_source_ids=False).batch([sample]).batch


def test_a_packed_batch_has_these_columns() -> None:
    made = encoder(hf.make_processor(), packing_algorithm="first_fit_shuffle", max_sequences_per_bin=2)
    samples = [
        made.encode_sample(conversation(hf.make_messages(k, images=k), [hf.image_bytes(k)] * k, key=str(k)))
        for k in range(3)
    ]
    packs = [made.pack_selected_samples(one) for one in made.select_samples_to_pack(samples)]
    delivered = made.batch(packs)
    assert sorted(len(one) for one in delivered.batch["source_ids"]) == [1, 2]
    assert sorted(name for one in delivered.batch["source_ids"] for name in one) == ["s.tar/0", "s.tar/1", "s.tar/2"]
    tokens, masks, starts = (
        ["input_ids", "input_lengths"],
        ["token_mask", "sample_mask"],
        ["cu_seqlens", "cu_seqlens_padded"],
    )
    assert set(delivered.batch) == {*tokens, *masks, *starts, "source_ids", "pixel_values"}
    assert delivered.batch.size == 2
    assert delivered.samples == 3
    assert sum(len(segment) for row in delivered.batch["pixel_values"] for segment in row) == 3


def test_packs_keep_to_the_capacity_with_their_padding() -> None:
    settings = {
        "packing_algorithm": "first_fit_decreasing",
        "max_sequence_length": 8,
        "sequence_length_pad_multiple": 4,
    }
    made = Letters(cookers=[], **settings)
    texts = ["abcde", "abc", "abc"]  # 5 + 3 fit without padding
    samples = [made.encode_sample(conversation([{"role": "user", "content": text}])) for text in texts]
    packs = [made.pack_selected_samples(one) for one in made.select_samples_to_pack(samples)]
    assert [pack.cu_seqlens_padded.tolist() for pack in packs] == [[0, 8], [0, 4, 8]]
    with pytest.raises(ValueError, match="packing_algorithm is None"):
        Letters(cookers=[], max_sequence_length=8).select_samples_to_pack(samples)


def test_what_energon_runs_again_on_restore_is_stateless() -> None:
    for method in ("encode_sample", "pack_selected_samples", "batch"):
        assert get_stateless(getattr(ENCODER, method)), method
    sample = conversation(hf.make_messages(0, images=1), [hf.image_bytes(0)])
    made = encoder(hf.make_processor())
    first = made.encode_sample(sample)
    random.seed(1)
    torch.manual_seed(1)
    again = made.encode_sample(sample)
    assert ids_of(first) == ids_of(again)
    assert torch.equal(first.media["pixel_values"][0], again.media["pixel_values"][0])


# ---- An encoder of one's own ----


class Letters(BaseSFTTaskEncoder):
    def encode_conversation(self, sample: CanonicalSFTSample) -> EncodedSFTSample:
        log = [{**message, "token_ids": torch.tensor(list(message["content"].encode()))} for message in sample.messages]
        return EncodedSFTSample.of(sample, log)


def test_an_encoder_of_ones_own_needs_one_method_and_no_tokenizer() -> None:
    made = Letters(cookers=[], max_sequence_length=8)
    sample = made.encode_sample(conversation([{"role": "user", "content": "ab"}]))
    assert ids_of(sample) == [97, 98]
    assert made.pad_token_id == 0
    assert made.identity() == {"max_sequence_length": 8, "include_source_ids": True}
    with pytest.raises(ValueError, match="sample '0003' has 0 tokens; allowed: 1 or more"):
        made.encode_sample(conversation([{"role": "user", "content": ""}]))
    with pytest.raises(NotImplementedError, match="BaseSFTTaskEncoder has no encode_conversation"):
        BaseSFTTaskEncoder(cookers=[], max_sequence_length=8).encode_sample(conversation([]))


class Pixels(Letters):
    """Makes of a conversation what its media say: names and tensors."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.media_columns = {"pixels": MediaColumn(torch.float32, (2,))}

    def encode_conversation(self, sample: CanonicalSFTSample) -> EncodedSFTSample:
        return EncodedSFTSample.of(sample, super().encode_conversation(sample).message_log, dict(sample.media))


def test_media_that_would_spoil_a_batch_are_refused_with_their_sample() -> None:
    made = Pixels(cookers=[], max_sequence_length=8)
    user = [{"role": "user", "content": "a"}]
    good = made.encode_sample(conversation(user, [("pixels", [torch.ones(3, 2)])]))
    assert made.batch([good, made.encode_sample(conversation(user))]).batch["pixels"].as_tensor().shape == (3, 2)
    with pytest.raises(ValueError, match=r"sample '0003' has media 'sounds'; allowed: .*, \['pixels'\]"):
        made.encode_sample(conversation(user, [("sounds", [torch.ones(3)])]))
    for tensor in (torch.ones(3, 4), torch.ones(3, 2, dtype=torch.int64)):
        with pytest.raises(ValueError, match="allowed"):
            made.encode_sample(conversation(user, [("pixels", [tensor])]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_sequence_length": 0}, "max_sequence_length is 0; allowed: an int from 1"),
        ({"max_sequence_length": 2.5}, "max_sequence_length is 2.5; allowed: an int from 1"),
        ({"max_sequences_per_bin": 0}, "max_sequences_per_bin is 0; allowed: an int from 1"),
        ({"sequence_length_pad_multiple": True}, "sequence_length_pad_multiple is True; allowed: an int from 1"),
        ({"packing_algorithm": "best"}, "packing_algorithm is 'best'; allowed: concatenative"),
        (
            {"packing_algorithm": "concatenative", "sequence_length_pad_multiple": 3},
            "max_sequence_length is 8, the capacity of a pack; allowed: a multiple of sequence_length_pad_multiple, 3",
        ),
    ],
)
def test_bad_settings_are_refused_when_the_encoder_is_made(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Letters(**{"cookers": [], "max_sequence_length": 8, **settings})


def test_a_tokenizer_needs_a_pad_token() -> None:
    tokenizer = hf.make_tokenizer()
    tokenizer.pad_token = None
    with pytest.raises(ValueError, match="the tokenizer's pad_token is None; allowed: any token"):
        Letters(cookers=[], max_sequence_length=8, tokenizer=tokenizer)
