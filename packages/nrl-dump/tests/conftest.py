"""What the tests of nrl-dump share."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

# Kill tests fork this process: after a parallel torch operation a forked child would hang in its own first one.
torch.set_num_threads(1)


def make_chunk(rows: int = 2, *, step: int = 1, prefix: str = "s", width: int = 3, **changes: Any) -> dict[str, Any]:
    """A chunk of `rows` rows whose values tell row and prefix apart."""
    return {
        "step": step,
        "sample_ids": [f"{prefix}{i}" for i in range(rows)],
        "tags": [{"prefix": prefix, "row": i} for i in range(rows)],
        "input_lengths": torch.tensor([1 + i % width for i in range(rows)], dtype=torch.int64),
        "sequences": {"t": torch.arange(rows * width).reshape(rows, width)},
        "scalars": {"r": torch.arange(rows, dtype=torch.float32) / 4},
        **changes,
    }


def rows_in(path: Path) -> list[dict[str, Any]]:
    """The rows of a published file or a part, by Python's own json and nothing of ours."""
    content = path.read_bytes()
    assert content.endswith(b"\n") or not content
    return [json.loads(line) for line in content.split(b"\n")[:-1]]


@pytest.fixture
def chunk() -> Callable[..., dict[str, Any]]:
    return make_chunk


@pytest.fixture
def read_rows() -> Callable[[Path], list[dict[str, Any]]]:
    return rows_in
