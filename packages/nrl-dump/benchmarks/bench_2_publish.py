"""The merge against copying the same bytes with fsync; its growth with rows and parts."""

import os
import shutil
from pathlib import Path

import torch
from bench_report import ratio, spread, table
from measuring import batch, rounds
from nrl_dump import TrainDataDump

SHARDS = 4
BLOCK = 1 << 20


def write_parts(folder: Path, rows: int, length: int) -> None:
    """The parts as the writers leave them: flushed, so that no old write is in the way of the one measured."""
    for shard in range(SHARDS):
        with TrainDataDump(folder, shard_id=str(shard)) as dump:
            dump.add_chunk(step=0, **batch(rows // SHARDS, length))


def copy_blocks(folder: Path) -> None:
    """The same bytes, read and written in blocks, with one fsync."""
    buffer = memoryview(bytearray(BLOCK))
    with (folder / "copy").open("wb", buffering=0) as out:
        for part in sorted(folder.glob("*.part-*")):
            with part.open("rb", buffering=0) as file:
                while size := file.readinto(buffer):
                    out.write(buffer[:size])
        os.fsync(out.fileno())


def copy_and_remove(folder: Path) -> None:
    """The same, and then the parts are removed, as `finish_step` does."""
    copy_blocks(folder)
    for part in folder.glob("*.part-*"):
        part.unlink()


def copy_by_kernel(folder: Path) -> None:
    """The same bytes by shutil.copyfile, which lets the kernel move them."""
    for part in sorted(folder.glob("*.part-*")):
        copy = folder / f"copy-{part.name}"
        shutil.copyfile(part, copy)
        with copy.open("rb+") as file:
            os.fsync(file.fileno())


def publish(folder: Path) -> None:
    TrainDataDump(folder).finish_step(0)


BLOCKS, REMOVED, KERNEL = "read, write, fsync", "the same, parts removed", "shutil.copyfile, fsync"
WAYS = {BLOCKS: copy_blocks, REMOVED: copy_and_remove, KERNEL: copy_by_kernel, "finish_step": publish}


def against_copying(rows: int, length: int, count: int) -> None:
    prepared = Path(os.environ.get("TMPDIR", "/tmp")) / f"bench-dump-parts-{os.getpid()}"
    write_parts(prepared, rows, length)
    size = sum(part.stat().st_size for part in prepared.glob("*.part-*"))
    try:
        seconds = rounds(WAYS, count, lambda folder: shutil.copytree(prepared, folder, dirs_exist_ok=True))
    finally:
        shutil.rmtree(prepared)
    print(f"\n{rows:,} rows x 6 columns x {length:,} tokens in {SHARDS} parts, {size / 1e6:,.0f} MB:\n")
    rows_of_table = (
        [name, spread([1e3 * s for s in values], 0), spread([size / 1e6 / s for s in values], 0)]
        for name, values in seconds.items()
    )
    print(table(["way", "ms", "MB/s"], *rows_of_table))
    print(f"\n`finish_step` takes {ratio(seconds, 'finish_step', BLOCKS):.2f} times the copy in blocks,")
    print(f"{ratio(seconds, 'finish_step', REMOVED):.2f} times with the parts removed as well, and")
    print(f"{ratio(seconds, 'finish_step', KERNEL):.2f} times the kernel's copy.")


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("## nrl-dump: publishing\n")
    print(
        "`finish_step` finds the parts, checks columns and every line's ends, numbers and counts the rows, digests the"
    )
    print("file, writes it and the manifest with fsync, renames both, fsyncs the folder and removes the parts. Aim: at")
    print("most 1.3 times copying the same bytes with fsync. Short rows cost half a microsecond each on top.")
    against_copying(2048, 4096, 9)
    against_copying(100_000, 24, 9)
