"""The cooker `generic_conversation`: JSON with messages, media and tools."""

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any, cast

from megatron.energon import (  # pyright: ignore[reportMissingTypeStubs]
    CrudeSample,
    basic_sample_keys,  # pyright: ignore[reportUnknownVariableType]
    stateless,
)

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
    members = cast("dict[str, Any]", sample)
    try:
        conversation = _conversation(members)
        messages = _messages(conversation)
        media = [_medium(entry, number, members) for number, entry in enumerate(_list(conversation, "media"))]
        _check_references(messages, len(media))
        _check_tool_results(messages)
        tools = _list(conversation, "tools")
    except _ProblemError as error:
        raise ConversationError(str(members["__key__"]), str(error)) from error
    keys = cast("dict[str, Any]", basic_sample_keys(members))
    return CanonicalSFTSample(**keys, messages=messages, media=media, tools=tools or None)


class _ProblemError(Exception):
    """Says what is wrong; the sample's name is put before it."""


def _conversation(members: Mapping[str, Any]) -> dict[str, Any]:
    if "json" not in members:
        raise _ProblemError(f"there is no member 'json'; it has {_names(members)}")
    if not isinstance(members["json"], dict):
        raise _ProblemError(f"its JSON is a {type(members['json']).__name__}; allowed: an object with 'messages'")
    return cast("dict[str, Any]", members["json"])


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
    role, content = fields.get("role"), fields.get("content")
    if role not in ROLES:
        raise _ProblemError(f"{where}.role is {role!r}; allowed: {', '.join(ROLES)}")
    if isinstance(content, list):
        for number, part in enumerate(cast("list[Any]", content)):
            _check_part(part, f"{where}.content[{number}]")
    elif not isinstance(content, str) and not (content is None and fields.get("tool_calls")):
        raise _ProblemError(f"{where}.content is a {type(content).__name__}; allowed: a string or a list of parts")


def _check_part(part: Any, where: str) -> None:
    fields = cast("Message", part if isinstance(part, dict) else {})
    is_text = fields.get("type") == "text" and isinstance(fields.get("text"), str)
    if not is_text and fields.get("type") not in MEDIA_TYPES:
        raise _ProblemError(
            f"{where} is {str(cast('object', part))[:80]!r}; allowed: an object with type text and a text, "
            f"or with one of the types {', '.join(MEDIA_TYPES)}"
        )


def _media_parts(messages: list[Message]) -> Iterator[tuple[str, Message]]:
    for number, message in enumerate(messages):
        content = message.get("content")
        for place, part in enumerate(cast("list[Message]", content) if isinstance(content, list) else []):
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
        raise _ProblemError(f"media has {count} entries and the messages have {expected} media parts; allowed: as many")


def _medium(entry: Any, number: int, members: Mapping[str, Any]) -> Any:
    if not isinstance(entry, str):
        raise _ProblemError(f"media[{number}] is a {type(entry).__name__}; allowed: a member's name or a data: URI")
    if entry.startswith("data:"):
        return _from_data_uri(entry, number)
    if entry.startswith("__") or entry not in members:
        raise _ProblemError(f"media[{number}] is {entry!r}, which is no member; it has {_names(members)}")
    return members[entry]


def _from_data_uri(uri: str, number: int) -> bytes:
    head, _, data = uri.partition(",")
    try:
        # Without ";base64" it would be percent-encoded text.
        return base64.b64decode(data if head.endswith(";base64") else "?", validate=True)
    except binascii.Error as error:
        raise _ProblemError(
            f"media[{number}] is {uri[:40]!r}..., which is not base64; allowed: as in 'data:image/png;base64,...'"
        ) from error


def _names(members: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in members if not name.startswith("__"))


def _check_tool_results(messages: list[Message]) -> None:
    """Each result answers a call of the assistant message before: by its id, or without one the first call left."""
    calls: list[Any] = []
    for number, message in enumerate(messages):
        if message["role"] != "tool":
            calls = [call.get("id") for call in cast("list[Message]", message.get("tool_calls") or [])]
            continue
        wanted = message.get("tool_call_id")
        if not calls or (wanted is not None and wanted not in calls):
            raise _ProblemError(
                f"messages[{number}] is the result of tool call {wanted!r}, which the assistant did not make or which "
                f"has its result; allowed: {calls or 'none here'}"
            )
        calls.remove(calls[0] if wanted is None else wanted)
