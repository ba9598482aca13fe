"""The check of environments passes a right one and names what is broken in wrong ones."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncGenerator, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from nrl_interfaces.rollout import EnvironmentEpisode, LiveCut, RestoredEnvironmentRollouts
from nrl_interfaces.testing.rollout import check_environment_checkpoint

EPISODES = (EnvironmentEpisode("env0", "a"), EnvironmentEpisode("env0", "b", 1), EnvironmentEpisode("env1", "c"))


class Saved:
    def __init__(self, episodes: Sequence[EnvironmentEpisode]) -> None:
        self.episodes = tuple(episodes)

    async def check_against_cut(self, cut: LiveCut) -> None:
        cut.require_live()
        await asyncio.sleep(0)


class Environment:
    """Paused by each await of `pause`, resumed by a task that nobody's cancellation reaches."""

    keeps_state = True

    def __init__(self, episodes: Sequence[EnvironmentEpisode] = ()) -> None:
        self.episodes = list(episodes)
        self.is_running = True

    async def pause(self) -> None:
        await asyncio.sleep(0)
        self.is_running = False
        await asyncio.sleep(0)

    async def resume(self) -> None:
        await asyncio.sleep(0)
        self.is_running = True

    def write(self, path: Path) -> Saved:
        path.mkdir()
        rows = [[each.instance_id, each.rollout_id, each.attempt] for each in self.episodes]
        (path / "episodes.json").write_text(json.dumps(rows))
        return Saved(self.episodes)

    @contextlib.asynccontextmanager
    async def snapshot(self, path: Path) -> AsyncGenerator[Saved]:
        try:
            await self.pause()
            yield self.write(path)
        finally:
            await to_its_end(self.resume())

    async def restore(self, path: Path, episodes: Sequence[EnvironmentEpisode]) -> RestoredEnvironmentRollouts:
        await asyncio.sleep(0)
        saved = [EnvironmentEpisode(*row) for row in json.loads((path / "episodes.json").read_text())]
        self.episodes = [each for each in saved if each in episodes]
        return RestoredEnvironmentRollouts(tuple(self.episodes))


async def to_its_end(work: Coroutine[Any, Any, None]) -> None:
    task, cancelled = asyncio.ensure_future(work), False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


class ForgetsWhenCancelledInTheEntry(Environment):
    @contextlib.asynccontextmanager
    async def snapshot(self, path: Path) -> AsyncGenerator[Saved]:
        await self.pause()
        try:
            yield self.write(path)
        finally:
            await to_its_end(self.resume())


class CancelledTwiceItStaysPaused(Environment):
    @contextlib.asynccontextmanager
    async def snapshot(self, path: Path) -> AsyncGenerator[Saved]:
        try:
            await self.pause()
            yield self.write(path)
        finally:
            try:
                await self.resume()
            except asyncio.CancelledError:
                await self.resume()
                raise


class ForgetsAfterAnError(Environment):
    @contextlib.asynccontextmanager
    async def snapshot(self, path: Path) -> AsyncGenerator[Saved]:
        await self.pause()
        yield self.write(path)
        await self.resume()


class SwallowsErrors(Environment):
    @contextlib.asynccontextmanager
    async def snapshot(self, path: Path) -> AsyncGenerator[Saved]:
        async with super().snapshot(path) as saved:
            with contextlib.suppress(ZeroDivisionError):
                yield saved


class SwallowsCancellation(Environment):
    @contextlib.asynccontextmanager
    async def snapshot(self, path: Path) -> AsyncGenerator[Saved]:
        async with super().snapshot(path) as saved:
            with contextlib.suppress(asyncio.CancelledError):
                yield saved


class RunsInside(Environment):
    async def pause(self) -> None:
        await asyncio.sleep(0)


class ChecksByResuming(Environment):
    def write(self, path: Path) -> Saved:
        environment, saved = self, super().write(path)

        class Resuming(Saved):
            async def check_against_cut(self, cut: LiveCut) -> None:
                environment.is_running = True

        return Resuming(saved.episodes)


