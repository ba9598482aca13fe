"""Restoring brings everything back, or says where it stopped; no part is half done in silence."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nrl_interfaces.rollout import EnvironmentEpisode, PromptRef, RestoredEnvironmentRollouts
from nrl_rollout_ckpt.config import RolloutCheckpointConfig
from nrl_rollout_ckpt.restore import (
    RestoreCheckError,
    RestoreIncompleteError,
    RolloutRestorer,
    read_recovery_sidecar,
)
from nrl_rollout_ckpt.samplers import InOrderSampler
from nrl_rollout_ckpt.state.inventory import InventoryError
from nrl_rollout_ckpt.state.ledger_states import PromptGroupPhase, RolloutAttemptStatus
from nrl_rollout_ckpt.state.records import Prompt
from nrl_rollout_ckpt.state.rollout_state import (
    CheckpointKind,
    ResumeSource,
    RolloutParts,
    SkippedSnapshot,
    TrainingProgress,
)
from nrl_rollout_ckpt.testing import (
    FakeEnvironment,
    InMemoryDataPlane,
    ListPromptSource,
    SmallRun,
    make_parts,
    numbered_prompts,
)
from saved_runs import new_parts, saved_run, source_of, state_of

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


def test_without_snapshots_the_rollouts_in_a_trainer_checkpoint_are_saved_and_restored(tmp_path: Path) -> None:
    def parts() -> RolloutParts:
        return make_parts(config=RolloutCheckpointConfig(snapshot_attempt_interval_s=None))

    async def run() -> None:
        before = await SmallRun.start(tmp_path, parts)
        await before.reserve()
        await before.admit()
        for group in before.parts.ledger.groups:
            await before._generate(group)
        await before.begin_step()
        await before.finish_step()
        await before.reserve()
        await before.save_trainer_checkpoint()
        before.close()

        after = await SmallRun.start(tmp_path, parts)
        assert after.report.path == tmp_path / "step_1"
        assert [group.prompt.ref.sample_id for group in after.parts.ledger.groups] == ["p2", "p3"]
        await after.run_to_end()
        after.close()

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


def test_what_is_passed_over_and_lost_is_a_warning_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "snapshot_000002"
    skipped = (SkippedSnapshot(path, "has a manifest that can't be read:\nit ends early"),)
    source = ResumeSource(skipped=skipped, warnings=("all of it is lost",))

    with caplog.at_level("INFO", logger="nrl_rollout_ckpt"):
        asyncio.run(RolloutRestorer(new_parts()).restore(source))

    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        f"passed over {path}: has a manifest that can't be read: it ends early",
        "all of it is lost",
    ]
    assert caplog.text.count("all of it is lost") == 1


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
