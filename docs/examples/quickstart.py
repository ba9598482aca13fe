"""Three steps of reinforcement learning on a processor, and a dump of each that is whole although a writer is killed.

A little language model answers questions about Python's standard library. Each step's rows go to two Ray actors, which
write them down; in step 2 one of them is killed in the middle. Each step is published in one move, checked, and read
back bit for bit.
"""

import argparse
import contextlib
import logging
import os
import shlex
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

os.environ["RAY_AUTH_MODE"] = "disabled"  # a cluster of one machine; else Ray writes a token under the home folder
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import ray
import torch
from library_questions import read_questions, train_tokenizer
from little_policy import LittlePolicy, learn, roll_out, teach
from nrl_dump import read_step, read_tensors, verify
from nrl_dump.pool import DumpPool, ShardDiedError
from nrl_interfaces.batch import BatchedDataDict
from nrl_interfaces.layout import to_jagged
from tqdm import tqdm

SEQUENCES = ("token_ids", "token_mask", "logprobs", "logprobs_bf16", "advantages")
SCALARS = ("reward", "prompt_ids")
KILL_IN_STEP = 2
GROUP_SIZE = 8
MARKER = ".made-by-quickstart"
BAR = "{desc:30}{bar:30} {n_fmt}/{total_fmt}  {elapsed}"
OURS = ("dump", "cache", "ray.txt", MARKER)


