"""The processor adapter `hf_multimodal`: a Hugging Face processor or tokenizer with a chat template."""

import datetime as dt
import hashlib
import io
import json
import re
from collections.abc import Sequence
from typing import Any, cast

import torch
from nrl_interfaces.identity import fingerprint

from nrl_energon_loader.encoders.base import MediaColumn
from nrl_energon_loader.samples import Message

try:
    from jinja2 import TemplateError
    from PIL import Image, ImageOps
except ImportError as error:
    raise ImportError(f"hf_multimodal needs more ({error}): pip install nrl-energon-loader[hf]") from error

__all__ = ["HFProcessorAdapter"]

TOKEN_COLUMNS = {"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids"}
TODAY = dt.date(2024, 7, 26)  # for templates that write the date: a run that is resumed later gets the same
CLOCK = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""")
PROBE = "a probe of the chat template"
PROBE_SIZES = ((224, 224), (336, 224))  # width and height; no model's smallest image is larger


class HFProcessorAdapter:
    """Renders and tokenizes conversations, message by message; the same ones always in the same way.

    A template that asks for the date is told 26 July 2024.

    Args:
        processor: A processor (with ``tokenizer`` and perhaps ``image_processor``) or a tokenizer.
        add_bos: Whether a conversation begins with the BOS token, if the tokenizer has one. A template's own counts.
        add_eos: Whether it ends with the EOS token; line breaks that the template writes after its last message go.
        add_generation_prompt: Whether what the template writes before an assistant's text belongs to the message
            before, and so is not trained on.

    Raises:
        ValueError: If there is no chat template, or it shows no text; the tokenizer lacks an EOS token and
            ``add_eos`` is True; or the images' tensors can't be packed along dimension 0.
    """

    def __init__(self, processor: Any, *, add_bos: bool, add_eos: bool, add_generation_prompt: bool) -> None:
        self.processor = processor
        self.tokenizer: Any = getattr(processor, "tokenizer", processor)
        owners = [one for one in (processor, self.tokenizer) if getattr(one, "chat_template", None)]
        if not owners:
            raise ValueError(
                f"{type(processor).__name__} has no chat_template; allowed: one with (set processor.chat_template)"
            )
        self._owner: Any = owners[0]
        self._template = _without_clock(self._owner.chat_template)
        self._bos = str(getattr(self.tokenizer, "bos_token", None) or "") if add_bos else ""
        self._eos = _eos_token(self.tokenizer) if add_eos else ""
        self._add_generation_prompt = add_generation_prompt
        self._reads_strings = self._shows(PROBE)
        if not self._reads_strings and not self._shows([_text_part(PROBE)]):
            raise ValueError("the chat template leaves out a message's text, be it a string or a part of type text")
        self._has_images = getattr(processor, "image_processor", None) is not None
        self._line_break, _ = self._tokens("\n", [])
        self._placeholder: str | None = None
        self.media_columns: dict[str, MediaColumn] = self._probe_images() if self._has_images else {}
        self.fingerprint: str = self._fingerprint()

    def render(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None) -> list[str]:
        """Give the text that each message adds to the conversation.

        Where a template writes messages of others than the assistant in one piece (a system text within the user's
        turn, two tool results in one turn), the last of them has the text and those before it have none.

        Raises:
            ValueError: If the template writes an assistant's message, or what stands before it, in another way once
                more messages follow: then it has no tokens of its own.
        """
        shown = [{**message, "content": self._content(message.get("content"))} for message in messages]
        texts: list[str] = []
        for number, message in enumerate(messages):
            before_reply = messages[number + 1 : number + 2] and messages[number + 1]["role"] == "assistant"
            try:
                prompt = self._add_generation_prompt and bool(before_reply) and message["role"] != "assistant"
                whole = self._render(shown[: number + 1], tools, add_generation_prompt=prompt)
            except TemplateError:
                if message["role"] == "assistant" or before_reply or number + 1 == len(messages):
                    raise
                texts.append("")  # a system message alone is too little for some templates
                continue
            texts = _with_next(texts, whole, messages)
        return self._with_ends(texts)

    def tokenize(
        self, text: str, images: Sequence[Any], *, first: bool
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Tokenize what one message adds.

        Args:
            text: As `render` gives it.
            images: For each image in it the bytes of a file, or a PIL image.
            first: Whether the conversation begins with it. Many tokenizers put a space before a text's first word,
                which must not come in the middle of a conversation.

        Returns:
            Token ids (int64, [tokens]) and the images' tensors by media column.

        Raises:
            ValueError: If there are images and the processor has no image processor, or the text has another number
                of image placeholders than there are images.
        """
        self._check_placeholders(text, len(images))
        opened = [_opened(image) for image in images]
        if not first:
            ids, tensors = self._tokens("\n" + text, opened)
            before = len(self._line_break)
            if torch.equal(ids[:before], self._line_break):  # else it has become one token with what follows
                return ids[before:], tensors
        return self._tokens(text, opened)

    def _tokens(self, text: str, images: list[Image.Image]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        if not images:
            (ids,) = self.tokenizer([text], add_special_tokens=False)["input_ids"]
            return torch.tensor(ids, dtype=torch.int64), {}
        out = self.processor(text=[text], images=images, add_special_tokens=False, return_tensors="pt")
        return out["input_ids"][0], {name: out[name] for name in out if name not in TOKEN_COLUMNS}

    def _with_ends(self, texts: list[str]) -> list[str]:
        if self._bos and not "".join(texts).startswith(self._bos):
            first = next((number for number, text in enumerate(texts) if text), 0)
            texts[first] = self._bos + texts[first]
        if self._eos:
            texts[-1] = texts[-1].rstrip("\n").removesuffix(self._eos) + self._eos
        return texts

    def _check_placeholders(self, text: str, images: int) -> None:
        if images and not self._has_images:
            raise ValueError(
                f"there are {images} images and {type(self.processor).__name__} has no image processor; "
                f"allowed: text only, or a processor with one"
            )
        count = images if self._placeholder is None else text.count(self._placeholder)
        if count != images:
            raise ValueError(
                f"the text of a message has the image placeholder {self._placeholder!r} {count} times "
                f"and {images} images; allowed: one each (is it in the text itself?)"
            )

    def _shows(self, content: Any) -> bool:
        try:
            return PROBE in self._render([{"role": "user", "content": content}], None, add_generation_prompt=False)
        except (TemplateError, TypeError):  # TypeError: a template that adds a string to a list, or the reverse
            return False

    def _render(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None, *, add_generation_prompt: bool
    ) -> str:
        return self._owner.apply_chat_template(
            list(messages),
            tools=tools,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            chat_template=self._template,
        )

    def _content(self, content: Any) -> Any:
        """Put a content in the form that the template reads."""
        parts = [_text_part(content or "")] if not isinstance(content, list) else cast("list[Message]", content)
        if self._reads_strings and all(part["type"] == "text" for part in parts):
            return "".join(part["text"] for part in parts)
        return [_text_part(part["text"]) if part["type"] == "text" else {"type": part["type"]} for part in parts]

    def _probe_images(self) -> dict[str, MediaColumn]:
        """See what tensors images become, from two of different sizes."""
        content = [{"type": "image"}, _text_part(PROBE)]
        text = self._render([{"role": "user", "content": content}], None, add_generation_prompt=False)
        token = str(getattr(self.processor, "image_token", None))
        self._placeholder = token if token in text else None  # some templates write another one than the tokens' text
        probes = [self.tokenize(text, [Image.new("RGB", size)], first=True)[1] for size in PROBE_SIZES]
        columns: dict[str, MediaColumn] = {}
        for name, first in probes[0].items():
            second = probes[1][name]
            shapes = [tuple(getattr(tensor, "shape", ())) for tensor in (first, second)]
            if not shapes[0] or shapes[0][1:] != shapes[1][1:]:
                raise ValueError(
                    f"{type(self.processor).__name__} makes {name!r} with shape {shapes[0]} of an image of "
                    f"{PROBE_SIZES[0]} and {shapes[1]} of one of {PROBE_SIZES[1]}; "
                    f"allowed: tensors that differ in dimension 0 only (is there a setting for a fixed size?)"
                )
            columns[name] = MediaColumn(first.dtype, tuple(first.shape[1:]))
        return columns

    def _fingerprint(self) -> str:
        return fingerprint(
            {
                "chat_template": self._template or self._owner.chat_template,
                "tokenizer": _tokenizer_content(self.tokenizer),
                "processor": _processor_content(self.processor) if self._has_images else None,
                "bos": self._bos,
                "eos": self._eos,
                "add_generation_prompt": self._add_generation_prompt,
            }
        )


def _eos_token(tokenizer: Any) -> str:
    if not tokenizer.eos_token:
        raise ValueError("add_eos is True and the tokenizer's eos_token is None; allowed: False, or set a token")
    return str(tokenizer.eos_token)


def _without_clock(template: Any) -> str | None:
    """Put a date in the place of today's; None for templates by name, of which their owner chooses one."""
    fixed = CLOCK.sub(lambda call: repr(TODAY.strftime(call[2])), template) if isinstance(template, str) else None
    if "strftime_now(" in (fixed or str(template)):
        raise ValueError(
            "the chat template reads the clock, so that a conversation would have other tokens tomorrow; "
            "allowed: a single template with strftime_now('%d %b %Y') or the like, or with a date in its place"
        )
    return fixed


def _text_part(text: str) -> Message:
    return {"type": "text", "text": text}


def _with_next(texts: list[str], whole: str, messages: Sequence[Message]) -> list[str]:
    """Add the text of the next message: what ``whole`` has beyond those before it."""
    number, texts = len(texts), list(texts)
    last = number - 1
    while not whole.startswith(done := "".join(texts)):
        # Others' messages that are written in one piece: the last one gets all of it.
        if last < 0 or "assistant" in (messages[last]["role"], messages[number]["role"]):
            at = next((n for n, pair in enumerate(zip(done, whole, strict=False)) if pair[0] != pair[1]), len(whole))
            raise ValueError(
                f"the chat template writes messages before messages[{number}] in another way than without it: "
                f"{done[at : at + 40]!r} becomes {whole[at : at + 40]!r}; allowed: a template whose earlier turns stay "
                f"as they are, so that each assistant message has its own tokens"
                f" (add_generation_prompt=False may help)"
            )
        texts[last] = ""
        last -= 1
    return [*texts, whole[len(done) :]]


def _opened(image: Any) -> Image.Image:
    opened = Image.open(io.BytesIO(image)) if isinstance(image, bytes) else image
    return ImageOps.exif_transpose(opened).convert("RGB")


def _tokenizer_content(tokenizer: Any) -> dict[str, Any]:
    """What decides on the tokens of a text; not what a call leaves behind in the tokenizer (truncation, padding)."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content = {"vocab": tokenizer.get_vocab()} if backend is None else json.loads(backend.to_str())
    kept = {key: value for key, value in content.items() if key not in {"padding", "truncation"}}
    tokens = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    # Digested: the vocabulary is large, and has floats that say nothing to a reader.
    return {"content": _digest(kept), "special_tokens": tokens}


def _processor_content(processor: Any) -> str:
    images = processor.image_processor
    settings = {one: json.loads(part.to_json_string()) for one, part in (("processor", processor), ("images", images))}
    # The class, too: two backends with the same settings resize differently.
    return _digest({**settings, "image_class": type(images).__name__})


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
