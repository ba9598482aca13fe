"""The snapshots of an anchor as candidates: which is the newest whole one, and why each newer one is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from nrl_rollout_ckpt.disk.layout import snapshot_entries
from nrl_rollout_ckpt.disk.manifest import (
    MANIFEST,
    NewerFormatError,
    RolloutSnapshotManifest,
    read_manifest,
    verify_files,
)
from nrl_rollout_ckpt.disk.upstream import refuse_upstream_files
from nrl_rollout_ckpt.state.rollout_state import CheckpointKind, SkippedSnapshot

__all__ = ["Anchor", "Search", "search_snapshots", "why_foreign"]

_MAX_SHOWN: Final = 3


class Anchor(NamedTuple):
    """What a manifest has to name to belong to an anchor."""

    path: Path
    step: int
    version: int
    fingerprint: str | None = None
    digest: str | None = None


@dataclass
class Search:
    """What a look through the snapshots of an anchor found.

    Attributes:
        found: The newest one that is whole, with its manifest.
        skipped: Those that were passed over before it.
        damaged: Those of `skipped` that were snapshots of this anchor once.
        lost: The manifest of the newest damaged one whose manifest can be read.
        warnings: What a person should know.
    """

    found: tuple[Path, RolloutSnapshotManifest] | None = None
    skipped: list[SkippedSnapshot] = field(default_factory=list[SkippedSnapshot])
    damaged: list[SkippedSnapshot] = field(default_factory=list[SkippedSnapshot])
    lost: RolloutSnapshotManifest | None = None
    warnings: list[str] = field(default_factory=list[str])


def search_snapshots(anchor: Anchor) -> Search:
    """Look through an anchor's snapshots, the newest first, until one is whole.

    Raises:
        NewerFormatError: A later version wrote one.
        UpstreamFormatError: NeMo RL itself wrote one.
    """
    search = Search()
    for path in snapshot_entries(anchor.path):
        reason, is_damage, manifest = _look_at(path, anchor)
        if reason is None and manifest is not None:
            search.found = (path, manifest)
            break
        skipped = SkippedSnapshot(path, reason or "")
        search.skipped.append(skipped)
        if is_damage:
            search.damaged.append(skipped)
            search.lost = search.lost or manifest
    return search


class _Look(NamedTuple):
    """Why a folder is passed over, None where it isn't; whether that is damage; its manifest where it can be read."""

    reason: str | None
    is_damage: bool = False
    manifest: RolloutSnapshotManifest | None = None


def _look_at(path: Path, anchor: Anchor) -> _Look:
    if path.name.startswith("tmp_"):
        return _Look("was never published: it is being written, or its process ended before")
    if path.name.startswith("trash_"):
        return _Look("is being removed")
    if path.is_symlink() or not path.is_dir():
        return _Look("is no folder of its own")
    refuse_upstream_files(path)
    try:
        manifest = read_manifest(path / MANIFEST)
    except NewerFormatError:
        raise
    except FileNotFoundError:
        return _Look(f"has no {MANIFEST}: it is not complete", is_damage=True)
    except (OSError, ValueError) as error:
        return _Look(f"has a manifest that can't be read: {error}", is_damage=True)
    foreign = why_foreign(manifest, anchor, CheckpointKind.ROLLOUT_SNAPSHOT)
    if foreign is not None:
        return _Look(foreign)
    problems = verify_files(path, manifest)
    if problems:
        return _Look(_shown(problems), is_damage=True, manifest=manifest)
    return _Look(None, manifest=manifest)


def why_foreign(manifest: RolloutSnapshotManifest, anchor: Anchor, kind: CheckpointKind) -> str | None:
    """Say what of a manifest belongs to another anchor or run; None where nothing does."""
    pairs = {
        "kind": (manifest.kind, kind),
        "base_train_step": (manifest.base_train_step, anchor.step),
        "trainer_version": (manifest.trainer_version, anchor.version),
        "bootstrap_fingerprint": (manifest.bootstrap_fingerprint, anchor.fingerprint),
        "anchor_digest": (manifest.anchor_digest, anchor.digest),
    }
    for name, (saved, wanted) in pairs.items():
        if saved != wanted:
            return f"belongs elsewhere: its {name} is {_text(saved)}, that of {anchor.path.name} is {_text(wanted)}"
    return None


def _shown(problems: Sequence[str]) -> str:
    rest = len(problems) - _MAX_SHOWN
    return "; ".join([*problems[:_MAX_SHOWN], *([f"and {rest} more"] if rest > 0 else [])])


def _text(value: object) -> str:
    return "none" if value is None else str(value)
