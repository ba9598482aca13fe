"""The parts of a run that saving and restoring share, and what a capture takes out of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nrl_interfaces.fileops import FileOps
from nrl_interfaces.metrics import Metrics
from nrl_interfaces.rollout import (
    CheckpointableDataPlane,
    EnvironmentCheckpoint,
    EnvironmentEpisode,
    NoEnvironmentCheckpoint,
    PromptSource,
    RolloutSampler,
)

from nrl_rollout_ckpt.clock import Clock, SystemClock
from nrl_rollout_ckpt.config import RolloutCheckpointConfig
from nrl_rollout_ckpt.state.barrier import DataPlaneCheckpointBarrier
from nrl_rollout_ckpt.state.records import Prompt, PromptGroupRecoveryRecord, ReplayGroup, SavedPrompt

if TYPE_CHECKING:
    from nrl_interfaces.data_plane import DataPlaneView

    from nrl_rollout_ckpt.state.ledger import RolloutRecoveryLedger
    from nrl_rollout_ckpt.state.replay_index import ReplayIndex


class CheckpointKind(StrEnum):
    """What a capture is for."""

    TRAINER_CHECKPOINT = "trainer_checkpoint"
    ROLLOUT_SNAPSHOT = "rollout_snapshot"


@dataclass
class TrainingProgress:
    """Where training is; the trainer moves it, everybody reads it when needed and keeps no copy.

    Attributes:
        train_steps: Optimizer steps done.
        trainer_version: The version of the weights; the same number wherever a snapshot may be taken.
        current_epoch: The epoch of the prompt source.
    """

    train_steps: int = 0
    trainer_version: int = 0
    current_epoch: int = 0
    _waiters: dict[asyncio.Future[None], None] = field(default_factory=dict[asyncio.Future[None], None], repr=False)

    def advance(self) -> None:
        """Count one train step, and wake who waits for it."""
        self.train_steps += 1
        self.trainer_version += 1
        self.notify()

    def notify(self) -> None:
        """Wake who waits, after the attributes were set."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait until `holds()`, which is asked again whenever training moved."""
        while not holds():
            waiter = asyncio.get_running_loop().create_future()
            self._waiters[waiter] = None
            try:
                await waiter
            finally:
                del self._waiters[waiter]


@dataclass
class RolloutRuntimeState:
    """What the controller itself keeps; restored before any pump starts, changed in sections of the barrier only.

    Attributes:
        replacement_reserve: Spare prompts, taken from the source to replace prompts that are dropped.
        batch_shortfall: By target step, how many groups will never come.
        sampler_stamps_target_steps: Whether the groups at hand are stamped.
        dropped: Ids of prompts that were given up on purpose, in order: what an account of prompts needs.
        recent_prompts: The last prompts that were taken from the source, by reference and digest: a restart compares
            them with its source, so that data that was reordered is noticed even where no prompt is in flight.
    """

    replacement_reserve: deque[tuple[Prompt, SavedPrompt]] = field(default_factory=deque[tuple[Prompt, SavedPrompt]])
    batch_shortfall: dict[int, int] = field(default_factory=dict[int, int])
    sampler_stamps_target_steps: bool = False
    dropped: list[str] = field(default_factory=list[str])
    recent_prompts: deque[SavedPrompt] = field(default_factory=lambda: deque[SavedPrompt](maxlen=8))


@dataclass(frozen=True)
class RolloutParts:
    """What saving and restoring work on.

    Attributes:
        config: The config of rollout checkpoints.
        data_plane: Holds the rows.
        partition_id: The partition of the training rows; its row ids are ``<group_id>_g<i>``.
        prompt_source: Where prompts come from.
        sampler: Decides about admission and about what a step trains on.
        replay_index: The complete groups.
        ledger: The groups that are not complete.
        barrier: Where everybody who changes one of these enters a section.
        progress: Where training is.
        runtime: The controller's own state.
        environment: Saves episodes of several turns, if there are any.
        consumer_tasks: Tasks whose claims in the plane are released for groups that a restart trains on again.
        run_config: The run's whole config; written redacted, and part of the bootstrap identity.
        metrics: Gets every measurement.
        clock: The time.
        file_ops: Every operation on files.
    """

    config: RolloutCheckpointConfig
    data_plane: CheckpointableDataPlane
    partition_id: str
    prompt_source: PromptSource
    sampler: RolloutSampler
    replay_index: ReplayIndex
    ledger: RolloutRecoveryLedger
    barrier: DataPlaneCheckpointBarrier = field(default_factory=DataPlaneCheckpointBarrier)
    progress: TrainingProgress = field(default_factory=TrainingProgress)
    runtime: RolloutRuntimeState = field(default_factory=RolloutRuntimeState)
    environment: EnvironmentCheckpoint = field(default_factory=NoEnvironmentCheckpoint)
    consumer_tasks: tuple[str, ...] = ()
    run_config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    metrics: Metrics | None = None
    clock: Clock = field(default_factory=SystemClock)
    file_ops: FileOps = field(default_factory=FileOps)


