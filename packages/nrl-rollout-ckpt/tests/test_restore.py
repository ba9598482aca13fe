"""Restoring refuses before it changes anything, says where it stopped, and leaves no part half done in silence."""

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
from nrl_interfaces.rollout import EnvironmentEpisode, PromptRef, RestoredEnvironmentRollouts
from nrl_rollout_ckpt.config import RolloutCheckpointConfig
from nrl_rollout_ckpt.disk.bootstrap import BootstrapCompatibilityIdentity
from nrl_rollout_ckpt.disk.manifest import RolloutSnapshotManifest, SnapshotCounts, describe_files
from nrl_rollout_ckpt.disk.selection import select_resume_source
from nrl_rollout_ckpt.restore import (
    PromptChangedError,
    RestoreCheckError,
    RestoreIncompleteError,
    RolloutRestorer,
    read_recovery_sidecar,
)
from nrl_rollout_ckpt.samplers import InOrderSampler, WindowedSampler
from nrl_rollout_ckpt.state.inventory import InventoryError
from nrl_rollout_ckpt.state.ledger_states import PromptGroupPhase, RecoveryTargetLevel, RolloutAttemptStatus
from nrl_rollout_ckpt.state.records import Prompt
from nrl_rollout_ckpt.state.rollout_state import CheckpointKind, ResumeSource, RolloutParts, TrainingProgress
from nrl_rollout_ckpt.testing import (
    FakeEnvironment,
    InMemoryDataPlane,
    ListPromptSource,
    SmallRun,
    make_parts,
    numbered_prompts,
)

LEVEL = RecoveryTargetLevel.TURN


def new_parts(**overrides: Any) -> RolloutParts:
    progress = TrainingProgress()
    config = {"target_level": LEVEL, **overrides.pop("config", {})}
    defaults: dict[str, Any] = {
        "progress": progress,
        "sampler": InOrderSampler(progress, max_staleness=2),
        "environment": FakeEnvironment(),
        "consumer_tasks": ("trainer",),
        "config": RolloutCheckpointConfig(**config),
        "metrics": None,
    }
    return make_parts(**{**defaults, **overrides})


async def saved_run(folder: Path) -> None:
    """A snapshot with something of everything: an open train step, a group in flight, one not admitted, a spare one."""
    run = await SmallRun.start(folder, new_parts)
    ledger = run.parts.ledger
    await run.reserve()
    await run.admit()
    for group in ledger.groups:
        await run._generate(group)
    await run.begin_step()
    assert run.claim is not None
    run.parts.data_plane.claim_samples(run.claim.sample_ids, "train", "trainer")  # type: ignore[attr-defined]
    await run.write_back()
    await run.reserve()
    await run.admit()
    await run.reserve()
    await run.fill_reserve()
    await run.fill_reserve()
    first, second, *_ = ledger.groups
    for index in range(2):
        await run.dispatch(first.group_id, index)
    await run.seal(first.group_id, 0)
    await run.drop(second.group_id)
    run.parts.progress.current_epoch = 3
    run.parts.runtime.batch_shortfall[9] = 1
    result = await run.save_snapshot()
    assert result.saved
    run.close()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    asyncio.run(saved_run(folder))
    return folder


def source_of(folder: Path, **config: Any) -> ResumeSource:
    identity = BootstrapCompatibilityIdentity.of({})
    return select_resume_source(folder, RolloutCheckpointConfig(target_level=LEVEL, **config), identity)


def state_of(parts: RolloutParts) -> dict[str, Any]:
    """Everything that restoring could change."""
    plane, environment = parts.data_plane, parts.environment
    ids = plane.list_sample_ids("train")
    return {
        "rows": plane.get_samples(ids, "train", ["prompt"]) if ids else {},  # type: ignore[attr-defined]
        "claims": plane.claimed_ids("train", "trainer"),  # type: ignore[attr-defined]
        "source": parts.prompt_source.state_dict(),
        "cursor": parts.sampler.dispatch_index,
        "progress": (parts.progress.train_steps, parts.progress.trainer_version, parts.progress.current_epoch),
        "ledger": (parts.ledger.groups, parts.ledger.next_admission_id),
        "index": parts.replay_index.groups,
        "runtime": repr(parts.runtime),
        "environment": environment.episodes() if isinstance(environment, FakeEnvironment) else None,
        "mutations": parts.barrier.mutation_version,
    }


