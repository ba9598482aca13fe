"""The grid of settings in which a resume must be exact, and what is done in each cell.

`python grid.py FOLDER WORKERS` is the new process: it resumes every cell from the states that `record` saved there.
"""

import functools
import gc
import itertools
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import hf
import torch
from data import digest, write_jsonl
from nrl_energon_loader import EnergonSFTDataLoader, build_energon_sft_loader
from nrl_energon_loader.prepare import prepare_dataset

SAMPLES, BAD = 24, 10  # batches of 2: the last one of an epoch is short somewhere
SAVED = ("before the first batch", "middle of the epoch", "last batch, before StopIteration", "after StopIteration")
EPOCHS = 2


class Cell(NamedTuple):
    content: str
    packed: bool
    role: str
    virtual_epoch_length: int | None

    def __str__(self) -> str:
        epoch = f"-epochs of {self.virtual_epoch_length}" if self.virtual_epoch_length else ""
        return f"{self.content}-{'packed' if self.packed else 'unpacked'}-{self.role}{epoch}"


GRID = [Cell(*each, None) for each in itertools.product(("text", "images"), (False, True), ("train", "validation"))]
VIRTUAL = [Cell("text", packed, role, 7) for packed, role in ((True, "train"), (False, "train"), (True, "validation"))]
CELLS = {0: GRID + VIRTUAL, 2: GRID + VIRTUAL[:1]}  # by the number of workers, whose loaders take their time


def make_datasets(folder: Path) -> None:
    """Two of chat, several shards each, one with images; in each a sample whose picture is none."""
    for content in ("text", "images"):
        records: list[dict[str, Any]] = []
        for number in range(SAMPLES):
            images = int(number == BAD) if content == "text" else number % 3
            record: dict[str, Any] = {
                "messages": hf.make_messages(number, turns=1, words=2 + number % 4, images=images)
            }
            record["media"] = [f"{number}-{n}.png" for n in range(images)]
            for n, name in enumerate(record["media"]):
                (folder / name).write_bytes(b"no picture" if number == BAD else hf.image_bytes(10 * number + n))
            records.append(record)
        prepare_dataset(write_jsonl(folder / f"{content}.jsonl", records), folder / content, shard_size=4)


@functools.cache
def processor(content: str) -> Any:
    return hf.make_tokenizer() if content == "text" else hf.make_processor()


def make_loader(folder: Path, cell: Cell, workers: int) -> EnergonSFTDataLoader:
    energon = {
        "num_workers": workers,
        "shuffle_buffer_size": 8,
        "max_samples_per_sequence": 3,
        "packing_buffer_size": 7,
    }
    return build_energon_sft_loader(
        data_config={"energon": energon, "shuffle": True},
        source={
            "path": str(folder / cell.content),
            "split": "train",
            "virtual_epoch_length": cell.virtual_epoch_length,
        },
        processor=processor(cell.content),
        batch_size=2,
        max_sequence_length=192,
        split_role=cell.role,
        logical_rank=0,
        logical_world_size=1,
        placement_fingerprint="0" * 64,
        packing_algorithm="first_fit_decreasing" if cell.packed else None,
        max_sequences_per_bin=None,
        sequence_length_pad_multiple=1,
        only_unmask_final=False,
    )


class Trace:
    """What a loader gave: for each batch its digest and the counters behind it, and how many each iteration had."""

    def __init__(self, loader: EnergonSFTDataLoader) -> None:
        self._loader = loader
        self.batches: list[Any] = []
        self.iterations: list[int] = []

    def steps(self, until_epoch: int) -> Iterator[None]:
        """Stop behind every batch, and at every end of an epoch."""
        while self._loader.epoch < until_epoch:
            self.iterations.append(0)
            gc.freeze()  # a worker's start and Energon's collections go through what is not; Energon thaws it again
            for batch in self._loader:
                self.iterations[-1] += 1
                self.batches.append([digest(batch), batch["source_ids"], self._loader.counters])
                yield
            yield

    def to_json(self) -> dict[str, Any]:
        return {"batches": self.batches, "iterations": self.iterations}


def run_epoch(loader: EnergonSFTDataLoader) -> dict[str, Any]:
    with loader:
        trace = Trace(loader)
        for _ in trace.steps(loader.epoch + 1):
            pass
        return trace.to_json()


def record(folder: Path, workers: int) -> dict[str, Any]:
    """Run every cell without a stop, and save its states on the way, with how many batches came before each."""
    recorded: dict[str, Any] = {}
    for cell in CELLS[workers]:
        with make_loader(folder, cell, workers) as loader:
            trace = Trace(loader)
            states = [(0, loader.state_dict())]
            for _ in trace.steps(EPOCHS):
                if len(trace.iterations) == 1:
                    states += [(len(trace.batches), loader.state_dict())]
            # Behind every batch of the first epoch, the last of them twice: before StopIteration and after it.
            before_end = len(states) - 2
            chosen = [states[0], states[before_end // 2], states[before_end], states[before_end + 1]]
            for saved, (_, state) in zip(SAVED, chosen, strict=True):
                torch.save(state, folder / f"{cell} {workers} {saved}.pt")
            before = {saved: number for saved, (number, _) in zip(SAVED, chosen, strict=True)}
            recorded[str(cell)] = {**trace.to_json(), "before": before}
    return recorded


def resume(folder: Path, workers: int) -> dict[str, Any]:
    """Go on from every state; twice in a row, the second time from a state saved one batch later; and from none."""
    resumed: dict[str, Any] = {}
    for cell in CELLS[workers]:
        runs: dict[str, Any] = {"without a state": run_epoch(make_loader(folder, cell, workers))}
        for saved in SAVED:
            with make_loader(folder, cell, workers) as loader:
                loader.load_state_dict(torch.load(folder / f"{cell} {workers} {saved}.pt"))
                trace = Trace(loader)
                # Two of them go over an end of an epoch that they did not begin; a pass's start costs, with workers.
                over_an_end = saved in (SAVED[1], SAVED[2])
                steps = trace.steps(EPOCHS if over_an_end else loader.epoch + 1)
                next(steps)
                state = loader.state_dict()
                for _ in steps:
                    pass
            second = make_loader(folder, cell, workers)
            second.load_state_dict(state)
            runs[saved] = {"once": trace.to_json(), "twice": run_epoch(second)}
        resumed[str(cell)] = runs
    return resumed


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.disable()
    out = Path(sys.argv[1]) / f"resumed {sys.argv[2]}.json"
    out.write_text(json.dumps(resume(Path(sys.argv[1]), int(sys.argv[2]))))
