"""An environment of several turns, on several instances, that can be paused, saved and taken up again.

In each turn an episode shows a total and an addend, and the answer becomes the next total. A turn takes its time, as a
tool call does, and then changes the episode at once. A snapshot closes the gate that changes pass and writes a file an
instance. A restored episode goes on behind its last change: a turn that was under way is taken again.
"""

import asyncio
import contextlib
import json
import zlib
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from arithmetic_task import TURNS, Problem
from nrl_interfaces.fileops import FileOps
from nrl_interfaces.publish import make_folder, publish
from nrl_interfaces.rollout import EnvironmentEpisode, LiveCut, RestoredEnvironmentRollouts
from nrl_rollout_ckpt.state.completion import in_thread


@dataclass
class Episode:
    """The state of an episode: all that its next turn depends on."""

    problem: Problem
    attempt: int = 0
    turns: list[dict[str, Any]] = field(default_factory=list)  # total, addend, answer, logprob of each

    @property
    def is_over(self) -> bool:
        return len(self.turns) == TURNS

    def observation(self) -> tuple[int, int]:
        """The total and the next addend."""
        total = self.turns[-1]["answer"] if self.turns else self.problem["start"]
        return total, self.problem["addends"][len(self.turns)]


class Instance:
    """Some of the episodes, behind a gate that every change of them passes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.episodes: dict[str, Episode] = {}
        self.gate = asyncio.Event()
        self.gate.set()

    def save(self, folder: Path, ops: FileOps) -> None:
        saved = {rollout_id: asdict(episode) for rollout_id, episode in self.episodes.items()}
        publish(folder / f"{self.name}.json", json.dumps(saved).encode(), ops)


@dataclass(frozen=True)
class SavedEpisodes:
    """What a snapshot has of the environment."""

    environment: "ArithmeticEnvironment"
    turns: dict[EnvironmentEpisode, int]

    @property
    def episodes(self) -> list[EnvironmentEpisode]:
        return list(self.turns)

    async def check_against_cut(self, cut: LiveCut) -> None:
        """Refuse the files if a turn was taken since they were written."""
        cut.require_live()
        now = self.environment.turns_taken()
        if moved := [episode for episode, turns in self.turns.items() if now.get(episode, turns) != turns]:
            raise RuntimeError(f"{len(moved)} episodes went on while the environment was paused, such as {moved[0]}")


class ArithmeticEnvironment:
    """Runs episodes; `seconds_of_turn` says how long a turn of a rollout takes."""

    keeps_state = True

    def __init__(
        self,
        seconds_of_turn: Callable[[str], float],
        file_ops: FileOps,
        instances: Sequence[str] = ("calculator-0", "calculator-1"),
    ) -> None:
        self._instances = {name: Instance(name) for name in instances}
        self._seconds_of_turn = seconds_of_turn
        self._file_ops = file_ops

    def instance_for(self, group_id: str) -> str:
        """The instance that runs a group: always the same one, before and after a restart."""
        return list(self._instances)[zlib.crc32(group_id.encode()) % len(self._instances)]

    def turns_taken(self) -> dict[EnvironmentEpisode, int]:
        """How many turns each episode has taken."""
        return {
            EnvironmentEpisode(name, rollout_id, episode.attempt): len(episode.turns)
            for name, instance in self._instances.items()
            for rollout_id, episode in instance.episodes.items()
        }

    # ---- Rollouts ----

    async def begin(self, which: EnvironmentEpisode, problem: Problem) -> Episode:
        """Begin an episode, or go on with a restored one, whose attempt the ledger has counted up."""
        instance = self._instances[which.instance_id]
        await instance.gate.wait()
        if which.attempt:
            instance.episodes[which.rollout_id].attempt = which.attempt
        else:
            instance.episodes[which.rollout_id] = Episode(problem)
        return instance.episodes[which.rollout_id]

    async def answer(self, which: EnvironmentEpisode, answer: int, logprob: float) -> None:
        """Take one turn."""
        instance = self._instances[which.instance_id]
        await self.use_tool(which)
        await instance.gate.wait()
        episode = instance.episodes[which.rollout_id]
        total, addend = episode.observation()
        episode.turns.append({"total": total, "addend": addend, "answer": answer, "logprob": logprob})

    def end(self, which: EnvironmentEpisode) -> None:
        """Forget an episode whose result somebody else owns now."""
        del self._instances[which.instance_id].episodes[which.rollout_id]

    async def use_tool(self, which: EnvironmentEpisode) -> None:
        """What a turn takes its time for."""
        await asyncio.sleep(self._seconds_of_turn(which.rollout_id))

    # ---- Checkpoints: `nrl_interfaces.rollout.EnvironmentCheckpoint` ----

    @contextlib.asynccontextmanager
    async def snapshot(self, path: Path) -> AsyncGenerator[SavedEpisodes]:
        try:
            for instance in self._instances.values():
                instance.gate.clear()
            make_folder(path, self._file_ops)
            for instance in self._instances.values():
                await in_thread(instance.save, path, self._file_ops)
            yield SavedEpisodes(self, self.turns_taken())
        finally:
            for instance in self._instances.values():
                instance.gate.set()

    async def restore(self, path: Path, episodes: Sequence[EnvironmentEpisode]) -> RestoredEnvironmentRollouts:
        saved = {name: json.loads((path / f"{name}.json").read_bytes()) for name in self._instances}
        taken_up = {which: Episode(**saved[which.instance_id][which.rollout_id]) for which in episodes}
        for which, episode in taken_up.items():
            self._instances[which.instance_id].episodes[which.rollout_id] = episode
        return RestoredEnvironmentRollouts(tuple(episodes))
