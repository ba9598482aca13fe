"""Rows per second against the plain way and against a bare orjson loop; growth with the rows; the queue."""

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import torch
from bench_report import ratio, spread, table
from measuring import Way, batch, rounds
from nrl_dump import TrainDataDump

ROWS, LENGTH = 512, 4096
PLAIN, PLAIN_NO_GC, BARE, OURS = "json.dumps of tolist", "the same, gc off", "bare orjson loop", "add_chunk"


def plain(chunk: dict[str, Any], folder: Path) -> None:
    """What people write first: every row as Python lists."""
    with (folder / "plain.jsonl").open("w") as file:
        for i, sample_id in enumerate(chunk["sample_ids"]):
            n = int(chunk["input_lengths"][i])
            row = {"step": 1, "sample_id": [sample_id], "input_lengths": [n], "metadata": [{}]}
            row |= {name: [column[i, :n].tolist()] for name, column in chunk["sequences"].items()}
            file.write(json.dumps(row) + "\n")


def without_gc(way: Callable[[], None]) -> None:
    gc.disable()
    try:
        way()
    finally:
        gc.enable()


def bare(chunk: dict[str, Any], folder: Path) -> None:
    """The least that writes these bytes: no checks, no lengths of its own, nothing about NaN or other dtypes."""
    columns = {name: column.numpy() for name, column in chunk["sequences"].items()}
    option = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
    with (folder / "bare.jsonl").open("wb", buffering=0) as file:
        for i, sample_id in enumerate(chunk["sample_ids"]):
            n = int(chunk["input_lengths"][i])
            row = {"step": 1, "sample_id": [sample_id], "input_lengths": [n], "metadata": [{}]}
            row |= {name: [column[i, :n]] for name, column in columns.items()}
            file.write(orjson.dumps(row, option=option))


def ours(chunk: dict[str, Any], folder: Path, **settings: Any) -> TrainDataDump:
    dump = TrainDataDump(folder, **settings)
    dump.add_chunk(step=0, **chunk)
    return dump


def rows_per_second() -> None:
    chunk = batch(ROWS, LENGTH)
    slow = rounds(
        {
            PLAIN: lambda folder: plain(chunk, folder),
            PLAIN_NO_GC: lambda folder: without_gc(lambda: plain(chunk, folder)),
            OURS: lambda folder: ours(chunk, folder),
        },
        3,
    )
    fast = rounds({BARE: lambda folder: bare(chunk, folder), OURS: lambda folder: ours(chunk, folder)}, 15)
    seconds = {**slow, **fast}
    print(f"## nrl-dump: writing\n\n{ROWS} rows x 6 columns x {LENGTH:,} tokens, one process, no fsync; median of the")
    print("rounds (lowest to highest).\n")
    print(
        table(
            ["way", "rows/s", "MB/s of tensors"],
            *(
                [
                    name,
                    spread([ROWS / s for s in values], 0),
                    spread([chunk_bytes(chunk) / 1e6 / s for s in values], 0),
                ]
                for name, values in seconds.items()
            ),
        )
    )
    print(f"\n`add_chunk` writes {ratio(slow, PLAIN, OURS):.1f} times the rows of `json.dumps` of lists with garbage")
    print(f"collection on (aim: at least 12), {ratio(slow, PLAIN_NO_GC, OURS):.1f} times with it off, and")
    print(f"{ratio(fast, BARE, OURS):.2f} of a bare orjson loop, which checks nothing (aim: at least 0.9).")


def chunk_bytes(chunk: dict[str, Any]) -> int:
    return sum(column.nbytes for column in chunk["sequences"].values())


def queue() -> None:
    chunk = batch(ROWS, LENGTH)
    dumps: list[TrainDataDump] = []
    copies: list[torch.Tensor] = []  # kept, as a queue keeps them: memory given back at once would be had for nothing

    def copy(_: Path) -> None:
        copies.extend(column.clone() for column in chunk["sequences"].values())

    def hand_over(folder: Path) -> None:
        dumps.append(ours(chunk, folder, queue_bytes=1 << 30))

    def let_go(_: Path) -> None:
        copies.clear()
        while dumps:
            dumps.pop().close()

    ways: dict[str, Way] = {"the copy alone": copy, "add_chunk with a queue": hand_over}
    seconds = rounds(ways, 15, after=let_go)
    print("\n### With a queue\n")
    print(table(["", "ms"], *([name, spread([1e3 * s for s in values], 1)] for name, values in seconds.items())))
    print(
        f"\nA call returns after {ratio(seconds, 'add_chunk with a queue', 'the copy alone'):.2f} times the copy alone;"
    )
    print("the rest is checks and the hand-over.")


def growth() -> None:
    print("\n### Growth\n\nRows of 6 columns x 24 tokens.\n")
    rows: list[list[str]] = []
    for count in (1_000, 10_000, 100_000):
        chunk = batch(count, 24)
        [values] = rounds({OURS: lambda folder, chunk=chunk: ours(chunk, folder)}, 5).values()
        rows.append([f"{count:,}", spread([1e3 * s for s in values], 1), spread([1e6 * s / count for s in values], 2)])
    print(table(["rows", "ms", "microseconds a row"], *rows))


if __name__ == "__main__":
    torch.set_num_threads(1)
    rows_per_second()
    queue()
    growth()
