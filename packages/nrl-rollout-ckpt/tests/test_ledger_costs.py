"""Every change of the ledger needs a live cut, and costs what its group costs."""

import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from ledger_run import CUT, LEVEL, NOTHING, RESULT, SIBLING, Run
from nrl_interfaces.rollout import EnvironmentEpisode
from nrl_rollout_ckpt.state.barrier import DataPlaneMutationCut, ExpiredCutError
from nrl_rollout_ckpt.state.ledger import RolloutRecoveryLedger
from nrl_rollout_ckpt.state.ledger_states import (
    PromptGroupStatus,
)

CHANGES: dict[str, Callable[[Run, Any], object]] = {
    "reserve_batch": lambda run, cut: run.ledger.reserve_batch(
        cut, [], expected_generations=1, granularity_of=lambda _: SIBLING, restore_level=LEVEL.TURN, new_id=run.new_id
    ),
    "reserve_group": lambda run, cut: run.ledger.reserve_group(cut, run.group),
    "load_groups": lambda run, cut: run.ledger.load_groups(cut, [], 0),
    "bind_runtime_prompt": lambda run, cut: run.ledger.bind_runtime_prompt(cut, run.group_id, {}),
    "mark_group_admitted": lambda run, cut: run.ledger.mark_group_admitted(
        cut, run.group_id, target_step=None, start_weight=0
    ),
    "mark_group_dispatched": lambda run, cut: run.ledger.mark_group_dispatched(cut, run.group_id),
    "mark_sibling_sealed": lambda run, cut: run.ledger.mark_sibling_sealed(cut, run.group_id, 0, RESULT),
    "mark_group_sealed": lambda run, cut: run.ledger.mark_group_sealed(cut, run.group_id, {}),
    "mark_attempt_failed": lambda run, cut: run.ledger.mark_attempt_failed(cut, run.group_id, 0),
    "abandon_unsealed": lambda run, cut: run.ledger.abandon_unsealed(cut, run.group_id),
    "prepare_incomplete_retry": lambda run, cut: run.ledger.prepare_incomplete_retry(cut, run.group_id, run.new_id),
    "begin_again": lambda run, cut: run.ledger.begin_again(cut, run.group_id, run.new_id),
    "mark_finalization_started": lambda run, cut: run.ledger.mark_finalization_started(cut, run.group_id),
    "mark_finalization_failed": lambda run, cut: run.ledger.mark_finalization_failed(cut, run.group_id),
    "mark_finalization_unknown": lambda run, cut: run.ledger.mark_finalization_unknown(cut, run.group_id),
    "discard_group": lambda run, cut: run.ledger.discard_group(cut, run.group_id),
    "discard_canonical_groups": lambda run, cut: run.ledger.discard_canonical_groups(cut, []),
    "prepare_for_restart": lambda run, cut: run.ledger.prepare_for_restart(cut, NOTHING, run.new_id),
}


def test_the_list_of_changes_is_complete() -> None:
    taking_a_cut = {
        name
        for name, method in vars(RolloutRecoveryLedger).items()
        if not name.startswith("_") and "cut" in method.__code__.co_varnames[:2]
    }
    assert taking_a_cut == set(CHANGES)


@pytest.mark.parametrize("name", CHANGES)
def test_pitfall_21_every_change_needs_a_live_cut(name: str) -> None:
    run, cut = Run(), DataPlaneMutationCut("other")
    cut.end()
    run.refuses(ExpiredCutError, "'other' was used after", lambda: CHANGES[name](run, cut))


def calls_of(work: Callable[[], object]) -> int:
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def test_a_transition_costs_what_its_group_costs() -> None:
    def cost(groups: int) -> list[int]:
        run = Run(prompts=0)
        run.reserve(groups)
        run.group_id = run.reserve(1)[0].group_id
        steps: list[Callable[[], object]] = [
            lambda: run.ledger.mark_group_admitted(CUT, run.group_id, target_step=3, start_weight=2),
            lambda: run.ledger.mark_group_dispatched(CUT, run.group_id),
            lambda: run.ledger.begin_again(CUT, run.group_id, run.new_id, failed=0),
            lambda: run.ledger.mark_group_dispatched(CUT, run.group_id),
            lambda: run.seal(0, 1),
            lambda: run.ledger.mark_finalization_started(CUT, run.group_id),
            lambda: run.ledger.discard_group(CUT, run.group_id),
            lambda: run.reserve(1),
        ]
        return [calls_of(step) for step in steps]

    assert cost(1) == cost(500)


def test_groups_are_taken_without_copying_any() -> None:
    run = Run(prompts=0, size=1)
    run.reserve(5_000)
    assert calls_of(lambda: run.ledger.groups) <= 5
    fastest = min(timed(lambda: run.ledger.groups) for _ in range(20))
    assert fastest < 0.001
    assert run.ledger.groups[0] is run.ledger.get(run.ledger.groups[0].group_id)


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def test_a_record_stays_as_it_was_handed_out() -> None:
    run = Run().dispatch()
    before = run.group
    run.seal(0, 1)
    assert [sibling.current.status.value for sibling in before.siblings] == ["dispatched", "dispatched"]
    with pytest.raises(AttributeError):
        before.status = PromptGroupStatus.FINALIZING  # type: ignore[misc]


def test_episodes_are_of_turn_level_only() -> None:
    run = Run(level=LEVEL.SIBLING).dispatch("env0")
    assert run.group.episode(0) == EnvironmentEpisode("env0", run.group.rollout_id(0), 0)
    assert run.ledger.active_episodes() == ()
