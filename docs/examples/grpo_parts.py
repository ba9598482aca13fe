"""The parts of a run of async_grpo.py, and how a start goes on where the last one was killed."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from arithmetic_task import PromptList
from grpo_trainer import Batch, Trainer
from nrl_dataplane_local import LocalDataPlaneClient, LocalDataPlaneConfig
from nrl_interfaces import DataPlaneClient, build_data_plane_client
from nrl_interfaces.fileops import FileOps
from nrl_interfaces.rollout import EnvironmentCheckpoint, NoEnvironmentCheckpoint
from nrl_rollout_ckpt.config import RolloutCheckpointConfig
from nrl_rollout_ckpt.disk.bootstrap import BootstrapCompatibilityIdentity
from nrl_rollout_ckpt.disk.selection import select_resume_source
from nrl_rollout_ckpt.disk.trainer_checkpoints import CheckpointManager
from nrl_rollout_ckpt.restore import RestoreReport, RolloutRestorer
from nrl_rollout_ckpt.samplers import InOrderSampler
from nrl_rollout_ckpt.state.ledger import RolloutRecoveryLedger
from nrl_rollout_ckpt.state.ledger_states import RecoveryTargetLevel
from nrl_rollout_ckpt.state.records import Prompt
from nrl_rollout_ckpt.state.replay_index import ReplayIndex, TrainingClaim
from nrl_rollout_ckpt.state.rollout_state import RolloutParts, TrainingProgress
from nrl_rollout_ckpt.state.transitions import RolloutTransitions
from step_dump import StepDump

GROUP_SIZE = 4
GROUPS_PER_STEP = 4
MAX_STALENESS = 1
PARTITION = "rollouts"
TRAINER_FILE = "trainer.pt"


@dataclass(frozen=True)
class Settings:
    """What a run is made of; `config` is what a restart is compared with."""

    checkpoint_dir: Path
    prompts: int
    seed: int
    dump_dir: Path | None = None
    plane: str = "local"

    @property
    def config(self) -> dict[str, Any]:
        return {
            "prompts": self.prompts,
            "seed": self.seed,
            "plane": self.plane,
            "group_size": GROUP_SIZE,
            "max_staleness": MAX_STALENESS,
        }


def make_plane(kind: str, ops: FileOps) -> DataPlaneClient:
    """Make a data plane in this process ("local"), or on the queue that somebody has started in this Ray."""
    if kind == "local":
        return LocalDataPlaneClient(LocalDataPlaneConfig(partition_mode="stream"), file_ops=ops)
    return build_data_plane_client({"impl": kind, "partition_mode": "stream"})


@dataclass
class Run:
    """All parts of a run but its task, which classes derived from this one know.

    Others than these parts may be given, to watch them or to break them.

    Attributes:
        settings: What it is made of.
        report: Gets an event for each start, generation and train step.
        file_ops: The operations on files.
        group_ready: Set whenever a group is ready for training.
    """

    settings: Settings
    report: Callable[..., None]
    file_ops: FileOps = field(default_factory=FileOps)
    make_plane: Callable[[str, FileOps], DataPlaneClient] = make_plane
    ledger_class: type[RolloutRecoveryLedger] = RolloutRecoveryLedger
    group_ready: asyncio.Event = field(default_factory=asyncio.Event)

    # ---- The task ----

    fields: ClassVar[list[str]]
    """The columns of its rows; `reward` is one of them."""
    target_level: ClassVar[RecoveryTargetLevel] = RecoveryTargetLevel.SIBLING
    """Where a restart goes on."""

    def make_prompts(self) -> list[Prompt]:
        raise NotImplementedError

    def make_trainer(self) -> Trainer:
        raise NotImplementedError

    def make_environment(self) -> EnvironmentCheckpoint:
        return NoEnvironmentCheckpoint()

    def instance_for(self, group_id: str) -> str | None:  # noqa: ARG002 - without an environment there is none
        """The instance of the environment that runs a group."""
        return None

    async def generate_sibling(self, group_id: str, index: int) -> None:
        """Generate what is not there yet of one sibling, and seal it."""
        raise NotImplementedError

    def columns_of(self, group_id: str) -> dict[str, torch.Tensor]:
        """The rows of a complete group, from what its siblings were sealed with."""
        raise NotImplementedError

    def turns_kept(self) -> int:
        """How many turns of unfinished episodes a restart found."""
        return 0

    # ---- The rest is the same for all tasks ----

    def __post_init__(self) -> None:
        settings, ops = self.settings, self.file_ops
        self.trainer = self.make_trainer()
        self.prompts = PromptList(self.make_prompts())
        self.steps = -(-len(self.prompts.prompts) // GROUPS_PER_STEP)
        self.plane = self.make_plane(settings.plane, ops)
        self.dump = None if settings.dump_dir is None else StepDump(settings.dump_dir, ops)
        self.environment = self.make_environment()
        self.checkpoints = CheckpointManager(settings.checkpoint_dir, keep_latest_k=2, ops=ops)
        self.identity = BootstrapCompatibilityIdentity.of(settings.config)
        capacity = GROUPS_PER_STEP * (MAX_STALENESS + 1)
        progress = TrainingProgress()
        self.parts = RolloutParts(
            config=RolloutCheckpointConfig(snapshot_attempt_interval_s=0.1, target_level=self.target_level),
            data_plane=self.plane,
            partition_id=PARTITION,
            prompt_source=self.prompts,
            sampler=InOrderSampler(progress, MAX_STALENESS),
            replay_index=ReplayIndex(capacity, GROUP_SIZE),
            ledger=self.ledger_class(),
            progress=progress,
            environment=self.environment,
            run_config=settings.config,
            file_ops=ops,
        )
        self.transitions = RolloutTransitions(self.parts)

    async def resume(self) -> RestoreReport:
        """Go on where the newest snapshot was; a folder without any begins a run."""
        source = select_resume_source(self.settings.checkpoint_dir, self.parts.config, self.identity)
        if source.train_steps:
            self.trainer.load_state_dict(torch.load(source.anchor / TRAINER_FILE, weights_only=True))
        if source.path is None:
            rows = self.parts.replay_index.capacity * GROUP_SIZE
            self.plane.register_partition(PARTITION, [*self.fields, "advantages"], rows, ["train"], GROUP_SIZE)
        restored = await RolloutRestorer(self.parts).restore(source)
        self.report(
            "start",
            source="nothing" if source.path is None else str(source.path.relative_to(self.settings.checkpoint_dir)),
            train_steps=source.train_steps,
            groups_kept=restored.groups_from_buffer,
            groups_of_open_step=restored.rolled_back_groups,
            siblings_kept=restored.siblings_kept,
            turns_kept=self.turns_kept(),
        )
        return restored

    def dump_step(self, claim: TrainingClaim, batch: Batch) -> Callable[[], object] | None:
        """Dump the rows of the step just done, if dumps are on; gives what waits until they are published."""
        if self.dump is None:
            return None
        return self.dump.add(self.parts.progress.train_steps - 1, claim, batch).result

    def close(self) -> None:
        """Wait until all that is under way is on the disk."""
        self.checkpoints.shutdown()
        if self.dump is not None:
            self.dump.close()
