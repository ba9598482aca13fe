"""The environment runs after every attempt, whatever happened to the attempt."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest
from nrl_rollout_ckpt.saving.commit_window import CommitWindow
from nrl_rollout_ckpt.saving.environment_phase import EnvironmentPhase, enter_unless_a_step_commits
from nrl_rollout_ckpt.saving.outcomes import RolloutCheckpointAttemptReason as Reason
from nrl_rollout_ckpt.saving.snapshots import _warn_if_environment_paused_past_interval
from nrl_rollout_ckpt.testing import FakeClock

NewWorld = Callable[..., Any]


class HeldStep:
    """Holds the environment at one step until it is let go."""

    def __init__(self, step: str, instance: str = "env0") -> None:
        self.step, self.instance = step, instance
        self.reached, self.let_go = asyncio.Event(), asyncio.Event()

    async def __call__(self, step: str, instance: str) -> None:
        if (step, instance) == (self.step, self.instance):
            self.reached.set()
            await self.let_go.wait()


async def held(new_world: NewWorld, step: str) -> tuple[Any, asyncio.Task[Any], HeldStep]:
    """A world whose snapshot stands at a step of the environment's pause."""
    world = await new_world().populate()
    hold = HeldStep(step)
    world.environment.hook = hold
    saving = asyncio.ensure_future(world.snapshotter.save_snapshot())
    await hold.reached.wait()
    return world, saving, hold


async def assert_nothing_is_left(world: Any, resumed: int = 1) -> None:
    assert world.environment.resumed["env0"] == resumed
    world.assert_runs()
    assert world.snapshots() == []
    world.environment.hook = None
    async with asyncio.timeout(1):
        assert (await world.save()).saved
    world.close()


@pytest.mark.parametrize("step", ["prepare", "commit"])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_r03_cancelled_while_the_environment_is_being_paused(new_world: NewWorld, step: str, times: int) -> None:
    async def run() -> None:
        world, saving, _ = await held(new_world, step)
        for _ in range(times):
            saving.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await saving
        assert world.outcomes() == ["cancelled"]
        await assert_nothing_is_left(world)

    asyncio.run(run())