class FailsSilently(Environment):
    def write(self, path: Path) -> Saved:
        with contextlib.suppress(OSError):
            return super().write(path)
        return Saved(self.episodes)


class TiedToATask(Environment):
    @contextlib.asynccontextmanager
    async def snapshot(self, path: Path) -> AsyncGenerator[Saved]:
        task = asyncio.current_task()
        async with super().snapshot(path) as saved:
            yield saved
        if asyncio.current_task() is not task:
            raise AssertionError("left by another task")


class PausesOnce(Environment):
    paused = 0

    async def pause(self) -> None:
        await super().pause()
        self.paused += 1
        self.is_running = self.paused > 1


class ListsTwice(Environment):
    def write(self, path: Path) -> Saved:
        return Saved(super().write(path).episodes * 2)


class RestoresAll(Environment):
    async def restore(self, path: Path, episodes: Sequence[EnvironmentEpisode]) -> RestoredEnvironmentRollouts:
        return await super().restore(path, EPISODES)


class RestoresAllSecretly(Environment):
    async def restore(self, path: Path, episodes: Sequence[EnvironmentEpisode]) -> RestoredEnvironmentRollouts:
        await super().restore(path, EPISODES)
        return RestoredEnvironmentRollouts(tuple(episodes))


class CountsAttemptsUp(Environment):
    async def restore(self, path: Path, episodes: Sequence[EnvironmentEpisode]) -> RestoredEnvironmentRollouts:
        restored = await super().restore(path, episodes)
        up = (EnvironmentEpisode(each.instance_id, each.rollout_id, each.attempt + 1) for each in restored.episodes)
        return RestoredEnvironmentRollouts(tuple(up))


def check(kind: type[Environment], folder: Path) -> None:
    async def make() -> Environment:
        await asyncio.sleep(0)
        return kind(EPISODES)

    asyncio.run(
        check_environment_checkpoint(
            make, folder, runs=lambda environment: environment.is_running, make_restarted=kind, limit_s=2.0
        )
    )


def test_a_right_environment_passes(tmp_path: Path) -> None:
    check(Environment, tmp_path)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (ForgetsWhenCancelledInTheEntry, "does not run after a snapshot was cancelled"),
        (CancelledTwiceItStaysPaused, "does not run after a snapshot was cancelled"),
        (ForgetsAfterAnError, "does not run after an error in the block"),
        (SwallowsErrors, "an error in the block: must raise ZeroDivisionError"),
        (SwallowsCancellation, "a cancellation was swallowed"),
        (RunsInside, "the environment runs inside of the block"),
        (ChecksByResuming, "inside of the block after check_against_cut"),
        (FailsSilently, "a snapshot that can't be written must raise"),
        (TiedToATask, "left by another task"),
        (PausesOnce, "the environment runs inside of the block"),
        (ListsTwice, "an episode is listed twice"),
        (RestoresAll, "the episodes that are restored: got"),
        (RestoresAllSecretly, "restore took up ['a', 'b', 'c'], which it was not asked for"),
        (CountsAttemptsUp, "the episodes that are restored: got"),
    ],
)
def test_wrong_environments_are_named(tmp_path: Path, wrong: type[Environment], message: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(message)):
        check(wrong, tmp_path)


def test_r03_the_await_in_the_entry_is_named(tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as caught:
        check(ForgetsWhenCancelledInTheEntry, tmp_path)
    assert re.fullmatch(r"'cancel' at suspension point \d, \S+ in pause", caught.value.__notes__[0])


def test_too_few_episodes_prove_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        one = Environment(EPISODES[:1])
        make = lambda: one  # noqa: E731
        runs = lambda environment: environment.is_running  # noqa: E731
        await check_environment_checkpoint(make, tmp_path, runs=runs, make_restarted=Environment)

    with pytest.raises(AssertionError, match="at least two episodes open"):
        asyncio.run(run())
