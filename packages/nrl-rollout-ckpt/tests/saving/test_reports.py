"""Every attempt is reported, whatever became of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nrl_rollout_ckpt.saving.outcomes import RolloutCheckpointAttemptReason as Reason

NewWorld = Callable[..., Any]


def test_every_attempt_is_reported(new_world: NewWorld, caplog: pytest.LogCaptureFixture) -> None:
    prefix = "rollout/checkpoint_outcome/"

    async def run() -> list[Any]:
        world = await new_world(turns=False).populate()
        await world.save(force=False)
        world.parts.clock.advance(30)
        await world.save(force=False)
        world.parts.clock.advance(30)
        await world.save(force=True)
        world.close()
        return world.events

    with caplog.at_level(logging.INFO):
        events = asyncio.run(run())
    assert [event["op"] for event in events] == [
        "rollout_checkpoint_timing",
        "rollout_checkpoint_attempt",
        "rollout_checkpoint_attempt",
        "rollout_checkpoint_timing",
        "rollout_checkpoint_attempt",
    ]
    first, skipped, last = (
        {name.removeprefix(prefix): value for name, value in event.items()}
        for event in events
        if event["op"] == "rollout_checkpoint_attempt"
    )
    assert [event["attempt"] for event in (first, skipped, last)] == [1, 2, 3]
    assert first["configured_interval_seconds"] == 300.0
    assert not {"seconds_since_previous_success", "seconds_since_last_success"} & set(first)
    assert (skipped["seconds_since_last_success"], last["seconds_since_previous_success"]) == (30, 60)
    for event, outcome, reason in (
        (first, "completed", "completed"),
        (skipped, "skipped", "no_data_plane_mutations"),
        (last, "completed", "completed"),
    ):
        flags = {name for name, value in event.items() if value is True}
        assert flags == {outcome, f"reason_{reason}"}
        assert {f"reason_{each}" for each in Reason} <= set(event)
    timing = {name.removeprefix("timing/rollout_checkpoint/"): value for name, value in events[0].items()}
    assert {
        "snapshot_sequence": 1,
        "replay_groups": 2,
        "ledger_groups": 4,
        "replay_rows": 4,
        "snapshot_rows": 4,
    }.items() <= timing.items()
    for name in ("total_save", "tq_save", "barrier_wait", "exclusive_hold", "sidecar_save", "snapshot_commit"):
        assert timing[f"{name}_seconds"] >= 0.0
    assert timing["controller_sidecar_bytes"] > 0
    assert "snapshot attempt skipped: no_data_plane_mutations" in caplog.text


def test_metrics_that_fail_are_a_warning(new_world: NewWorld, caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: Any) -> None:
        raise RuntimeError("the dashboard is down")

    async def run() -> None:
        world = await new_world(metrics=fail).populate()
        assert (await world.save()).saved
        world.close()

    asyncio.run(run())
    assert "the dashboard is down" in caplog.text


def test_one_that_is_cancelled_during_its_rename_is_complete_and_reported_so(new_world: NewWorld) -> None:
    async def run() -> None:
        world = await new_world(faults=True, turns=False).populate()
        loop = asyncio.get_running_loop()

        class Cancelling(type(world.file_ops.now)):
            def rename(self, source: Path, target: Path) -> None:
                if target.name == "snapshot_000001":
                    loop.call_soon_threadsafe(saving.cancel)
                super().rename(source, target)

        world.file_ops.now = Cancelling()
        saving = asyncio.ensure_future(world.save())
        with pytest.raises(asyncio.CancelledError):
            await saving
        assert world.outcomes() == ["completed"]
        assert world.snapshots() == ["snapshot_000001"]
        world.assert_runs()
        await world.assert_restores()
        world.close()

    asyncio.run(run())
