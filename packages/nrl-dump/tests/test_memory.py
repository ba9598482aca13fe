"""No second copy of the batch: peak memory, measured by the kernel in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import ctypes, json, sys
from pathlib import Path
import torch
from nrl_dump import TrainDataDump

ROWS, LENGTH = 256, 65_536


def status(key):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) * 1024


def extra(action):
    ctypes.CDLL(None).malloc_trim(0)  # memory that the batch's making left free would hide what is taken
    before = status("VmRSS:")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    action()
    return status("VmHWM:") - before


def batch(kind):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, LENGTH, generator=generator)
    if kind == "nan":
        x[:, ::7] = float("nan")
    if kind == "strided":
        x = x.t().contiguous().t()
    if kind == "bfloat16":
        x = x.bfloat16()
    return x


def add(dump, step, rows, x):
    dump.add_chunk(
        step=step,
        sample_ids=[str(i) for i in range(rows)],
        tags=None,
        input_lengths=torch.full((rows,), x.shape[1]),
        sequences={"x": x},
        scalars={},
    )


x = batch(sys.argv[2])
dump = TrainDataDump(sys.argv[1])
add(dump, 0, 2, x[:2])  # what is only loaded once
dump.finish_step(0)
row = x.element_size() * LENGTH
print(json.dumps({
    "row": row,
    "batch": row * ROWS,
    "add_chunk": extra(lambda: add(dump, 1, ROWS, x)),
    "finish_step": extra(lambda: dump.finish_step(1, ROWS)),
}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from Linux's /proc, the heap trimmed by glibc")
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "nan", "strided"])
def test_peak_memory_stays_below_two_rows_and_32_mib(tmp_path: Path, kind: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), kind], check=True, capture_output=True, text=True, timeout=300
    )
    figures = json.loads(run.stdout)
    allowed = 2 * figures["row"] + (32 << 20)
    assert figures["batch"] >= allowed - (2 << 20), "the batch must be too large to be copied unseen"
    assert figures["add_chunk"] < allowed, figures
    assert figures["finish_step"] < allowed, figures
