"""The adapter: what each message adds under different templates, its tokens, images, and the fingerprint."""

import io
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import hf
import pytest
import torch
from jinja2 import TemplateError
from nrl_energon_loader.encoders.base import MediaColumn
from nrl_energon_loader.encoders.hf_processor import HFProcessorAdapter, _opened
from PIL import Image
from transformers import CLIPImageProcessorPil

SYSTEM = {"role": "system", "content": "be kind"}
USER = {"role": "user", "content": "hi"}
REPLY = {"role": "assistant", "content": "hello"}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "function": {"name": "f"}}]}
RESULT = {"role": "tool", "content": "4", "tool_call_id": "a"}
PLAIN = {"add_bos": False, "add_eos": False, "add_generation_prompt": False}


def adapter(processor: Any = None, **settings: bool) -> HFProcessorAdapter:
    return HFProcessorAdapter(processor or hf.make_tokenizer(), **{**PLAIN, **settings})


def with_template(template: str, **settings: bool) -> HFProcessorAdapter:
    return adapter(hf.make_tokenizer(chat_template=template), **settings)


# ---- Rendering ----


def test_each_message_has_the_text_that_it_adds() -> None:
    assert adapter().render([SYSTEM, USER, CALL, RESULT, REPLY], [{"name": "f"}]) == [
        '<|im_start|>tools\n{"name": "f"}\n<|im_end|>\n<|im_start|>system\nbe kind<|im_end|>\n',
        "<|im_start|>user\nhi<|im_end|>\n",
        '<|im_start|>assistant\n[call] {"name": "f"}<|im_end|>\n',
        "<|im_start|>tool\n4<|im_end|>\n",
        "<|im_start|>assistant\nhello<|im_end|>\n",
    ]


def test_the_generation_prompt_goes_to_the_message_before_a_reply() -> None:
    assert adapter(add_generation_prompt=True).render([SYSTEM, USER, REPLY, USER], None) == [
        "<|im_start|>system\nbe kind<|im_end|>\n",
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
        "hello<|im_end|>\n",
        "<|im_start|>user\nhi<|im_end|>\n",
    ]


def test_bos_and_eos_are_added_once() -> None:
    both = adapter(add_bos=True, add_eos=True)
    first, last = both.render([USER, REPLY], None)
    assert first == "<|bos|><|im_start|>user\nhi<|im_end|>\n"
    assert last == "<|im_start|>assistant\nhello<|im_end|>"  # the template's own EOS, without the line break behind
    writes_them = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    assert with_template(writes_them, add_bos=True, add_eos=True).render([USER, REPLY], None) == [
        "<|bos|>hi<|im_end|>",
        "hello<|im_end|>",
    ]
    writes_none = "{% for m in messages %}{{ m.content }};{% endfor %}"
    assert with_template(writes_none, add_bos=True, add_eos=True).render([USER, REPLY], None) == [
        "<|bos|>hi;",
        "hello;<|im_end|>",
    ]


def test_a_system_message_that_is_too_little_alone_joins_the_users() -> None:
    template = """{% if messages[-1].role == 'system' %}{{ raise_exception('a user message must follow') }}{% endif %}
{%- for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"""
    assert with_template(template).render([SYSTEM, USER, REPLY], None) == ["", "s:be kind;u:hi;", "a:hello;"]
    assert with_template(template, add_bos=True).render([SYSTEM, USER], None) == ["", "<|bos|>s:be kind;u:hi;"]
    for alone in ([SYSTEM], [SYSTEM, REPLY]):  # nobody to give its text to
        with pytest.raises(TemplateError, match="must follow"):
            with_template(template).render(alone, None)


def test_tool_results_in_one_turn_belong_to_the_last() -> None:
    template = """{% for m in messages %}
{%- if m.role == 'tool' %}{% if loop.previtem.role != 'tool' %}[{% endif %}{{ m.content }}
{%- if loop.last or loop.nextitem.role != 'tool' %}]{% else %},{% endif %}
{%- else %}{{ m.role[0] }}:{{ m.content }};{% endif %}{% endfor %}"""
    results = [{"role": "tool", "content": str(number)} for number in (1, 2, 3)]
    texts = with_template(template).render([USER, REPLY, *results, REPLY], None)
    assert texts == ["u:hi;", "a:hello;", "", "", "[1,2,3]", "a:hello;"]


def test_a_template_that_rewrites_earlier_turns_is_refused() -> None:
    """As those do that leave out what an assistant thought, once the user has answered."""
    template = """{% for m in messages %}{{ m.role[0] }}:
{%- if m.role == 'assistant' and loop.last %}(thinking) {% endif %}{{ m.content }};{% endfor %}"""
    with pytest.raises(ValueError, match=r"messages before messages\[2\] in another way.*'\(thinking\) hello;' becom"):
        with_template(template).render([USER, REPLY, USER], None)
    assert with_template(template).render([USER, REPLY], None) == ["u:hi;", "a:(thinking) hello;"]


