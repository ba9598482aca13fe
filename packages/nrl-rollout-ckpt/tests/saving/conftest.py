"""A run with a prompt in every state, to be saved and restored."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from nrl_interfaces.fileops import FileOps
from nrl_interfaces.testing.faults import FailingOps, KillingOps, Moment, RecordingOps
from nrl_rollout_ckpt.config import RolloutCheckpointConfig
from nrl_rollout_ckpt.disk.bootstrap import BootstrapCompatibilityIdentity
from nrl_rollout_ckpt.disk.selection import select_resume_source
from nrl_rollout_ckpt.disk.trainer_checkpoints import CheckpointManager
from nrl_rollout_ckpt.restore import RestoreReport, RolloutRestorer
from nrl_rollout_ckpt.saving.deadline import TimeoutChecker
from nrl_rollout_ckpt.saving.outcomes import RolloutCheckpointSaveResult
from nrl_rollout_ckpt.saving.snapshots import RolloutSnapshotter
from nrl_rollout_ckpt.state.ledger_states import RecoveryTargetLevel
from nrl_rollout_ckpt.state.records import SiblingSealResult
from nrl_rollout_ckpt.state.replay_index import TrainingClaim
from nrl_rollout_ckpt.state.rollout_state import CheckpointKind, RolloutParts
from nrl_rollout_ckpt.state.transitions import RolloutTransitions
from nrl_rollout_ckpt.testing import FakeEnvironment, InMemoryDataPlane, ListPromptSource, make_parts, numbered_prompts

PROMPTS = 9
IDENTITY = BootstrapCompatibilityIdentity.of({"seed": 1})


class UnsyncedOps(FileOps):
    """Leaves durability out: nothing here cuts the power, and many saves are made."""

    def fsync(self, fd: int) -> None:
        """Do nothing."""

    def fsync_folder(self, path: Path) -> None:
        """Do nothing."""


class SwitchedOps(FileOps):
    """Hands every operation to `now`, which a test may exchange."""

    def __init__(self) -> None:
        self.now: FileOps = UnsyncedOps()

    def open(self, path: Path, flags: int) -> int:
        return self.now.open(path, flags)

    def write(self, fd: int, data: Any) -> int:
        return self.now.write(fd, data)

    def truncate(self, fd: int, size: int) -> None:
        self.now.truncate(fd, size)

    def fsync(self, fd: int) -> None:
        self.now.fsync(fd)

    def rename(self, source: Path, target: Path) -> None:
        self.now.rename(source, target)

    def unlink(self, path: Path) -> None:
        self.now.unlink(path)

    def mkdir(self, path: Path) -> None:
        self.now.mkdir(path)

    def rmdir(self, path: Path) -> None:
        self.now.rmdir(path)

    def fsync_folder(self, path: Path) -> None:
        self.now.fsync_folder(path)


class UnsyncedRecordingOps(RecordingOps, UnsyncedOps):
    """Notes every operation."""


class UnsyncedFailingOps(FailingOps, UnsyncedOps):
    """Lets one operation fail."""


class UnsyncedKillingOps(KillingOps, UnsyncedOps):
    """Kills the process at one operation."""


class World:
    """p0, p1 are complete; p2, p3 are in flight, one episode of each sealed; p4, p5 are reserved; p6 is spare."""

    def __init__(
        self, folder: Path, *, turns: bool = True, freezes: bool = True, ops: FileOps | None = None, **overrides: Any
    ) -> None:
        self.folder = folder
        self.events: list[Any] = []
        self.turns, self.freezes, self.file_ops = turns, freezes, ops or UnsyncedOps()
        self.config = overrides.pop("config", None) or RolloutCheckpointConfig(
            target_level=RecoveryTargetLevel.TURN if turns else RecoveryTargetLevel.SIBLING,
            **overrides.pop("settings", {}),
        )
        names = ("free_bytes", "teacher_coordinator", "timeout")
        options = {name: overrides.pop(name) for name in names if name in overrides}
        self.parts = self.new_parts(**{"metrics": self.events.append, **overrides})
        self.environment: Any = self.parts.environment
        self.transitions = RolloutTransitions(self.parts)
        self.checkpoints = CheckpointManager(folder, ops=self.file_ops)
        self.claim: TrainingClaim | None = None
        self.trained: list[str] = []
        self.snapshotter = RolloutSnapshotter(
            self.parts,
            checkpointer=self.checkpoints,
            bootstrap_identity=IDENTITY,
            **{"teacher_coordinator": None, "timeout": TimeoutChecker(None, clock=self.parts.clock), **options},
            records_prompt_groups=lambda: True,
        )

    def new_parts(self, **overrides: Any) -> RolloutParts:
        parts: dict[str, Any] = {
            "config": self.config,
            "data_plane": InMemoryDataPlane(freezes=self.freezes, ops=self.file_ops),
            "prompt_source": ListPromptSource(numbered_prompts(PROMPTS)),
            "file_ops": self.file_ops,
            "consumer_tasks": ("trainer",),
            "run_config": {"seed": 1, "api_key": "secret"},
        }
        if self.turns:
            parts["environment"] = FakeEnvironment(("env0", "env1", "env2"), ops=self.file_ops)
        return make_parts(**{**parts, **overrides})

    async def populate(self) -> World:
        source: Any = self.parts.prompt_source
        for _ in range(2):
            batch = await self.transitions.reserve_batch(lambda: source.next_batch(2), expected_generations=2)
            await self.transitions.admit(batch[0].admission_id)
            for group in batch:
                for at in range(2):
                    await self.dispatch(group.group_id, at)
        for group in self.parts.ledger.batch(0):
            for at in range(2):
                await self.seal(group.group_id, at)
            await self.transitions.commit_group(group.group_id, {"reward": torch.zeros(2)})
        for group in self.parts.ledger.batch(1):
            await self.seal(group.group_id, 1)
        await self.transitions.reserve_batch(lambda: source.next_batch(2), expected_generations=2)
        await self.transitions.fill_reserve(lambda: source.next_batch(1))
        return self

    async def dispatch(self, group_id: str, at: int) -> None:
        instance = f"env{at}" if self.turns else None
        group = await self.transitions.dispatch(group_id, [at], instance)
        episode = group.episode(at)
        if episode is not None:
            await self.environment.open(episode)
            await self.environment.turn(episode)

    async def seal(self, group_id: str, at: int) -> None:
        episode = self.parts.ledger.get(group_id).episode(at)
        await self.transitions.seal_sibling(group_id, at, SiblingSealResult({"tokens": torch.arange(3)}, 1.0))
        if episode is not None:
            self.environment.close(episode)

    async def claim_step(self) -> None:
        self.claim = await self.transitions.claim_for_training(2)
        assert self.claim is not None

    async def commit_step(self, *, drain_snapshot: bool = False) -> None:
        assert self.claim is not None
        await self.snapshotter.begin_optimizer_commit(drain_snapshot=drain_snapshot)
        await self.transitions.finish_step(self.claim)
        self.trained += [group.prompt.ref.sample_id for group in self.claim.groups]
        self.parts.progress.advance()
        self.claim = None
        self.snapshotter.end_optimizer_commit()

    async def save_trainer_checkpoint(self) -> Path:
        step = self.parts.progress.train_steps
        async with self.snapshotter.trainer_checkpoint():
            path = self.checkpoints.init_tmp_checkpoint(
                step, {"current_step": step, "trainer_version": step}, self.parts.run_config
            )
            async with self.parts.barrier.checkpoint() as cut:
                captured = await self.snapshotter.capture(cut, path, CheckpointKind.TRAINER_CHECKPOINT)
            await self.snapshotter.write_rollout_state(path, captured)
            self.checkpoints.begin_finalization(path)
            await asyncio.to_thread(self.checkpoints.finalize_pending)
        return self.checkpoints.step_path(step)

    async def save(self, *, force: bool = True) -> RolloutCheckpointSaveResult:
        async with asyncio.timeout(5):
            return await self.snapshotter.save_snapshot(force=force)

    # ---- What has to hold ----

    def leftovers(self) -> list[str]:
        return sorted(path.name for path in self.folder.rglob("tmp_snapshot_*"))

    def snapshots(self) -> list[str]:
        return sorted(path.name for path in self.folder.rglob("snapshot_*") if path.name.startswith("snapshot_"))

    def assert_runs(self) -> None:
        """Nothing is paused, held, or left."""
        if self.turns:
            assert self.environment.dispatch_is_open
            assert self.environment.resumed == self.environment.paused
        assert not self.snapshotter._save_lock.is_held
        assert self.snapshotter._window.is_closed
        telemetry = self.parts.barrier.drain_telemetry()
        assert (telemetry.active, telemetry.waiting, telemetry.checkpoint_active) == (0, 0, False)
        assert self.leftovers() == []

    async def restored(self) -> tuple[World, RestoreReport]:
        """What a new process has after it went on from the folder."""
        parts = self.new_parts()
        source = select_resume_source(self.folder, self.config, IDENTITY)
        report = await RolloutRestorer(parts).restore(source)
        new = object.__new__(World)
        new.parts, new.turns, new.environment = parts, self.turns, parts.environment
        return new, report

    def prompts(self) -> dict[str, int]:
        """How often each prompt has an owner."""
        parts, source = self.parts, self.parts.prompt_source
        assert isinstance(source, ListPromptSource)
        groups = [*parts.replay_index.groups, *parts.replay_index.training_owned_replay_groups(), *parts.ledger.groups]
        return dict(
            Counter(
                [group.prompt.ref.sample_id for group in groups]
                + [saved.ref.sample_id for _, saved in parts.runtime.replacement_reserve]
                + [prompt.ref.sample_id for prompt in source.prompts[source.state_dict()["position"] :]]
            )
        )

    async def assert_restores(self, *, trained: int = 0) -> RestoreReport:
        """A restart has every prompt but the first `trained` ones, each once."""
        new, report = await self.restored()
        assert new.prompts() == {f"p{number}": 1 for number in range(trained, PROMPTS)}
        return report

    def outcomes(self) -> list[str]:
        prefix = "rollout/checkpoint_outcome/reason_"
        return [
            name.removeprefix(prefix)
            for event in self.events
            for name, value in event.items()
            if name.startswith(prefix) and value is True
        ]

    def close(self) -> None:
        self.snapshotter.close()

    # ---- Faults on the disk, in the attempt alone ----

    def record(self) -> RecordingOps:
        assert isinstance(self.file_ops, SwitchedOps)
        self.file_ops.now = ops = UnsyncedRecordingOps()
        return ops

    def fail(self, at: int, code: int) -> FailingOps:
        assert isinstance(self.file_ops, SwitchedOps)
        self.file_ops.now = ops = UnsyncedFailingOps(at, code)
        return ops

    def kill(self, at: int, moment: Moment) -> None:
        assert isinstance(self.file_ops, SwitchedOps)
        self.file_ops.now = UnsyncedKillingOps(at, moment)


@pytest.fixture
def new_world(tmp_path: Path) -> Callable[..., World]:
    """Makes a `World` in a folder of its own, or in `folder`."""
    count = 0

    def make(*, folder: Path | None = None, faults: bool = False, **overrides: Any) -> World:
        nonlocal count
        count += 1
        if faults:
            overrides["ops"] = SwitchedOps()
        return World(folder or tmp_path / f"run{count}", **overrides)

    return make
