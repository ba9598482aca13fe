"""What does not fit the run that is to go on with it is refused, and nothing is changed."""

from __future__ import annotations

import asyncio
import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nrl_rollout_ckpt.disk.manifest import RolloutSnapshotManifest, SnapshotCounts, describe_files
from nrl_rollout_ckpt.disk.selection import select_resume_source
from nrl_rollout_ckpt.restore import (
    PromptChangedError,
    RestoreCheckError,
    RolloutRestorer,
)
from nrl_rollout_ckpt.samplers import InOrderSampler, WindowedSampler
from nrl_rollout_ckpt.state.records import Prompt
from nrl_rollout_ckpt.state.rollout_state import ResumeSource, RolloutParts, TrainingProgress
from nrl_rollout_ckpt.testing import (
    ListPromptSource,
    SmallRun,
    make_parts,
    numbered_prompts,
)
from saved_runs import new_parts, source_of, state_of


def edited(folder: Path, saved: Path, edit: Callable[[Path], None], **manifest: Any) -> ResumeSource:
    """Copy the snapshot, change it, and write a manifest that fits what is there now."""
    shutil.copytree(saved, folder)
    source = source_of(folder)
    path = source.path
    assert path is not None
    edit(path)
    old = RolloutSnapshotManifest.from_mapping(json.loads((path / "manifest.json").read_bytes()))
    changed = replace(old, files=describe_files(path), **manifest)
    (path / "manifest.json").write_bytes(changed.to_json())
    return source


def nothing(path: Path) -> None:
    pass


def without_environment(path: Path) -> None:
    for file in (path / "environment").iterdir():
        file.unlink()
    (path / "environment").rmdir()


def prompts_with_another(*changed: int) -> ListPromptSource:
    prompts = numbered_prompts(16)
    return ListPromptSource(
        [Prompt(prompt.ref, {"text": "another"}) if at in changed else prompt for at, prompt in enumerate(prompts)]
    )


def windowed() -> dict[str, Any]:
    progress = TrainingProgress()
    return {"progress": progress, "sampler": WindowedSampler(progress)}


class UnstampingSampler(InOrderSampler):
    stamps_target_steps = False


def unstamping() -> dict[str, Any]:
    progress = TrainingProgress()
    return {"progress": progress, "sampler": UnstampingSampler(progress)}


class NoBufferSampler(InOrderSampler):
    supports_buffer_checkpoint = False


def no_buffer() -> dict[str, Any]:
    progress = TrainingProgress()
    return {"progress": progress, "sampler": NoBufferSampler(progress)}


