"""What a start would restore, and why nothing newer."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from nrl_rollout_ckpt.config import RolloutCheckpointConfig
from nrl_rollout_ckpt.disk.layout import step_of
from nrl_rollout_ckpt.disk.manifest import RolloutSnapshotManifest, manifest_name, read_manifest
from nrl_rollout_ckpt.disk.selection import select_resume_source
from nrl_rollout_ckpt.state.rollout_state import ResumeSource, SkippedSnapshot

_UNPUBLISHED: Final = re.compile(r"tmp_(step_[0-9]+)")


@dataclass(frozen=True)
class Explanation:
    """The answer.

    Attributes:
        source: What a start goes on from.
        manifest: Of its rollout state; None where there is none to restore.
        skipped: What is newer and was passed over, trainer checkpoints too.
    """

    source: ResumeSource
    manifest: RolloutSnapshotManifest | None
    skipped: tuple[SkippedSnapshot, ...]

    def to_json(self) -> dict[str, Any]:
        """It as plain data."""
        source, manifest = self.source, self.manifest
        return {
            "anchor": None if source.anchor is None else str(source.anchor),
            "path": None if source.path is None else str(source.path),
            "kind": source.kind,
            "train_steps": source.train_steps,
            "trainer_version": source.trainer_version,
            "current_epoch": source.current_epoch,
            "sampler_dispatch_index": source.sampler_dispatch_index,
            "created": manifest and manifest.created,
            "counts": manifest and asdict(manifest.counts),
            "skipped": [{"path": str(item.path), "reason": item.reason} for item in self.skipped],
            "warnings": list(source.warnings),
        }


def explain(checkpoint_dir: Path, config: RolloutCheckpointConfig) -> Explanation:
    """Say what a start would do; the run's own config is not compared.

    Raises:
        ValueError: The start would refuse; says why.
    """
    source = select_resume_source(checkpoint_dir, config)
    manifest = None
    if source.path is not None and source.kind is not None:
        manifest = read_manifest(source.path / manifest_name(source.kind))
    return Explanation(source, manifest, (*_unpublished_steps(checkpoint_dir, source.train_steps), *source.skipped))


def _unpublished_steps(checkpoint_dir: Path, step: int) -> list[SkippedSnapshot]:
    found: dict[int, Path] = {}
    for path in checkpoint_dir.iterdir():
        match = _UNPUBLISHED.fullmatch(path.name)
        number = step_of(match[1]) if match else None
        if number is not None and number > step:
            found[number] = path
    reason = "was never published: it is being written, or its process ended before"
    return [SkippedSnapshot(path, reason) for _, path in sorted(found.items(), reverse=True)]
