"""What differs between two runs that should have come to the same end, bit for bit."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from nrl_dump import verify
from nrl_rollout_ckpt import CheckpointManager
from sft_rank import RANKS, Settings


def differences(run: Settings, other: Settings) -> list[str]:
    """Compare what two runs trained on, the weights and optimizers that they ended with, and every dump."""
    return [*_of_ends(newest_checkpoint(run), newest_checkpoint(other)), *_of_dumps(run, other)]


def newest_checkpoint(run: Settings) -> Path | None:
    """The newest checkpoint of a run."""
    return CheckpointManager(run.checkpoints).get_latest_checkpoint_path()


def _of_ends(one: Path, other: Path) -> Iterator[str]:
    if one.name != other.name:
        yield f"{one} and {other} are of different steps"
    for rank in range(RANKS):
        ids, other_ids = (trained_on(end, rank) for end in (one, other))
        if ids != other_ids:
            first = next((n for n, pair in enumerate(zip(ids, other_ids, strict=False)) if pair[0] != pair[1]), None)
            yield f"rank {rank} trained on {len(ids)} and {len(other_ids)} rows; the first that differs is {first}"
    shared, other_shared = (torch.load(end / "trainer.pt", weights_only=True) for end in (one, other))
    yield from (f"trainer.pt differs in {name}" for name in _unequal(shared, other_shared))


def trained_on(checkpoint: Path, rank: int) -> list[str]:
    """The `source_ids` that a rank has trained on, in order."""
    return torch.load(checkpoint / f"rank{rank}" / "loader.pt", weights_only=True)["trained"]


def _unequal(one: Any, other: Any, name: str = "") -> Iterator[str]:
    """The names of the leaves that are not the same bits."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key in one:
            yield from _unequal(one[key], other[key], f"{name}.{key}")
    elif isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        same_kind = one.dtype == other.dtype and one.shape == other.shape
        if not same_kind or one.contiguous().numpy().tobytes() != other.contiguous().numpy().tobytes():
            yield name
    elif one != other:
        yield name


def _of_dumps(run: Settings, other: Settings) -> Iterator[str]:
    """A dump has each step once, whole, and nothing that a killed writer left."""
    names = [f"train_data_step{step + 1}.jsonl" for step in range(run.steps)]
    manifests = [name.replace(".jsonl", ".manifest.json") for name in names]
    for folder in run.dumps, other.dumps:
        there = {path.name for path in folder.iterdir()}
        if there != {*names, *manifests}:
            yield f"{folder} has other files than those of {run.steps} steps: {sorted(there ^ {*names, *manifests})}"
            return
    for name in names:
        verify(run.dumps / name)
        verify(other.dumps / name)
        if (run.dumps / name).read_bytes() != (other.dumps / name).read_bytes():
            yield f"{run.dumps / name} has other bytes than {other.dumps / name}"
