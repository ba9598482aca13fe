"""How long a snapshot holds everything up, how long the loop stalls meanwhile, and what the whole of it takes."""

import asyncio
import gc
import io
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from bench_report import ratio, spread, table
from nrl_rollout_ckpt.config import RolloutCheckpointConfig
from nrl_rollout_ckpt.disk.selection import select_resume_source
from nrl_rollout_ckpt.restore import RolloutRestorer
from nrl_rollout_ckpt.state.rollout_state import RolloutParts
from run_at_size import (
    BYTES_A_TOKEN,
    FIELDS,
    GROUP_SIZE,
    IDENTITY,
    PARTITION,
    files_of,
    filled_parts,
    fresh_parts,
    snapshotter,
    stalls_ms,
)

GROUPS, TOKENS, ROUNDS = 1_000, 256, 7
OURS, SAVE_IN_LOCK, ASYNC_SAVE, RAW = "a snapshot", "torch.save in the lock", "DCP async_save", "the bytes alone"
clock = time.perf_counter
Figures = dict[str, list[float]]


async def measure(parts: RolloutParts, events: list[Mapping[str, Any]], folder: Path) -> Figures:
    """Hold, stall and whole time of snapshots, beside peers that save the same state, in rounds that take turns."""
    seen: Figures = {}
    with snapshotter(parts, folder) as saver:
        await saver.save_snapshot(force=True)  # warm
        await save_in_lock(parts, folder)
        await async_save(parts, folder)
        for _ in range(ROUNDS):
            gc.collect()
            events.clear()
            stop = asyncio.Event()
            ticking = asyncio.create_task(stalls_ms(stop, clock))
            await asyncio.sleep(0.01)
            began = clock()
            result = await saver.save_snapshot(force=True)
            add(seen, OURS, clock() - began)
            stop.set()
            stalls = sorted(await ticking)
            add(seen, "p99 stall", stalls[int(0.99 * (len(stalls) - 1))])
            add(seen, "max stall", stalls[-1])
            (timing,) = (event for event in events if event["op"] == "rollout_checkpoint_timing")
            add(seen, "hold", 1e3 * timing["timing/rollout_checkpoint/exclusive_hold_seconds"])
            assert result.path is not None
            add(seen, RAW, write_and_fsync(result.path, folder / "raw"))
            hold, whole = await save_in_lock(parts, folder)
            add(seen, f"hold of {SAVE_IN_LOCK}", 1e3 * hold)
            add(seen, SAVE_IN_LOCK, whole)
            hold, whole = await async_save(parts, folder)
            add(seen, f"hold of {ASYNC_SAVE}", 1e3 * hold)
            add(seen, ASYNC_SAVE, whole)
    return seen


def add(seen: Figures, name: str, value: float) -> None:
    seen.setdefault(name, []).append(value)


def write_and_fsync(snapshot: Path, target: Path) -> float:
    """Write the same bytes to as many files, fsyncing each: what any snapshot of them has to do."""
    contents = [path.read_bytes() for path in files_of(snapshot)]
    target.mkdir()
    began = clock()
    for number, content in enumerate(contents):
        with (target / str(number)).open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    seconds = clock() - began
    shutil.rmtree(target)
    return seconds


def plain_state(parts: RolloutParts) -> dict[str, Any]:
    """The run as a user without this package would save it: columns and the ledger's records as they are."""
    plane = parts.data_plane
    rows = plane.get_samples(plane.list_sample_ids(PARTITION), PARTITION, list(FIELDS))
    state: dict[str, Any] = {name: rows[name] for name in FIELDS}
    return state | {"ledger": parts.ledger.groups, "index": parts.replay_index.groups}


async def save_in_lock(parts: RolloutParts, folder: Path) -> tuple[float, float]:
    """Everything inside the exclusive section, in a thread: (hold, whole) in seconds."""

    def save() -> None:
        with (folder / "peer.pt").open("wb") as file:
            torch.save(plain_state(parts), file)
            file.flush()
            os.fsync(file.fileno())

    began = clock()
    async with parts.barrier.checkpoint():
        entered = clock()
        await asyncio.to_thread(save)
        hold = clock() - entered
    return hold, clock() - began


async def async_save(parts: RolloutParts, folder: Path) -> tuple[float, float]:
    """torch.distributed.checkpoint's asynchronous save: staged inside the section, written after it."""
    target = folder / "dcp"
    began = clock()
    async with parts.barrier.checkpoint():
        entered = clock()
        state = plain_state(parts)
        buffer = io.BytesIO()
        torch.save({name: state.pop(name) for name in ("ledger", "index")}, buffer)
        state["records"] = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
        saving = dcp.async_save(state, checkpoint_id=target, no_dist=True)
        hold = clock() - entered
    await asyncio.to_thread(saving.result)
    whole = clock() - began
    await asyncio.to_thread(shutil.rmtree, target)
    return hold, whole


