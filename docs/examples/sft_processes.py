"""The ranks of a run as processes: forks of this one, which is warm. They can be killed at random moments."""

import contextlib
import gc
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from sft_rank import RANKS, TIME_LIMIT_S, Settings, run_rank

FORK = multiprocessing.get_context("fork")
LATEST_KILL = 20  # phases: two and a half steps of two ranks
LONGEST_WAIT_S = 0.05


@dataclass(frozen=True)
class Kill:
    """A moment: so many phases, of any rank, after the start, and a part of one more.

    Attributes:
        victims: The ranks that are killed.
        phases: How many phases are done before.
        wait_s: Seconds after the last one.
    """

    victims: tuple[int, ...]
    phases: int
    wait_s: float

    @classmethod
    def draw(cls, dice: random.Random) -> Self:
        """Draw a moment."""
        victims = dice.choice([(0,), (1,), (0, 1)])
        return cls(victims, dice.randint(0, LATEST_KILL), dice.uniform(0, LONGEST_WAIT_S))


class Ranks:
    """All ranks of a run; none of their processes outlives the block.

    Args:
        settings: What the run is made of.
        quiet: What the ranks print goes into files in the run's folder.
    """

    def __init__(self, settings: Settings, *, quiet: bool) -> None:
        self._settings = settings
        self._quiet = quiet
        self._meeting_point = settings.folder / "meeting-point"
        self._phases = FORK.Semaphore(0)  # released once for each phase that is done
        self._processes = [FORK.Process(target=self._work, args=(rank,)) for rank in range(RANKS)]

    def __enter__(self) -> Self:
        self._settings.folder.mkdir(exist_ok=True)
        self._meeting_point.unlink(missing_ok=True)  # of ranks that were killed
        gc.freeze()  # so that forks share the memory of what is here now
        for process in self._processes:
            process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end(range(RANKS))
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):  # its loader's workers, if it could not end them
                os.killpg(process.pid, signal.SIGKILL)

    def wait(self) -> list[int | None]:
        """Wait for the end of all ranks, or for the first that fails, and return their exit codes."""
        deadline = time.monotonic() + TIME_LIMIT_S + self._settings.steps
        while time.monotonic() < deadline and self._all_is_well() and any(each.is_alive() for each in self._processes):
            for process in self._processes:
                process.join(timeout=0.05)
        return self.exit_codes

    @property
    def exit_codes(self) -> list[int | None]:
        """Of each rank: 0, 1, minus a signal, or None while it runs."""
        return [process.exitcode for process in self._processes]

    def die(self, kill: Kill) -> bool:
        """Send SIGKILL to the victims at their moment; the other ranks are ended then. False if one ended before."""
        deadline, to_come = time.monotonic() + TIME_LIMIT_S, kill.phases
        while to_come and time.monotonic() < deadline and self._all_is_well():
            to_come -= self._phases.acquire(timeout=0.1)
        time.sleep(kill.wait_s)
        met = [self._processes[rank].is_alive() for rank in kill.victims]
        self._end(kill.victims)
        return not to_come and all(met)

    def _all_is_well(self) -> bool:
        return not any(process.exitcode for process in self._processes)

    def _end(self, which: Iterable[int]) -> None:
        doomed = [self._processes[rank] for rank in which]
        for process in doomed:
            process.kill()
        for process in doomed:
            process.join()

    def _work(self, rank: int) -> None:
        os.setpgid(0, 0)  # a group for this rank and its loader's workers
        if self._quiet:
            log = os.open(self._settings.folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)

        def report(phase: str, step: int, **numbers: float) -> None:
            self._phases.release()
            if rank == 0 and phase == "train":
                print(f"step {step + 1:3}  {'  '.join(f'{name} {value:.3f}' for name, value in numbers.items())}")
                sys.stdout.flush()

        run_rank(self._settings, rank, self._meeting_point, report)