def test_contents_take_the_form_that_the_template_reads() -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    reads_strings = "{% for m in messages %}{{ 'x' + m.content }};{% endfor %}"
    assert with_template(reads_strings).render([parts, USER], None) == ["xab;", "xhi;"]
    reads_parts = "{% for m in messages %}{% for p in m.content %}{{ p['text'] }},{% endfor %};{% endfor %}"
    assert with_template(reads_parts).render([parts, USER], None) == ["a,b,;", "hi,;"]
    with pytest.raises(ValueError, match="leaves out a message's text"):
        with_template("{% for m in messages %}{{ m.role }}{% endfor %}")


@pytest.mark.parametrize("make", [hf.make_tokenizer, hf.make_processor], ids=["tokenizer", "processor"])
def test_a_template_that_writes_the_date_writes_the_same_one_always(make: Any) -> None:
    processor = make()
    processor.chat_template = "{{ strftime_now('%d %b %Y') }};{% for m in messages %}{{ m.content }};{% endfor %}"
    if make is hf.make_processor:
        processor.image_processor = None
    assert adapter(processor).render([USER], None) == ["26 Jul 2024;hi;"]
    processor.chat_template = "{% set form = '%d' %}{{ strftime_now(form) }}{{ messages[0].content }}"
    with pytest.raises(ValueError, match="reads the clock, so that a conversation would have other tokens tomorrow"):
        adapter(processor)


def test_templates_by_name_are_left_to_the_tokenizer() -> None:
    tokenizer = hf.make_tokenizer()
    tokenizer.chat_template = {"default": "{{ messages[-1].content }}", "tool_use": "{{ tools }}"}
    assert adapter(tokenizer).render([USER], None) == ["hi"]
    tokenizer.chat_template = {"default": "{{ strftime_now('%d') }}{{ messages[-1].content }}"}
    with pytest.raises(ValueError, match="reads the clock"):
        adapter(tokenizer)


def test_rendering_changes_no_message() -> None:
    messages = [{"role": "user", "content": [{"type": "image", "media": 0}, {"type": "text", "text": "a"}]}, REPLY]
    before = repr(messages)
    adapter(hf.make_processor()).render(messages, None)
    assert repr(messages) == before


def test_a_processor_that_can_not_do_it_is_refused_when_the_adapter_is_made() -> None:
    with pytest.raises(ValueError, match=r"^TokenizersBackend has no chat_template"):
        with_template("")
    bare = hf.make_tokenizer()
    bare.bos_token = bare.eos_token = None
    with pytest.raises(ValueError, match="add_eos is True and the tokenizer's eos_token is None"):
        adapter(bare, add_eos=True)
    assert adapter(bare, add_bos=True).render([USER], None) == ["<|im_start|>user\nhi<|im_end|>\n"]  # many have none


def test_a_processor_may_leave_the_template_to_its_tokenizer() -> None:
    processor = hf.make_processor()
    processor.chat_template = None
    assert adapter(processor).render([USER], None) == ["<|im_start|>user\nhi<|im_end|>\n"]


# ---- Tokens and images ----


def test_images_are_tokenized_as_the_processor_does() -> None:
    processor = hf.make_processor()
    images = [hf.make_image(seed, 30 + seed, 50) for seed in range(3)]
    text = "a<|image|>b<|image|><|image|>"
    ids, tensors = adapter(processor).tokenize(text, [hf.image_bytes(0, 30, 50), *images[1:]], first=True)
    expected = processor(text=[text], images=images, add_special_tokens=False, return_tensors="pt")
    assert torch.equal(ids, expected["input_ids"][0])
    assert (ids == processor.image_token_id).sum() == 3 * 4
    assert list(tensors) == ["pixel_values"]
    assert torch.equal(tensors["pixel_values"], expected["pixel_values"])


def test_text_is_tokenized_without_special_tokens_of_its_own() -> None:
    for processor in (hf.make_tokenizer(), hf.make_processor()):
        ids, tensors = adapter(processor).tokenize("the cat<|im_end|>\n", [], first=False)
        assert adapter(processor).tokenizer.decode(ids) == "the cat<|im_end|>\n"
        assert (ids.dtype, ids.ndim, tensors) == (torch.int64, 1, {})


def test_no_space_comes_in_before_a_message_that_is_not_the_first() -> None:
    made = adapter(hf.make_tokenizer_with_spaces())
    whole, _ = made.tokenize("the cat<|im_end|>\nsits", [], first=True)
    pieces = [made.tokenize(text, [], first=not n)[0] for n, text in enumerate(["the cat<|im_end|>\n", "sits"])]
    assert torch.equal(torch.cat(pieces), whole)
    assert not torch.equal(made.tokenize("sits", [], first=True)[0], pieces[1])
    assert made.tokenize("", [], first=False)[0].tolist() == []


