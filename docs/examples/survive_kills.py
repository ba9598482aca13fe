"""Kills a run again and again in child processes, starts it each time, and gives account of every prompt."""

import asyncio
import contextlib
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from arithmetic_run import ArithmeticRun
from grpo_parts import GROUP_SIZE, Run, Settings
from kill_moments import PLACES, ForgetfulLedger, Journal, Killer, Moment, plan
from prompt_account import Account

Start = Callable[[Moment | None], int]
"""Goes on with the run until the moment of a kill, or to its end; gives minus the signal, or 0, or 1 for an error."""


def survive(
    start: Start, account_after: Callable[[list[str]], Account], settings: Settings, journal: Journal, kills: int
) -> int:
    """Kill a run as planned, let it come to its end, print the account, and return the exit code."""
    began = time.monotonic()
    problems: list[str] = []
    for number, moment in enumerate((*plan(kills, settings), None), start=1):
        ended_by = start(moment)
        print(line_of(number, journal, moment), flush=True)
        if found := problem_with(settings, journal, moment, ended_by):
            problems.append(found)
            break
    account = account_after(problems)
    print(f"\n{account.table()}\n\n{kept_work(journal)}\nseconds{time.monotonic() - began:>32.1f}")
    return 0 if account.is_exact else 1


def starts_here(
    train: Callable[[Run], Coroutine[Any, Any, None]],
    settings: Settings,
    journal: Journal,
    report: Callable[..., None],
    *,
    plant_fault: bool,
) -> Start:
    """Start the run in this process, which gets its signals; in a child of it if it is to be killed."""
    parts: dict[str, Any] = {"ledger_class": ForgetfulLedger} if plant_fault else {}

    def start(moment: Moment | None) -> int:
        if moment is not None:
            return in_child(lambda: asyncio.run(train(Killer(moment, journal).run(settings, **parts))))
        try:
            asyncio.run(train(ArithmeticRun(settings, report, **parts)))
        except Exception:  # noqa: BLE001 - the account says what came of it
            traceback.print_exc()
            return 1
        return 0

    return start


def in_child(work: Callable[[], object], *, own_group: bool = False) -> int:
    """Run `work` in a fork of this process, which is warm; gives 0, or minus the signal, or 1 if it raised.

    With `own_group` the processes that it started are killed when it has ended.
    """
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            if own_group:
                os.setpgid(0, 0)
            work()
            code = 0
        except BaseException:  # noqa: BLE001 - a child must not go on as its parent
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        if own_group:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def problem_with(settings: Settings, journal: Journal, moment: Moment | None, ended_by: int) -> str | None:
    """Compare how a process ended with what was planned, and what its journal says with what is on the disk."""
    if moment is None:
        return "the run ended with an error" if ended_by else None
    pid = journal.read("start")[-1]["pid"]
    kills = [kill for kill in journal.read("kill") if kill["pid"] == pid]
    if ended_by != -signal.SIGKILL or not kills:
        return f"the run ended with {ended_by} before a kill during {moment.phase}; more --prompts make it longer"
    kill = kills[-1]
    proved = {
        "snapshot": any(settings.checkpoint_dir.rglob("tmp_snapshot_*")),
        "optimizer commit": kill["updates"] == kill["train_steps"] + 1,
        "publication": Path(kill.get("published", "?")).exists(),
        "generation": kill["episodes"] > 0,
    }
    holds = kill["phase"] == moment.phase and proved[moment.phase]
    return None if holds else f"nothing proves a kill during {moment.phase}: {kill}"


def line_of(number: int, journal: Journal, moment: Moment | None) -> str:
    """What one process did."""
    ended_by = f"a kill during {moment.phase}: {moment.place}" if moment else "itself"
    start = journal.read("start")[-1]
    steps = [step["step"] for step in journal.read("step") if step["pid"] == start["pid"]]
    done = f"{steps[0]} to {steps[-1]}" if steps else "-"
    return f"start {number:2} from {start['source']:44}steps {done:9}ended by {ended_by}"


def kept_work(journal: Journal) -> str:
    """What the kills cost and what they did not, as lines."""
    by_phase = Counter(kill["phase"] for kill in journal.read("kill"))
    starts, generations = journal.read("start"), journal.read("generation")
    kept = sum(start["siblings_kept"] + GROUP_SIZE * start["groups_kept"] for start in starts)
    begun = Counter(generation["sibling"] for generation in generations if generation["from_turn"] == 0)
    rows = {
        "kills": by_phase.total(),
        **{f"  during {phase}": by_phase[phase] for phase in PLACES},
        "generations": len(begun),
        "  kept over a kill": kept,
        "  gone on with at a later turn": sum(generation["from_turn"] > 0 for generation in generations),
        "  run again from the first turn": begun.total() - len(begun),
        "turns kept of unfinished ones": sum(start["turns_kept"] for start in starts),
    }
    return "\n".join(f"{name:33}{count:6}" for name, count in rows.items())