def test_r03_cancelled_again_while_the_environment_resumes(new_world: NewWorld) -> None:
    async def run() -> None:
        world, saving, _ = await held(new_world, "prepare")
        resuming = HeldStep("resume")
        world.environment.hook = resuming
        saving.cancel()
        await resuming.reached.wait()
        saving.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not saving.done()  # it waits until the environment runs
        resuming.let_go.set()
        with pytest.raises(asyncio.CancelledError):
            await saving
        await assert_nothing_is_left(world)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("planted"), "invariant_error"),
        (TimeoutError("planted"), "timeout"),
        (OSError(5, "planted"), "io_error"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("step", ["prepare", "commit", "resume"])
def test_r03_a_step_of_the_pause_raises(new_world: NewWorld, step: str, error: Exception, reason: str) -> None:
    async def fail(at: str, instance: str) -> None:
        if (at, instance) == (step, "env1"):
            raise error

    async def run() -> None:
        world = await new_world().populate()
        world.environment.hook = fail
        with pytest.raises(type(error), match="planted"):
            await world.save()
        assert world.outcomes() == [reason]
        await assert_nothing_is_left(world)

    asyncio.run(run())


def test_r03_the_body_raises(new_world: NewWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        world = await new_world().populate()
        with monkeypatch.context() as patch:
            patch.setattr(world.parts.prompt_source, "state_dict", lambda: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await world.save()
        await assert_nothing_is_left(world)

    asyncio.run(run())


@pytest.mark.parametrize("drain_snapshot", [True, False])
@pytest.mark.parametrize("step", ["prepare", "commit"])
def test_r03_a_commit_begins_while_the_environment_is_being_paused(
    new_world: NewWorld, step: str, drain_snapshot: bool
) -> None:
    async def run() -> None:
        world, saving, hold = await held(new_world, step)
        async with asyncio.timeout(1):  # nobody lets the pause go on: the commit does not wait for it
            await world.snapshotter.begin_optimizer_commit(drain_snapshot=drain_snapshot)
            result = await saving
        assert not hold.let_go.is_set()
        assert (result.saved, result.reason) == (False, Reason.TRAINER_STATE_CHANGED)
        world.snapshotter.end_optimizer_commit()
        await assert_nothing_is_left(world)

    asyncio.run(run())


def test_r03_a_commit_begins_and_the_attempt_is_cancelled_at_the_same_time(new_world: NewWorld) -> None:
    async def run() -> None:
        world, saving, _ = await held(new_world, "commit")
        await world.snapshotter.begin_optimizer_commit(drain_snapshot=False)
        saving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await saving
        world.snapshotter.end_optimizer_commit()
        await assert_nothing_is_left(world)

    asyncio.run(run())


def test_an_entry_that_ends_all_the_same_is_left_by_the_stack() -> None:
    calls: list[str] = []

    @contextlib.asynccontextmanager
    async def stubborn() -> AsyncGenerator[None]:
        calls.append("paused")
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        yield
        calls.append("resumed")

    async def run(*, cancelled: bool) -> None:
        window, stack = CommitWindow(), contextlib.AsyncExitStack()
        phase = EnvironmentPhase(stubborn(), FakeClock())
        entering = asyncio.ensure_future(enter_unless_a_step_commits(stack, phase, window))
        for _ in range(3):
            await asyncio.sleep(0)
        assert calls == ["paused"]
        if cancelled:
            entering.cancel()
            with pytest.raises(asyncio.CancelledError):
                await entering
        else:
            window.announce()
            assert await entering is True
        assert calls == ["paused"]
        await stack.aclose()
        assert calls == ["paused", "resumed"]
        calls.clear()

    asyncio.run(run(cancelled=True))
    asyncio.run(run(cancelled=False))


@pytest.mark.parametrize("commits", [True, False])
def test_an_entry_is_cancelled_once_so_that_its_cleanup_comes_to_its_end(commits: bool) -> None:
    calls: list[str] = []
    resumed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def careless() -> AsyncGenerator[None]:
        try:
            await asyncio.Event().wait()
            yield
        finally:
            calls.append("resuming")
            await resumed.wait()  # without any protection against another cancellation
            calls.append("resumed")

    async def run() -> None:
        window, stack = CommitWindow(), contextlib.AsyncExitStack()
        entering = asyncio.ensure_future(
            enter_unless_a_step_commits(stack, EnvironmentPhase(careless(), FakeClock()), window)
        )
        for number in range(6):
            await asyncio.sleep(0)
            if number == 1 and commits:
                window.announce()
            elif number > 1:
                entering.cancel()
        assert calls == ["resuming"]
        resumed.set()
        with pytest.raises(asyncio.CancelledError):
            await entering
        assert calls == ["resuming", "resumed"]

    asyncio.run(run())


def test_leaving_comes_to_its_end_whoever_is_cancelled() -> None:
    calls: list[str] = []
    resumed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def careless() -> AsyncGenerator[None]:
        yield
        await resumed.wait()
        calls.append("resumed")

    async def pause() -> None:
        async with EnvironmentPhase(careless(), FakeClock()):
            calls.append("paused")

    async def run() -> None:
        pausing = asyncio.ensure_future(pause())
        for number in range(6):
            await asyncio.sleep(0)
            if number > 1:
                pausing.cancel()
        assert calls == ["paused"]
        resumed.set()
        with pytest.raises(asyncio.CancelledError):
            await pausing
        assert calls == ["paused", "resumed"]

    asyncio.run(run())


def test_an_environment_that_cancels_itself_is_an_error() -> None:
    @contextlib.asynccontextmanager
    async def confused() -> AsyncGenerator[None]:
        raise asyncio.CancelledError
        yield

    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack:
            phase = EnvironmentPhase(confused(), FakeClock())
            with pytest.raises(RuntimeError, match="cancelled its own pause"):
                await enter_unless_a_step_commits(stack, phase, CommitWindow())

    asyncio.run(run())


def test_a_window_that_is_announced_already_pauses_nothing() -> None:
    @contextlib.asynccontextmanager
    async def pause() -> AsyncGenerator[None]:
        pytest.fail("paused")
        yield

    async def run() -> None:
        window = CommitWindow()
        window.announce()
        async with contextlib.AsyncExitStack() as stack:
            assert not await enter_unless_a_step_commits(stack, EnvironmentPhase(pause(), FakeClock()), window)

    asyncio.run(run())


def test_a_resume_that_fails_does_not_hide_the_cause() -> None:
    @contextlib.asynccontextmanager
    async def broken() -> AsyncGenerator[None]:
        try:
            yield
        finally:
            raise OSError(5, "no answer")

    async def run() -> None:
        with pytest.raises(ZeroDivisionError) as caught:
            async with EnvironmentPhase(broken(), FakeClock()):
                raise ZeroDivisionError
        assert "did not resume" in caught.value.__notes__[0]
        assert "no answer" in caught.value.__notes__[0]
        with pytest.raises(OSError, match="no answer"):
            async with EnvironmentPhase(broken(), FakeClock()):
                pass

    asyncio.run(run())


def test_the_environment_runs_while_the_files_are_written(new_world: NewWorld) -> None:
    async def run() -> None:
        world = await new_world().populate()
        running: list[bool] = []
        publish = world.snapshotter._publish

        async def watched(*args: Any) -> Any:
            running.append(world.environment.dispatch_is_open)
            return await publish(*args)

        world.snapshotter._publish = watched
        assert (await world.save()).saved
        assert running == [True]
        world.close()

    asyncio.run(run())


# ---- Warnings ----


def test_warns_of_a_pause_longer_than_the_interval(new_world: NewWorld, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        world = await new_world(settings={"snapshot_attempt_interval_s": 10.0}).populate()

        def takes(seconds: float) -> Callable[[str, str], Awaitable[None]]:
            async def slow(step: str, instance: str) -> None:
                if (step, instance) == ("prepare", "env0"):
                    world.parts.clock.advance(seconds)

            return slow

        for seconds, warned in ((10.0, False), (10.2, True)):
            world.environment.hook = takes(seconds)
            caplog.clear()
            await world.save()
            assert ("the environment was paused for 10.2 s" in caplog.text) is warned
        assert world.events[-2]["timing/rollout_checkpoint/environment_pause_seconds"] == pytest.approx(10.2)
        world.close()

    asyncio.run(run())
    caplog.clear()
    _warn_if_environment_paused_past_interval(1e9, None)
    assert caplog.text == ""


def test_warns_once_a_streak_of_snapshots_that_lose_to_train_steps(
    new_world: NewWorld, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        world = await new_world().populate()

        async def commit(step: str, instance: str) -> None:
            if (step, instance) == ("prepare", "env0"):
                await world.snapshotter.begin_optimizer_commit(drain_snapshot=False)

        async def lose(times: int) -> int:
            caplog.clear()
            world.environment.hook = commit
            for _ in range(times):
                assert (await world.save()).reason is Reason.TRAINER_STATE_CHANGED
                world.snapshotter.end_optimizer_commit()
            return caplog.text.count("snapshots in a row were discarded")

        assert await lose(2) == 0
        assert await lose(4) == 1  # the third one, and no other of this streak
        world.environment.hook = None
        assert (await world.save()).saved
        assert await lose(3) == 1
        world.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
