"""Samples per second against Energon's own savable loader, and what a state costs."""

import gc
import io
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from bench_report import table
from megatron.energon import SavableDataLoader, WorkerConfig, get_savable_loader, get_train_dataset
from minimal import MinimalEncoder
from nrl_energon_loader import EnergonSFTDataLoader, build_energon_sft_loader
from nrl_energon_loader.cookers import make_cookers
from nrl_energon_loader.prepare import prepare_dataset

SAMPLES, BATCH, BATCHES, PAIRS, ROUNDS = 20_000, 32, 60, 9, 15
ENCODER = f"{Path(__file__).resolve().parent / 'minimal.py'}:MinimalEncoder"
TEXT = "the quick brown fox jumps over the lazy dog and runs into the wood where nobody has seen it ever since "


def make_dataset(folder: Path) -> Path:
    """Chats of about 130 bytes of text, 8 shards."""
    source = folder / "chat.jsonl"
    with source.open("w") as file:
        for number in range(SAMPLES):
            question, answer = TEXT[number % 50 :][:50], f"{number} {TEXT[number % 20 :][:74]}"
            messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            file.write(json.dumps({"messages": messages}) + "\n")
    prepare_dataset(source, folder / "chat", shard_size=SAMPLES // 8)
    return folder / "chat"


def ours(path: Path, workers: int, shuffle_buffer_size: int = 1000) -> EnergonSFTDataLoader:
    return build_energon_sft_loader(
        data_config={
            "energon": {
                "num_workers": workers,
                "shuffle_buffer_size": shuffle_buffer_size,
                "task_encoder": ENCODER,
                "watchdog_timeout_seconds": None,
            },
            "shuffle": True,
        },
        source={"path": str(path), "virtual_epoch_length": 1_000_000},
        processor=None,
        batch_size=BATCH,
        max_sequence_length=4096,
        split_role="train",
        logical_rank=0,
        logical_world_size=1,
        placement_fingerprint="",
        packing_algorithm=None,
        max_sequences_per_bin=None,
        sequence_length_pad_multiple=1,
        only_unmask_final=False,
    )


def energons(path: Path, workers: int, shuffle_buffer_size: int = 1000) -> SavableDataLoader[Any]:
    cookers, _ = make_cookers([("generic_conversation", None)])
    dataset = get_train_dataset(
        path,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=workers),
        batch_size=BATCH,
        shuffle_buffer_size=shuffle_buffer_size,
        max_samples_per_sequence=100,
        virtual_epoch_length=1_000_000,
        task_encoder=MinimalEncoder(cookers=cookers, max_sequence_length=4096),
    )
    loader = get_savable_loader(dataset, watchdog_timeout_seconds=None)
    loader.pin_memory = torch.accelerator.is_available()  # else torch warns; ours does the same
    return loader


def seconds(batches: Iterator[Any]) -> float:
    began = time.perf_counter()
    for _ in range(BATCHES):
        next(batches)
    return time.perf_counter() - began


def pairs_of_seconds(path: Path, workers: int) -> tuple[list[float], list[float]]:
    """Seconds of `BATCHES` batches from each, taking turns; both have started and filled their buffers."""
    with ours(path, workers) as loader:
        batches, peer = iter(loader), iter(energons(path, workers))
        with closing(peer):
            for each in (batches, peer):
                seconds(each)
            times = [(seconds(batches), seconds(peer)) for _ in range(PAIRS)]
    return [a for a, _ in times], [b for _, b in times]


def quartiles(values: list[float], form: str) -> str:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:{form}} ({low:{form}} to {high:{form}})"


def throughput(path: Path) -> list[list[str]]:
    rows: list[list[str]] = []
    for workers in (0, 2):
        a, b = pairs_of_seconds(path, workers)
        count = BATCHES * BATCH
        rows.append(
            [
                str(workers),
                quartiles([count / s for s in a], ",.0f"),
                quartiles([count / s for s in b], ",.0f"),
                quartiles([theirs / mine for mine, theirs in zip(a, b, strict=True)], ".3f"),
            ]
        )
    return rows


def milliseconds(action: Callable[[], object]) -> float:
    gc.collect()
    began = time.perf_counter()
    action()
    return 1000 * (time.perf_counter() - began)


def state_costs(path: Path, workers: int, shuffle_buffer_size: int) -> list[str]:
    """Both sides run to the same place; then each saves, and a new loader of its own takes the state."""
    sizes: list[int] = []
    times: list[tuple[float, float]] = []
    with ours(path, workers, shuffle_buffer_size) as loader:
        peer = energons(path, workers, shuffle_buffer_size)
        batches, peers = iter(loader), iter(peer)
        with closing(peers):
            for each in (batches, peers):
                for _ in range(10):
                    next(each)
            for _ in range(ROUNDS):
                states: list[Any] = []
                mine = milliseconds(lambda: states.append(loader.state_dict()))  # noqa: B023
                theirs = milliseconds(lambda: states.append(peer.save_state_rank()))  # noqa: B023
                with ours(path, workers, shuffle_buffer_size) as new:
                    mine += milliseconds(lambda: new.load_state_dict(states[0]))  # noqa: B023
                anew = energons(path, workers, shuffle_buffer_size)
                theirs += milliseconds(lambda: anew.restore_state_rank(states[1]))  # noqa: B023
                times.append((mine, theirs))
                file = io.BytesIO()
                torch.save(states[0], file)
                sizes.append(file.tell())
    added = [mine - theirs for mine, theirs in times]
    kilobytes = statistics.median(sizes) / 1000
    columns = [quartiles(list(column), ".1f") for column in zip(*times, strict=True)]
    return [str(workers), f"{shuffle_buffer_size:,}", f"{kilobytes:,.0f}", *columns, quartiles(added, ".1f")]


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="bench-loader-") as folder:
        path = make_dataset(Path(folder))
        print("## nrl-energon-loader: samples per second\n")
        print(
            f"{SAMPLES:,} chats of about 130 bytes in 8 shards, batches of {BATCH}, a shuffle buffer of 1,000. Beside"
        )
        print(
            f"ours Energon's savable loader with the same task encoder; {PAIRS} interleaved pairs of {BATCHES} batches."
        )
        print("Median (quartiles). Aim: a ratio of at least 0.95.\n")
        print(table(["workers", "ours, samples/s", "Energon, samples/s", "ratio"], *throughput(path)))
        print("\n## nrl-energon-loader: a state\n")
        print("Milliseconds of `state_dict` + `load_state_dict`, and of Energon's `save_state_rank` +")
        print(f"`restore_state_rank`, in new loaders; {ROUNDS} rounds, median (quartiles). Aim: at most 5 ms more, and")
        print("linear in the state, which grows with the shuffle buffer.\n")
        sizes = [state_costs(path, workers, size) for workers in (0, 2) for size in (100, 1000, 4000)]
        print(table(["workers", "shuffle buffer", "state, kB", "ours, ms", "Energon, ms", "added, ms"], *sizes))
