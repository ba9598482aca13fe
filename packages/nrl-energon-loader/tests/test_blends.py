"""Loaders over several datasets, and over a loader of Energon's own."""

import gc
import json
from pathlib import Path
from typing import Any

import pytest
from data import numbers, plain_dataset, plain_loader, sample_numbers
from megatron.energon import Cooker, SavableDataLoader, WorkerConfig, get_savable_loader, get_train_dataset
from nrl_energon_loader import EnergonSFTDataLoader
from nrl_energon_loader.cookers import make_cookers
from plain_encoder import PlainEncoder

WORKERS = pytest.mark.parametrize("workers", [0, 2])


def epochs(loader: EnergonSFTDataLoader, count: int = 1) -> list[list[list[int]]]:
    return [[sample_numbers(batch) for batch in loader] for _ in range(count)]


# ---- Several datasets ----


@pytest.fixture(scope="module")
def blend(datasets: Path) -> Path:
    """A metadataset of two datasets with subflavors, blended by weight in training."""
    for name, count in (("left", 8), ("right", 6)):
        folder = datasets / "blend" / name
        plain_dataset(folder, numbers(count), splits={"train": 0.5, "val": 0.5}, subflavors={"side": name})
    splits = {
        split: {"blend": [{"path": name, "weight": weight} for name, weight in (("left", 3), ("right", 1))]}
        for split in ("train", "val")
    }
    file = datasets / "blend" / "both.yaml"
    description = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": splits}
    file.write_text(json.dumps(description))  # JSON is YAML
    return file


@pytest.mark.slow
@WORKERS
def test_a_blend_resumes_in_training_and_counts_by_source(blend: Path, workers: int) -> None:
    energon = {
        "num_workers": workers,
        "cookers": [
            {"cooker": "generic_conversation", "has_subflavors": {"side": "left"}},
            {"cooker": "generic_conversation", "has_subflavors": {"side": "right"}},
        ],
    }

    def loader() -> EnergonSFTDataLoader:
        return plain_loader(blend, shuffle=True, energon=energon, source={"virtual_epoch_length": 8})

    with loader() as never_stopped:
        wanted = epochs(never_stopped, 2)
        counters = never_stopped.counters
    by_source = {name.rpartition("/")[2]: number for name, number in counters["samples_by_source"].items()}
    assert by_source["left"] > by_source["right"] > 0
    with loader() as stopped:
        batches = iter(stopped)
        for _ in range(5):
            next(batches)
        state = stopped.state_dict()
    with loader() as resumed:
        resumed.load_state_dict(state)
        assert epochs(resumed, 2) == [wanted[0][5:], wanted[1]]
        assert resumed.counters == counters


@pytest.mark.parametrize("stop", range(5))
def test_a_validation_over_two_datasets_resumes_in_either(blend: Path, stop: int) -> None:
    def loader() -> EnergonSFTDataLoader:
        return plain_loader(blend, split="val", split_role="validation")

    with loader() as never_stopped:
        (wanted,) = epochs(never_stopped)
    assert len(wanted) == 4
    with loader() as stopped:
        batches = iter(stopped)
        for _ in range(stop):
            next(batches)
        state = stopped.state_dict()
    with loader() as resumed:
        resumed.load_state_dict(state)
        assert epochs(resumed) == [wanted[stop:] or wanted]


# ---- Over Energon's own loader ----


@pytest.fixture(scope="module")
def path(datasets: Path) -> Path:
    return plain_dataset(datasets / "twelve", numbers(12), shard_size=12)


def own_loader(path: Path, workers: int) -> SavableDataLoader[Any]:
    gc.freeze()
    cookers: list[Cooker[Any]] = make_cookers([("generic_conversation", None)])[0]
    dataset = get_train_dataset(
        path,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=workers),
        batch_size=2,
        shuffle_buffer_size=4,
        max_samples_per_sequence=2,
        virtual_epoch_length=5,
        task_encoder=PlainEncoder(cookers=cookers, max_sequence_length=16),
    )
    return get_savable_loader(dataset)


@WORKERS
def test_energons_own_loader_can_be_wrapped(path: Path, workers: int) -> None:
    def loader() -> EnergonSFTDataLoader:
        return EnergonSFTDataLoader(own_loader(path, workers), identity={"mine": 1})

    with loader() as never_stopped:
        wanted = epochs(never_stopped, 2)
    with loader() as stopped:
        batches = iter(stopped)
        for _ in range(3):
            next(batches)
        state = stopped.state_dict()
    with loader() as resumed:
        resumed.load_state_dict(state)
        rest = epochs(resumed, 2)
        assert rest == [wanted[0][3:], wanted[1]]
    with loader() as fresh, pytest.raises(RuntimeError, match="none at another epoch"):
        fresh.start_at_epoch(1)
