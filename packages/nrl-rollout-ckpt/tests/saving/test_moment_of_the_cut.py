"""The files show the run at the moment of the cut, and the run goes on while they are written."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nrl_rollout_ckpt.disk.manifest import describe_files, read_manifest, verify_files
from nrl_rollout_ckpt.disk.sidecars import read_sidecars
from nrl_rollout_ckpt.saving.capture import (
    manifest_of,
)
from nrl_rollout_ckpt.state.rollout_state import CheckpointKind
from nrl_rollout_ckpt.testing import InMemoryDataPlane, ListPromptSource, numbered_prompts

NewWorld = Callable[..., Any]
SNAPSHOT, TRAINER = CheckpointKind.ROLLOUT_SNAPSHOT, CheckpointKind.TRAINER_CHECKPOINT


class SlowView:
    """A view of rows that is written once it is let go."""

    def __init__(self, view: Any, gate: threading.Event, reached: Callable[[], object]) -> None:
        self._view, self._gate, self._reached = view, gate, reached

    def save(self, *args: Any, **kwargs: Any) -> None:
        self._reached()
        assert self._gate.wait(10)
        self._view.save(*args, **kwargs)


class SlowPlane(InMemoryDataPlane):
    """Blocks the thread that writes it, until `let_go` is set."""

    def __init__(self, *, freezes: bool) -> None:
        super().__init__(freezes=freezes)
        self.let_go, self.reached = threading.Event(), asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if freezes:
            frozen = self.freeze
            self.freeze = lambda: SlowView(frozen(), self.let_go, self._tell)

    def _tell(self) -> None:
        self._loop.call_soon_threadsafe(self.reached.set)

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        self._tell()
        assert self.let_go.wait(10)
        super().save_checkpoint(*args, **kwargs)


def read(path: Path) -> Any:
    return json.loads(path.read_bytes())


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_r11_the_files_show_the_moment_of_the_cut(new_world: NewWorld) -> None:
    async def run() -> None:
        plane = SlowPlane(freezes=True)
        world = await new_world(turns=False, data_plane=plane).populate()
        ledger, prompts = world.parts.ledger, world.parts.prompt_source.prompts
        in_flight = [group.group_id for group in ledger.batch(1)]
        before = {group.group_id: group for group in ledger.groups}
        live = (ledger._groups, world.parts.replay_index.groups, world.parts.runtime.replacement_reserve)
        saving = asyncio.ensure_future(world.save())
        await plane.reached.wait()

        assert live[0] is ledger._groups  # capture changes nothing that lives
        await world.seal(in_flight[0], 0)  # all of this goes on while the writer waits
        await world.transitions.commit_group(in_flight[0], {"reward": [0.0, 0.0]})
        added = await world.transitions.reserve_batch(
            lambda: world.parts.prompt_source.next_batch(1), expected_generations=2
        )
        for prompt in prompts:
            prompt.payload["text"] = "another one"
        world.parts.runtime.dropped.append("p9")
        world.parts.runtime.batch_shortfall[3] = 1
        await world.claim_step()
        await world.commit_step()
        assert world.parts.progress.train_steps == 1
        plane.let_go.set()

        path = (await saving).path
        recovery, index = read(path / "rollout_recovery.json"), read(path / "replay_index.json")
        manifest = read_manifest(path / "manifest.json")
        groups = {group["group_id"]: group for group in recovery["groups"]}
        assert set(groups) == set(before)
        assert added[0].group_id not in groups
        assert in_flight[0] not in {group["group_id"] for group in index["groups"]}
        statuses = [sibling["attempts"][-1]["status"] for sibling in groups[in_flight[0]]["siblings"]]
        assert statuses == ["dispatched", "sealed"]
        assert (manifest.base_train_step, recovery["dropped"], recovery["batch_shortfall"]) == (0, [], {})
        assert verify_files(path, manifest) == []
        assert "another one" not in (path / "rollout_recovery.json").read_text()
        world.close()

    asyncio.run(run())


def test_r11_nothing_of_a_capture_is_alive(new_world: NewWorld, tmp_path: Path) -> None:
    """Nothing was serialized yet when everything changes."""

    class LiveSource(ListPromptSource):
        live: dict[str, Any]

        def state_dict(self) -> dict[str, Any]:
            self.live = getattr(self, "live", {"shards": [0, 1]}) | super().state_dict()
            return self.live

    async def run() -> None:
        world = await new_world(prompt_source=(source := LiveSource(numbered_prompts(9)))).populate()
        runtime, ledger = world.parts.runtime, world.parts.ledger
        async with world.parts.barrier.checkpoint() as cut:
            captured = await world.snapshotter.capture(cut, tmp_path, SNAPSHOT)
        sealed = ledger.batch(1)[0].group_id
        await world.seal(sealed, 0)
        await world.transitions.commit_group(sealed, {"reward": [0.0, 0.0]})
        await world.transitions.drop_group(ledger.batch(2)[0].group_id)
        runtime.batch_shortfall[3] = 1
        source.live["shards"].append(2)
        world.parts.progress.advance()
        world.parts.sampler.restore_dispatch_index(7)
        (folder := tmp_path / "alone").mkdir()
        await world.snapshotter.write_rollout_state(folder, captured)
        manifest = manifest_of(captured, created=0.0)
        manifest = replace(manifest, files=describe_files(folder))
        saved = read_sidecars(folder, manifest)
        assert (saved.dropped, saved.batch_shortfall, len(saved.reserve)) == ((), {}, 1)
        assert saved.prompt_source_state == {"shards": [0, 1], "position": 7}
        assert (len(saved.ledger_groups), len(saved.replay_groups)) == (4, 2)
        assert [group.status for group in saved.ledger_groups] == ["generating"] * 4
        assert (manifest.base_train_step, manifest.sampler_dispatch_index) == (0, 1)
        rows = InMemoryDataPlane()
        rows.load_checkpoint(folder / "data_plane")
        assert len(rows.list_sample_ids("train")) == 4
        world.close()

    asyncio.run(run())


def test_r11_a_stored_prompt_is_the_one_that_was_reserved(new_world: NewWorld) -> None:
    async def run() -> None:
        source = ListPromptSource(numbered_prompts(9), resolves=False)
        world = await new_world(turns=False, prompt_source=source).populate()
        source.prompts[2].payload["text"] = "changed"
        text = ((await world.save()).path / "rollout_recovery.json").read_text()
        assert "What is 2?" in text
        assert "changed" not in text
        world.close()

    asyncio.run(run())


@pytest.mark.parametrize("freezes", [True, False])
def test_a_plane_that_blocks_its_thread_does_not_stall_the_loop(new_world: NewWorld, freezes: bool) -> None:
    async def run() -> None:
        plane = SlowPlane(freezes=freezes)
        world = await new_world(turns=False, data_plane=plane).populate()
        saving = asyncio.ensure_future(world.save())
        await plane.reached.wait()  # the loop has come here while the thread stands
        assert world.parts.barrier.drain_telemetry().checkpoint_active is not freezes  # one without freeze: in the cut
        assert not saving.done()
        plane.let_go.set()
        assert (await saving).saved
        await world.assert_restores()
        world.close()

    asyncio.run(run())
