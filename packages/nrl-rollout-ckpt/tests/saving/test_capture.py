"""What a capture takes, what it refuses, and what binds its files together."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nrl_interfaces.rollout import EnvironmentEpisode
from nrl_rollout_ckpt.disk.manifest import read_manifest, verify_files
from nrl_rollout_ckpt.saving.capture import (
    Identity,
    OpenTrainStepError,
    UnsettledGroupsError,
    plane_metadata,
    with_episodes,
)
from nrl_rollout_ckpt.saving.outcomes import reason_of
from nrl_rollout_ckpt.saving.snapshots import write_controller_sidecars
from nrl_rollout_ckpt.state.barrier import ExpiredCutError
from nrl_rollout_ckpt.state.inventory import InventoryError
from nrl_rollout_ckpt.state.rollout_state import CheckpointKind
from nrl_rollout_ckpt.testing import InMemoryDataPlane

NewWorld = Callable[..., Any]
SNAPSHOT, TRAINER = CheckpointKind.ROLLOUT_SNAPSHOT, CheckpointKind.TRAINER_CHECKPOINT


def read(path: Path) -> Any:
    return json.loads(path.read_bytes())


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---- What is refused, and what is rolled back ----


def test_a_trainer_checkpoint_refuses_groups_of_an_open_step_and_a_snapshot_rolls_them_back(
    new_world: NewWorld,
) -> None:
    async def run() -> None:
        world = await new_world().populate()
        await world.claim_step()
        index = world.parts.replay_index
        names = [group.group_id for group in index.training_owned_replay_groups()]
        async with world.parts.barrier.checkpoint() as cut:
            with pytest.raises(OpenTrainStepError) as caught:
                await world.snapshotter.capture(cut, world.folder, TRAINER)
            captured = await world.snapshotter.capture(cut, world.folder, SNAPSHOT)
        assert caught.value.group_ids == tuple(names)
        assert all(name in str(caught.value) for name in names)
        assert [group.group_id for group in captured.replay_groups] == names
        assert captured.rolled_back_group_ids == tuple(names)
        assert index.groups == ()  # the live trainer goes on with them
        assert [group.group_id for group in index.training_owned_replay_groups()] == names
        await world.commit_step()
        world.close()

    asyncio.run(run())


def test_a_capture_needs_a_live_exclusive_cut(new_world: NewWorld) -> None:
    async def run() -> None:
        world = await new_world().populate()
        async with world.parts.barrier.checkpoint() as cut:
            pass
        with pytest.raises(ExpiredCutError):
            await world.snapshotter.capture(cut, world.folder, SNAPSHOT)
        async with world.parts.barrier.mutation() as cut:
            with pytest.raises(RuntimeError, match="inside a section 'other'"):
                await world.snapshotter.capture(cut, world.folder, SNAPSHOT)
        world.close()

    asyncio.run(run())


def test_pitfall_9_a_group_with_two_owners_stays_with_the_index(new_world: NewWorld) -> None:
    async def run() -> None:
        world = await new_world().populate()
        parts = world.parts
        group = parts.replay_index.groups[0]
        async with parts.barrier.mutation() as cut:
            record = replace(parts.ledger.batch(2)[0], group_id=group.group_id)
            parts.ledger._put(record)
            del cut
        async with parts.barrier.checkpoint() as cut:
            captured = await world.snapshotter.capture(cut, world.folder, SNAPSHOT)
        assert group in captured.replay_groups
        assert group.group_id not in {each.group_id for each in captured.ledger_groups}
        world.close()

    asyncio.run(run())


def test_pitfall_18_a_row_outside_of_every_section_is_noticed(new_world: NewWorld) -> None:
    async def run() -> None:
        world = await new_world().populate()
        world.parts.data_plane.put_samples(["stray"], "train", {"reward": [0.0]})
        with pytest.raises(InventoryError, match="stray"):
            await world.save()
        world.assert_runs()
        assert world.outcomes() == ["invariant_error"]
        world.close()

    asyncio.run(run())


def test_groups_of_unknown_outcome_make_an_attempt_fail_that_may_pass(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unanswered(*_: Any, **__: Any) -> None:
        raise ConnectionError("no answer")

    async def run() -> None:
        world = await new_world().populate()
        group = world.parts.ledger.batch(1)[0]
        await world.seal(group.group_id, 0)
        with monkeypatch.context() as patch:
            patch.setattr(world.parts.data_plane, "put_samples", unanswered)
            with pytest.raises(ConnectionError):
                await world.transitions.commit_group(group.group_id, {"reward": [0.0, 0.0]})
        with pytest.raises(UnsettledGroupsError, match=group.group_id) as caught:
            await world.save()
        assert reason_of(caught.value) == "io_error"
        await world.transitions.commit_group(group.group_id, {"reward": [0.0, 0.0]})
        assert (await world.save()).saved
        world.close()

    asyncio.run(run())


# ---- Episodes ----


def test_pitfall_63_an_episode_that_sealed_during_the_pause_has_one_owner(new_world: NewWorld) -> None:
    async def run() -> None:
        world = await new_world().populate()
        first, second = (group.group_id for group in world.parts.ledger.batch(1))

        async def meanwhile(step: str, instance: str) -> None:
            if (step, instance) == ("commit", "env1"):  # env0's episodes are in its file now
                world.environment.hook = None
                await world.seal(first, 0)
                await world.transitions.drop_group(second)

        world.environment.hook = meanwhile
        result = await world.save()
        assert read(result.path / "environment.json")["episodes"] == []
        new, report = await world.restored()
        assert report.environment_episodes == 0
        assert new.parts.ledger.get(first).status == "ready_to_finalize"
        assert max(new.prompts().values()) == 1
        world.close()

    asyncio.run(run())


def test_an_episode_of_no_attempt_at_all_is_an_error(new_world: NewWorld) -> None:
    async def run() -> None:
        world = await new_world().populate()
        await world.environment.open(EnvironmentEpisode("env0", "foreign"))
        with pytest.raises(RuntimeError, match="foreign"):
            await world.save()
        world.assert_runs()
        world.close()

    asyncio.run(run())


def test_the_environment_may_be_one_attempt_behind_but_no_more(new_world: NewWorld) -> None:
    async def run() -> None:
        world = await new_world().populate()
        async with world.parts.barrier.checkpoint() as cut:
            captured = await world.snapshotter.capture(cut, world.folder, SNAPSHOT)
        group = captured.ledger_groups[0]
        attempt = replace(group.siblings[0].current, environment_attempt=2)
        sibling = replace(group.siblings[0], attempts=(attempt,))
        captured = replace(captured, ledger_groups=(replace(group, siblings=(sibling, group.siblings[1])),))
        kept = []
        for number in range(4):
            episode = EnvironmentEpisode("env0", group.rollout_id(0), number)
            kept.append(with_episodes(captured, [episode], lambda rollout_id: True).environment_episodes == (episode,))
        assert kept == [False, True, True, False]
        world.close()

    asyncio.run(run())


# ---- What binds the files together ----


def test_the_metadata_binds_rows_index_and_ledger(new_world: NewWorld) -> None:
    class Teachers:
        def state(self) -> list[Any]:
            return [{"step": 3}]

    async def run() -> None:
        world = await new_world(teacher_coordinator=Teachers()).populate()
        path = (await world.save()).path
        metadata = InMemoryDataPlane().load_checkpoint(path / "data_plane")
        index = read(path / "replay_index.json")
        recovery = (path / "rollout_recovery.json").read_bytes()
        assert metadata == {
            "data_plane_checkpoint_schema_version": 1,
            "single_controller_train_steps": 0,
            "single_controller_trainer_version": 0,
            "single_controller_epoch": 0,
            "partition_id": "train",
            "sampler_name": "in_order",
            "mode": "authoritative",
            "replay_metadata_schema_version": 1,
            "replay_manifest_digest": index["manifest_digest"],
            "replay_group_count": 2,
            "rollout_recovery_schema_version": 1,
            "rollout_recovery_payload_sha256": hashlib.sha256(recovery).hexdigest(),
            "rollout_recovery_group_count": 4,
            "teacher_checkpoints": [{"step": 3}],
        }
        world.close()

    asyncio.run(run())


@pytest.mark.parametrize(("sha256", "count"), [("00", None), (None, 1)])
def test_a_digest_without_a_count_is_refused(sha256: str | None, count: int | None) -> None:
    with pytest.raises(ValueError, match="both, or neither"):
        plane_metadata(
            Identity(0, 0),
            0,
            partition_id="train",
            sampler_name="in_order",
            replay=None,
            recovery_sha256=sha256,
            recovery_group_count=count,
            teacher_states=None,
        )


def test_a_trainer_checkpoint_keeps_what_the_run_has(new_world: NewWorld, tmp_path: Path) -> None:
    async def run() -> None:
        world = await new_world().populate()
        world.parts.sampler.supports_buffer_checkpoint = False
        world.snapshotter._records_prompt_groups = lambda: False
        async with world.parts.barrier.checkpoint() as cut:
            captured = await world.snapshotter.capture(cut, tmp_path, TRAINER)
        assert (captured.replay_groups, captured.ledger_groups) == (None, None)
        names = await world.snapshotter.write_rollout_state(tmp_path, captured)
        assert sorted(names) == [
            "data_plane",
            "replacement_reserve.json",
            "rollout_manifest.json",
            "train_dataloader.pt",
        ]
        metadata = InMemoryDataPlane().load_checkpoint(tmp_path / "data_plane")
        assert metadata["mode"] == "shadow"
        assert not {"replay_manifest_digest", "rollout_recovery_payload_sha256"} & set(metadata)
        assert verify_files(tmp_path, read_manifest(tmp_path / "rollout_manifest.json")) == []
        world.close()

    asyncio.run(run())


def test_the_sidecars_can_be_written_alone(new_world: NewWorld, tmp_path: Path) -> None:
    async def run() -> None:
        world = await new_world().populate()
        async with world.parts.barrier.checkpoint() as cut:
            captured = await world.snapshotter.capture(cut, tmp_path, SNAPSHOT)
        (folder := tmp_path / "alone").mkdir()
        assert sorted(await write_controller_sidecars(folder, captured)) == names_in(folder)
        world.close()

    asyncio.run(run())
