"""Moments at which a run kills itself, each written into a journal before it happens."""

import contextlib
import json
import os
import random
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arithmetic_environment import ArithmeticEnvironment, SavedEpisodes
from arithmetic_run import ArithmeticRun
from grpo_parts import Settings, make_plane
from nrl_interfaces import DataPlaneClient
from nrl_interfaces.fileops import FileOps
from nrl_interfaces.rollout import EnvironmentEpisode, LiveCut
from nrl_interfaces.testing.faults import RecordingOps
from nrl_rollout_ckpt.state.ledger import RolloutRecoveryLedger
from torch.optim.optimizer import register_optimizer_step_post_hook


class Journal:
    """Lines of JSON in a file outside of the checkpoints."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, event: str, *, durable: bool = False, **details: Any) -> None:
        """Append an event; what is written outlives the process, and what is durable a power cut, too."""
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(fd, json.dumps({"event": event, "pid": os.getpid(), **details}).encode() + b"\n")
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)

    def read(self, event: str) -> list[dict[str, Any]]:
        lines = map(json.loads, self.path.read_text().splitlines())
        return [line for line in lines if line["event"] == event]


@dataclass(frozen=True)
class Moment:
    """A kill that is planned: the phase of the run, the place within it, and which occurrence in a process, from 1."""

    phase: str
    place: str
    count: int


# The places of each phase, and the latest occurrence that is drawn: all come within a few train steps.
PLACES = {
    "snapshot": {"the environment is paused": 2, "the exclusive cut": 2, "the files are written": 40},
    "optimizer commit": {"the weights were changed": 2, "the rows were cleared": 2},
    "publication": {"of a snapshot": 1, "of a trainer checkpoint": 2},
    "generation": {"a turn": 60},
}
PLACES_WITH_DUMP = {**PLACES, "publication": {**PLACES["publication"], "of a dumped step": 2}}


def plan(kills: int, settings: Settings) -> list[Moment]:
    """Draw kills, as many of each phase, in any order."""
    dice = random.Random(settings.seed)
    of_phase = PLACES if settings.dump_dir is None else PLACES_WITH_DUMP
    phases = list(PLACES) * (kills // len(PLACES)) + dice.sample(list(PLACES), kills % len(PLACES))
    dice.shuffle(phases)
    places = [dice.choice(list(of_phase[phase])) for phase in phases]
    return [
        Moment(phase, place, dice.randint(1, of_phase[phase][place]))
        for phase, place in zip(phases, places, strict=True)
    ]


class Killer:
    """Makes a run whose parts come past each place, and kills this process when its moment is there."""

    def __init__(self, moment: Moment, journal: Journal) -> None:
        self._moment = moment
        self._journal = journal
        self._count = 0
        self._lock = threading.Lock()  # files are written in threads

    def run(self, settings: Settings, **parts: Any) -> ArithmeticRun:
        """Make the run."""
        register_optimizer_step_post_hook(lambda *_: self.at("optimizer commit", "the weights were changed"))
        watched = {"environment_class": watched_environment(self), "make_plane": watched_plane(self)}
        self._run = ArithmeticRun(settings, self._journal.write, KillingOps(self), **watched, **parts)
        return self._run

    def at(self, phase: str, place: str, last_act: Callable[[], object] = lambda: None, **evidence: Any) -> None:
        """Come past a place; does not return if it is time."""
        if (phase, place) != (self._moment.phase, self._moment.place):
            return
        with self._lock:
            self._count += 1
            if self._count < self._moment.count:
                return
            last_act()
            evidence["train_steps"] = self._run.parts.progress.train_steps
            evidence["updates"] = self._run.trainer.updates
            evidence["episodes"] = len(self._run.environment.turns_taken())
            self._journal.write("kill", durable=True, phase=phase, place=place, **evidence)
            os.kill(os.getpid(), signal.SIGKILL)


class KillingOps(RecordingOps):
    """Comes past each operation on the files of a snapshot, and past each rename that publishes a folder."""

    def __init__(self, killer: Killer) -> None:
        super().__init__()
        self._killer = killer

    @contextlib.contextmanager
    def _operation(self, name: str, path: Path, half: Callable[[], object] = lambda: None) -> Generator[None]:
        if name != "rename" and any(part.startswith("tmp_snapshot") for part in path.parent.parts):
            doing = f"{name} {path.parent.name}/{path.name}"
            self._killer.at("snapshot", "the files are written", half, doing=doing)
        with super()._operation(name, path, half):
            yield
        for start, what in (("tmp_snapshot", "of a snapshot"), ("tmp_step", "of a trainer checkpoint")):
            if name == "rename" and path.name.startswith(start):
                self._killer.at("publication", what, published=str(path.with_name(path.name.removeprefix("tmp_"))))
        if name == "rename" and path.name.endswith(".jsonl.partial"):
            self._killer.at("publication", "of a dumped step", published=str(path.with_suffix("")))


def watched_environment(killer: Killer) -> type[ArithmeticEnvironment]:
    """The environment, coming past the places that are its own."""

    class SavedAndWatched(SavedEpisodes):
        async def check_against_cut(self, cut: LiveCut) -> None:
            await super().check_against_cut(cut)
            killer.at("snapshot", "the exclusive cut")

    class WatchedEnvironment(ArithmeticEnvironment):
        async def use_tool(self, which: EnvironmentEpisode) -> None:
            killer.at("generation", "a turn", rollout=which.rollout_id)
            await super().use_tool(which)

        @contextlib.asynccontextmanager
        async def snapshot(self, path: Path) -> AsyncGenerator[SavedEpisodes]:
            async with super().snapshot(path) as saved:
                killer.at("snapshot", "the environment is paused")
                yield SavedAndWatched(self, saved.turns)

    return WatchedEnvironment


def watched_plane(killer: Killer) -> Callable[[str, FileOps], DataPlaneClient]:
    """Make data planes that come past the place that is their own."""

    def make(kind: str, ops: FileOps) -> DataPlaneClient:
        plane = make_plane(kind, ops)
        clear_samples = plane.clear_samples

        def clear_and_come_past(sample_ids: list[str] | None, partition_id: str) -> None:
            clear_samples(sample_ids, partition_id)
            killer.at("optimizer commit", "the rows were cleared")

        plane.clear_samples = clear_and_come_past
        return plane

    return make


class ForgetfulLedger(RolloutRecoveryLedger):
    """A planted fault: it does not write down the last prompt of the fourth batch."""

    def reserve_batch(self, cut: LiveCut, prompts: Any, **how: Any) -> Any:
        return super().reserve_batch(cut, prompts[:-1] if self.next_admission_id == 3 else prompts, **how)
