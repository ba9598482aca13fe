"""What one snapshot, or the rollout state of a trainer checkpoint, holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nrl_rollout_ckpt.commands.entries import is_trainer_checkpoint
from nrl_rollout_ckpt.disk.manifest import MANIFEST, TRAINER_MANIFEST, RolloutSnapshotManifest, read_manifest
from nrl_rollout_ckpt.disk.sidecars import RestoredSidecars, read_sidecars
from nrl_rollout_ckpt.state.records import PromptGroupRecoveryRecord, ReplayGroup, SavedPrompt


@dataclass(frozen=True)
class GroupSummary:
    """One prompt that has left its source.

    Attributes:
        group_id: The group's id; None for a prompt in reserve.
        state: "complete", "reserve", or the ledger's phase and status.
        siblings: By status, how many generations.
        prompt: The prompt's id in its source.
        task: Its task; None where there is one only.
        target_step: The train step that it is stamped for.
        start_weight: The trainer version that its generations began with.
    """

    group_id: str | None
    state: str
    siblings: dict[str, int]
    prompt: str
    task: str | None
    target_step: int | None = None
    start_weight: int | None = None

    @property
    def siblings_text(self) -> str:
        """The generations for people."""
        return ", ".join(f"{count} {status}" for status, count in self.siblings.items()) or "-"


def read_contents(path: Path) -> tuple[RolloutSnapshotManifest, list[GroupSummary], RestoredSidecars]:
    """Read what a folder says of itself, and every group in it.

    Raises:
        ValueError: It is damaged.
        OSError: It can't be read.
    """
    manifest = read_manifest(path / (TRAINER_MANIFEST if is_trainer_checkpoint(path) else MANIFEST))
    sidecars = read_sidecars(path, manifest)
    return manifest, list(_groups(sidecars)), sidecars


def _groups(sidecars: RestoredSidecars) -> Iterator[GroupSummary]:
    yield from map(_complete, sidecars.replay_groups or ())
    yield from map(_incomplete, sidecars.ledger_groups or ())
    yield from map(_reserved, sidecars.reserve)


def _complete(group: ReplayGroup) -> GroupSummary:
    return GroupSummary(
        group.group_id,
        "complete",
        {"in the data plane": len(group.sample_ids)},
        target_step=group.target_step,
        start_weight=group.start_weight,
        **_prompt(group.prompt),
    )


def _incomplete(group: PromptGroupRecoveryRecord) -> GroupSummary:
    return GroupSummary(
        group.group_id,
        f"{group.phase}, {group.status}",
        dict(Counter(str(sibling.current.status) for sibling in group.siblings)),
        target_step=group.target_step,
        start_weight=group.start_weight_version,
        **_prompt(group.prompt),
    )


def _reserved(prompt: SavedPrompt) -> GroupSummary:
    return GroupSummary(None, "reserve", {}, **_prompt(prompt))


def _prompt(prompt: SavedPrompt) -> dict[str, Any]:
    return {"prompt": prompt.ref.sample_id, "task": prompt.ref.task_name}
