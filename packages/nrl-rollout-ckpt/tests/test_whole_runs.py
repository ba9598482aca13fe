"""Whole runs with crashes at any time: every prompt of the source is trained once in the end, or was dropped."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nrl_rollout_ckpt.config import RolloutCheckpointConfig
from nrl_rollout_ckpt.restore import RolloutRestorer
from nrl_rollout_ckpt.samplers import InOrderSampler, WindowedSampler
from nrl_rollout_ckpt.saving import capture, state_saving
from nrl_rollout_ckpt.state.ledger import RolloutRecoveryLedger
from nrl_rollout_ckpt.state.ledger_states import RecoveryGranularity, RecoveryTargetLevel
from nrl_rollout_ckpt.state.records import SiblingSealResult
from nrl_rollout_ckpt.state.rollout_state import RolloutParts, TrainingProgress
from nrl_rollout_ckpt.testing import (
    AccountError,
    FakeEnvironment,
    InMemoryDataPlane,
    ListPromptSource,
    SmallRun,
    make_parts,
    numbered_prompts,
)


@dataclass(frozen=True)
class Kind:
    """What a run is made of; a restart has the same."""

    prompts: int = 10
    sampler: Callable[[TrainingProgress, int], Any] = InOrderSampler
    max_staleness: int = 1
    resolves: bool = True
    freezes: bool = True
    restore_buffer: bool = True
    granularity: RecoveryGranularity = RecoveryGranularity.SIBLING
    level: RecoveryTargetLevel = RecoveryTargetLevel.SIBLING

    def parts(self) -> RolloutParts:
        progress = TrainingProgress()
        extra: dict[str, Any] = {"environment": FakeEnvironment()} if self.level is RecoveryTargetLevel.TURN else {}
        return make_parts(
            progress=progress,
            sampler=self.sampler(progress, self.max_staleness),
            prompt_source=ListPromptSource(numbered_prompts(self.prompts), resolves=self.resolves),
            data_plane=InMemoryDataPlane(freezes=self.freezes),
            config=RolloutCheckpointConfig(
                restore_buffer=self.restore_buffer, default_granularity=self.granularity, target_level=self.level
            ),
            consumer_tasks=("trainer",),
            **extra,
        )


# ---- R01: prompts in flight and a batch that is half used ----


async def half_way(folder: Path, kind: Kind) -> SmallRun:
    """0, 1 are trained; 2, 3 are complete; 4, 5 are in flight; of 6, 7 only 6 is dispatched."""
    run = await SmallRun.start(folder, kind.parts)
    ledger = run.parts.ledger
    await run.reserve()
    await run.admit()
    for group in ledger.groups:
        await run._generate(group)
    await run.begin_step()
    await run.finish_step()
    await run.save_trainer_checkpoint()
    for _ in range(3):
        await run.reserve()
        await run.admit()
    groups = {group.prompt.ref.sample_id: group for group in ledger.groups}
    for name in ("p2", "p3"):
        await run._generate(groups[name])
    for name in ("p4", "p5", "p6"):
        for index in range(2):
            await run.dispatch(groups[name].group_id, index)
    await run.seal(groups["p4"].group_id, 1)
    assert len(ledger) == 4
    assert len(run.parts.replay_index) == 2
    return run


@pytest.mark.parametrize("freezes", [True, False])
@pytest.mark.parametrize("resolves", [True, False])
@pytest.mark.parametrize("restore_buffer", [True, False])
@pytest.mark.parametrize("sampler", [InOrderSampler, WindowedSampler])
def test_r01_each_prompt_in_flight_is_trained_once(
    tmp_path: Path, sampler: Any, restore_buffer: bool, resolves: bool, freezes: bool
) -> None:
    kind = Kind(sampler=sampler, max_staleness=2, resolves=resolves, freezes=freezes, restore_buffer=restore_buffer)

    async def run() -> None:
        before = await half_way(tmp_path, kind)
        result = await before.save_snapshot()
        assert result.saved, result
        before.close()

        after = await SmallRun.start(tmp_path, kind.parts)
        assert after.trained == ["p0", "p1"]
        report = after.report
        assert report.path == result.path
        assert (report.groups_from_buffer, report.groups_generated_anew) == ((2, 0) if restore_buffer else (0, 2))
        assert report.ledger_groups == 4
        anew = 0 if restore_buffer else 4
        assert (report.siblings_kept, report.siblings_to_run) == (1, 7 + anew)
        rows = after.parts.data_plane.list_sample_ids("train")
        assert len(rows) == (4 if restore_buffer else 0)
        await after.run_to_end()
        assert sorted(after.trained) == [f"p{number}" for number in range(10)]
        assert after.trained[:4] == ["p0", "p1", "p2", "p3"] or not restore_buffer
        after.close()

    asyncio.run(run())


@pytest.mark.parametrize("restore_buffer", [True, False])
@pytest.mark.parametrize("sampler", [InOrderSampler, WindowedSampler])
def test_r01_a_trainer_checkpoint_has_the_rollouts_too(tmp_path: Path, sampler: Any, restore_buffer: bool) -> None:
    kind = Kind(sampler=sampler, max_staleness=2, restore_buffer=restore_buffer)

    async def run() -> None:
        before = await half_way(tmp_path, kind)
        assert await before.save_trainer_checkpoint()
        before.close()
        after = await SmallRun.start(tmp_path, kind.parts)
        assert after.report.path == tmp_path / "step_1"
        assert after.report.ledger_groups == 4
        await after.run_to_end()
        assert sorted(after.trained) == [f"p{number}" for number in range(10)]
        after.close()

    asyncio.run(run())


# ---- Any schedule ----

STEPS = {
    "reserve": lambda run, _: run.reserve(),
    "fill_reserve": lambda run, _: run.fill_reserve(),
    "admit": lambda run, _: run.admit(),
    "dispatch": lambda run, at: with_group(run, at, lambda group: run.dispatch(group.group_id, at % 2)),
    "seal": lambda run, at: with_group(run, at, lambda group: run.seal(group.group_id, at % 2)),
    "generate": lambda run, at: with_group(run, at, lambda group: run._generate(group)),
    "commit": lambda run, at: with_group(run, at, lambda group: run.commit(group.group_id)),
    "drop": lambda run, at: with_group(run, at, lambda group: run.drop(group.group_id)),
    "begin_step": lambda run, _: run.begin_step(),
    "write_back": lambda run, _: run.write_back(),
    "put_back": lambda run, _: run.put_back(),
    "finish_step": lambda run, _: run.finish_step(),
    "save_snapshot": lambda run, _: run.save_snapshot(),
    "save_trainer_checkpoint": lambda run, _: run.save_trainer_checkpoint(),
}


async def with_group(run: SmallRun, at: int, step: Callable[[Any], Any]) -> Any:
    groups = run.parts.ledger.groups
    return await step(groups[at % len(groups)]) if groups else False


async def follow(folder: Path, kind: Kind, schedule: list[tuple[str, int]]) -> SmallRun:
    run = await SmallRun.start(folder, kind.parts)
    beside: set[asyncio.Task[Any]] = set()
    try:
        for name, at in schedule:
            if name == "restart":
                await run.save_snapshot()
            if name in ("crash", "restart"):
                await cancelled(beside)
                run.close()
                run = await SmallRun.start(folder, kind.parts)
            elif name == "snapshot_beside":
                beside.add(asyncio.ensure_future(run.save_snapshot()))
            else:
                await STEPS[name](run, at)
        await run.run_to_end()
    finally:
        await cancelled(beside)
        run.close()
    return run


async def cancelled(tasks: set[asyncio.Task[Any]]) -> None:
    """A crash ends whatever ran; a snapshot that failed before it is a fault."""
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result
    tasks.clear()


def kinds() -> st.SearchStrategy[Kind]:
    return st.builds(
        Kind,
        prompts=st.integers(3, 9),
        sampler=st.sampled_from([InOrderSampler, WindowedSampler]),
        max_staleness=st.integers(0, 2),
        resolves=st.booleans(),
        freezes=st.booleans(),
        restore_buffer=st.booleans(),
        granularity=st.sampled_from(list(RecoveryGranularity)),
        level=st.sampled_from(list(RecoveryTargetLevel)),
    )


def schedules() -> st.SearchStrategy[list[tuple[str, int]]]:
    """Mostly what moves a run on, now and then a snapshot beside the next steps, or a crash; the rest is rare."""
    often = ["reserve", "admit", "dispatch", "dispatch", "seal", "generate", "commit", "begin_step", "finish_step"]
    one = st.tuples(st.sampled_from([*STEPS, *often, *often, "snapshot_beside", "crash", "restart"]), st.integers(0, 7))
    return st.lists(one, min_size=5, max_size=60)


@given(kind=kinds(), schedule=schedules())
@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_each_prompt_is_trained_once_or_dropped_whatever_happens(kind: Kind, schedule: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(follow(Path(folder), kind, [("reserve", 0), ("admit", 0), *schedule]))


SCHEDULES = {
    "more prompts dropped than a step takes": ["reserve", "reserve", "admit", "drop", "drop"],
    "a step that takes one less, over a restart": ["reserve", "admit", "drop", "restart"],
    "a spare prompt in the place of another, over a restart": ["reserve", "admit", "fill_reserve", "drop", "restart"],
    "an open step with advantages, over a restart": [
        *(
            "reserve",
            "admit",
            "generate",
            "generate",
            "begin_step",
            "write_back",
            "restart",
            "begin_step",
            "write_back",
        ),
    ],
    "a crash after steps that no snapshot has": [
        "reserve",
        "admit",
        *["generate"] * 2,
        "begin_step",
        "finish_step",
        "crash",
    ],
    "two restarts with nothing between": ["reserve", "admit", "dispatch", "restart", "restart"],
}


@pytest.mark.parametrize("sampler", [InOrderSampler, WindowedSampler])
@pytest.mark.parametrize("restore_buffer", [True, False])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_that_are_rare(tmp_path: Path, schedule: str, restore_buffer: bool, sampler: Any) -> None:
    kind = Kind(prompts=3, sampler=sampler, restore_buffer=restore_buffer, level=RecoveryTargetLevel.TURN)
    run = asyncio.run(follow(tmp_path, kind, [(name, 0) for name in SCHEDULES[schedule]]))
    assert len(run.trained) + len(run.parts.runtime.dropped) + len(run.parts.runtime.replacement_reserve) == 3


@pytest.mark.parametrize("how", ["dropped", "complete"])
def test_p63_an_episode_whose_group_left_before_the_environment_was_told_is_no_fault(tmp_path: Path, how: str) -> None:
    kind = Kind(prompts=4, level=RecoveryTargetLevel.TURN)

    async def run() -> None:
        before = await SmallRun.start(tmp_path, kind.parts)
        await before.reserve()
        await before.admit()
        group, _ = before.parts.ledger.groups
        for index in range(2):
            await before.dispatch(group.group_id, index)
        if how == "dropped":
            await before.transitions.drop_group(group.group_id)
        else:
            result = SiblingSealResult({"prompt": group.prompt.ref.sample_id}, reward=1.0)
            for index in range(2):
                await before.transitions.seal_sibling(group.group_id, index, result)
            await before.commit(group.group_id)
        assert len(before.parts.environment.episodes()) == 2  # type: ignore[attr-defined]
        assert (await before.save_snapshot()).saved
        before.close()
        after = await SmallRun.start(tmp_path, kind.parts)
        assert after.report.environment_episodes == 0
        await after.run_to_end()
        after.close()

    asyncio.run(run())


# ---- The account finds what is lost: the pitfalls, planted ----

RESTART_IN_FLIGHT = [
    ("reserve", 0),
    ("admit", 0),
    ("fill_reserve", 0),
    ("generate", 0),
    ("dispatch", 0),
    ("restart", 0),
]


def lose_last_of_a_batch(patch: pytest.MonkeyPatch) -> None:
    whole = RolloutRecoveryLedger.reserve_batch
    patch.setattr(
        RolloutRecoveryLedger,
        "reserve_batch",
        lambda self, cut, prompts, **rest: whole(self, cut, prompts[:-1], **rest),
    )


def save_only_the_cursor(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(capture, "_not_canonical", lambda groups, replay_groups: ())


def save_no_spare_prompts(patch: pytest.MonkeyPatch) -> None:
    whole = capture.take_references
    patch.setattr(state_saving, "take_references", lambda *args, **kw: replace(whole(*args, **kw), reserve=()))


def save_the_cursor_before_the_pull(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ListPromptSource, "state_dict", lambda self: {"position": max(self._position - 3, 0)})


def restore_no_ledger(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RolloutRestorer, "_restore_ledger", lambda self, plan, cut: None)


FAULTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "p3: the tail of a batch is left out of the ledger": (lose_last_of_a_batch, "lost: p1, .*more than once: none"),
    "p1: only cursor and complete groups are saved": (save_only_the_cursor, "lost: .*p1"),
    "p4: the cursor is of another moment than the owners": (save_the_cursor_before_the_pull, "more than once: .*p1"),
    "p6: spare prompts are not saved": (save_no_spare_prompts, "lost: p2;"),
    "a restore leaves the ledger out": (restore_no_ledger, "lost: .*p1"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_account_finds_planted_faults(tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, message = FAULTS[fault]
    kind = Kind(prompts=8, sampler=WindowedSampler)
    asyncio.run(follow(tmp_path / "sound", kind, RESTART_IN_FLIGHT))
    plant(monkeypatch)
    with pytest.raises(AccountError, match=message):
        asyncio.run(follow(tmp_path / "faulty", kind, RESTART_IN_FLIGHT))
