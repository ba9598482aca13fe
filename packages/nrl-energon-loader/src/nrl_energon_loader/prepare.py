"""A folder or JSONL file of conversations as a dataset that Energon reads, published whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import tarfile
from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, cast

from megatron.energon.flavors.webdataset.prepare import (  # pyright: ignore[reportMissingTypeStubs]
    WebdatasetPreparator,
)
from nrl_interfaces import ownership, publish
from nrl_interfaces.fileops import WRITE_NEW, FileOps, OutputFile

from nrl_energon_loader.conversations import Conversation, read_conversations
from nrl_energon_loader.source import META, PREPARED

__all__ = ["Prepared", "prepare_dataset"]

_SPLIT_NAME: Final = re.compile(r"[A-Za-z0-9_]+")
_FORMAT_VERSION: Final = 1


@dataclass(frozen=True)
class Prepared:
    """What was written.

    Attributes:
        path: The dataset's folder.
        conversations: How many each split has.
        shards: How many tar files there are.
    """

    path: Path
    conversations: dict[str, int]
    shards: int


def prepare_dataset(
    source: Path,
    target: Path,
    *,
    splits: Mapping[str, float] | None = None,
    shard_size: int = 1000,
    subflavors: Mapping[str, Any] | None = None,
    ops: FileOps | None = None,
) -> Prepared:
    """Write conversations into shards and prepare them for Energon.

    The folder is written beside its place and renamed into it: it is absent or whole, whatever moment the process ends
    at. Equal input gives equal shards.

    Args:
        source: A ``.jsonl`` file, or a folder; see `nrl_energon_loader.conversations.read_conversations`.
        target: The dataset's folder, which must not be there yet.
        splits: Names and shares, ``{"train": 0.9, "val": 0.1}``; conversations are dealt out in turn. None: all train.
        shard_size: The most conversations in a shard.
        subflavors: What tells this dataset from others, for cookers.
        ops: File operations, which tests replace.

    Raises:
        ValueError: If something is no conversation (names file and line), there is none, a split would be empty, or
            a setting is not allowed. Nothing is left on the disk.
        FileExistsError: If `target` is there.
        FolderInUseError: If another process is preparing it.
        OSError: If the disk refuses; the next attempt clears what this one left.
    """
    ops = ops or FileOps()
    shares = _shares(splits)
    if type(shard_size) is not int or shard_size < 1:
        raise ValueError(f"shard_size is {shard_size!r}; allowed: whole numbers from 1")
    if target.exists():
        raise FileExistsError(f"{target} is there already; allowed: a new folder")
    publish.make_folder(target.absolute().parent, ops)
    partial = publish.partial_path(target)
    with _locked(target.with_name(target.name + ".lock"), ops):
        _remove(partial, ops)
        ops.mkdir(partial)
        try:
            prepared = _write(partial, read_conversations(source), shares, shard_size, subflavors or {}, ops)
            _sync(partial, ops)
        except BaseException:
            with contextlib.suppress(OSError):  # the next attempt clears it
                _remove(partial, ops)
            raise
        ops.rename(partial, target)
        ops.fsync_folder(target.absolute().parent)
    return Prepared(target, *prepared)


def _shares(splits: Mapping[str, float] | None) -> dict[str, float]:
    shares = {"train": 1.0} if splits is None else dict(splits)
    for name, share in shares.items():
        if not _SPLIT_NAME.fullmatch(name):
            raise ValueError(f"the split's name {name!r} is not allowed; allowed: letters, digits and _")
        if not 0 < share < float("inf"):
            raise ValueError(f"the share of split {name!r} is {share!r}; allowed: above 0")
    if not shares:
        raise ValueError("splits is empty; allowed: one split or more")
    total = sum(shares.values())
    return {name: share / total for name, share in shares.items()}


def _write(
    folder: Path,
    conversations: Iterable[Conversation],
    shares: dict[str, float],
    shard_size: int,
    subflavors: Mapping[str, Any],
    ops: FileOps,
) -> tuple[dict[str, int], int]:
    counts: Counter[str] = Counter()
    digests: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        shards: dict[str, _Shard] = {}
        for number, conversation in enumerate(conversations):
            split = max(shares, key=lambda name: shares[name] * (number + 1) - counts[name])
            if counts[split] % shard_size == 0:
                if split in shards:
                    digests |= shards[split].finish()
                name = f"{split}-{counts[split] // shard_size:06d}.tar"
                shards[split] = stack.enter_context(_Shard(folder / name, ops))
            shards[split].add(f"{number:08d}", conversation)
            counts[split] += 1
        for shard in shards.values():
            digests |= shard.finish()
    if not digests:
        raise ValueError("there is no conversation; allowed: a .jsonl file, or a folder with .jsonl and .json files")
    empty = [name for name in shares if not counts[name]]
    if empty:
        raise ValueError(f"split {empty[0]!r} gets none of {counts.total()} conversations; allowed: 1 or more for each")
    names = sorted(digests)
    with contextlib.redirect_stdout(io.StringIO()):  # Energon tells every step
        WebdatasetPreparator.prepare_dataset(
            folder,
            names,
            split_parts_patterns=[(split, f"{split}-[0-9]+[.]tar") for split in shares],
            workers=1,
        )
    _put(folder / META / "dataset.yaml", _dataset_yaml(subflavors), ops)
    prepared = {"format_version": _FORMAT_VERSION, "shards": {name: digests[name] for name in names}}
    _put(folder / META / PREPARED, json.dumps(prepared, indent=2), ops)
    return {name: counts[name] for name in shares}, len(names)


class _Shard:
    """A tar file being written; the same bytes for the same conversations."""

    def __init__(self, path: Path, ops: FileOps) -> None:
        self._path = path
        self._file = OutputFile(path, WRITE_NEW, ops)
        self._hash = hashlib.sha256()
        self._tar = tarfile.TarFile(fileobj=cast("Any", self), mode="w", format=tarfile.PAX_FORMAT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    def write(self, data: bytes) -> int:
        """Take bytes of the tar file."""
        self._hash.update(data)
        return self._file.write(data)

    def tell(self) -> int:
        """How many bytes there are."""
        return self._file.size

    def add(self, key: str, conversation: Conversation) -> None:
        """Append a conversation and its media."""
        record = json.dumps(conversation.record, ensure_ascii=False).encode()
        for name, content in {"json": record, **conversation.members}.items():
            info = tarfile.TarInfo(f"{key}.{name}")
            info.size = len(content)
            self._tar.addfile(info, io.BytesIO(content))

    def finish(self) -> dict[str, str]:
        """End the file and give its name and SHA-256."""
        self._tar.close()
        self._file.close()
        return {self._path.name: self._hash.hexdigest()}


def _dataset_yaml(subflavors: Mapping[str, Any]) -> str:
    lines = ["__module__: megatron.energon", "__class__: CrudeWebdataset"]
    if subflavors:
        lines.append(f"subflavors: {json.dumps(dict(subflavors))}")  # JSON is YAML
    return "\n".join([*lines, ""])


def _put(path: Path, text: str, ops: FileOps) -> None:
    with OutputFile(path, WRITE_NEW, ops) as file:
        file.write(text.encode())


def _sync(folder: Path, ops: FileOps) -> None:
    """Make durable what is in a folder: ours and what Energon wrote."""
    for path in folder.iterdir():
        if path.is_dir():
            _sync(path, ops)
            continue
        with OutputFile(path, WRITE_NEW, ops) as file:
            file.fsync()
    ops.fsync_folder(folder)


def _remove(folder: Path, ops: FileOps) -> None:
    if not folder.exists():
        return
    for path in folder.iterdir():
        if path.is_dir():
            _remove(path, ops)
        else:
            ops.unlink(path)
    ops.rmdir(folder)


@contextlib.contextmanager
def _locked(path: Path, ops: FileOps) -> Generator[None]:
    with OutputFile(path, WRITE_NEW, ops) as file:
        ownership.lock(file)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                ops.unlink(path)
            ownership.unlock(file)
