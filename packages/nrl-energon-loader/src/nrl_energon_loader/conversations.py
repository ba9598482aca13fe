"""Conversations as people have them, in JSON files with media beside them, on their way into shards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from megatron.energon import CrudeSample  # pyright: ignore[reportMissingTypeStubs]

from nrl_energon_loader.cookers.conversation import cook_conversation

__all__ = ["Conversation", "read_conversations"]


@dataclass(frozen=True)
class Conversation:
    """A conversation with its media.

    Attributes:
        record: What the JSON says, with the names of members in `media`.
        members: The content of each medium that was a file, by the name of its member, like ``0.jpg``.
    """

    record: dict[str, Any]
    members: dict[str, bytes]


def read_conversations(source: Path) -> Iterator[Conversation]:
    """Read and check conversations, one at a time, in the order of file names and lines.

    Args:
        source: A ``.jsonl`` file with a conversation a line; or a folder, searched with all folders in it for such
            files and for ``.json`` files of one conversation. Paths in `media` are relative to their file's folder.

    Raises:
        ValueError: If something is no conversation, or a medium is missing; names the file and line.
        FileNotFoundError: If `source` is not there.
    """
    if not source.exists():
        raise FileNotFoundError(f"{source} is not there; allowed: a .jsonl file, or a folder with such and .json files")
    files = [source]
    if source.is_dir():
        files = sorted(path for path in source.rglob("*") if path.suffix in (".json", ".jsonl") and path.is_file())
    for file in files:
        if file.suffix == ".json":
            yield _conversation(file.read_text(encoding="utf-8"), file, str(file))
            continue
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _conversation(line, file, f"{file}:{number}")


def _conversation(text: str, file: Path, where: str) -> Conversation:
    try:
        record = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{where}: no JSON ({error}); allowed: a conversation") from None
    if not isinstance(record, dict):
        raise ValueError(f"{where}: its JSON is a {type(record).__name__}; allowed: an object with 'messages'")
    conversation = cast("dict[str, Any]", record)
    media = conversation.get("media")
    members: dict[str, bytes] = {}
    if isinstance(media, list):
        entries = cast("list[Any]", media)
        conversation["media"] = [_member(entry, n, file.parent, where, members) for n, entry in enumerate(entries)]
    crude: dict[str, Any] = {"__key__": where, "__restore_key__": (), "json": conversation, **members}
    cook_conversation(CrudeSample(crude))  # raises what it would raise when it is read, naming `where`
    return Conversation(conversation, members)


def _member(entry: Any, number: int, folder: Path, where: str, members: dict[str, bytes]) -> Any:
    if not isinstance(entry, str) or entry.startswith("data:"):
        return entry
    path = folder / entry
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{where}: media[{number}] {entry!r} can't be read ({error}); allowed: a file") from error
    name = f"{number}{path.suffix.lower() or '.bin'}"
    members[name] = content
    return name
