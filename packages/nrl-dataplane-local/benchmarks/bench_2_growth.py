"""How claims, puts, views and checkpoints grow: with rows, and not with more."""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from bench_report import table
from nrl_dataplane_local import LocalDataPlaneClient, LocalDataPlaneConfig
from tensordict import TensorDict
from transfer_queue_peer import transfer_queue

SIZES = (10_000, 100_000)
BATCH = 512


def plane_for(rows: int, fields: list[str]) -> LocalDataPlaneClient:
    plane = LocalDataPlaneClient(LocalDataPlaneConfig(partition_mode="stream", zero_copy=True))
    plane.register_partition("p", fields, rows, ["train"])
    return plane


def seconds_of(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def one_by_one(plane: LocalDataPlaneClient, rows: int) -> None:
    for row in range(rows):
        plane.put_samples([f"s{row}"], "p", {"x": torch.zeros(1, 4)})


def seconds_of_claims(rows: int) -> float:
    """Put rows and claim all of them, both a batch at a time; the seconds of the claims."""
    plane = plane_for(rows, ["x"])
    for first in range(0, rows, BATCH):
        ids = [f"s{row}" for row in range(first, min(first + BATCH, rows))]
        plane.put_samples(ids, "p", {"x": torch.zeros(len(ids), 4)})
    began = time.perf_counter()
    for first in range(0, rows, BATCH):
        plane.claim_meta("p", "train", ["x"], min(BATCH, rows - first), timeout_s=0)
    return time.perf_counter() - began


def claims() -> None:
    sizes = (10_000, 100_000, 1_000_000)
    rounds = [[seconds_of_claims(rows) for rows in sizes] for _ in range(5)]
    best = [min(times) for times in zip(*rounds, strict=True)]
    print(f"\n### Claims\n\nAll rows claimed, {BATCH} at a time, the best of 5:\n")
    lines = [[f"{rows:,}", f"{1e3 * s:,.1f}", f"{1e6 * s / rows:.3f}"] for rows, s in zip(sizes, best, strict=True)]
    print(table(["rows", "ms", "microseconds a row"], *lines))


def measure(rows: int) -> list[float]:
    """Seconds of each thing."""
    plane = plane_for(rows, ["x"])
    puts = seconds_of(lambda: one_by_one(plane, rows))
    view = seconds_of(plane.freeze)
    ids = plane.list_sample_ids("p")
    return [puts, seconds_of(lambda: plane.get_samples(ids, "p", ["x"])), view]


def growth() -> None:
    # The sizes take turns, so that a slow moment of the machine meets both.
    rounds = [[measure(rows) for rows in SIZES] for _ in range(3)]
    small, large = ([min(times) for times in zip(*each, strict=True)] for each in zip(*rounds, strict=True))
    names = ["put one row at a time", "read all, of as many puts", "freeze"]
    rows = [
        [name, f"{1e3 * one:,.1f}", f"{1e3 * ten:,.1f}", f"{ten / one:.1f}"]
        for name, one, ten in zip(names, small, large, strict=True)
    ]
    print("Milliseconds, the best of 3. Aim: ten times the rows take at most 12 times the time.\n")
    print(table(["what", f"{SIZES[0]:,} rows", f"{SIZES[1]:,} rows", "times"], *rows))


def bytes_of_the_rows() -> None:
    lines = []
    for width in (1, 4096):
        plane = plane_for(BATCH, ["x"])
        plane.put_samples([f"s{row}" for row in range(BATCH)], "p", {"x": torch.zeros(BATCH, width)})
        best = min(seconds_of(plane.freeze) for _ in range(20))
        lines.append([f"{width:,}", f"{BATCH * width * 4 / 2**20:.3f}", f"{1e6 * best:.0f}"])
    print(f"\n### A view does not weigh the rows\n\n`freeze` of {BATCH} rows, the best of 20:\n")
    print(table(["width", "MiB", "microseconds"], *lines))


def checkpoints() -> None:
    ids, rows = [f"s{row}" for row in range(64)], {"x": torch.rand(64, 512)}
    plane = plane_for(64, ["x"])
    plane.put_samples(ids, "p", rows)
    with tempfile.TemporaryDirectory() as folder:
        plane.save_checkpoint(folder)
        ours = sum(path.stat().st_size for path in Path(folder).iterdir())
    with transfer_queue() as queue:
        theirs = queue.checkpoint_bytes(ids, TensorDict(rows, batch_size=[64]))
    size = rows["x"].nbytes
    print(f"\n### Checkpoints\n\n64 rows x 512 float32, put as one batch, {size / 1e3:,.0f} kB:\n")
    lines = [
        [name, f"{held / 1e3:,.0f}", f"{held / size:.2f}"]
        for name, held in (("nrl-dataplane-local", ours), ("TransferQueue's simple backend", theirs))
    ]
    print(table(["checkpoint of", "kB", "times the rows"], *lines))


if __name__ == "__main__":
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # else Ray writes a token into the home folder
    print("## nrl-dataplane-local: growth\n")
    growth()
    claims()
    bytes_of_the_rows()
    checkpoints()
