"""An environment of several instances and turns that can be paused, saved and taken up again."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nrl_interfaces.fileops import FileOps
from nrl_interfaces.publish import make_folder, publish
from nrl_interfaces.rollout import EnvironmentEpisode, LiveCut, RestoredEnvironmentRollouts

from nrl_rollout_ckpt.state.completion import run_to_end

Hook = Callable[[str, str], Awaitable[None]]
"""Awaited as ``hook(step, instance_id)`` at a snapshot's "prepare", "commit" and "resume", and at "restore"."""


@dataclass
class _Open:
    attempt: int
    turns: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class FakeEnvironmentSnapshot:
    """What a `FakeEnvironment` saved, as `nrl_interfaces.rollout.EnvironmentSnapshot` has it.

    Attributes:
        episodes: The episodes in the files.
        environment: The environment.
    """

    episodes: Collection[EnvironmentEpisode]
    environment: FakeEnvironment

    async def check_against_cut(self, cut: LiveCut, /) -> None:
        """Refuse episodes that were opened after they were saved."""
        cut.require_live()
        await asyncio.sleep(0)
        new = set(self.environment.episodes()) - set(self.episodes)
        if new:
            raise RuntimeError(f"{len(new)} episodes were opened while the environment was paused: {min(new)}")


class FakeEnvironment:
    """Episodes with turns on several instances.

    An instance is paused by `snapshot` in two steps of their own, "prepare" and "commit", and goes on after "resume".
    While any is paused no turn is taken and no episode is opened.

    Args:
        instances: The ids of the instances.
        hook: What happens at each step: it may wait for an event, or raise.
        ops: The operations on files.

    Attributes:
        keeps_state: True: turns are taken without any change of the data plane.
        instances: The ids of the instances.
        hook: See the argument; may be set.
        paused: By instance, how often it was paused.
        resumed: By instance, how often it was resumed.
    """

    keeps_state: bool = True

    def __init__(
        self, instances: Sequence[str] = ("env0", "env1"), *, hook: Hook | None = None, ops: FileOps | None = None
    ) -> None:
        self.instances = tuple(instances)
        self.hook = hook
        self.paused: Counter[str] = Counter()
        self.resumed: Counter[str] = Counter()
        self._ops = FileOps() if ops is None else ops
        self._open: dict[str, dict[str, _Open]] = {instance: {} for instance in self.instances}
        self._running = asyncio.Event()
        self._running.set()

    @property
    def dispatch_is_open(self) -> bool:
        """Whether episodes may be opened and turns taken."""
        return self._running.is_set()

    def episodes(self) -> list[EnvironmentEpisode]:
        """List the episodes that are open, sorted."""
        return sorted(
            EnvironmentEpisode(instance, rollout_id, episode.attempt)
            for instance, episodes in self._open.items()
            for rollout_id, episode in episodes.items()
        )

    def turns(self, episode: EnvironmentEpisode) -> list[str]:
        """List the turns that an open episode has taken."""
        return list(self._open[episode.instance_id][episode.rollout_id].turns)

    async def open(self, episode: EnvironmentEpisode) -> None:
        """Begin an episode, or take up a restored one, whose attempt was counted up by one.

        Raises:
            ValueError: If it is open with another attempt, or is new with an attempt other than 0.
        """
        await self._running.wait()
        episodes = self._open[episode.instance_id]
        held = episodes.get(episode.rollout_id)
        expected = 0 if held is None else held.attempt + 1
        if episode.attempt != expected:
            raise ValueError(f"attempt {episode.attempt} of {episode.rollout_id!r}; allowed: {expected}")
        episodes[episode.rollout_id] = _Open(episode.attempt, [] if held is None else held.turns)

    async def turn(self, episode: EnvironmentEpisode, what: str = "turn") -> None:
        """Take one turn, once the environment runs."""
        await self._running.wait()
        self._open[episode.instance_id][episode.rollout_id].turns.append(what)

    def close(self, episode: EnvironmentEpisode) -> list[str]:
        """End an episode and give its turns."""
        return self._open[episode.instance_id].pop(episode.rollout_id).turns

    @contextlib.asynccontextmanager
    async def snapshot(self, path: Path, /) -> AsyncGenerator[FakeEnvironmentSnapshot]:
        """See `nrl_interfaces.rollout.EnvironmentCheckpoint`; writes one file an instance."""
        try:
            for instance in self.instances:
                self._pause(instance)
                await self._step("prepare", instance)
            make_folder(path, self._ops)
            for instance in self.instances:
                await self._step("commit", instance)
                self._write(path, instance)
            yield FakeEnvironmentSnapshot(tuple(self.episodes()), self)
        finally:
            await run_to_end(self._resume())

    async def restore(self, path: Path, episodes: Sequence[EnvironmentEpisode], /) -> RestoredEnvironmentRollouts:
        """See `nrl_interfaces.rollout.EnvironmentCheckpoint`.

        Raises:
            ValueError: If the files hold one of the episodes not, or with another attempt; nothing is taken up.
        """
        saved = {instance: json.loads((path / f"{instance}.json").read_bytes()) for instance in self.instances}
        for episode in episodes:
            held = saved.get(episode.instance_id, {}).get(episode.rollout_id)
            if held is None or held["attempt"] != episode.attempt:
                raise ValueError(f"{path} does not hold {episode}")
        for instance in self.instances:
            await self._step("restore", instance)
        for episode in episodes:
            held = saved[episode.instance_id][episode.rollout_id]
            self._open[episode.instance_id][episode.rollout_id] = _Open(held["attempt"], held["turns"])
        return RestoredEnvironmentRollouts(tuple(episodes))

    def _pause(self, instance: str) -> None:
        self._running.clear()
        self.paused[instance] += 1

    async def _resume(self) -> None:
        """Resume every instance, also after one that raised; the first error comes at the end."""
        failed: list[Exception] = []
        for instance in self.instances:
            if self.resumed[instance] < self.paused[instance]:
                self.resumed[instance] += 1
                try:
                    await self._step("resume", instance)
                except Exception as error:  # noqa: BLE001 - raised below
                    failed.append(error)
        self._running.set()
        if failed:
            raise failed[0]

    async def _step(self, step: str, instance: str) -> None:
        await asyncio.sleep(0)
        if self.hook is not None:
            await self.hook(step, instance)

    def _write(self, path: Path, instance: str) -> None:
        saved = {
            rollout_id: {"attempt": episode.attempt, "turns": episode.turns}
            for rollout_id, episode in self._open[instance].items()
        }
        publish(path / f"{instance}.json", json.dumps(saved).encode(), self._ops)