# ---- The whole of it ----


def test_everything_comes_back(saved: Path) -> None:
    async def run() -> None:
        events: list[Any] = []
        parts = new_parts(metrics=events.append)
        report = await RolloutRestorer(parts).restore(source_of(saved))

        assert [group.prompt.ref.sample_id for group in parts.replay_index.groups] == ["p0", "p1"]
        rows = [sample_id for group in parts.replay_index.groups for sample_id in group.sample_ids]
        assert parts.data_plane.list_sample_ids("train") == sorted(rows)
        assert state_of(parts)["claims"] == []  # of the open step, which is done again
        groups = {group.prompt.ref.sample_id: group for group in parts.ledger.groups}
        assert list(groups) == ["p2", "p4", "p5", "p6"]
        assert groups["p2"].runtime_prompt == {"text": "What is 2?"}
        assert [sibling.current.status for sibling in groups["p2"].siblings] == [
            RolloutAttemptStatus.SEALED,
            RolloutAttemptStatus.RESERVED,
        ]
        assert groups["p2"].siblings[1].current.environment_attempt == 1
        assert groups["p6"].phase is PromptGroupPhase.ADMITTED  # took the place of p3
        assert groups["p4"].phase is PromptGroupPhase.RESERVED
        assert [prompt for prompt, _ in parts.runtime.replacement_reserve] == [
            Prompt(PromptRef("p7"), {"text": "What is 7?"})
        ]
        assert parts.runtime.dropped == ["p3"]
        assert parts.runtime.batch_shortfall == {9: 1}
        assert parts.progress.current_epoch == 3
        assert parts.runtime.sampler_stamps_target_steps
        assert parts.prompt_source.state_dict() == {"position": 8}
        assert parts.sampler.dispatch_index == 1
        environment = parts.environment
        assert isinstance(environment, FakeEnvironment)
        (episode,) = environment.episodes()
        assert environment.turns(episode) == ["p2"]

        assert (report.groups_from_buffer, report.rolled_back_groups, report.ledger_groups) == (2, 2, 4)
        assert (report.reserve, report.environment_episodes) == (1, 1)
        assert (report.siblings_kept, report.siblings_to_run) == (1, 7)
        (event,) = [event for event in events if event["op"] == "rollout_restore"]
        assert event["rollout/restore/groups_from_buffer"] == 2
        assert event["rollout/restore/skipped_snapshots"] == 0

    asyncio.run(run())


def test_a_fresh_run_restores_nothing_and_may_begin(tmp_path: Path) -> None:
    async def run() -> None:
        parts = new_parts()
        report = await RolloutRestorer(parts).restore(ResumeSource())
        assert (report.path, report.ledger_groups) == (None, 0)
        assert parts.sampler.dispatch_index == -1

    asyncio.run(run())


def test_a_trainer_checkpoint_without_rollout_state_puts_the_cursor_before_its_version(tmp_path: Path) -> None:
    async def run() -> None:
        parts = new_parts()
        await RolloutRestorer(parts).restore(ResumeSource(tmp_path / "step_3", train_steps=3, trainer_version=3))
        assert parts.sampler.dispatch_index == 2
        assert (parts.progress.train_steps, parts.progress.trainer_version) == (3, 3)

    asyncio.run(run())


