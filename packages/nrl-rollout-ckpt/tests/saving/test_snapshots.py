"""When a snapshot is taken, and when not and why."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nrl_rollout_ckpt.disk.manifest import read_manifest, verify_files
from nrl_rollout_ckpt.saving.outcomes import RolloutCheckpointAttemptReason as Reason
from nrl_rollout_ckpt.saving.snapshots import RolloutSnapshotter, write_controller_sidecars
from nrl_rollout_ckpt.testing import FakeEnvironmentSnapshot

NewWorld = Callable[..., Any]


def test_every_name_and_parameter_is_there() -> None:
    parameters = {
        "__init__": [
            "parts",
            "checkpointer",
            "timeout",
            "bootstrap_identity",
            "teacher_coordinator",
            "records_prompt_groups",
        ],
        "begin_optimizer_commit": ["drain_snapshot"],
        "end_optimizer_commit": [],
        "trainer_checkpoint": [],
        "_save_data_plane_checkpoint": [
            "checkpoint_path",
            "train_steps",
            "trainer_version",
            "current_epoch",
            "replay_metadata",
            "rollout_recovery_payload_sha256",
            "rollout_recovery_group_count",
        ],
        "capture": ["cut", "checkpoint_path", "kind"],
        "_begin_optimizer_commit": [],
        "_enter_environment_phase_unless_a_step_commits": ["stack", "environment_phase"],
        "_resolve_anchor": [],
        "_publish": ["tmp_path", "final_path", "captured", "manifest"],
        "save_snapshot": ["force"],
        "trainer_checkpoint_published": ["step"],
        "run": [],
        "_warn_if_snapshots_keep_losing_to_train_steps": ["consecutive_discards"],
        "_log_outcome": ["outcome", "reason", "attempt_duration_seconds"],
    }
    for name, wanted in parameters.items():
        known = list(inspect.signature(getattr(RolloutSnapshotter, name)).parameters)
        assert known[1 : 1 + len(wanted)] == wanted, name
    assert list(inspect.signature(write_controller_sidecars).parameters)[:2] == ["checkpoint_path", "captured"]


def test_a_snapshot_is_complete_and_restores(new_world: NewWorld) -> None:
    async def run() -> None:
        world = await new_world().populate()
        result = await world.save(force=False)
        assert (result.saved, result.reason) == (True, Reason.COMPLETED)
        assert result.path == world.folder / "bootstrap/rollout_snapshots/snapshot_000001"
        manifest = read_manifest(result.path / "manifest.json")
        assert verify_files(result.path, manifest) == []
        on_disk = {path.relative_to(result.path).as_posix() for path in result.path.rglob("*") if path.is_file()}
        assert set(manifest.file_names) == on_disk - {"manifest.json"}
        assert "secret" not in (result.path / "config.yaml").read_text()
        counts = manifest.counts
        assert (counts.replay_groups, counts.ledger_groups, counts.reserve, counts.rows) == (2, 4, 1, 4)
        assert counts.environment_episodes == 2
        await world.assert_restores()
        world.close()

    asyncio.run(run())


def test_a_plane_with_freeze_that_its_adapter_lacks_is_saved_in_the_cut(new_world: NewWorld) -> None:
    from nrl_interfaces.data_plane_errors import UnsupportedByAdapterError

    def freeze() -> None:
        raise UnsupportedByAdapterError("Plane", "freeze")

    async def run() -> None:
        world = await new_world(freezes=False).populate()
        world.parts.data_plane.freeze = freeze
        result = await world.save()
        assert json.loads((result.path / "manifest.json").read_bytes())["counts"]["rows"] == 4
        await world.assert_restores()
        world.close()

    asyncio.run(run())


def test_the_folder_of_a_snapshot_is_its_own(new_world: NewWorld, tmp_path: Path) -> None:
    async def run() -> None:
        world = await new_world().populate()
        stale = world.folder / "bootstrap/rollout_snapshots/tmp_snapshot_000001"
        stale.mkdir(parents=True)
        (stale / "left.json").write_text("{}")
        result = await world.save()
        assert not (result.path / "left.json").exists()
        world.assert_runs()
        world.close()

    asyncio.run(run())


# ---- Skips ----


def test_pitfall_15_no_snapshot_inside_the_commit_window_not_even_by_force(new_world: NewWorld) -> None:
    async def run() -> None:
        world = await new_world().populate()
        await world.snapshotter.begin_optimizer_commit(drain_snapshot=False)
        result = await world.save(force=True)
        assert (result.saved, result.reason) == (False, Reason.OPTIMIZER_COMMIT_IN_PROGRESS)
        assert world.environment.paused == {}
        async with world.parts.barrier.checkpoint() as cut:
            with pytest.raises(RuntimeError, match="end_optimizer_commit"):
                await world.snapshotter.capture(cut, world.folder, "trainer_checkpoint")
        world.snapshotter.end_optimizer_commit()
        assert (await world.save()).saved
        world.close()

    asyncio.run(run())


def test_pitfall_16_a_commit_during_the_wait_for_the_barrier_is_noticed_in_the_cut(new_world: NewWorld) -> None:
    async def run() -> None:
        world = await new_world().populate()
        async with world.parts.barrier.mutation():
            saving = asyncio.ensure_future(world.save())
            while not world.parts.barrier.drain_telemetry().checkpoint_active:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0)
            await world.snapshotter.begin_optimizer_commit(drain_snapshot=False)
        assert (await saving).reason is Reason.TRAINER_STATE_CHANGED
        world.snapshotter.end_optimizer_commit()
        world.assert_runs()
        world.close()

    asyncio.run(run())


def test_counters_that_moved_without_a_window_are_noticed_too(new_world: NewWorld) -> None:
    async def run() -> None:
        world = await new_world().populate()

        async def move(step: str, instance: str) -> None:
            if (step, instance) == ("commit", "env0"):
                world.parts.progress.trainer_version += 1

        world.environment.hook = move
        assert (await world.save()).reason is Reason.TRAINER_STATE_CHANGED
        world.assert_runs()
        world.close()

    asyncio.run(run())


def test_counters_that_move_during_the_cut_are_noticed_too(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def move(_: Any, cut: Any) -> None:
        cut.require_live()
        moved[0].advance()

    monkeypatch.setattr(FakeEnvironmentSnapshot, "check_against_cut", move)
    moved: list[Any] = []

    async def run() -> None:
        world = await new_world().populate()
        moved.append(world.parts.progress)
        assert (await world.save()).reason is Reason.TRAINER_STATE_CHANGED
        world.assert_runs()
        world.close()

    asyncio.run(run())


def test_nothing_changed(new_world: NewWorld) -> None:
    async def run() -> None:
        world = await new_world(turns=False).populate()
        assert (await world.save(force=False)).saved
        assert (await world.save(force=False)).reason is Reason.NO_DATA_PLANE_MUTATIONS
        assert (await world.save(force=True)).saved
        async with world.parts.barrier.mutation():
            pass
        assert (await world.save(force=False)).saved
        world.close()

    asyncio.run(run())


def test_an_environment_with_state_changes_without_the_data_plane(new_world: NewWorld) -> None:
    async def run() -> None:
        world = await new_world().populate()
        assert [(await world.save(force=False)).saved for _ in range(2)] == [True, True]
        world.close()

    asyncio.run(run())


def test_a_trainer_checkpoint_counts_as_saved_and_a_new_anchor_does_not(new_world: NewWorld) -> None:
    async def run() -> None:
        world = await new_world(turns=False).populate()
        await world.claim_step()
        await world.commit_step()
        await world.save_trainer_checkpoint()
        assert (await world.save(force=False)).reason is Reason.NO_DATA_PLANE_MUTATIONS
        world.parts.progress.advance()
        assert (await world.save(force=False)).reason is Reason.MISSING_TRAINER_ANCHOR
        await world.save_trainer_checkpoint()
        await world.assert_restores(trained=2)
        world.close()

    asyncio.run(run())
