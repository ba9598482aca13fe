"""A checkpoint folder with real snapshots in it, written through the same functions as by a saver."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from nrl_interfaces.fileops import WRITE_NEW, FileOps, OutputFile
from nrl_interfaces.publish import make_folder
from nrl_interfaces.rollout import EnvironmentEpisode, PromptRef
from nrl_interfaces.testing.faults import FailingOps, KillingOps, RecordingOps, run_in_child
from nrl_rollout_ckpt.config import RolloutCheckpointConfig
from nrl_rollout_ckpt.disk.bootstrap import BootstrapCompatibilityIdentity, ensure_bootstrap_anchor
from nrl_rollout_ckpt.disk.layout import DATA_PLANE, commit_snapshot, prepare_snapshot_paths, step_of
from nrl_rollout_ckpt.disk.manifest import (
    RolloutSnapshotManifest,
    SnapshotCounts,
    describe_files,
    digest_of_anchor,
    manifest_name,
)
from nrl_rollout_ckpt.disk.retention import prune_snapshots
from nrl_rollout_ckpt.disk.sidecars import serialize, write_sidecars
from nrl_rollout_ckpt.disk.trainer_checkpoints import CheckpointManager
from nrl_rollout_ckpt.state.ledger_states import (
    PromptGroupPhase,
    RecoveryGranularity,
    RecoveryTargetLevel,
    RolloutAttemptStatus,
)
from nrl_rollout_ckpt.state.payloads import StoredValue
from nrl_rollout_ckpt.state.records import (
    PromptGroupRecoveryRecord,
    ReplayGroup,
    RolloutAttemptRecord,
    RolloutSiblingRecord,
    SavedPrompt,
)
from nrl_rollout_ckpt.state.rollout_state import CapturedRolloutState, CheckpointKind


class Quick(FileOps):
    """The real operations but for fsync, which makes up most of the time of a test."""

    def fsync(self, fd: int) -> None:
        pass

    def fsync_folder(self, path: Path) -> None:
        pass


QUICK = Quick()
IDENTITY = BootstrapCompatibilityIdentity.of({"seed": 1, "policy": {"model": "m"}})


def saved_prompt(name: str) -> SavedPrompt:
    stored = StoredValue.of({"text": name, "weight": 1e-07, "ids": torch.tensor([1, 2, 3])}, name)
    return SavedPrompt(PromptRef(name, "math"), stored.digest, stored)


def captured_state(
    mark: int, *, step: int, kind: CheckpointKind = CheckpointKind.ROLLOUT_SNAPSHOT
) -> CapturedRolloutState:
    """A state with one of everything; `mark` is its mutation version and stands in its prompt source's position."""
    result = StoredValue.of({"tokens": torch.tensor([5, 6]), "done": True}, "a result")
    siblings = (
        RolloutSiblingRecord(0, (RolloutAttemptRecord("a" * 32, RolloutAttemptStatus.SEALED, result, 0.1, False),)),
        RolloutSiblingRecord(1, (RolloutAttemptRecord("b" * 32, RolloutAttemptStatus.DISPATCHED),)),
    )
    group = PromptGroupRecoveryRecord(
        "l0",
        3,
        saved_prompt("p1"),
        RecoveryGranularity.SIBLING,
        RecoveryTargetLevel.SIBLING,
        2,
        siblings,
        step,
        None,
        PromptGroupPhase.ADMITTED,
    )
    return CapturedRolloutState(
        kind=kind,
        train_steps=step,
        trainer_version=step,
        current_epoch=1,
        partition_id="rollouts",
        prompt_source_state={"position": mark, "generator": torch.arange(5, dtype=torch.uint8)},
        sampler_name="in_order",
        sampler_dispatch_index=step,
        sampler_stamps_target_steps=True,
        batch_shortfall={step + 1: 1},
        dropped=("p9",),
        recent_prompts=(replace(saved_prompt("p2"), stored=None),),
        reserve=(saved_prompt("p2"),),
        replay_groups=(ReplayGroup("g0", ("g0_g0", "g0_g1"), 0, 1, saved_prompt("p0"), step + 1),),
        replay_capacity=8,
        ledger_groups=(group,),
        next_admission_id=4,
        environment_episodes=(EnvironmentEpisode("env0", "l0_g1_a" + "b" * 32),),
        mutation_version=mark,
    )


def write_file(path: Path, data: bytes, ops: FileOps = QUICK) -> None:
    with OutputFile(path, WRITE_NEW, ops) as file:
        file.write(data)