def test_p39_a_source_that_selection_verified_is_not_hashed_again(saved: Path, monkeypatch: Any) -> None:
    source = source_of(saved)
    assert source.verified
    hashed: list[Path] = []
    monkeypatch.setattr("nrl_rollout_ckpt.disk.manifest.digest_of_file", lambda path: hashed.append(path) or "")
    asyncio.run(RolloutRestorer(new_parts()).check(source))
    assert hashed == []
    with pytest.raises(RestoreCheckError, match="other bytes than the manifest says"):
        asyncio.run(RolloutRestorer(new_parts()).check(replace(source, verified=False)))
    assert hashed


# ---- Checks, which change nothing ----


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


def changed_prompts() -> ListPromptSource:
    prompts = numbered_prompts(16)
    prompts[2] = Prompt(prompts[2].ref, {"text": "another"})
    return ListPromptSource(prompts)


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
        lambda: {"prompt_source": changed_prompts()},
        PromptChangedError,
        "'p2' has the digest .*restore_mode='fresh'",
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


# ---- Applying, where something fails ----


class BrokenPlane(InMemoryDataPlane):
    def load_checkpoint(self, checkpoint_dir: str | Path) -> dict[str, Any]:
        raise OSError("the plane")


class EmptyPlane(InMemoryDataPlane):
    def load_checkpoint(self, checkpoint_dir: str | Path) -> dict[str, Any]:
        metadata = super().load_checkpoint(checkpoint_dir)
        self.clear_samples(None, "train")
        return metadata


class OtherPlane(InMemoryDataPlane):
    def load_checkpoint(self, checkpoint_dir: str | Path) -> dict[str, Any]:
        return {**super().load_checkpoint(checkpoint_dir), "replay_manifest_digest": "0" * 64}


class BrokenSource(ListPromptSource):
    def load_state_dict(self, state: dict[str, Any], /) -> None:
        raise OSError("the source")


class BrokenSampler(InOrderSampler):
    def restore_dispatch_index(self, index: int, /) -> None:
        raise OSError("the sampler")


async def broken_restore(step: str, instance: str) -> None:
    raise OSError("the environment")


def broken(part: str) -> Callable[..., Any]:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError(part)

    return fail


class BrokenList(list[str]):
    def extend(self, items: Any) -> None:
        raise OSError("the reserve")


STEPS = ["data plane", "prompt source", "sampler", "ledger", "replay index", "reserve", "environment"]


def parts_that_break(step: str, monkeypatch: pytest.MonkeyPatch) -> RolloutParts:
    progress = TrainingProgress()
    made: dict[str, dict[str, Any]] = {
        "data plane": {"data_plane": BrokenPlane()},
        "prompt source": {"prompt_source": BrokenSource(numbered_prompts(16))},
        "sampler": {"progress": progress, "sampler": BrokenSampler(progress)},
        "environment": {"environment": FakeEnvironment(hook=broken_restore)},
    }
    parts = new_parts(**made.get(step, {}))
    if step == "ledger":
        monkeypatch.setattr(parts.ledger, "load_groups", broken(step))
    if step == "replay index":
        monkeypatch.setattr(parts.replay_index, "load", broken(step))
    if step == "reserve":
        parts.runtime.dropped = BrokenList()
    return parts


