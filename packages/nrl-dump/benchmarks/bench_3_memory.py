"""Peak extra memory of `add_chunk` and `finish_step`, as the kernel counts it."""

import ctypes
import tempfile
from pathlib import Path

import torch
from bench_report import table
from measuring import batch
from nrl_dump import TrainDataDump

ROWS, LENGTH = 1024, 4096


def status(key: str) -> int:
    """A size of this process in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) * 1024


def extra(action) -> int:
    """How far the resident memory rose above where it was."""
    ctypes.CDLL(None).malloc_trim(0)  # memory that the batch's making left free would hide what is taken
    before = status("VmRSS:")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    action()
    return status("VmHWM:") - before


if __name__ == "__main__":
    torch.set_num_threads(1)
    chunk, first = batch(ROWS, LENGTH), batch(2, LENGTH)
    size = sum(column.nbytes for column in chunk["sequences"].values())
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory(prefix="bench-dump-") as folder:
        dump = TrainDataDump(folder)
        dump.add_chunk(step=0, **first)  # what is loaded only once
        dump.finish_step(0)
        rows.append(["add_chunk", f"{extra(lambda: dump.add_chunk(step=1, **chunk)) / 2**20:.1f}"])
        rows.append(["finish_step", f"{extra(lambda: dump.finish_step(1, ROWS)) / 2**20:.1f}"])
    print("## nrl-dump: memory\n")
    print(f"Peak resident memory above what it was before the call; {ROWS:,} rows x 6 columns x {LENGTH:,} tokens,")
    print(f"{size / 2**20:.0f} MiB of tensors, a row {size / ROWS / 2**10:.0f} KiB. Aim: below 2 rows and 32 MiB.\n")
    print(table(["call", "MiB"], *rows))