def main() -> int:
    options = parse_options()
    out = fresh_folder(options.out)
    console = sys.stdout
    bar = tqdm(
        total=options.steps + 2, desc="starting", disable=None, leave=False, bar_format=BAR
    )  # on a terminal only

    def say(line: str) -> None:
        bar.clear()
        print(line, file=console, flush=True)
        bar.refresh()

    # Ray tells of the killed actor on stdout, in many lines.
    with bar, (out / "ray.txt").open("w") as ray_says, contextlib.redirect_stdout(ray_says):
        torch.manual_seed(0)
        torch.set_num_threads(1)  # the writers work on the other core
        logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)  # warns of what nested tensors do inside
        questions = read_questions()
        asked = questions[:: max(len(questions) // options.prompts, 1)][: options.prompts]
        tokenizer = train_tokenizer(questions, vocab_size=1024)
        policy = LittlePolicy(tokenizer.get_vocab_size())
        optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
        size = sum(p.numel() for p in policy.parameters())
        say(f"{len(questions)} questions, a model of {size:,} parameters, 2 writers\n\n{HEADING}")
        with local_ray():
            bar.set_description("teaching the model to write")
            with DumpPool(out / "dump", num_shards=2) as pool:
                teach(policy, tokenizer, questions, updates=250)
                bar.update()
                for step in range(options.steps):
                    bar.set_description(f"step {step + 1}")
                    batch = roll_out(policy, tokenizer, asked, GROUP_SIZE, step)
                    say(dump_and_check(pool, out / "dump", batch, step))
                    learn(policy, optimizer, batch)
                    bar.update()
        bar.set_description("loading with datasets")
        rows = load_with_datasets(out, steps=options.steps)
    wanted = options.steps * len(asked) * GROUP_SIZE
    check(rows == wanted, f"datasets loaded {rows} rows, and {wanted} were written")
    print(f"\nEvery column of every row came back bit for bit. `datasets` loads the {rows} rows, too.")
    print(f"The files are in {options.out}. Look at them:\n")
    command = shown(Path(sys.executable).parent / "nrl-dump")
    dump = shown(out / "dump")
    for line in f"ls {dump}", f'show {dump} --where "reward>0.1" --limit 2', f"verify {dump}":
        print(f"  {command} {line}")
    return 0


# ---- One step ----

HEADING = "step  rows  tokens  mean reward    MB  dump s  publish ms  verified  what happened"


def dump_and_check(pool: DumpPool, folder: Path, batch: BatchedDataDict[dict], step: int) -> str:
    """Write a step, publish it, compare what is on disk with the batch, and return a line of the table."""
    kill_at = batch.size // GROUP_SIZE // 2 if step + 1 == KILL_IN_STEP else None
    began = time.perf_counter()
    happened = dump(pool, batch, step, kill_at)
    dumped = time.perf_counter()
    manifest = pool.finish_step(step)
    published = time.perf_counter()

    path = folder / f"train_data_step{step + 1}.jsonl"
    check(verify(path) == manifest, f"{path} is not what was published")
    compare(path, batch)
    numbers = f"{step + 1:4}  {manifest.rows:4}  {int(batch['input_lengths'].sum()):6}  {batch['reward'].mean():11.3f}"
    times = f"{dumped - began:6.2f}  {1e3 * (published - dumped):10.1f}"
    return f"{numbers}  {manifest.bytes / 1e6:4.2f}  {times}  {'yes':8}  {happened}"


def dump(pool: DumpPool, batch: BatchedDataDict[dict], step: int, kill_at: int | None) -> str:
    """Give the batch to the pool, a group at a time, and give again what a writer took to its grave."""
    row_of = {sample_id: row for row, sample_id in enumerate(batch["sample_id"])}
    groups = [list(range(first, first + GROUP_SIZE)) for first in range(0, batch.size, GROUP_SIZE)]
    to_do = deque((pool.shard_ids[number % 2], rows) for number, rows in enumerate(groups))
    happened = "-"
    while True:
        try:
            while to_do:
                if kill_at is not None and len(to_do) == len(groups) - kill_at:
                    kill_at = None
                    os.kill(pool.owners["1"].pid, signal.SIGKILL)
                shard, rows = to_do[0]
                pool.add_chunk(shard, step=step, **as_chunk(batch.select_indices(rows)))
                to_do.popleft()
            pool.flush(step)
        except ShardDiedError as died:
            lost = pool.restart_shard(died.shard_id).get(step, [])
            to_do.append((died.shard_id, [row_of[sample_id] for sample_id in lost]))
            happened = f"writer {died.shard_id} was killed, its {len(lost)} rows were written again"
        else:
            return happened


def as_chunk(batch: BatchedDataDict[dict]) -> dict:
    return {
        "sample_ids": batch["sample_id"],
        "tags": batch["tags"],
        "input_lengths": batch["input_lengths"],
        "sequences": {name: batch[name] for name in SEQUENCES},
        "scalars": {name: batch[name] for name in SCALARS},
    }


def compare(path: Path, batch: BatchedDataDict[dict]) -> None:
    """Exit unless a published step has each row of the batch once, and the same bits in it."""
    on_disk = list(read_step(path))
    row_of = {sample_id: row for row, sample_id in enumerate(batch["sample_id"])}
    order = [row_of.pop(row["sample_id"][0], -1) for row in on_disk]
    check(not row_of and -1 not in order, f"{path} lacks {list(row_of)}, or has rows that are not of the batch")
    wanted = batch.select_indices(order)
    check([row["metadata"][0] for row in on_disk] == wanted["tags"], f"{path} has other tags")
    for name, column in read_tensors(path).items():
        like = to_jagged(wanted[name], wanted["input_lengths"]) if name in SEQUENCES else wanted[name]
        check(same_bits(column, like), f"column {name!r} of {path} has other bits than the batch")


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.is_nested and other.is_nested:
        pairs = [(one.values(), other.values()), (one.offsets(), other.offsets())]
        return all(same_bits(mine, theirs) for mine, theirs in pairs)
    same_kind = one.dtype == other.dtype and one.shape == other.shape
    return same_kind and torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


# ---- Around it ----


def load_with_datasets(out: Path, steps: int) -> int:
    """Load all steps as one data set, and return its rows; nothing but files is needed, and no network is used."""
    os.environ.update(HF_HUB_OFFLINE="1", HF_HOME=str(out / "cache"), HF_DATASETS_DISABLE_PROGRESS_BARS="1")
    import datasets  # slow to import

    files = [str(out / "dump" / f"train_data_step{number}.jsonl") for number in range(1, steps + 1)]
    loaded = datasets.load_dataset("json", data_files=files, split="train")
    return len(loaded)


@contextlib.contextmanager
def local_ray() -> Iterator[None]:
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100 * 2**20,
        log_to_driver=False,
        logging_level="ERROR",
        _node_ip_address="127.0.0.2",  # loopback; Ray takes 127.0.0.1 for the address of the machine
    )
    try:
        yield
    finally:
        ray.shutdown()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("quickstart-run"), help="folder for the files (%(default)s)")
    parser.add_argument("--steps", type=int, default=3, help="steps of training (%(default)s)")
    parser.add_argument(
        "--prompts", type=int, default=24, help=f"questions a step, {GROUP_SIZE} answers each (%(default)s)"
    )
    options = parser.parse_args()
    for name in "steps", "prompts":
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}: a number from 1 is needed")
    return options


def fresh_folder(out: Path) -> Path:
    """Make the folder, or take away what an earlier run of this script made in it; a folder of others is refused."""
    if out.exists() and not (out / MARKER).is_file() and (not out.is_dir() or any(out.iterdir())):
        sys.exit(f"{out} is there and was not made by this script: name another folder with --out")
    out.mkdir(parents=True, exist_ok=True)
    for name in OURS:
        path = out / name
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    (out / MARKER).write_text("quickstart.py removes what it made here before it runs again\n")
    return out.resolve()


def shown(path: Path) -> str:
    """A path as short as it can be said from here, for a command line."""
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))


def check(holds: object, otherwise: str) -> None:
    if not holds:
        sys.exit(f"quickstart: {otherwise}")


if __name__ == "__main__":
    sys.exit(main())
