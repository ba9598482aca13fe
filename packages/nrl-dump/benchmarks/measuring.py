"""What the benchmarks of nrl-dump share: the batch, and rounds with a folder each."""

import gc
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Way = Callable[[Path], object]


def batch(rows: int, length: int) -> dict[str, Any]:
    """A chunk of six sequence columns as an RL step has them."""
    generator = torch.Generator().manual_seed(0)

    def floats() -> torch.Tensor:
        return -5 * torch.rand(rows, length, generator=generator)

    return {
        "sample_ids": [f"prompt{i // 8}-{i % 8}" for i in range(rows)],
        "tags": None,
        "input_lengths": torch.full((rows,), length),
        "sequences": {
            "token_ids": torch.randint(0, 150_000, (rows, length), generator=generator),
            "mask": torch.rand(rows, length, generator=generator) < 0.9,
            "logprobs": floats(),
            "prev_logprobs": floats(),
            "reference_logprobs": floats(),
            "advantages": torch.randn(rows, length, generator=generator),
        },
        "scalars": {},
    }


def rounds(
    ways: dict[str, Way], count: int, before: Callable[[Path], object] = id, after: Callable[[Path], object] = id
) -> dict[str, list[float]]:
    """Seconds of each way in each round, in a folder of its own, `before` and `after` not counted.

    The ways take turns, so that a slow moment of the machine meets all of them.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(count):
        for name, way in ways.items():
            folder = Path(tempfile.mkdtemp(prefix="bench-dump-"))
            try:
                before(folder)
                gc.collect()
                began = time.perf_counter()
                way(folder)
                seconds[name].append(time.perf_counter() - began)
                after(folder)
            finally:
                shutil.rmtree(folder)
    return seconds