REFUSED: dict[str, tuple[Callable[[Path], None], dict[str, Any], Callable[[], dict[str, Any]], Any, str]] = {
    "another sampler": (nothing, {}, windowed, RestoreCheckError, "taken with sampler 'in_order'.*has 'windowed'"),
    "a sampler that can't": (nothing, {}, no_buffer, RestoreCheckError, "supports_buffer_checkpoint"),
    "a sampler that stamps nothing": (nothing, {}, unstamping, RestoreCheckError, "stamped for train steps"),
    "a smaller index": (nothing, {}, lambda: {"capacity": 1}, RestoreCheckError, "takes 1.*capacity of 2 or more"),
    "another group size": (
        nothing,
        {},
        lambda: {"group_size": 3},
        RestoreCheckError,
        "have \\[2\\] generations.*has 3",
    ),
    "another partition": (
        nothing,
        {},
        lambda: {"partition_id": "other"},
        RestoreCheckError,
        "partition 'train'.*'other'",
    ),
    "a prompt that changed": (
        nothing,
        {},
        lambda: {"prompt_source": prompts_with_another(2)},
        PromptChangedError,
        "'p2' has the digest .*in another checkpoint_dir",
    ),
    "a prompt that is gone": (
        nothing,
        {},
        lambda: {"prompt_source": ListPromptSource(numbered_prompts(5))},
        PromptChangedError,
        "'p5' is not in the source any more",
    ),
    "a source without resolve": (
        nothing,
        {},
        lambda: {"prompt_source": ListPromptSource(numbered_prompts(16), resolves=False)},
        RestoreCheckError,
        r"has no resolve\(ref\)",
    ),
    "p8: a cursor behind the stamps": (
        nothing,
        {"sampler_dispatch_index": 0},
        dict,
        RestoreCheckError,
        "train step 1, and its dispatch cursor is 0",
    ),
    "a manifest of another step": (nothing, {"base_train_step": 4}, dict, RestoreCheckError, "select again"),
    "another count": (
        lambda path: (path / "replacement_reserve.json").unlink(),
        {},
        dict,
        RestoreCheckError,
        "reserve=0.*its manifest says.*reserve=1",
    ),
    "environment files that are gone": (without_environment, {}, dict, RestoreCheckError, "no files in environment/"),
    "a ledger that is no JSON": (
        lambda path: (path / "rollout_recovery.json").write_text("{"),
        {},
        dict,
        ValueError,
        "rollout_recovery.json",
    ),
    "a dataloader file that is none": (
        lambda path: (path / "train_dataloader.pt").write_bytes(b"no zip"),
        {},
        dict,
        ValueError,
        "train_dataloader.pt",
    ),
    "upstream's file": (
        lambda path: (path / "replay_buffer.pt").write_bytes(b""),
        {},
        dict,
        ValueError,
        "replay_buffer.pt",
    ),
    "training elsewhere": (
        nothing,
        {},
        lambda: {"progress": TrainingProgress(train_steps=2, trainer_version=2)},
        RestoreCheckError,
        "stands at step 2",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_is_refused_and_changes_nothing(tmp_path: Path, saved: Path, what: str) -> None:
    edit, manifest, overrides, error, message = REFUSED[what]

    async def run() -> None:
        source = edited(tmp_path / "run", saved, edit, **manifest)
        parts = new_parts(**overrides())
        before = state_of(parts)
        with pytest.raises(error, match=message) as caught:
            await RolloutRestorer(parts).restore(source)
        assert state_of(parts) == before
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
        if what != "training elsewhere":
            await RolloutRestorer(new_parts()).check(source_of(saved))  # the original is as it was

    asyncio.run(run())


@pytest.mark.parametrize("name", ["rollout_recovery.json", "data_plane", "train_dataloader.pt"])
def test_a_file_of_another_size_is_refused_even_after_selection(tmp_path: Path, saved: Path, name: str) -> None:
    shutil.copytree(saved, tmp_path / "run")
    source = source_of(tmp_path / "run")
    assert source.path is not None
    path = source.path / name
    file = next(path.iterdir()) if path.is_dir() else path
    with file.open("ab") as stream:
        stream.write(b" ")
    parts = new_parts()
    before = state_of(parts)
    with pytest.raises(RestoreCheckError, match=f"{name}.* bytes; the manifest says"):
        asyncio.run(RolloutRestorer(parts).restore(source))
    assert state_of(parts) == before


def forget_recent_prompts(path: Path) -> None:
    ledger = json.loads((path / "rollout_recovery.json").read_bytes())
    (path / "rollout_recovery.json").write_text(json.dumps({**ledger, "recent_prompts": []}))


def test_a_complete_group_whose_prompt_changed_is_noticed(tmp_path: Path, saved: Path) -> None:
    source = edited(tmp_path / "run", saved, forget_recent_prompts)
    parts = new_parts(prompt_source=prompts_with_another(0))
    before = state_of(parts)
    with pytest.raises(PromptChangedError, match="'p0' has the digest"):
        asyncio.run(RolloutRestorer(parts).restore(source))
    assert state_of(parts) == before
    asyncio.run(RolloutRestorer(new_parts(prompt_source=prompts_with_another(15))).check(source))


def test_data_that_was_reordered_is_noticed_where_no_prompt_is_in_flight(tmp_path: Path) -> None:
    async def train_on_ten_prompts() -> None:
        run = await SmallRun.start(tmp_path, lambda: make_parts(capacity=8))
        for _ in range(5):
            await run.reserve()
            await run.admit()
            for group in run.parts.ledger.groups:
                await run._generate(group)
            await run.begin_step()
            await run.finish_step()
        await run.save_trainer_checkpoint()
        run.close()

    async def restart(source: ListPromptSource) -> RolloutParts:
        parts = make_parts(prompt_source=source)
        await RolloutRestorer(parts).restore(select_resume_source(tmp_path, parts.config))
        return parts

    asyncio.run(train_on_ten_prompts())
    with pytest.raises(PromptChangedError, match="'p9' has the digest"):
        asyncio.run(restart(prompts_with_another(9)))

    parts = asyncio.run(restart(prompts_with_another(0, 1)))  # longer ago than eight prompts

    assert (len(parts.ledger), len(parts.replay_index)) == (0, 0)
    assert [prompt.ref.sample_id for prompt in parts.runtime.recent_prompts] == [f"p{at}" for at in range(2, 10)]


def test_a_bigger_index_and_a_buffer_left_out_need_no_capacity(saved: Path) -> None:
    parts = new_parts(capacity=1, config={"restore_buffer": False})
    report = asyncio.run(RolloutRestorer(parts).restore(source_of(saved)))
    assert report.groups_generated_anew == 2


@pytest.mark.parametrize(
    "use",
    [
        lambda parts: parts.data_plane.put_samples(["x"], "train", {"prompt": ["x"]}),
        lambda parts: parts.runtime.dropped.append("p0"),
        lambda parts: parts.runtime.batch_shortfall.update({0: 1}),
        lambda parts: parts.sampler.restore_dispatch_index(0),
    ],
)
def test_parts_in_use_are_refused_twice(saved: Path, use: Callable[[RolloutParts], None]) -> None:
    async def run() -> None:
        parts = new_parts()
        plan = await RolloutRestorer(parts).check(source_of(saved))
        use(parts)
        before = state_of(parts)
        with pytest.raises(RuntimeError, match="in use already"):
            await RolloutRestorer(parts).check(source_of(saved))
        with pytest.raises(RuntimeError, match="in use already"):
            await RolloutRestorer(parts).apply(plan)
        assert state_of(parts) == before

    asyncio.run(run())


def own_twice(path: Path) -> None:
    """Give the ledger a record of a group that the index has, as a cut in the middle of the hand-over would."""
    index = json.loads((path / "replay_index.json").read_bytes())
    ledger = json.loads((path / "rollout_recovery.json").read_bytes())
    copy = json.loads(json.dumps(ledger["groups"][-1]))
    copy["group_id"] = index["groups"][0]["group_id"]
    for sibling in copy["siblings"]:
        for attempt in sibling["attempts"]:
            attempt["attempt_uuid"] = attempt["attempt_uuid"][::-1]
    ledger["groups"].append(copy)
    (path / "rollout_recovery.json").write_text(json.dumps(ledger))


def test_p9_a_group_that_is_complete_is_not_restored_as_one_in_flight_too(tmp_path: Path, saved: Path) -> None:
    counts = SnapshotCounts(replay_groups=2, ledger_groups=5, reserve=1, rows=4, environment_episodes=1)
    source = edited(tmp_path / "run", saved, own_twice, counts=counts)
    plan = asyncio.run(RolloutRestorer(new_parts()).check(source))
    assert len(plan.replay_groups) == 2
    assert len(plan.ledger_groups) == 4
    assert plan.canonical_group_ids == (plan.replay_groups[0].group_id,)


def add_an_episode(path: Path) -> None:
    content = json.loads((path / "environment.json").read_bytes())
    content["episodes"].append({**content["episodes"][0], "rollout_id": "of an attempt that has sealed"})
    (path / "environment.json").write_text(json.dumps(content))


def test_p63_an_episode_that_the_ledger_does_not_own_is_left_out(tmp_path: Path, saved: Path) -> None:
    counts = SnapshotCounts(replay_groups=2, ledger_groups=4, reserve=1, rows=4, environment_episodes=2)
    source = edited(tmp_path / "run", saved, add_an_episode, counts=counts)
    plan = asyncio.run(RolloutRestorer(new_parts()).check(source))
    assert len(plan.episodes) == 1