@pytest.mark.parametrize("step", STEPS)
def test_a_part_that_fails_is_named_with_those_before_it(
    saved: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        parts = parts_that_break(step, monkeypatch)
        restorer = RolloutRestorer(parts)
        with pytest.raises(RestoreIncompleteError) as caught:
            await restorer.restore(source_of(saved))
        error = caught.value
        assert error.failed == step
        assert error.applied == tuple(STEPS[: STEPS.index(step)])
        assert isinstance(error.__cause__, OSError)
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
        async with parts.barrier.mutation():
            pass  # the section was left
        if step not in ("data plane", "prompt source"):  # those had nothing restored before them
            with pytest.raises(RuntimeError, match="in use already"):
                await restorer.restore(source_of(saved))
        await RolloutRestorer(new_parts()).restore(source_of(saved))  # begin again with new parts

    asyncio.run(run())


@pytest.mark.parametrize(("plane", "cause"), [(EmptyPlane, InventoryError), (OtherPlane, ValueError)])
def test_rows_of_another_snapshot_are_noticed(saved: Path, plane: type[InMemoryDataPlane], cause: Any) -> None:
    with pytest.raises(RestoreIncompleteError) as caught:
        asyncio.run(RolloutRestorer(new_parts(data_plane=plane())).restore(source_of(saved)))
    assert isinstance(caught.value.__cause__, cause)
    assert caught.value.applied == ()


def test_a_cancelled_restore_comes_to_its_end(saved: Path) -> None:
    async def run() -> None:
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def wait(step: str, instance: str) -> None:
            reached.set()
            await go_on.wait()

        parts = new_parts(environment=FakeEnvironment(hook=wait))
        task = asyncio.ensure_future(RolloutRestorer(parts).restore(source_of(saved)))
        await reached.wait()
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        whole = new_parts()
        await RolloutRestorer(whole).restore(source_of(saved))
        left, right = state_of(parts), state_of(whole)
        assert [group.group_id for group in left.pop("ledger")[0]] == [
            group.group_id for group in right.pop("ledger")[0]
        ]
        assert left == right

    asyncio.run(run())


# ---- Turns ----


class ForgetfulEnvironment(FakeEnvironment):
    async def restore(self, path: Path, episodes: Any, /) -> RestoredEnvironmentRollouts:
        return RestoredEnvironmentRollouts()


class InventiveEnvironment(FakeEnvironment):
    async def restore(self, path: Path, episodes: Any, /) -> RestoredEnvironmentRollouts:
        return RestoredEnvironmentRollouts((EnvironmentEpisode("env0", "nobody's"),))


def test_an_episode_that_the_environment_forgot_begins_anew(saved: Path) -> None:
    parts = new_parts(environment=ForgetfulEnvironment())
    report = asyncio.run(RolloutRestorer(parts).restore(source_of(saved)))
    (group,) = [group for group in parts.ledger.groups if group.prompt.ref.sample_id == "p2"]
    sealed, anew = group.siblings
    assert sealed.current.status is RolloutAttemptStatus.SEALED
    assert [attempt.status.value for attempt in anew.attempts] == ["abandoned", "reserved"]
    assert (report.environment_episodes, report.siblings_kept) == (0, 1)


def test_an_episode_that_nobody_owns_is_an_error(saved: Path) -> None:
    with pytest.raises(RestoreIncompleteError) as caught:
        asyncio.run(RolloutRestorer(new_parts(environment=InventiveEnvironment())).restore(source_of(saved)))
    assert caught.value.failed == "environment"


def test_an_episode_goes_on_over_two_restarts_without_a_dispatch_between(tmp_path: Path) -> None:
    async def run() -> None:
        await saved_run(tmp_path)
        for expected in (1, 1):
            run = await SmallRun.start(tmp_path, new_parts)
            (group,) = [group for group in run.parts.ledger.groups if group.prompt.ref.sample_id == "p2"]
            assert group.siblings[1].current.environment_attempt == expected
            await run.save_snapshot()
            run.close()
        run = await SmallRun.start(tmp_path, new_parts)
        environment = run.parts.environment
        assert isinstance(environment, FakeEnvironment)
        await run.dispatch(group.group_id, 1)
        episode = run.parts.ledger.get(group.group_id).episode(1)
        assert episode is not None
        assert environment.turns(episode) == ["p2", "p2"]
        await run.run_to_end()
        run.close()

    asyncio.run(run())


# ---- Sidecars alone ----


def test_read_recovery_sidecar_verifies_and_reads(saved: Path, tmp_path: Path) -> None:
    path = source_of(saved).path
    assert path is not None
    manifest, sidecars = read_recovery_sidecar(path, CheckpointKind.ROLLOUT_SNAPSHOT)
    assert manifest.counts.ledger_groups == len(sidecars.ledger_groups or ()) == 4
    with pytest.raises(OSError, match="rollout_manifest"):
        read_recovery_sidecar(path, CheckpointKind.TRAINER_CHECKPOINT)
