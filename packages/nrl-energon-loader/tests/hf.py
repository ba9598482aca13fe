"""Small real parts: a tokenizer trained here, chat templates, image processors built from their config, images.

Tests and benchmarks import it; nothing is downloaded.
"""

import io
import random
from typing import Any

import numpy as np
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import CLIPImageProcessorPil, LlavaProcessor, PreTrainedTokenizerFast, ProcessorMixin
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

SPECIAL_TOKENS = ("<|bos|>", "<|pad|>", "<|im_start|>", "<|im_end|>", "<|image|>")
TEXT = (
    "the cat sits on a red mat and looks at the blue bird what is the weather in paris today it is sunny and warm "
    "please describe this picture there are two dogs near a tree how many apples do you see i see three apples "
    "thank you you are welcome compute the sum of four and five the answer is nine system user assistant tool"
)

# Tools first, then one turn a message; {% generation %} says what the assistant writes, for transformers' own mask.
CHAT_TEMPLATE = """
{%- if tools %}<|im_start|>tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.role == 'assistant' %}
{%- generation %}{{ text(message.content) }}
{%- for call in message.tool_calls or [] %}
[call] {{ call.function | tojson }}{% endfor %}<|im_end|>
{% endgeneration %}
{%- else %}{{ text(message.content) }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
CHAT_TEMPLATE = (
    """{%- macro text(content) %}{% if content is string %}{{ content }}{% else %}
{%- for part in content %}{{ '<|image|>' if part.type == 'image' else part.text }}{% endfor %}
{%- endif %}{% endmacro %}"""
    + CHAT_TEMPLATE
)


def make_tokenizer(**settings: Any) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer; the same one every time."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _trained(tokenizer, pre_tokenizers.ByteLevel.alphabet(), settings)


def make_tokenizer_with_spaces(**settings: Any) -> PreTrainedTokenizerFast:
    """Train one that puts a space before the first word of a text, as those made by SentencePiece do."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    return _trained(tokenizer, [chr(code) for code in range(10, 127)], settings)


def _trained(tokenizer: Tokenizer, alphabet: list[str], settings: dict[str, Any]) -> PreTrainedTokenizerFast:
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=list(SPECIAL_TOKENS), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT, "\n\n"] * 4, trainer)  # empty lines get a token of their own, as in most
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|bos|>",
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        **{"chat_template": CHAT_TEMPLATE, **settings},
    )
    made.image_token = "<|image|>"
    return made


def make_processor() -> LlavaProcessor:
    """Four tokens an image, whatever its size: `pixel_values` float32 [images, 3, 28, 28]."""
    images = CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    return LlavaProcessor(
        image_processor=images,
        tokenizer=make_tokenizer(),
        patch_size=14,
        vision_feature_select_strategy="full",
        image_token="<|image|>",
        chat_template=CHAT_TEMPLATE,
    )


class PatchProcessor(ProcessorMixin):
    """Images as patches, as many as their size asks for, and their grids: two media columns."""

    def __init__(self, image_processor: Any, tokenizer: Any, chat_template: str) -> None:
        self.image_token = "<|image|>"
        self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)
        super().__init__(image_processor, tokenizer, chat_template=chat_template)

    def replace_image_token(self, image_inputs: Any, image_idx: int, **kwargs: Any) -> str:
        patches = int(image_inputs["image_grid_thw"][image_idx].prod())
        return self.image_token * (patches // self.image_processor.merge_size**2)


def make_patch_processor() -> PatchProcessor:
    """`pixel_values` float32 [patches, 1176] and `image_grid_thw` int64 [images, 3]."""
    images = Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=16 * 28 * 28)
    return PatchProcessor(images, make_tokenizer(), CHAT_TEMPLATE)


def make_image(seed: int, width: int = 40, height: int = 30) -> Image.Image:
    """Colours of its own, smooth enough for a small file."""
    corners = np.random.default_rng(seed).integers(0, 255, (2, 3, 3), dtype=np.uint8)
    return Image.fromarray(corners).resize((width, height), Image.Resampling.BILINEAR)


def image_bytes(seed: int, width: int = 40, height: int = 30) -> bytes:
    """The same as a PNG file."""
    file = io.BytesIO()
    make_image(seed, width, height).save(file, "PNG")
    return file.getvalue()


def make_text(rng: random.Random, words: int) -> str:
    """Some words."""
    return " ".join(rng.choices(TEXT.split(), k=words))


def make_messages(seed: int, *, turns: int = 2, words: int = 6, images: int = 0) -> list[dict[str, Any]]:
    """A conversation: a system message, then turns of user and assistant; its images stand in the first user's."""
    rng = random.Random(seed)
    messages: list[dict[str, Any]] = [{"role": "system", "content": make_text(rng, words)}]
    for turn in range(turns):
        text = make_text(rng, words)
        pictures: list[dict[str, Any]] = [{"type": "image"}] * (images if turn == 0 else 0)
        content = [*pictures, {"type": "text", "text": text}] if pictures else text
        messages.append({"role": "user", "content": content})
        messages.append({"role": "assistant", "content": make_text(rng, words)})
    return messages
