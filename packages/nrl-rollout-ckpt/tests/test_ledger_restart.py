"""The ledger while groups are handed on and after a restart."""

from dataclasses import replace
from typing import Any

import pytest
from ledger_run import CUT, LEVEL, NOTHING, SIBLING, WHOLE, Run
from nrl_interfaces.rollout import RestoredEnvironmentRollouts
from nrl_rollout_ckpt.state.ledger import LedgerError, UnknownGroupError
from nrl_rollout_ckpt.state.ledger_checks import check_groups, require_settled
from nrl_rollout_ckpt.state.ledger_states import (
    PromptGroupPhase,
    PromptGroupStatus,
    RolloutAttemptStatus,
)
from nrl_rollout_ckpt.state.transition_table import IllegalTransitionError

# ---- Handing on ----


def test_finalization_may_fail_or_stay_unanswered_and_is_taken_up_again() -> None:
    run = Run().dispatch().seal(0)
    start = run.ledger.mark_finalization_started
    run.refuses(IllegalTransitionError, "'generating': 'finalize'", lambda: start(CUT, run.group_id))
    run.seal(1)
    start(CUT, run.group_id)
    run.ledger.mark_finalization_failed(CUT, run.group_id)
    assert run.group.status is PromptGroupStatus.READY_TO_FINALIZE
    start(CUT, run.group_id)
    run.ledger.mark_finalization_unknown(CUT, run.group_id)
    start(CUT, run.group_id)
    assert run.group.status is PromptGroupStatus.FINALIZING


@pytest.mark.parametrize("unknown", [False, True])
def test_groups_whose_rows_may_be_anywhere_stop_snapshots_and_restarts(unknown: bool) -> None:
    run = Run(prompts=2).dispatch().seal(0, 1)
    require_settled(run.ledger.groups)
    run.ledger.mark_finalization_started(CUT, run.group_id)
    if unknown:
        run.ledger.mark_finalization_unknown(CUT, run.group_id)
    named = rf"{run.group_id} \({run.group.status.value}\)"
    with pytest.raises(LedgerError, match=named):
        require_settled(run.ledger.groups)
    run.refuses(LedgerError, named, lambda: run.ledger.prepare_for_restart(CUT, NOTHING, run.new_id))


def test_a_discarded_group_is_gone_and_its_ids_with_it() -> None:
    run = Run(prompts=2)
    record = run.ledger.discard_group(CUT, run.group_id)
    assert run.ledger.batch(0) == run.ledger.groups
    run.refuses(UnknownGroupError, "the ledger has no group", lambda: run.ledger.discard_group(CUT, run.group_id))
    assert issubclass(UnknownGroupError, KeyError)
    fresh = replace(record, admission_id=5)
    assert run.ledger.reserve_group(CUT, fresh) is fresh  # as after a put-back: nothing of it had stayed


def test_pitfall_09_groups_that_are_canonical_leave_the_ledger_whatever_their_status() -> None:
    run = Run(prompts=3).dispatch().seal(0, 1)
    other = run.ledger.groups[1].group_id
    run.ledger.mark_finalization_started(CUT, run.group_id)
    gone = run.ledger.discard_canonical_groups(CUT, [run.group_id, "elsewhere", other, other])
    assert gone == (run.group_id, other)
    assert len(run.ledger) == 1


# ---- A restart ----


def test_a_restart_keeps_what_is_sealed_and_begins_the_rest_again() -> None:
    run = Run(size=4).dispatch().seal(1)
    run.ledger.mark_attempt_failed(CUT, run.group_id, 2)
    before = run.group
    run.ledger.prepare_for_restart(CUT, NOTHING, run.new_id)
    assert run.attempts == ["reserved", "sealed", "reserved", "reserved"]
    assert run.group.siblings[1] is before.siblings[1]
    former = [sibling.attempts[0].status.value for sibling in run.group.siblings]
    assert former == ["abandoned", "sealed", "abandoned", "abandoned"]
    check_groups(run.ledger.groups)
    assert (run.group.phase, run.group.target_step) == (PromptGroupPhase.ADMITTED, 3)


@pytest.mark.parametrize(
    ("granularity", "level"), [(WHOLE, LEVEL.SIBLING), (WHOLE, LEVEL.TURN), (SIBLING, LEVEL.PROMPT_GROUP)]
)
def test_a_restart_at_the_prompt_begins_everything_again(granularity: Any, level: Any) -> None:
    run = Run(granularity=granularity, level=level).dispatch("env0")
    if granularity is SIBLING:
        run.seal(0)
    assert run.ledger.active_episodes() == ()
    run.ledger.prepare_for_restart(CUT, NOTHING, run.new_id)
    assert run.attempts == ["reserved", "reserved"]
    assert [len(sibling.attempts) for sibling in run.group.siblings] == [2, 2]
    check_groups(run.ledger.groups)  # what was given up has no result any more


