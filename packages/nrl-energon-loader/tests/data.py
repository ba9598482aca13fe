"""Datasets on disk, loaders over them, and digests of what they give."""

import gc
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from nrl_energon_loader import EnergonSFTDataLoader, build_energon_sft_loader
from nrl_energon_loader.prepare import prepare_dataset
from nrl_interfaces import PackedTensor

PLAIN = f"{Path(__file__).parent / 'plain_encoder.py'}:PlainEncoder"


def write_jsonl(path: Path, records: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def plain_dataset(folder: Path, texts: Sequence[str], *, shard_size: int = 5, **settings: Any) -> Path:
    """Prepare conversations whose answers are `texts`; made once for a folder."""
    if not folder.exists():
        question = {"role": "user", "content": "q"}
        records = [{"messages": [question, {"role": "assistant", "content": text}]} for text in texts]
        folder.parent.mkdir(parents=True, exist_ok=True)
        source = write_jsonl(folder.with_suffix(".jsonl"), records)
        prepare_dataset(source, folder, shard_size=shard_size, **settings)
    return folder


def numbers(count: int, *, bad: Sequence[int] = ()) -> list[str]:
    """Texts of 1 to 5 words, each sample's own number; those in `bad` raise."""
    return ["bad" if n in bad else " ".join([str(n)] * (1 + n % 5)) for n in range(count)]


def plain_loader(path: Path | str, *, energon: Mapping[str, Any] | None = None, **changes: Any) -> EnergonSFTDataLoader:
    """A loader over a plain dataset: training without shuffle, no workers, batches of 2, unless said otherwise."""
    gc.freeze()  # a worker's start goes through what is not frozen; Energon thaws it again
    arguments: dict[str, Any] = {
        "data_config": {"shuffle": changes.pop("shuffle", False)},
        "source": {"path": str(path), "split": changes.pop("split", "train"), **changes.pop("source", {})},
        "processor": None,
        "batch_size": 2,
        "max_sequence_length": 16,
        "split_role": "train",
        "logical_rank": 0,
        "logical_world_size": 1,
        "placement_fingerprint": "0" * 64,
        "packing_algorithm": None,
        "max_sequences_per_bin": None,
        "sequence_length_pad_multiple": 1,
        "only_unmask_final": False,
    }
    arguments["data_config"]["energon"] = {"num_workers": 0, "task_encoder": PLAIN, **(energon or {})}
    return build_energon_sft_loader(**{**arguments, **changes})


def sample_numbers(batch: Mapping[str, Any]) -> list[int]:
    """The numbers of a plain batch's samples, from their keys."""
    ids = batch["source_ids"]
    flat = [each for item in ids for each in (item if isinstance(item, list | tuple) else [item])]
    return [int(each.rpartition("/")[2]) for each in flat]


def flat(batches: Sequence[Sequence[int]]) -> list[int]:
    """All sample numbers of some batches."""
    return [number for batch in batches for number in batch]


def digest(value: Any) -> str:
    """A digest over everything in a batch: tensors with dtype and shape, packed tensors, texts."""
    hashed = hashlib.sha256()
    _feed(value, hashed)
    return hashed.hexdigest()


def _feed(value: Any, hashed: Any) -> None:
    if isinstance(value, torch.Tensor):
        hashed.update(f"{value.dtype}{tuple(value.shape)}".encode())
        hashed.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, PackedTensor):
        _feed([str(value.dtype), value.trailing_shape, list(value)], hashed)
    elif isinstance(value, Mapping):
        for key in value:
            hashed.update(repr(key).encode())
            _feed(value[key], hashed)
    elif isinstance(value, list | tuple):
        hashed.update(f"{type(value).__name__}{len(value)}".encode())
        for item in value:
            _feed(item, hashed)
    else:
        hashed.update(repr(value).encode())