class _UsesRolloutParts:  # pyright: ignore[reportUnusedClass] - saving and restoring derive from it
    """Gives the parts under their own names."""

    def __init__(self, parts: RolloutParts) -> None:
        self._parts = parts
        self._config = parts.config
        self._data_plane = parts.data_plane
        self._partition_id = parts.partition_id
        self._prompt_source = parts.prompt_source
        self._sampler = parts.sampler
        self._replay_index = parts.replay_index
        self._ledger = parts.ledger
        self._barrier = parts.barrier
        self._progress = parts.progress
        self._runtime = parts.runtime
        self._environment = parts.environment
        self._metrics = parts.metrics
        self._clock = parts.clock
        self._file_ops = parts.file_ops


@dataclass(frozen=True)
class CapturedRolloutState:
    """The run at the moment of one exclusive cut: references to what can't change, copies of what can.

    Attributes:
        kind: What it is for.
        train_steps: See `TrainingProgress`.
        trainer_version: See `TrainingProgress`.
        current_epoch: See `TrainingProgress`.
        partition_id: See `RolloutParts`.
        prompt_source_state: The source's state, copied.
        sampler_name: The sampler's name.
        sampler_dispatch_index: Its cursor.
        sampler_stamps_target_steps: See `RolloutRuntimeState`.
        batch_shortfall: See `RolloutRuntimeState`.
        dropped: See `RolloutRuntimeState`.
        reserve: The replacement reserve.
        replay_groups: The index, groups of an open train step with it; None where the kind or the sampler has none.
        replay_capacity: The index's capacity.
        ledger_groups: The ledger; None where nothing records groups.
        next_admission_id: The ledger's next batch number.
        rolled_back_group_ids: Groups of an open train step, which a restart trains on again.
        sample_ids: The ids of the training rows in the data plane; None where it is not saved.
        environment_episodes: Episodes that the environment saved and the ledger still owns; None where it saved none.
        mutation_version: The barrier's.
        data_plane_view: The frozen plane, to be written later; None where it is not saved or was written in the cut.
        data_plane_seconds: How long writing the plane inside of the cut took, in seconds.
        teacher_states: Which teachers tagged the rows; None where nobody says so.
        recent_prompts: The prompts that were taken last.
    """

    kind: CheckpointKind
    train_steps: int
    trainer_version: int
    current_epoch: int
    partition_id: str
    prompt_source_state: dict[str, Any]
    sampler_name: str
    sampler_dispatch_index: int
    sampler_stamps_target_steps: bool
    batch_shortfall: Mapping[int, int]
    dropped: tuple[str, ...]
    reserve: tuple[SavedPrompt, ...]
    replay_groups: tuple[ReplayGroup, ...] | None
    replay_capacity: int
    ledger_groups: tuple[PromptGroupRecoveryRecord, ...] | None
    next_admission_id: int
    rolled_back_group_ids: tuple[str, ...] = ()
    sample_ids: tuple[str, ...] | None = None
    environment_episodes: tuple[EnvironmentEpisode, ...] | None = None
    mutation_version: int = 0
    data_plane_view: DataPlaneView | None = None
    data_plane_seconds: float = 0.0
    teacher_states: tuple[Any, ...] | None = None
    recent_prompts: tuple[SavedPrompt, ...] = ()


@dataclass(frozen=True)
class SkippedSnapshot:
    """A snapshot that was passed over.

    Attributes:
        path: Its folder.
        reason: Why.
    """

    path: Path
    reason: str


@dataclass(frozen=True)
class ResumeSource:
    """What a start goes on from; the default is a fresh run.

    Attributes:
        anchor: The trainer checkpoint whose weights the trainer loads, or the bootstrap anchor; None for a fresh run.
        path: The folder with the rollout state; None where there is none to restore.
        kind: What wrote it.
        train_steps: The anchor's step.
        trainer_version: The anchor's version.
        current_epoch: The epoch of the prompt source, from `path`.
        sampler_dispatch_index: The sampler's cursor, from `path`; None where none was saved.
        skipped: Newer snapshots that were passed over.
        warnings: What a person should know.
        verified: Whether every file of `path` was compared with the manifest's digests; restoring does it otherwise.
    """

    anchor: Path | None = None
    path: Path | None = None
    kind: CheckpointKind | None = None
    train_steps: int = 0
    trainer_version: int = 0
    current_epoch: int = 0
    sampler_dispatch_index: int | None = None
    skipped: tuple[SkippedSnapshot, ...] = ()
    warnings: tuple[str, ...] = ()
    verified: bool = False