async def measure_restore(folder: Path, groups: int) -> Figures:
    """Selection and restoring, beside reading the same files."""
    seen: Figures = {}
    for round_number in range(ROUNDS + 1):
        gc.collect()
        parts = fresh_parts(groups)
        began = clock()
        source = select_resume_source(folder, RolloutCheckpointConfig(), IDENTITY)
        selected = clock()
        report = await RolloutRestorer(parts).restore(source)
        ended = clock()
        assert report.groups_from_buffer == report.ledger_groups == groups
        assert source.path is not None
        read = clock()
        for path in files_of(source.path):
            with path.open("rb") as file:
                file.read()
        if round_number:  # the first one warms
            add(seen, "restore", ended - began)
            add(seen, "selection", selected - began)
            add(seen, "read", clock() - read)
    return seen


def show(by_size: dict[str, Figures]) -> None:
    def line(name: str, of: Callable[[Figures], str]) -> list[str]:
        return [name, *(of(figures) for figures in by_size.values())]

    def ms(name: str, scale: float = 1.0) -> Callable[[Figures], str]:
        return lambda figures: spread([scale * value for value in figures[name]], 1)

    print(
        table(
            ["", *by_size],
            line("exclusive hold, ms (aim: below 25)", ms("hold")),
            line("loop stall p99 during the whole, ms (aim: hold + 10)", ms("p99 stall")),
            line("the longest stall, ms", ms("max stall")),
            line("a whole snapshot, ms", ms(OURS, 1e3)),
            line("writing and fsyncing its bytes, ms", ms(RAW, 1e3)),
            line("whole / bytes alone (aim: at most 1.5)", lambda figures: f"{ratio(figures, OURS, RAW):.2f}"),
            line(f"hold of {SAVE_IN_LOCK}, ms", ms(f"hold of {SAVE_IN_LOCK}")),
            line("its hold / ours", lambda figures: f"{ratio(figures, f'hold of {SAVE_IN_LOCK}', 'hold'):.0f}"),
            line(f"hold of {ASYNC_SAVE}, ms", ms(f"hold of {ASYNC_SAVE}")),
            line("its hold / ours", lambda figures: f"{ratio(figures, f'hold of {ASYNC_SAVE}', 'hold'):.0f}"),
            line(f"whole of {SAVE_IN_LOCK}, ms", ms(SAVE_IN_LOCK, 1e3)),
            line(f"whole of {ASYNC_SAVE}, ms", ms(ASYNC_SAVE, 1e3)),
            line("restore with selection, ms", ms("restore", 1e3)),
            line("of that selection, which verifies every file, ms", ms("selection", 1e3)),
            line("f.read() of the same files, ms", ms("read", 1e3)),
            line("restore / f.read() (aim: at most 2)", lambda figures: f"{ratio(figures, 'restore', 'read'):.2f}"),
        )
    )


async def at_size(groups: int, tokens: int) -> Figures:
    events: list[Mapping[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = await filled_parts(groups, tokens, events.append)
        seen = await measure(parts, events, folder)
        parts.data_plane.close()
        del parts
        return seen | await measure_restore(folder, groups)


def main() -> None:
    print("## nrl-rollout-ckpt: snapshots\n")
    print(
        f"{GROUPS:,} complete groups of {GROUP_SIZE} rows in the process-local data plane and {GROUPS:,} groups in the"
    )
    print(
        f"ledger with all siblings dispatched, by bytes of the rows. Median of {ROUNDS} interleaved rounds (lowest to"
    )
    print("highest), on the temporary folder's file system. Both peers copy the rows out of the plane first, as they")
    print("must; the lock is the same barrier.\n")
    sizes = {
        f"{GROUPS * GROUP_SIZE * tokens * BYTES_A_TOKEN / 2**20:,.0f} MiB": tokens for tokens in (TOKENS, 10 * TOKENS)
    }
    by_size = {label: asyncio.run(at_size(GROUPS, tokens)) for label, tokens in sizes.items()}
    show(by_size)
    small, large = by_size.values()
    growth = statistics.median(large["hold"]) / statistics.median(small["hold"])
    print(f"\nTen times the bytes hold {growth:.2f} times as long (aim: at most 1.5).")
    print("\n### Growth with the groups\n")
    counts = (500, 1_000, 2_000, 4_000)
    holds = [asyncio.run(at_size(groups, 16))["hold"] for groups in counts]
    rows = [
        [f"{2 * groups:,}", spread(hold, 1), f"{1e3 * statistics.median(hold) / (2 * groups):.2f}"]
        for groups, hold in zip(counts, holds, strict=True)
    ]
    print(table(["groups in index and ledger", "hold, ms", "microseconds a group"], *rows))


if __name__ == "__main__":
    main()
