"""What is checked before anything is restored: functions that change nothing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from nrl_interfaces.rollout import PromptSource, ResolvingPromptSource, RolloutSampler

from nrl_rollout_ckpt.disk.layout import DATA_PLANE, ENVIRONMENT
from nrl_rollout_ckpt.disk.manifest import RolloutSnapshotManifest, SnapshotCounts
from nrl_rollout_ckpt.disk.sidecars import RestoredSidecars
from nrl_rollout_ckpt.state.payloads import prompt_digest
from nrl_rollout_ckpt.state.records import SavedPrompt
from nrl_rollout_ckpt.state.replay_index import ReplayIndex
from nrl_rollout_ckpt.state.rollout_state import ResumeSource, RolloutParts, TrainingProgress

__all__ = ["PromptChangedError", "RestoreCheckError"]


_OLDER: Final = "take an older snapshot: this one is damaged"


class RestoreCheckError(ValueError):
    """Raised when a snapshot does not fit the run that is to go on with it; nothing was changed.

    Attributes:
        path: The snapshot.
        problem: What does not fit, and what is allowed.
        way_out: What to do.
    """

    def __init__(self, path: Path | None, problem: str, way_out: str) -> None:
        super().__init__(path, problem, way_out)
        self.path, self.problem, self.way_out = path, problem, way_out

    def __str__(self) -> str:
        return f"{self.path} can't be restored: {self.problem}. Nothing was changed: {self.way_out}"


class PromptChangedError(ValueError):
    """Raised when a source gives another prompt than the one that was reserved; nothing was changed.

    Attributes:
        sample_id: The prompt's id in the source.
        saved: The digest of its content when it was reserved.
        found: The digest now; None where the source has no such prompt.
    """

    def __init__(self, sample_id: str, saved: str, found: str | None) -> None:
        super().__init__(sample_id, saved, found)
        self.sample_id, self.saved, self.found = sample_id, saved, found

    def __str__(self) -> str:
        now = "is not in the source any more" if self.found is None else f"has the digest {self.found[:12]}..."
        return (
            f"prompt {self.sample_id!r} {now}, and had {self.saved[:12]}... when it was reserved: the data was changed "
            "or reordered. Nothing was restored: go on with the data that the run began with, or start anew in "
            "another checkpoint_dir"
        )


def check_parts_are_new(parts: RolloutParts) -> None:
    """Refuse parts that hold something already.

    Raises:
        RuntimeError: Names what is not empty.
    """
    runtime, ledger, index = parts.runtime, parts.ledger, parts.replay_index
    held = {
        "the data plane": parts.data_plane.list_sample_ids(parts.partition_id),
        "the ledger": len(ledger) or ledger.next_admission_id,
        "the replay index": len(index) or index.training_owned_replay_groups(),
        "the replacement reserve": runtime.replacement_reserve,
        "the shortfall": runtime.batch_shortfall,
        "the list of dropped prompts": runtime.dropped,
        "the sampler's dispatch index": parts.sampler.dispatch_index + 1,
    }
    used = [name for name, content in held.items() if content]
    if used:
        raise RuntimeError(
            f"{', '.join(used)} {'is' if len(used) == 1 else 'are'} in use already: restore into new objects, in a new "
            "process if a restore before this one failed"
        )


def check_progress(source: ResumeSource, progress: TrainingProgress) -> None:
    """Refuse a trainer that stands elsewhere than the snapshot's trainer checkpoint; a new one may stand at 0.

    Raises:
        RestoreCheckError: If it does.
    """
    stands = (progress.train_steps, progress.trainer_version)
    if stands not in ((0, 0), (source.train_steps, source.trainer_version)):
        raise RestoreCheckError(
            source.path,
            f"training stands at step {stands[0]}, version {stands[1]}, and the snapshot belongs to step "
            f"{source.train_steps}, version {source.trainer_version}",
            f"load the trainer checkpoint {source.anchor} first, or leave the progress at 0",
        )


def check_manifest(source: ResumeSource, manifest: RolloutSnapshotManifest) -> None:
    """Refuse a manifest of another step than the one that was selected.

    Raises:
        RestoreCheckError: If it is.
    """
    saved = (manifest.kind, manifest.base_train_step, manifest.trainer_version)
    chosen = (source.kind, source.train_steps, source.trainer_version)
    if saved != chosen:
        raise RestoreCheckError(
            source.path,
            f"its manifest says (kind, step, version) {_shown(saved)}, and {_shown(chosen)} was selected",
            "select again: the folder was changed since",
        )


def check_counts(path: Path, manifest: RolloutSnapshotManifest, saved: RestoredSidecars) -> None:
    """Compare what was read with what the manifest counts.

    Raises:
        RestoreCheckError: Names both.
    """
    replay_groups = saved.replay_groups or ()
    found = SnapshotCounts(
        replay_groups=len(replay_groups),
        ledger_groups=len(saved.ledger_groups or ()),
        reserve=len(saved.reserve),
        rows=sum(len(group.sample_ids) for group in replay_groups),
        environment_episodes=len(saved.environment_episodes or ()),
    )
    if saved.replay_groups is None:  # rows without an index belong to nobody, and are not restored
        found = SnapshotCounts(0, found.ledger_groups, found.reserve, manifest.counts.rows, found.environment_episodes)
    if found != manifest.counts:
        raise RestoreCheckError(
            path,
            f"it holds {found}, and its manifest says {manifest.counts}",
            _OLDER,
        )
    for folder, count in [(DATA_PLANE, found.replay_groups), (ENVIRONMENT, found.environment_episodes)]:
        if count and not has_folder(manifest, folder):
            raise RestoreCheckError(path, f"it has no files in {folder}/", _OLDER)


def has_folder(manifest: RolloutSnapshotManifest, folder: str) -> bool:
    """Whether a snapshot has files in a folder."""
    return any(name.startswith(f"{folder}/") for name in manifest.file_names)


def check_sampler(
    path: Path, manifest: RolloutSnapshotManifest, saved: RestoredSidecars, sampler: RolloutSampler
) -> None:
    """Refuse a snapshot of another sampler, groups that this one can't restore, and a cursor behind their stamps.

    Raises:
        RestoreCheckError: If one of this is so.
    """
    kept, now = manifest.sampler_name, sampler.name
    if kept != now:
        raise RestoreCheckError(
            path, f"it was taken with sampler {kept!r}, and this run has {now!r}", f"go on with {kept!r}, or start anew"
        )
    if saved.sampler_stamps_target_steps and not sampler.stamps_target_steps:
        raise RestoreCheckError(
            path, f"its groups are stamped for train steps, and sampler {now!r} stamps none", "go on with one that does"
        )
    if saved.replay_groups and not sampler.supports_buffer_checkpoint:
        raise RestoreCheckError(
            path,
            f"it has {len(saved.replay_groups)} complete groups, and sampler {now!r} can't go on with restored ones",
            "use a sampler with supports_buffer_checkpoint",
        )
    groups = (*(saved.replay_groups or ()), *(saved.ledger_groups or ()))
    newest = max((group.target_step for group in groups if group.target_step is not None), default=-1)
    if newest > manifest.sampler_dispatch_index:
        raise RestoreCheckError(
            path,
            f"it has a group for train step {newest}, and its dispatch cursor is {manifest.sampler_dispatch_index}: a "
            "batch would be stamped for a step that has its groups already",
            _OLDER,
        )


def check_sizes(path: Path, saved: RestoredSidecars, index: ReplayIndex, *, restore_buffer: bool) -> None:
    """Compare capacity and group size with the run's.

    Raises:
        RestoreCheckError: If they don't fit.
    """
    groups = saved.replay_groups or ()
    if restore_buffer and len(groups) > index.capacity:
        raise RestoreCheckError(
            path,
            f"it has {len(groups)} complete groups, and the replay index takes {index.capacity}",
            f"give it a capacity of {len(groups)} or more (it was {saved.saved_capacity}), or have them generated anew "
            "with restore_buffer=False",
        )
    sizes = {len(group.sample_ids) for group in groups}
    sizes |= {group.expected_generations for group in saved.ledger_groups or ()}
    if sizes - {index.group_size}:
        raise RestoreCheckError(
            path,
            f"its groups have {sorted(sizes)} generations, and this run has {index.group_size}",
            "go on with the group size that the run began with",
        )


def check_partition(path: Path, saved: RestoredSidecars, partition_id: str) -> None:
    """Refuse rows of another partition.

    Raises:
        RestoreCheckError: If they are.
    """
    if saved.partition_id not in (None, partition_id):
        raise RestoreCheckError(
            path,
            f"its rows are in partition {saved.partition_id!r}, and this run trains on {partition_id!r}",
            "go on with the partition that the run began with",
        )


def find_prompts(path: Path, prompts: Iterable[SavedPrompt], source: PromptSource) -> dict[str, Any]:
    """Give the payloads of prompts by digest: those that were saved whole as they are, others from the source.

    Raises:
        PromptChangedError: If the source has another prompt now, or none.
        RestoreCheckError: If a prompt was saved by its reference and the source has no ``resolve``.
    """
    found: dict[str, Any] = {}
    for prompt in prompts:
        if prompt.digest in found:
            continue
        if prompt.stored is not None:
            found[prompt.digest] = prompt.stored.value()
        elif isinstance(source, ResolvingPromptSource):
            found[prompt.digest] = _resolved(prompt, source)
        else:
            raise RestoreCheckError(
                path,
                f"prompt {prompt.ref.sample_id!r} was saved by its reference, and the source has no resolve(ref)",
                "give it one, as the run before had",
            )
    return found


def check_unneeded_prompts(prompts: Iterable[SavedPrompt], source: PromptSource) -> None:
    """Compare prompts that are not generated any more with their source, if that has ``resolve``.

    Raises:
        PromptChangedError: If the source has another prompt now, or none.
    """
    if isinstance(source, ResolvingPromptSource):
        for prompt in prompts:
            if prompt.stored is None:
                _resolved(prompt, source)


def _resolved(prompt: SavedPrompt, source: ResolvingPromptSource) -> Any:
    sample_id = prompt.ref.sample_id
    try:
        payload = source.resolve(prompt.ref)
    except LookupError as error:
        raise PromptChangedError(sample_id, prompt.digest, None) from error
    digest = prompt_digest(payload, f"prompt {sample_id!r}")
    if digest != prompt.digest:
        raise PromptChangedError(sample_id, prompt.digest, digest)
    return payload


def _shown(values: tuple[object, ...]) -> str:
    return f"({', '.join(str(value) for value in values)})"
