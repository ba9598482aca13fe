"""What a start goes on from: chosen by looking only, after every byte of it was compared with its digest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from nrl_rollout_ckpt.config import RolloutCheckpointConfig
from nrl_rollout_ckpt.disk.bootstrap import (
    BootstrapCompatibilityIdentity,
    BootstrapMismatchError,
    check_bootstrap_anchor,
)
from nrl_rollout_ckpt.disk.candidates import Anchor, Search, search_snapshots, why_foreign
from nrl_rollout_ckpt.disk.layout import (
    BOOTSTRAP,
    RECOVERY,
    REPLAY_INDEX,
    RESERVE,
    TRAINING_INFO,
    list_snapshots,
    step_folders,
)
from nrl_rollout_ckpt.disk.manifest import (
    MANIFEST,
    TRAINER_MANIFEST,
    NewerFormatError,
    RolloutSnapshotManifest,
    digest_of_anchor,
    read_manifest,
    verify_files,
)
from nrl_rollout_ckpt.disk.upstream import refuse_upstream_files
from nrl_rollout_ckpt.state.rollout_state import CheckpointKind, ResumeSource

__all__ = ["NoTrainerCheckpointError", "NotAFreshFolderError", "RolloutStateDamagedError", "select_resume_source"]


class RolloutStateDamagedError(ValueError):
    """Raised when what a start would have to go on from is damaged, and nothing else may stand in for it in silence.

    Attributes:
        path: The trainer checkpoint or the bootstrap anchor.
        problems: What is wrong.
        way_out: What to do.
    """

    def __init__(self, path: Path, problems: Sequence[str], way_out: str) -> None:
        super().__init__(path, tuple(problems), way_out)
        self.path, self.problems, self.way_out = path, tuple(problems), way_out

    def __str__(self) -> str:
        return f"{self.path} is damaged: {'; '.join(self.problems)}. {self.way_out}"


class NoTrainerCheckpointError(ValueError):
    """Raised for ``restore_mode="trainer_checkpoint"`` where only the rollouts from before the first one are.

    Attributes:
        path: The bootstrap anchor.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return (
            f"restore_mode is 'trainer_checkpoint', and {self.path.parent} has no trainer checkpoint, only {self.path}:"
            " set 'latest' to go on with its rollouts, 'fresh' to leave them alone, or choose another checkpoint_dir"
        )


class NotAFreshFolderError(ValueError):
    """Raised for ``restore_mode="fresh"`` where trainer checkpoints are: they would count as newer than the new run's.

    Attributes:
        path: The newest of them.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return (
            f"restore_mode is 'fresh', and {self.path} is there: retention and a later start take the highest step for"
            " the newest, so that the checkpoints of a new run would be removed or passed over. Name another"
            " checkpoint_dir for the new run"
        )


def select_resume_source(
    checkpoint_dir: str | Path,
    config: RolloutCheckpointConfig,
    identity: BootstrapCompatibilityIdentity | None = None,
) -> ResumeSource:
    """Choose what a start restores; changes nothing on disk, takes no lock.

    The newest trainer checkpoint decides about the weights. Under it the newest snapshot counts whose files are all
    there with the digests of its manifest; each that is passed over is named with the reason. Where all are damaged,
    the trainer checkpoint's own rollout state counts, with a warning about what is lost. Each file of what is chosen is
    read and hashed once, here; restoring relies on that.

    Args:
        checkpoint_dir: The folder of the trainer checkpoints.
        config: Says what may be restored.
        identity: This run, to be compared with the one that wrote the bootstrap anchor; None compares nothing.

    Returns:
        The source; its defaults are a fresh run.

    Raises:
        RolloutStateDamagedError: The newest trainer checkpoint is damaged, or every snapshot from before the first one.
        NewerFormatError: A later version of this package wrote it.
        BootstrapMismatchError: Another run wrote the bootstrap anchor, which a fresh run would need too.
        NotAFreshFolderError: ``restore_mode="fresh"``, and there are trainer checkpoints.
        NoTrainerCheckpointError: ``restore_mode="trainer_checkpoint"``, and there is only a bootstrap anchor.
        UpstreamFormatError: NeMo RL itself wrote it.
    """
    folder = Path(checkpoint_dir)
    steps = step_folders(folder)
    if steps:
        step, path = next(iter(steps.items()))
        if config.restore_mode == "fresh":
            raise NotAFreshFolderError(path)
        return _of_trainer_checkpoint(path, step, config)
    return _of_bootstrap_anchor(folder / BOOTSTRAP, config, identity)


# ---- Under a trainer checkpoint ----


def _of_trainer_checkpoint(path: Path, step: int, config: RolloutCheckpointConfig) -> ResumeSource:
    info = _training_info(path, step)
    anchor = Anchor(path, step, info["trainer_version"])
    ignored = _why_snapshots_are_ignored(config)
    search = (
        search_snapshots(anchor._replace(digest=digest_of_anchor(path)))
        if ignored is None
        else Search(warnings=_ignored(path, ignored))
    )
    if search.found is not None:
        return _source(anchor, *search.found, search)
    if search.damaged:
        search.warnings.append(_what_is_lost(anchor, search))
    own = _own_state(anchor)
    if own is not None:
        return _source(anchor, path, own, search)
    search.warnings.append(
        f"{path} has no rollout state: the weights are restored, prompts begin anew with the first of their source"
    )
    return ResumeSource(
        anchor=path,
        train_steps=step,
        trainer_version=anchor.version,
        current_epoch=info["current_epoch"],
        sampler_dispatch_index=info["sampler_dispatch_index"],
        skipped=tuple(search.skipped),
        warnings=tuple(search.warnings),
    )


def _training_info(path: Path, step: int) -> dict[str, Any]:
    """Read the counters of a trainer checkpoint; those that older ones don't have get their defaults."""
    file = path / TRAINING_INFO
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged_checkpoint(path, f"{TRAINING_INFO} can't be read: {error}") from error
    info = cast("dict[str, Any]", content) if isinstance(content, dict) else {}
    if type(info.get("current_step")) is not int or info["current_step"] != step:
        problem = f"{TRAINING_INFO} has current_step {info.get('current_step')!r}; allowed: {step}, as its folder says"
        raise _damaged_checkpoint(path, problem)
    info = {"trainer_version": step, "current_epoch": 0, "sampler_dispatch_index": None, **info}
    for name, lowest in {"trainer_version": 0, "current_epoch": 0, "sampler_dispatch_index": -1}.items():
        value = info[name]
        if not (type(value) is int and value >= lowest) and not (name == "sampler_dispatch_index" and value is None):
            raise _damaged_checkpoint(path, f"{TRAINING_INFO} has {name} {value!r}; allowed: an int from {lowest}")
    return info


