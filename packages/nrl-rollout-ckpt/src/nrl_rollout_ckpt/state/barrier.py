"""Many mutations at once, or one checkpoint: who changes what a snapshot holds does it in a section of this barrier."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Final, Literal, get_args

MutationKind = Literal[
    "advantage_writeback",
    "group_commits",
    "group_removals",
    "other",
    "prompt_reservations",
    "recovery_restore",
    "recovery_retries",
    "sample_clears",
    "sibling_seals",
]
MUTATION_KINDS: Final[tuple[str, ...]] = get_args(MutationKind)
_WAITS_KEPT: Final = 1_000


class ExpiredCutError(RuntimeError):
    """Raised when a cut is used after its section ended.

    Attributes:
        section: What kind of section it was.
    """

    def __init__(self, section: str) -> None:
        super().__init__(section)
        self.section = section

    def __str__(self) -> str:
        return (
            f"the cut of a section {self.section!r} was used after the section had ended: do all of a change inside "
            "`async with barrier.mutation(...) as cut` and pass that cut on"
        )


class DataPlaneMutationCut:
    """Proof of being inside a section; given to whatever must not run outside of one.

    Attributes:
        section: The kind of mutation, or "checkpoint".
    """

    def __init__(self, section: str) -> None:
        self.section = section
        self._live = True

    @property
    def is_exclusive(self) -> bool:
        """Whether nobody else is in a section."""
        return self.section == "checkpoint"

    def require_live(self) -> None:
        """Do nothing while the section lasts.

        Raises:
            ExpiredCutError: Afterwards.
        """
        if not self._live:
            raise ExpiredCutError(self.section)

    def end(self) -> None:
        """Expire; the barrier calls it."""
        self._live = False


@dataclass(frozen=True)
class BarrierTelemetry:
    """What happened at the barrier since the last look.

    Attributes:
        blocked: By kind of mutation, how many had to wait.
        wait_s: How long each waited, in seconds; the last 1,000.
        most_waiting: The most that waited at one time.
        active: Mutations in their section now.
        waiting: Mutations that wait now.
        checkpoint_active: Whether a checkpoint is in its section or waits for it.
    """

    blocked: dict[str, int]
    wait_s: tuple[float, ...]
    most_waiting: int
    active: int
    waiting: int
    checkpoint_active: bool


class DataPlaneCheckpointBarrier:
    """Sections that many tasks share for mutations, and that one takes alone for a checkpoint.

    A checkpoint that arrives holds new mutations off at once and waits for those that are running. A task is in one
    section at a time: what it calls there is given the cut. For one event loop.

    Args:
        monotonic: The clock that waits are measured with, in seconds.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._wakeups: dict[asyncio.Future[None], None] = {}  # in the order in which they came
        self._holders: set[asyncio.Task[object]] = set()
        self._mutations = 0
        self._checkpoint_active = False
        self._mutation_version = 0
        self._waiting = 0
        self._most_waiting = 0
        self._blocked: Counter[str] = Counter()
        self._wait_s: deque[float] = deque(maxlen=_WAITS_KEPT)

    @property
    def mutation_version(self) -> int:
        """How many mutations have ended, those that raised too."""
        return self._mutation_version

    def is_in_section(self, task: asyncio.Task[object] | None) -> bool:
        """Whether this task is in a section, or waits for one."""
        return task in self._holders

    @contextlib.asynccontextmanager
    async def mutation(self, kind: MutationKind = "other") -> AsyncGenerator[DataPlaneMutationCut]:
        """Be in a section together with other mutations.

        Raises:
            ValueError: If the kind is not one of `MUTATION_KINDS`.
            RuntimeError: If this task is in a section already: pass its cut on instead.
        """
        if kind not in MUTATION_KINDS:
            raise ValueError(f"the kind of mutation is {kind!r}; allowed: {', '.join(MUTATION_KINDS)}")
        task = self._enter_task()
        try:
            await self._wait_for_checkpoint(kind)
            self._mutations += 1
            cut = DataPlaneMutationCut(kind)
            try:
                yield cut
            finally:
                cut.end()
                self._mutations -= 1
                self._mutation_version += 1
                self._wake()
        finally:
            self._holders.discard(task)

    @contextlib.asynccontextmanager
    async def checkpoint(self) -> AsyncGenerator[DataPlaneMutationCut]:
        """Be in the only section; waits for a checkpoint before it, then for all mutations.

        Raises:
            RuntimeError: If this task is in a section already.
        """
        task = self._enter_task()
        try:
            await self._wait_until(lambda: not self._checkpoint_active)
            self._checkpoint_active = True
            try:
                await self._wait_until(lambda: self._mutations == 0)
                cut = DataPlaneMutationCut("checkpoint")
                try:
                    yield cut
                finally:
                    cut.end()
            finally:
                self._checkpoint_active = False
                self._wake()
        finally:
            self._holders.discard(task)

    def drain_telemetry(self) -> BarrierTelemetry:
        """Say what happened since the last call, and begin anew."""
        seen = BarrierTelemetry(
            blocked=dict(self._blocked),
            wait_s=tuple(self._wait_s),
            most_waiting=self._most_waiting,
            active=self._mutations,
            waiting=self._waiting,
            checkpoint_active=self._checkpoint_active,
        )
        self._blocked.clear()
        self._wait_s.clear()
        self._most_waiting = self._waiting
        return seen

    def _enter_task(self) -> asyncio.Task[object]:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a section of the barrier was entered outside of any asyncio task")
        if task in self._holders:
            raise RuntimeError(
                f"task {task.get_name()!r} is in a section of the barrier or waits for one, and would wait for itself: "
                "pass the cut that it has to whatever it calls"
            )
        self._holders.add(task)
        return task

    async def _wait_for_checkpoint(self, kind: MutationKind) -> None:
        if not self._checkpoint_active:
            return
        started = self._monotonic()
        self._blocked[kind] += 1
        self._waiting += 1
        self._most_waiting = max(self._most_waiting, self._waiting)
        try:
            await self._wait_until(lambda: not self._checkpoint_active)
        finally:
            self._waiting -= 1
            self._wait_s.append(self._monotonic() - started)

    async def _wait_until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            wakeup = asyncio.get_running_loop().create_future()
            self._wakeups[wakeup] = None
            try:
                await wakeup
            finally:
                del self._wakeups[wakeup]

    def _wake(self) -> None:
        for wakeup in self._wakeups:
            if not wakeup.done():
                wakeup.set_result(None)
