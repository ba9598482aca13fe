"""Supervised fine-tuning by two ranks, that goes on where it was killed, bit for bit.

Each rank has a loader, a data plane in its own process, the weights and a dump writer; one checkpoint has it all. A run
that is started again in the same folder goes on. `--kills 10` compares a run that is killed ten times with one that
never stops.
"""

import argparse
import json
import os
import random
import shutil
import sys
import time
from pathlib import Path

os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # all ranks are on this machine

import torch
from nrl_energon_loader.prepare import prepare_dataset
from sft_comparison import differences, newest_checkpoint, trained_on
from sft_processes import Kill, Ranks
from sft_rank import RANKS, Settings

MARKER = ".made-by-colocated-sft"
STEPS_A_KILL = 3  # a kill comes before the third step after a start is done


def main() -> int:
    options = parse_options()
    torch.set_num_threads(1)  # before any work: the children of a parent with threads of torch would hang
    enter(options.out, anew=options.kills > 0)
    dataset = options.out / "dataset"
    if not dataset.exists():
        make_dataset(options.out / "conversations.jsonl", dataset)
    if options.kills == 0:
        return 0 if train(Settings(options.out / "run", dataset, options.steps), quiet=False) else 1
    began = time.monotonic()
    undisturbed, killed = (Settings(options.out / name, dataset, options.steps) for name in ("undisturbed", "killed"))
    if not (train(undisturbed, quiet=True) and train_and_kill(killed, options.kills, random.Random(options.seed))):
        return 1
    found = differences(undisturbed, killed)
    rows = sum(len(trained_on(newest_checkpoint(killed), rank)) for rank in range(RANKS))
    table = {"kills": options.kills, "steps": options.steps, "rows trained on": rows, "differences": len(found)}
    print(*(f"{name:20}{number:6}" for name, number in table.items()), sep="\n")
    print(f"seconds{time.monotonic() - began:19.1f}")
    print(*(f"! {difference}" for difference in found), sep="\n")
    return 1 if found else 0


def train(settings: Settings, *, quiet: bool) -> bool:
    """Take a run to its end, and tell whether it came there."""
    with Ranks(settings, quiet=quiet) as ranks:
        codes = ranks.wait()
    if any(code != 0 for code in codes):
        said = f"{settings.folder}/rank*.log" if quiet else "above"
        print(f"! the ranks ended with {codes}, where None is too late: see {said}", file=sys.stderr)
    return all(code == 0 for code in codes)


def train_and_kill(settings: Settings, kills: int, dice: random.Random) -> bool:
    """Start a run and kill it so many times, then take it to its end, and tell whether all of that happened."""
    for number in range(1, kills + 1):
        kill, newest = Kill.draw(dice), newest_checkpoint(settings)
        with Ranks(settings, quiet=True) as ranks:
            was_met = ranks.die(kill)
        victims = " and ".join(f"rank {rank}" for rank in kill.victims)
        where = f"{kill.phases:2} phases and {1e3 * kill.wait_s:2.0f} ms"
        print(
            f"start {number:2} from {newest.name if newest else 'nothing':7}  SIGKILL to {victims} after {where}",
            flush=True,
        )
        if not was_met:
            print(f"! a rank ended before its kill: see {settings.folder}/rank*.log", file=sys.stderr)
            return False
    newest = newest_checkpoint(settings)
    print(f"start {kills + 1:2} from {newest.name if newest else 'nothing':7}  to the end", flush=True)
    return train(settings, quiet=True)


def make_dataset(source: Path, dataset: Path) -> None:
    """Conversations about sums, as shards."""
    turns = [(f"{a} + {b}?", str(a + b)) for a in range(2, 9) for b in range(a, 9)]
    conversations = [
        {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]}
        for asked, answer in turns
    ]
    source.write_text("".join(json.dumps(conversation) + "\n" for conversation in conversations))
    prepare_dataset(source, dataset, shard_size=7)


def enter(out: Path, *, anew: bool) -> None:
    """Make the folder, or take away what an earlier run of this script made in it; a folder of others is refused."""
    if out.exists() and not (out / MARKER).is_file() and (not out.is_dir() or any(out.iterdir())):
        sys.exit(f"{out} is there and was not made by this script: name another folder with --out")
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).touch()
    for name in ("undisturbed", "killed") if anew else ():
        shutil.rmtree(out / name, ignore_errors=True)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path("colocated-sft-run"), help="folder for the files (%(default)s)"
    )
    parser.add_argument("--steps", type=int, default=STEPS_A_KILL * 10, help="train steps (%(default)s)")
    parser.add_argument(
        "--kills", type=int, default=0, help="make two runs, kill one so many times, compare (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills (%(default)s)")
    options = parser.parse_args()
    for name, least in ("steps", 1), ("kills", 0):
        if getattr(options, name) < least:
            parser.error(f"--{name} is {getattr(options, name)}: a number from {least} is needed")
    if options.steps < STEPS_A_KILL * options.kills:
        parser.error(f"--steps is {options.steps}: {options.kills} kills need {STEPS_A_KILL * options.kills} or more")
    options.out = options.out.absolute()
    return options


if __name__ == "__main__":
    sys.exit(main())
