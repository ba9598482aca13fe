"""Whether an environment runs again after every snapshot, and takes up the episodes that it is told to."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from nrl_interfaces.rollout import EnvironmentCheckpoint, EnvironmentEpisode
from nrl_interfaces.testing.awaits import Drive, at_each_suspension
from nrl_interfaces.testing.rollout_checks.ground import Cut, broken, must, refused, same

Environment = TypeVar("Environment", bound=EnvironmentCheckpoint)


async def check_environment_checkpoint(
    make: Callable[[], Environment | Awaitable[Environment]],
    tmp_path: Path,
    *,
    runs: Callable[[Environment], bool],
    make_restarted: Callable[[], Environment | Awaitable[Environment]],
    limit_s: float = 10.0,
) -> None:
    """Check that an environment runs after each way out of a snapshot, cancelled at any await, and that it restores.

    Args:
        make: Makes an environment with at least two open episodes, if it has any state; may be a coroutine function.
        tmp_path: An empty folder.
        runs: Whether the environment runs and its dispatch is open.
        make_restarted: Makes the same environment without episodes, as it is after a restart.
        limit_s: The time limit, in seconds, of one snapshot.

    Raises:
        AssertionError: If something does not hold; a note says at which await.
    """
    folders = (tmp_path / str(number) for number in itertools.count())
    environment = await _made(make)
    must(isinstance(environment, EnvironmentCheckpoint), f"{type(environment).__name__} lacks a part of the Protocol")
    must(isinstance(environment.keeps_state, bool), f"keeps_state is {environment.keeps_state!r}")
    saved = next(folders)
    episodes = await _check_snapshot(environment, saved, runs)
    await _check_errors(environment, folders, runs)
    await _check_leaving_by_another_task(environment, next(folders), runs)
    for act in ("cancel", "cancel late", "cancel twice"):
        await _check_cancelling(act, make, folders, runs, limit_s)
    await _check_restoring(episodes, saved, folders, make_restarted, runs)


async def _check_snapshot(
    environment: Environment, path: Path, runs: Callable[[Environment], bool]
) -> tuple[EnvironmentEpisode, ...] | None:
    """Take a snapshot; gives its episodes, None where the environment has nothing to save."""
    must(runs(environment), "an environment that was never paused runs")
    episodes = None
    async with environment.snapshot(path) as snapshot:
        if snapshot is not None:
            must(not runs(environment), "the environment runs inside of the block")
            await snapshot.check_against_cut(Cut())
            episodes = tuple(snapshot.episodes)
            must(len(set(episodes)) == len(episodes), f"an episode is listed twice: {episodes}")
            must(all(isinstance(each, EnvironmentEpisode) for each in episodes), f"episodes are {episodes!r}")
            must(not runs(environment), "the environment runs inside of the block after check_against_cut")
    must(runs(environment), "the environment does not run after a snapshot")
    return episodes


async def _check_errors(environment: Environment, folders: Iterator[Path], runs: Callable[[Environment], bool]) -> None:
    with refused(ZeroDivisionError, "an error in the block"):
        async with environment.snapshot(next(folders)):
            raise ZeroDivisionError
    must(runs(environment), "the environment does not run after an error in the block")
    file = next(folders)
    file.write_bytes(b"")
    try:
        async with environment.snapshot(file / "below a file") as snapshot:
            must(snapshot is None, "a snapshot that can't be written must raise")
    except OSError:
        pass
    must(runs(environment), "the environment does not run after a snapshot that could not be written")


async def _check_leaving_by_another_task(
    environment: Environment, path: Path, runs: Callable[[Environment], bool]
) -> None:
    snapshot = environment.snapshot(path)
    await asyncio.create_task(_entered(snapshot))
    await snapshot.__aexit__(None, None, None)
    must(runs(environment), "the environment does not run after another task left the block")


async def _entered(snapshot: Any) -> None:
    await snapshot.__aenter__()


async def _check_cancelling(
    act: Any, make: Callable[[], Any], folders: Iterator[Path], runs: Callable[[Any], bool], limit_s: float
) -> None:
    async def scenario(drive: Drive) -> None:
        environment = await _made(make)

        async def take() -> None:
            async with environment.snapshot(next(folders)) as snapshot:
                if snapshot is not None:
                    await snapshot.check_against_cut(Cut())
                await asyncio.sleep(0)

        driven = await drive(take())
        must(runs(environment), "the environment does not run after a snapshot was cancelled")
        must(driven.point is None or driven.error or act == "cancel late", "a cancellation was swallowed")
        await _check_snapshot(environment, next(folders), runs)

    await at_each_suspension(scenario, act, limit_s=limit_s)


async def _check_restoring(
    episodes: tuple[EnvironmentEpisode, ...] | None,
    saved: Path,
    folders: Iterator[Path],
    make_restarted: Callable[[], Environment | Awaitable[Environment]],
    runs: Callable[[Environment], bool],
) -> None:
    if episodes is None:
        same((await (await _made(make_restarted)).restore(saved, ())).episodes, (), "what is restored of nothing")
        return
    if len(episodes) < 2:
        broken(f"an environment for this check has at least two episodes open, not {episodes}")
    for asked in ((), episodes[:1], episodes[1:], episodes):
        environment = await _made(make_restarted)
        restored = (await environment.restore(saved, asked)).episodes
        same(sorted(restored), sorted(asked), "the episodes that are restored")
        must(runs(environment), "the environment does not run after restore")
        async with environment.snapshot(next(folders)) as snapshot:
            held = {each.rollout_id for each in snapshot.episodes} if snapshot is not None else set[str]()
        extra = held - {each.rollout_id for each in asked}
        must(not extra, f"restore took up {sorted(extra)}, which it was not asked for")


async def _made(make: Callable[[], Environment | Awaitable[Environment]]) -> Environment:
    made = make()
    return await made if isinstance(made, Awaitable) else made