def test_a_restart_takes_no_id_that_is_there() -> None:
    run = Run(prompts=2).dispatch()
    used = run.ledger.groups[1].siblings[0].current.attempt_uuid
    restart = run.ledger.prepare_for_restart
    run.refuses(LedgerError, f"attempt {used} is there already", lambda: restart(CUT, NOTHING, lambda: used))


def test_a_restart_leaves_reserved_and_complete_groups_as_they_are() -> None:
    run = Run(prompts=2).dispatch().seal(0, 1)
    before = run.ledger.groups
    run.ledger.prepare_for_restart(CUT, NOTHING, run.new_id)
    assert run.ledger.groups == before


def test_episodes_that_go_on_are_counted_from_what_the_environment_saved() -> None:
    run = Run(size=3, level=LEVEL.TURN).dispatch("env0").seal(2)
    saved = run.ledger.active_episodes()
    assert len(saved) == 2
    restored = RestoredEnvironmentRollouts(saved[:1])
    uuid = run.group.siblings[0].current.attempt_uuid
    for _ in range(3):  # no dispatch in between: the environment still has what it saved first
        run.ledger.prepare_for_restart(CUT, restored, run.new_id)
        kept = run.group.siblings[0].current
        assert (kept.attempt_uuid, kept.status, kept.environment_attempt) == (uuid, RolloutAttemptStatus.RESERVED, 1)
        assert run.attempts == ["reserved", "reserved", "sealed"]
        check_groups(run.ledger.groups)
    assert len(run.group.siblings[1].attempts) == 2  # its episode was lost at the first restart only
    run.ledger.mark_group_dispatched(CUT, run.group_id, None, "env0")
    run.ledger.prepare_for_restart(CUT, RestoredEnvironmentRollouts(saved[:1]), run.new_id)
    assert run.group.siblings[0].current.environment_attempt == 1  # dispatched, but the environment never heard of it


def test_an_episode_that_the_environment_lost_begins_anew_although_it_was_reserved() -> None:
    run = Run(level=LEVEL.TURN).dispatch("env0")
    run.ledger.prepare_for_restart(CUT, RestoredEnvironmentRollouts(run.ledger.active_episodes()), run.new_id)
    uuid = run.group.siblings[0].current.attempt_uuid
    run.ledger.prepare_for_restart(CUT, NOTHING, run.new_id)
    current = run.group.siblings[0].current
    assert current.attempt_uuid != uuid
    assert (current.environment_instance_id, current.environment_attempt) == (None, 0)


@pytest.mark.parametrize(
    "change", [{"instance_id": "env9"}, {"rollout_id": "g_g0_a0"}, {"attempt": 1}, {"attempt": -2}], ids=str
)
def test_an_episode_that_nobody_owns_is_refused(change: dict[str, Any]) -> None:
    run = Run(level=LEVEL.TURN).dispatch("env0")
    first, second = run.ledger.active_episodes()
    restored = RestoredEnvironmentRollouts((replace(first, **change), second))
    run.refuses(LedgerError, "no group owns", lambda: run.ledger.prepare_for_restart(CUT, restored, run.new_id))
    twice = RestoredEnvironmentRollouts((first, first))
    run.refuses(LedgerError, "twice", lambda: run.ledger.prepare_for_restart(CUT, twice, run.new_id))


def test_admitted_groups_are_dispatched_again_first() -> None:
    run = Run(prompts=2)
    late = run.reserve(1)[0].group_id
    run.ledger.mark_group_admitted(CUT, late, target_step=None, start_weight=0)
    first, second = (group.group_id for group in run.ledger.batch(0))
    assert [group.group_id for group in run.ledger.redispatch_order()] == [late, first, second]


def test_a_ledger_loads_once_and_only_what_a_ledger_can_be() -> None:
    run = Run(prompts=2)
    second = run.ledger.groups[1]
    run.dispatch().seal(0)
    other = Run(prompts=0)
    load = other.ledger.load_groups
    other.refuses(LedgerError, "of the same admission", lambda: load(CUT, (run.group, second), 1))
    good = (replace(run.group, admission_id=1), second)
    other.refuses(LedgerError, "its admission_id is 1; allowed: below 1", lambda: load(CUT, good, 1))
    load(CUT, good, 2)
    assert other.ledger.groups == good
    assert other.ledger.next_admission_id == 2
    other.refuses(LedgerError, "the ledger was used", lambda: load(CUT, (), 0))
    other.new_id = run.new_id
    assert other.reserve(1)[0].admission_id == 2
