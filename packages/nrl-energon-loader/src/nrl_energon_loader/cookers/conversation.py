"""The cooker `generic_conversation`: JSON with messages, media and tools."""

import base64
import binascii
from collections.abc import Iterator
from typing import Any, cast

from megatron.energon import CrudeSample, basic_sample_keys, stateless

from nrl_energon_loader.samples import CanonicalSFTSample, Message

__all__ = ["ConversationError", "cook_conversation"]

ROLES = ("system", "user", "assistant", "tool")
MEDIA_TYPES = ("image", "video", "audio")


class ConversationError(ValueError):
    """Raised when a sample is no conversation.

    Attributes:
        key: The sample's key.
        problem: Where and what is wrong, and what is allowed.
    """

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(key, problem)
        self.key, self.problem = key, problem

    def __str__(self) -> str:
        return f"sample {self.key!r}: {self.problem}"


@stateless
def cook_conversation(sample: CrudeSample) -> CanonicalSFTSample:
    """Make a conversation of a sample's member `json`.

    It is an object with

    - `messages`: each with a `role` (system, user, assistant, tool) and a `content`: a string, a list of parts
      (`{"type": "text", "text": ...}`, `{"type": "image"}`), or null in a message with `tool_calls`;
    - `media`: for each part that is no text, in order, the whole name of a member of the shard (`left.jpg` of the
      file `0001.left.jpg`), or a `data:` URI that holds the bytes;
    - `tools`: the tools' JSON schemas.

    A part may say which entry of `media` it means (`{"type": "image", "media": 0}`), which must be the next one.

    Raises:
        ConversationError: If it is anything else; names the sample.
    """
    key = str(sample["__key__"])
    try:
        conversation = _conversation(sample)
        messages = _messages(conversation)
        media = [_medium(entry, number, sample) for number, entry in enumerate(_list(conversation, "media"))]
        _check_references(messages, len(media))
        _check_tool_results(messages)
        tools = _list(conversation, "tools")
    except _ProblemError as error:
        raise ConversationError(key, str(error)) from error
    return CanonicalSFTSample(**basic_sample_keys(sample), messages=messages, media=media, tools=tools or None)


class _ProblemError(Exception):
    """Says what is wrong; the sample's name is put before it."""


def _conversation(sample: CrudeSample) -> dict[str, Any]:
    if "json" not in sample:
        raise _ProblemError(f"there is no member 'json'; it has {_members(sample)}")
    if not isinstance(sample["json"], dict):
        raise _ProblemError(f"its JSON is a {type(sample['json']).__name__}; allowed: an object with 'messages'")
    return cast("dict[str, Any]", sample["json"])


def _list(conversation: dict[str, Any], name: str) -> list[Any]:
    value = conversation.get(name)
    if value is not None and not isinstance(value, list):
        raise _ProblemError(f"{name} is a {type(value).__name__}; allowed: a list")
    return cast("list[Any]", value or [])


def _messages(conversation: dict[str, Any]) -> list[Message]:
    messages = _list(conversation, "messages")
    if not messages:
        raise _ProblemError("messages is missing or empty; allowed: a list of 1 or more messages")
    for number, message in enumerate(messages):
        _check_message(message, f"messages[{number}]")
    return messages


def _check_message(message: Any, where: str) -> None:
    if not isinstance(message, dict):
        raise _ProblemError(f"{where} is a {type(message).__name__}; allowed: an object")
    fields = cast("Message", message)
    role = fields.get("role")
    if role not in ROLES:
        raise _ProblemError(f"{where}.role is {role!r}; allowed: {', '.join(ROLES)}")
    content = fields.get("content")
    if isinstance(content, list):
        for number, part in enumerate(cast("list[Any]", content)):
            _check_part(part, f"{where}.content[{number}]")
    elif not isinstance(content, str) and not (content is None and fields.get("tool_calls")):
        raise _ProblemError(f"{where}.content is a {type(content).__name__}; allowed: a string or a list of parts")


def _check_part(part: Any, where: str) -> None:
    kind = cast("Message", part).get("type") if isinstance(part, dict) else None
    if kind == "text" and isinstance(part["text"] if "text" in part else None, str):
        return
    if kind not in MEDIA_TYPES:
        raise _ProblemError(
            f"{where} is {str(part)[:80]!r}; allowed: an object of type text with a text, or of type image, video, audio"
        )


def _media_parts(messages: list[Message]) -> Iterator[tuple[str, Message]]:
    for number, message in enumerate(messages):
        if isinstance(message["content"], list):
            for place, part in enumerate(cast("list[Message]", message["content"])):
                if part["type"] != "text":
                    yield f"messages[{number}].content[{place}]", part


def _check_references(messages: list[Message], count: int) -> None:
    expected = 0
    for where, part in _media_parts(messages):
        if part.get("media", expected) != expected:
            raise _ProblemError(
                f"{where} refers to media {part['media']!r}; allowed: {expected}, the next one (each once, in order)"
            )
        expected += 1
    if expected != count:
        raise _ProblemError(
            f"media has {count} entries and the messages have {expected} media parts; allowed: one each"
        )


def _medium(entry: Any, number: int, sample: CrudeSample) -> Any:
    if not isinstance(entry, str):
        raise _ProblemError(f"media[{number}] is a {type(entry).__name__}; allowed: a member's name or a data: URI")
    if entry.startswith("data:"):
        return _from_data_uri(entry, number)
    if entry.startswith("__") or entry not in sample:
        raise _ProblemError(f"media[{number}] is {entry!r}, which is no member; it has {_members(sample)}")
    return sample[entry]


def _from_data_uri(uri: str, number: int) -> bytes:
    head, comma, data = uri.partition(",")
    try:
        if not comma or not head.endswith(";base64"):
            raise binascii.Error("no ';base64,' in it")
        return base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise _ProblemError(
            f"media[{number}] is {uri[:40]!r}..., no data: URI with base64 ({error}); as in 'data:image/png;base64,...'"
        ) from error


def _members(sample: CrudeSample) -> list[str]:
    return sorted(name for name in sample if not name.startswith("__"))


def _check_tool_results(messages: list[Message]) -> None:
    """Each result must answer a call of the assistant message before it: by its id where it has one, else by order."""
    open_calls: list[Any] = []
    for number, message in enumerate(messages):
        if message["role"] == "tool":
            wanted = message.get("tool_call_id")
            answered = next((call for call in open_calls if wanted is None or call == wanted), _NOTHING)
            if answered is _NOTHING:
                raise _ProblemError(
                    f"messages[{number}] is a tool result"
                    f"{'' if wanted is None else f' for {wanted!r}'} that no open tool call asks for; "
                    f"open are {open_calls}"
                )
            open_calls.remove(answered)
        else:
            open_calls = [call.get("id") for call in message.get("tool_calls") or []]


_NOTHING = object()