def _own_state(anchor: Anchor) -> RolloutSnapshotManifest | None:
    """Check the rollout state of a trainer checkpoint; None where it has none."""
    path = anchor.path
    try:
        manifest = read_manifest(path / TRAINER_MANIFEST)
    except FileNotFoundError:
        refuse_upstream_files(path)
        left = [name for name in (REPLAY_INDEX, RECOVERY, RESERVE) if (path / name).exists()]
        if left:
            raise _damaged_checkpoint(path, f"{TRAINER_MANIFEST} is missing, though {left[0]} is there") from None
        return None
    except NewerFormatError:
        raise
    except (OSError, ValueError) as error:
        raise _damaged_checkpoint(path, str(error)) from error
    foreign = why_foreign(manifest, anchor, CheckpointKind.TRAINER_CHECKPOINT)
    problems = [foreign] if foreign else verify_files(path, manifest)
    if problems:
        raise _damaged_checkpoint(path, *problems)
    return manifest


def _damaged_checkpoint(path: Path, *problems: str) -> RolloutStateDamagedError:
    way_out = (
        "It is the newest trainer checkpoint, and no older one is taken in silence: rename it to go on from the one"
        " before it, or name another checkpoint_dir to begin anew"
    )
    return RolloutStateDamagedError(path, problems, way_out)


# ---- Under the bootstrap anchor ----


def _of_bootstrap_anchor(
    path: Path, config: RolloutCheckpointConfig, identity: BootstrapCompatibilityIdentity | None
) -> ResumeSource:
    if not path.is_dir():
        return ResumeSource()
    ignored = _why_snapshots_are_ignored(config)
    if ignored is not None and config.restore_mode != "trainer_checkpoint":
        return ResumeSource(warnings=tuple(_ignored(path, ignored)))
    try:
        written = check_bootstrap_anchor(path.parent, identity)
    except (BootstrapMismatchError, NewerFormatError):
        raise
    except (OSError, ValueError) as error:
        raise RolloutStateDamagedError(path, (str(error),), "Choose another checkpoint_dir to begin anew") from error
    if config.restore_mode == "fresh":
        return ResumeSource(warnings=(f"restore_mode is 'fresh': {path} is left alone",))
    way_out = "Set restore_mode='fresh' to begin anew and leave it alone, or choose another checkpoint_dir"
    if written is None:
        if list_snapshots(path):
            raise RolloutStateDamagedError(path, (f"{MANIFEST} is missing, though snapshots are there",), way_out)
        return ResumeSource()
    if config.restore_mode == "trainer_checkpoint":
        raise NoTrainerCheckpointError(path)
    anchor = Anchor(path, 0, 0, written.fingerprint)
    search = search_snapshots(anchor)
    if search.found is not None:
        return _source(anchor, *search.found, search)
    if search.damaged:
        raise RolloutStateDamagedError(path, [f"{item.path.name} {item.reason}" for item in search.damaged], way_out)
    return ResumeSource(skipped=tuple(search.skipped))


# ---- Both ----


def _source(anchor: Anchor, path: Path, manifest: RolloutSnapshotManifest, search: Search) -> ResumeSource:
    return ResumeSource(
        anchor=anchor.path,
        path=path,
        kind=manifest.kind,
        train_steps=anchor.step,
        trainer_version=anchor.version,
        current_epoch=manifest.current_epoch,
        sampler_dispatch_index=manifest.sampler_dispatch_index,
        skipped=tuple(search.skipped),
        warnings=tuple(search.warnings),
        verified=True,
    )


def _why_snapshots_are_ignored(config: RolloutCheckpointConfig) -> str | None:
    if config.snapshot_attempt_interval_s is None:
        return "snapshot_attempt_interval_s is None"
    return "restore_mode is 'trainer_checkpoint'" if config.restore_mode == "trainer_checkpoint" else None


def _ignored(anchor: Path, why: str) -> list[str]:
    count = len(list_snapshots(anchor))
    return [f"{why}: {count} snapshots of {anchor} are not considered"] if count else []


def _what_is_lost(anchor: Anchor, search: Search) -> str:
    counts = "no manifest of theirs can be read"
    if search.lost is not None:
        held = search.lost.counts
        counts = (
            f"the newest held {held.replay_groups} complete groups with {held.rows} rows, {held.ledger_groups} groups"
            f" that were not complete, {held.reserve} prompts in reserve"
        )
    return (
        f"all {len(search.damaged)} snapshots of {anchor.path} are damaged: what was generated since that checkpoint is"
        f" lost ({counts}), and its own rollout state is restored"
    )