def write_rollout_state(
    folder: Path, captured: CapturedRolloutState, fingerprint: str | None, anchor_digest: str | None, ops: FileOps
) -> None:
    """What a saver writes into a folder, the manifest last."""
    make_folder(folder / DATA_PLANE, ops)
    write_file(folder / DATA_PLANE / "rows.bin", bytes(range(256)) * 8, ops)
    names = write_sidecars(folder, serialize(captured), ops)
    manifest = RolloutSnapshotManifest(
        kind=captured.kind,
        created=1_700_000_000.0,
        base_train_step=captured.train_steps,
        trainer_version=captured.trainer_version,
        current_epoch=captured.current_epoch,
        sampler_name=captured.sampler_name,
        sampler_dispatch_index=captured.sampler_dispatch_index,
        mutation_version=captured.mutation_version,
        rolled_back_train_group_count=0,
        bootstrap_fingerprint=fingerprint,
        anchor_digest=anchor_digest,
        counts=SnapshotCounts(replay_groups=1, ledger_groups=1, reserve=1, rows=2, environment_episodes=1),
        files=describe_files(folder, [DATA_PLANE, *names]),
    )
    write_file(folder / manifest_name(captured.kind), manifest.to_json(), ops)


class Run:
    """A checkpoint folder, and what a trainer and a saver do in it.

    Attributes:
        folder: The folder.
        config: The config of rollout checkpoints.
    """

    def __init__(self, folder: Path, config: RolloutCheckpointConfig) -> None:
        self.folder, self.config = folder, config

    def copy(self, folder: Path) -> Run:
        """The same run in another folder; the paths in it are those of the copy."""
        shutil.copytree(self.folder, folder)
        return Run(folder, self.config)

    def train(self, step: int, *, rollouts: bool = False, ops: FileOps = QUICK, keep: int | None = None) -> Path:
        """Publish the trainer checkpoint of a step, with its own rollout state or without."""
        manager = CheckpointManager(self.folder, keep_latest_k=keep, ops=ops)
        info = {"current_step": step, "trainer_version": step, "current_epoch": 0, "sampler_dispatch_index": step - 1}
        folder = manager.init_tmp_checkpoint(step, info, {"seed": 1})
        write_file(folder / "weights.bin", b"w" * 1000, ops)
        if rollouts:
            captured = captured_state(step, step=step, kind=CheckpointKind.TRAINER_CHECKPOINT)
            write_rollout_state(folder, captured, None, None, ops)
        manager.begin_finalization(folder)
        manager.shutdown()
        return manager.step_path(step)

    def bootstrap(self, ops: FileOps = QUICK) -> Path:
        """Make sure of the bootstrap anchor."""
        return ensure_bootstrap_anchor(self.folder, IDENTITY, ops)[0]

    def snapshot(self, anchor: Path, mark: int = 0, ops: FileOps = QUICK) -> Path:
        """Save a snapshot under an anchor, then prune."""
        step = step_of(anchor.name)
        paths = prepare_snapshot_paths(anchor, ops)
        fingerprint = None if step else IDENTITY.fingerprint
        captured = captured_state(mark, step=step or 0)
        write_rollout_state(paths.temporary, captured, fingerprint, digest_of_anchor(anchor), ops)
        commit_snapshot(paths.temporary, paths.final, ops)
        prune_snapshots(anchor, self.config.keep_latest_k, ops)
        return paths.final


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Run]:
    """A run in a folder of its own, with the config that is given."""
    numbers = iter(range(10_000))

    def make(**config: object) -> Run:
        return Run(tmp_path / f"run{next(numbers)}", RolloutCheckpointConfig.from_mapping(config))

    return make


@pytest.fixture
def copies(tmp_path: Path) -> Callable[[Run], Run]:
    """Copies of a run, each in a folder of its own: quicker than to write it again."""
    numbers = iter(range(10_000))
    return lambda run: run.copy(tmp_path / f"copy{next(numbers)}")


@pytest.fixture
def run(make_run: Callable[..., Run]) -> Run:
    return make_run()


@pytest.fixture
def identity() -> BootstrapCompatibilityIdentity:
    return IDENTITY


@pytest.fixture
def capture() -> Callable[..., CapturedRolloutState]:
    return captured_state


Prepare = Callable[[], object]
Action = Callable[[FileOps], object]


@pytest.fixture
def each_fault() -> Callable[..., Iterator[str]]:
    """Let each file operation of an action fail, and kill the process at each moment between them."""

    def faults(prepare: Callable[[], tuple[object, Action]]) -> Iterator[tuple[str, object]]:
        """Yield what was done and what `prepare` gave, once per fault, after it."""
        _, action = prepare()
        recorded = RecordingOps()
        action(recorded)
        for at, (name, file) in enumerate(recorded.calls):
            state, action = prepare()
            failing = FailingOps(at, errno.ENOSPC)
            with contextlib.suppress(OSError, RuntimeError):
                action(failing)
            assert failing.failed == name
            yield f"{name} {file} fails (operation {at})", state
            # Before an operation is after the one that came before it.
            for moment in ("during", "after") if name == "write" else ("after",):
                state, action = prepare()
                killing = KillingOps(at, moment)
                assert run_in_child(lambda action=action, killing=killing: action(killing)) == 9
                yield f"killed {moment} {name} {file} (operation {at})", state

    return faults
