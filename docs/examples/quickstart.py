"""Fine-tuning and reinforcement learning on a processor, killed once in each phase, and what came of every row.

Docstrings of Python's standard library become an Energon dataset. Two ranks fine-tune a little language model on it: a
loader feeds each of them through a data plane in its own process. Asynchronous GRPO goes on with the model, and two Ray
actors dump what it trained on. Each phase has processes of its own; SIGKILL ends them once, they are started again and
go on. A table at the end counts what is in the files.
"""

import argparse
import asyncio
import functools
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # all ranks are on this machine

import torch
from async_grpo import shown, train
from grpo_parts import GROUP_SIZE, GROUPS_PER_STEP
from library_questions import read_questions, write_conversations
from nrl_energon_loader.prepare import prepare_dataset
from nrl_interfaces.fileops import FileOps
from pool_dump import dump_steps
from quickstart_account import Account, Files
from sft_processes import Kill, Ranks
from survive_kills import in_child

MARKER = ".made-by-quickstart"
OURS = (
    *("conversations.jsonl", "dataset", "fine-tuning", "grpo", "dump", "cache", "journal.jsonl", "log.txt", "ray.txt"),
    *("dataset.lock", MARKER),
)


def main() -> int:
    options = parse_options()
    torch.set_num_threads(1)  # before any work: the children of a parent with threads of torch would hang
    began = time.monotonic()
    out = fresh_folder(options.out)
    logging.basicConfig(filename=out / "log.txt")  # what the pieces warn of, such as snapshots that kills left half
    files = files_of(out, options.sft_steps, options.prompts)
    journal = files.journal
    phases: dict[str, Callable[[Files], Iterator[int]]] = {
        "dataset": make_dataset,
        "fine-tuning": fine_tune,
        "GRPO": reinforce,
        "dump": dump,
    }
    for phase, run in phases.items():
        started, codes = time.monotonic(), []
        for code in run(files):
            journal.write("process", phase=phase, ended_by=code)
            print(f"{phase:12} {said(code)}", flush=True)
            codes.append(code)
        journal.write("phase", phase=phase, seconds=time.monotonic() - started)
        if codes != [-signal.SIGKILL, 0]:
            print(f"! {phase} should be killed once and come to its end: see {shown(out)}", file=sys.stderr)
            return 1
    account = Account.of(files)
    print(f"\n{account.table(time.monotonic() - began)}\n\nThe files are in {shown(out)}. Look at them:\n")
    print(*hints(files), sep="\n")
    return 0 if account.is_exact else 1


def files_of(out: Path, sft_steps: int, prompts: int) -> Files:
    """What a run is made of, and where."""
    questions = read_questions()
    return Files(out, questions, questions[:: len(questions) // prompts][:prompts], sft_steps)


def said(code: int) -> str:
    return "killed by SIGKILL, goes on" if code == -signal.SIGKILL else "done" if code == 0 else f"ended with {code}"


# ---- The phases: each gives how its processes ended, first the one that is killed ----


def make_dataset(files: Files) -> Iterator[int]:
    conversations = files.out / "conversations.jsonl"
    write_conversations(files.questions, conversations)

    class DyingOps(FileOps):
        """Kills this process when the files are there and their folder has not its name yet."""

        def rename(self, source: Path, target: Path) -> None:  # noqa: ARG002 - it never comes to that
            kill_this_process()

    for ops in DyingOps(), FileOps():
        yield in_child(lambda ops=ops: prepare_dataset(conversations, files.dataset, shard_size=50, ops=ops))


def fine_tune(files: Files) -> Iterator[int]:
    with Ranks(files.sft, quiet=True) as ranks:
        was_met = ranks.die(Kill(victims=(1,), phases=12, wait_s=0.01))  # phases: in the second step
        yield ranks.exit_codes[1] if was_met else 1
    with Ranks(files.sft, quiet=True) as ranks:
        yield next((code or 1 for code in ranks.wait() if code != 0), 0)


def reinforce(files: Files) -> Iterator[int]:
    answers = len(files.asked) * GROUP_SIZE
    for report in dying(files.journal.write, "answer", answers * 3 // 4), files.journal.write:
        yield in_child(lambda report=report: asyncio.run(train(files.make_grpo_run(files.grpo, report))))


def dump(files: Files) -> Iterator[int]:
    last_step = -(-len(files.asked) // GROUPS_PER_STEP) - 1

    def work(report: Callable[..., None]) -> None:
        # Ray tells of the killed actor on stdout, in many lines.
        with (files.out / "ray.txt").open("a") as ray_says:
            os.dup2(ray_says.fileno(), 1)
        dump_steps(files.dump, files.grpo_rows(), report)

    in_last_step = dying(files.journal.write, "group dumped", GROUPS_PER_STEP * last_step + 2)
    for report in in_last_step, files.journal.write:
        yield in_child(functools.partial(work, report), own_group=True)  # some of Ray's would stay for a minute


def dying(report: Callable[..., None], event: str, count: int) -> Callable[..., None]:
    """A report that kills this process at an event, when it has come so many times."""
    to_come = count

    def report_and_die(happened: str, **details: Any) -> None:
        nonlocal to_come
        report(happened, **details)
        to_come -= happened == event
        if to_come == 0:
            kill_this_process()

    return report_and_die


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# ---- Around them ----


def hints(files: Files) -> Iterator[str]:
    """Which command shows what."""
    dump, sft_dump, grpo = shown(files.dump), shown(files.sft.dumps), shown(files.grpo.checkpoint_dir)
    commands = {
        "nrl-energon-loader": [f"check-resume {shown(files.dataset)}"],
        "nrl-rollout-ckpt": [f"ls {grpo}", f"verify {grpo}", f"explain {grpo}"],
        "nrl-dump": [f"ls {sft_dump}", f'show {dump} --where "reward>0" --limit 2', f"verify {dump}"],
    }
    for tool, arguments in commands.items():
        yield from (f"  {shown(Path(sys.executable).parent / tool)} {each}" for each in arguments)


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


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("quickstart-run"), help="folder for the files (%(default)s)")
    parser.add_argument("--sft-steps", type=int, default=60, help="steps of fine-tuning (%(default)s)")
    parser.add_argument(
        "--prompts", type=int, default=48, help=f"questions that GRPO asks, {GROUPS_PER_STEP} a step (%(default)s)"
    )
    options = parser.parse_args()
    for name, least in ("sft_steps", 4), ("prompts", 2 * GROUPS_PER_STEP):
        if getattr(options, name) < least:
            option = name.replace("_", "-")
            parser.error(f"--{option} is {getattr(options, name)}: a number from {least} is needed")
    return options


if __name__ == "__main__":
    sys.exit(main())
