"""A pump over a saver that does what a test says."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from nrl_rollout_ckpt.config import RolloutCheckpointConfig
from nrl_rollout_ckpt.saving.commit_window import CommitWindow
from nrl_rollout_ckpt.saving.deadline import TimeoutChecker
from nrl_rollout_ckpt.saving.outcomes import RolloutCheckpointAttemptReason as Reason
from nrl_rollout_ckpt.saving.outcomes import RolloutCheckpointSaveResult
from nrl_rollout_ckpt.saving.pump import SnapshotPump
from nrl_rollout_ckpt.state.rollout_state import TrainingProgress
from nrl_rollout_ckpt.testing import FakeClock

Step = RolloutCheckpointSaveResult | BaseException | Callable[[], Awaitable[None]]


class PumpBench:
    """Everything around a pump.

    Attributes:
        script: What the next saves do: give a result, raise, or do something and then save as far as that is possible.
        durable: The trainer's checkpoints that are durable.
        saves: (moment, force, train step, reason) of each save that has begun; the reason is "" until it has ended.
    """

    def __init__(self, *, budget_s: float | None = None, margin_s: float | None = 0, **config: Any) -> None:
        self.clock = FakeClock()
        self.progress = TrainingProgress()
        self.timeout = TimeoutChecker(budget_s, margin_s=margin_s, clock=self.clock)
        self.window = CommitWindow()
        self.script: list[Step] = []
        self.durable: set[int] = set()
        self.saves: list[tuple[float, bool, int, str]] = []
        self.is_saving = False
        self.pump = SnapshotPump(
            save=self.save,
            window=self.window,
            progress=self.progress,
            timeout=self.timeout,
            config=RolloutCheckpointConfig(**{"snapshot_attempt_interval_s": 100.0, **config}),
            clock=self.clock,
        )

    async def save(self, *, force: bool) -> RolloutCheckpointSaveResult:
        assert not self.is_saving, "two saves at once"
        self.is_saving = True
        begin = (self.clock.monotonic(), force, self.progress.train_steps)
        self.saves.append((*begin, ""))
        try:
            await asyncio.sleep(0)
            step = self.script.pop(0) if self.script else None
            if isinstance(step, BaseException):
                raise step
            if isinstance(step, RolloutCheckpointSaveResult):
                result = step
            else:
                if step is not None:
                    await step()
                result = self.outcome_now()
            self.saves[-1] = (*begin, result.reason.value)
            return result
        finally:
            self.is_saving = False

    def outcome_now(self) -> RolloutCheckpointSaveResult:
        """What the real saver would say."""
        if not self.window.is_closed:
            return skipped(Reason.OPTIMIZER_COMMIT_IN_PROGRESS)
        step = self.progress.train_steps
        if step and step not in self.durable:
            return skipped(Reason.MISSING_TRAINER_ANCHOR, f"step_{step} is not durable")
        anchor = f"step_{step}" if step else "bootstrap"
        path = Path(anchor, f"snapshot_{len(self.saves):06}")
        return RolloutCheckpointSaveResult(saved=True, reason=Reason.COMPLETED, path=path)

    @property
    def reasons(self) -> list[str]:
        """Why each save that has ended ended so; "" for one that raised."""
        return [reason for *_, reason in self.saves]

    def publish(self, step: int) -> None:
        """The trainer's checkpoint of `step` becomes durable."""
        self.durable.add(step)
        self.pump.trainer_checkpoint_published(step)

    def end_step(self) -> None:
        """A train step ends whose commit had begun."""
        self.progress.advance()
        self.window.close()

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await settle()

    def play(self, story: Callable[["asyncio.Task[None]"], Coroutine[Any, Any, None]]) -> None:
        """Run the pump beside `story`, which gets its task."""

        async def run() -> None:
            task = asyncio.create_task(self.pump.run())
            await settle()
            try:
                async with asyncio.timeout(10):  # a pump that sleeps for ever is a failure, not a hang
                    await story(task)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

        asyncio.run(run())


def skipped(reason: Reason, details: str = "") -> RolloutCheckpointSaveResult:
    return RolloutCheckpointSaveResult(saved=False, reason=reason, details=details)


async def settle() -> None:
    """Let every task run as far as it gets without time passing."""
    for _ in range(30):
        await asyncio.sleep(0)


@pytest.fixture
def make_bench() -> type[PumpBench]:
    return PumpBench


@pytest.fixture
def bench() -> PumpBench:
    return PumpBench()