def test_a_line_break_that_joins_the_next_is_left_out() -> None:
    made = adapter()
    assert len(made.tokenizer("\n\n")["input_ids"]) == 1
    assert made.tokenizer.decode(made.tokenize("\n\n the", [], first=False)[0]) == "\n\n the"


def test_media_columns_are_known_before_any_image() -> None:
    assert adapter().media_columns == {}
    assert adapter(hf.make_processor()).media_columns == {"pixel_values": MediaColumn(torch.float32, (3, 28, 28))}
    assert adapter(hf.make_patch_processor()).media_columns == {
        "pixel_values": MediaColumn(torch.float32, (1176,)),
        "image_grid_thw": MediaColumn(torch.int64, (3,)),
    }


def test_images_that_keep_their_size_can_not_be_packed() -> None:
    processor = hf.make_processor()
    processor.image_processor = CLIPImageProcessorPil(size={"shortest_edge": 28}, do_center_crop=False)
    with pytest.raises(ValueError, match=r"makes 'pixel_values' with shape \(1, 3, 28, 28\) of .*\(1, 3, 28, 42\) of"):
        adapter(processor)


def test_images_and_placeholders_must_agree() -> None:
    with pytest.raises(ValueError, match="there are 1 images and TokenizersBackend has no image processor"):
        adapter().tokenize("hi", [hf.make_image(0)], first=True)
    for text, count in (("<|image|>", 0), ("hi", 1), ("<|image|>", 2)):
        with pytest.raises(ValueError, match=rf"placeholder '<\|image\|>' \d times and {count} images; allowed: one"):
            adapter(hf.make_processor()).tokenize(text, [hf.make_image(0)] * count, first=True)
    with pytest.raises(OSError, match="cannot identify image file"):
        adapter(hf.make_processor()).tokenize("<|image|>", [b"no image"], first=True)


def test_images_are_upright_and_have_three_colours() -> None:
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6  # "turn it by a quarter", as a camera writes it
    hf.make_image(0, 40, 20).save(file, "JPEG", exif=exif)
    opened = _opened(file.getvalue())
    assert (opened.size, opened.mode) == ((20, 40), "RGB")
    for mode in ("L", "P", "RGBA"):
        file = io.BytesIO()
        hf.make_image(0).convert(mode).save(file, "PNG")
        assert _opened(file.getvalue()).mode == _opened(hf.make_image(0).convert(mode)).mode == "RGB"


# ---- The fingerprint ----


FINGERPRINTS = """
import hf
from nrl_energon_loader.encoders.hf_processor import HFProcessorAdapter, _opened
for make in (hf.make_tokenizer, hf.make_processor, hf.make_patch_processor):
    print(HFProcessorAdapter(make(), add_bos=False, add_eos=False, add_generation_prompt=False).fingerprint)
"""


@pytest.mark.slow
def test_the_fingerprint_is_the_same_in_every_process_and_hash_seed() -> None:
    makes = (hf.make_tokenizer, hf.make_processor, hf.make_patch_processor)
    here = [adapter(make()).fingerprint for make in makes]
    assert len(set(here)) == 3
    env = {**os.environ, "PYTHONPATH": str(Path(hf.__file__).parent)}
    command = [sys.executable, "-c", FINGERPRINTS]
    runs = [
        subprocess.Popen(command, env={**env, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE, text=True)
        for seed in ("0", "1")
    ]
    assert [run.communicate(timeout=120)[0].split() for run in runs] == [here, here]


def test_the_fingerprint_follows_the_content() -> None:
    base = adapter(hf.make_processor()).fingerprint
    template, token, vocab, image, crop, other_class = (hf.make_processor() for _ in range(6))
    template.chat_template += " "
    token.tokenizer.pad_token = "<|im_end|>"
    vocab.tokenizer.add_tokens(["<new>"])
    image.image_processor.image_mean = [0.5, 0.5, 0.5]
    crop.patch_size = 7
    other_class.image_processor.__class__ = type("OtherBackend", (CLIPImageProcessorPil,), {})
    changed = (template, token, vocab, image, crop, other_class)
    others = [adapter(one).fingerprint for one in changed]
    others += [adapter(hf.make_processor(), **{name: True}).fingerprint for name in PLAIN]
    assert len({base, *others}) == 1 + len(others)


def test_the_fingerprint_does_not_follow_the_use() -> None:
    used = hf.make_tokenizer()
    before = adapter(used).fingerprint
    used(["a", "a b c"], padding=True, truncation=True, max_length=2)
    used.padding_side = "left"
    assert adapter(used).fingerprint == before


def test_the_trained_tokenizer_is_the_same_every_time() -> None:
    text = hf.make_text(random.Random(0), 40)
    assert hf.make_tokenizer()(text)["input_ids"] == hf.make_tokenizer()(text)["input_ids"]
