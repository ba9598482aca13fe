"""The ledger while a group comes in and generates: each transition, and that a refusal changes nothing."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
from ledger_run import CUT, LEVEL, NOTHING, RESULT, SIBLING, WHOLE, Run
from nrl_interfaces.rollout import RestoredEnvironmentRollouts
from nrl_rollout_ckpt.state.ledger import LedgerError, reserved_group
from nrl_rollout_ckpt.state.ledger_checks import check_groups
from nrl_rollout_ckpt.state.ledger_states import (
    PromptGroupPhase,
    PromptGroupStatus,
)
from nrl_rollout_ckpt.state.payloads import PayloadTypeError
from nrl_rollout_ckpt.state.records import PromptGroupRecoveryRecord, SiblingSealResult
from nrl_rollout_ckpt.state.transition_table import IllegalTransitionError

# ---- Coming in ----


def test_a_batch_is_reserved_under_one_admission_id() -> None:
    run = Run(prompts=2, size=3)
    second = run.reserve(1)[0]
    first = run.ledger.batch(0)
    assert [group.admission_id for group in (*first, second)] == [0, 0, 1]
    assert run.ledger.next_admission_id == 2
    assert len(run.ledger) == 3
    group = first[0]
    assert (group.phase, group.status) == (PromptGroupPhase.RESERVED, PromptGroupStatus.GENERATING)
    assert group.runtime_prompt == {"text": "What is 0?"}
    assert group.sample_ids() == [f"{group.group_id}_g0", f"{group.group_id}_g1", f"{group.group_id}_g2"]
    assert group.rollout_id(1) == f"{group.group_id}_g1_a{group.siblings[1].current.attempt_uuid}"
    assert run.reserve(0) == ()
    assert run.ledger.next_admission_id == 2


def test_ids_that_are_not_new_are_refused_and_no_group_of_the_batch_stays() -> None:
    run = Run()
    used = run.group.siblings[0].current.attempt_uuid
    ids = itertools.chain([f"{n:032x}" for n in range(900, 905)], itertools.repeat(used))
    run.new_id = lambda: next(ids)
    run.refuses(LedgerError, f"attempt {used} is there already", lambda: run.reserve(2))
    run.new_id = lambda: "not hex"
    run.refuses(LedgerError, "'not hex'; allowed: 32 lower-case hex digits", lambda: run.reserve(1))
    run.new_id = lambda: run.group_id
    run.refuses(LedgerError, "its id is there already", lambda: run.reserve(1))


def test_a_group_of_its_own_must_be_new_and_fit_its_batch() -> None:
    run = Run(prompts=2).dispatch()

    def make(admission_id: int) -> PromptGroupRecoveryRecord:
        return reserved_group(
            run.group.prompt,
            admission_id=admission_id,
            expected_generations=2,
            granularity=SIBLING,
            restore_level=LEVEL.SIBLING,
            new_id=run.new_id,
        )

    run.refuses(
        LedgerError, "of the same admission 0 is 'admitted' for step 3", lambda: run.ledger.reserve_group(CUT, make(0))
    )
    run.refuses(LedgerError, "it is not new", lambda: run.ledger.reserve_group(CUT, replace(run.group, group_id="x")))
    fits = replace(make(0), phase=PromptGroupPhase.ADMITTED, target_step=3, start_weight_version=5)
    assert run.ledger.reserve_group(CUT, fits) in run.ledger.batch(0)
    run.ledger.reserve_group(CUT, make(7))
    assert run.ledger.next_admission_id == 8
    check_groups(run.ledger.groups)


def test_pitfall_13_another_prompt_under_the_same_id_is_refused() -> None:
    run = Run()
    run.refuses(
        LedgerError,
        "the source was reordered",
        lambda: run.ledger.bind_runtime_prompt(CUT, run.group_id, {"text": "?"}),
    )
    bound = {"text": "What is 0?"}
    run.ledger.bind_runtime_prompt(CUT, run.group_id, bound)
    assert run.group.runtime_prompt is bound


def test_pitfall_48_the_policy_is_the_one_of_the_time_of_reservation() -> None:
    run = Run(granularity=SIBLING, level=LEVEL.TURN)
    run.granularity, run.level = WHOLE, LEVEL.PROMPT_GROUP
    run.reserve(1)
    run.dispatch("env0").seal(0)
    assert (run.group.recovery_granularity, run.group.restore_level) == (SIBLING, LEVEL.TURN)
    run.ledger.prepare_for_restart(CUT, NOTHING, run.new_id)
    assert run.attempts == ["sealed", "reserved"]


# ---- Generating ----


def test_only_an_admitted_group_is_dispatched_and_only_once() -> None:
    run = Run()
    dispatch = run.ledger.mark_group_dispatched
    run.refuses(LedgerError, "not admitted yet", lambda: dispatch(CUT, run.group_id))
    run.dispatch()
    assert (run.group.target_step, run.group.start_weight_version) == (3, 2)
    run.refuses(LedgerError, r"siblings \[\] are to be dispatched", lambda: dispatch(CUT, run.group_id))
    run.refuses(IllegalTransitionError, "an attempt is 'dispatched'", lambda: dispatch(CUT, run.group_id, [0]))
    run.refuses(
        IllegalTransitionError,
        "the phase of a prompt group is 'admitted'",
        lambda: run.ledger.mark_group_admitted(CUT, run.group_id, target_step=4, start_weight=2),
    )


@pytest.mark.parametrize(
    ("indices", "error"),
    [
        ([0, 5], "it has no sibling 5; allowed: 0 to 1"),
        ([1, 1], "each once"),
        ([-1], "it has no sibling -1"),
        ([], "each"),
    ],
)
def test_siblings_that_are_not_there_are_refused_whole(indices: list[int], error: str) -> None:
    run = Run()
    run.ledger.mark_group_admitted(CUT, run.group_id, target_step=None, start_weight=0)
    run.refuses(LedgerError, error, lambda: run.ledger.mark_group_dispatched(CUT, run.group_id, indices))


@pytest.mark.parametrize(("step", "weight"), [(-1, 0), (0, -1)])
def test_steps_and_weights_below_zero_are_refused(step: int, weight: int) -> None:
    run = Run()
    admit = run.ledger.mark_group_admitted
    run.refuses(LedgerError, "-1", lambda: admit(CUT, run.group_id, target_step=step, start_weight=weight))


def test_the_last_seal_makes_the_group_ready() -> None:
    run = Run().dispatch().seal(1)
    assert (run.attempts, run.group.status) == (["dispatched", "sealed"], PromptGroupStatus.GENERATING)
    run.seal(0)
    assert (run.attempts, run.group.status) == (["sealed", "sealed"], PromptGroupStatus.READY_TO_FINALIZE)
    sealed = run.group.siblings[1].current
    assert sealed.result is not None
    assert (sealed.result.value()["text"], sealed.reward, sealed.mask_sample) == ("two", 1.0, False)


def test_the_same_seal_again_changes_nothing_and_another_is_refused() -> None:
    run = Run().dispatch().seal(0)
    before = run.group
    run.seal(0)
    assert run.group is before
    seal = run.ledger.mark_sibling_sealed
    for other in (
        replace(RESULT, reward=0.0),
        replace(RESULT, mask_sample=True),
        replace(RESULT, result={"text": "3"}),
    ):
        run.refuses(LedgerError, "sealed already, with another", lambda other=other: seal(CUT, run.group_id, 0, other))
    run.seal(1)
    run.ledger.mark_finalization_started(CUT, run.group_id)
    run.seal(0)  # a message that comes twice may come late


def test_a_late_result_of_a_former_attempt_is_refused() -> None:
    run = Run().dispatch()
    late = replace(RESULT, rollout_id=run.group.rollout_id(0))
    run.ledger.begin_again(CUT, run.group_id, run.new_id, failed=0)
    run.ledger.mark_group_dispatched(CUT, run.group_id)
    seal = run.ledger.mark_sibling_sealed
    run.refuses(LedgerError, "but the attempt is", lambda: seal(CUT, run.group_id, 0, late))
    seal(CUT, run.group_id, 0, replace(RESULT, rollout_id=run.group.rollout_id(0)))
    assert run.attempts == ["sealed", "dispatched"]


@pytest.mark.parametrize(
    ("result", "error", "match"),
    [
        (SiblingSealResult({1: 2}, 1.0), PayloadTypeError, "the result of '[0-9a-f]{32}_g0' can't be saved"),
        (SiblingSealResult("x", float("nan")), ValueError, "reward of .* is nan; allowed: a finite number"),
        (SiblingSealResult("x", True), ValueError, "reward of .* is True"),
        (SiblingSealResult("x", 1.0, None), ValueError, "mask_sample of .* is None"),  # type: ignore[arg-type]
    ],
)
def test_a_bad_result_is_refused(result: Any, error: Any, match: str) -> None:
    run = Run().dispatch()
    run.refuses(error, match, lambda: run.ledger.mark_sibling_sealed(CUT, run.group_id, 0, result))


def test_a_group_that_is_kept_whole_is_sealed_at_once() -> None:
    run = Run(granularity=WHOLE).dispatch()
    seal = run.ledger.mark_group_sealed
    run.refuses(LedgerError, "seal all its siblings at once", lambda: run.seal(0))
    run.refuses(LedgerError, r"results are there for \[0\]", lambda: seal(CUT, run.group_id, {0: RESULT}))
    bad = {0: RESULT, 1: SiblingSealResult("x", float("inf"))}
    run.refuses(ValueError, "is inf", lambda: seal(CUT, run.group_id, bad))
    seal(CUT, run.group_id, {0: RESULT, 1: RESULT})
    assert (run.attempts, run.group.status) == (["sealed", "sealed"], PromptGroupStatus.READY_TO_FINALIZE)
    before = run.group
    seal(CUT, run.group_id, {0: RESULT, 1: RESULT})
    assert run.group is before
    other = {0: RESULT, 1: replace(RESULT, reward=3.0)}
    run.refuses(LedgerError, "with another result", lambda: seal(CUT, run.group_id, other))
    alone = Run().dispatch()
    alone.refuses(
        LedgerError, "seal each", lambda: alone.ledger.mark_group_sealed(CUT, alone.group_id, {0: RESULT, 1: RESULT})
    )


def test_a_failed_attempt_is_retried_under_a_new_id_and_the_sample_id_stays() -> None:
    run = Run().dispatch().seal(1)
    before = run.group
    run.ledger.mark_attempt_failed(CUT, run.group_id, 0)
    assert run.attempts == ["failed", "sealed"]
    run.ledger.prepare_incomplete_retry(CUT, run.group_id, run.new_id)
    assert run.attempts == ["reserved", "sealed"]
    assert run.group.sample_ids() == before.sample_ids()
    assert run.group.rollout_id(0) != before.rollout_id(0)
    assert run.group.siblings[1] is before.siblings[1]
    retry = run.ledger.prepare_incomplete_retry
    run.refuses(LedgerError, "nothing is to be retried", lambda: retry(CUT, run.group_id, run.new_id))


def test_a_group_that_is_kept_whole_gives_up_everything_before_it_is_retried() -> None:
    run = Run(granularity=WHOLE).dispatch()
    run.ledger.mark_attempt_failed(CUT, run.group_id, 0)
    retry = run.ledger.prepare_incomplete_retry
    run.refuses(LedgerError, "abandon_unsealed comes before", lambda: retry(CUT, run.group_id, run.new_id))
    run.ledger.abandon_unsealed(CUT, run.group_id)
    assert run.attempts == ["abandoned", "abandoned"]
    retry(CUT, run.group_id, run.new_id)
    assert run.attempts == ["reserved", "reserved"]


@pytest.mark.parametrize("granularity", [SIBLING, WHOLE])
def test_abandoning_a_complete_group_keeps_it(granularity: Any) -> None:
    run = Run(granularity=granularity).dispatch()
    if granularity is SIBLING:
        run.seal(0, 1)
    else:
        run.ledger.mark_group_sealed(CUT, run.group_id, {0: RESULT, 1: RESULT})
    before = run.group
    run.ledger.abandon_unsealed(CUT, run.group_id)
    assert run.group is before
    begin_again = run.ledger.begin_again
    run.refuses(IllegalTransitionError, "'retry' is not allowed", lambda: begin_again(CUT, run.group_id, run.new_id))


def test_an_environment_keeps_its_attempts() -> None:
    run = Run(level=LEVEL.TURN)
    run.ledger.mark_group_admitted(CUT, run.group_id, target_step=None, start_weight=0)
    dispatch = run.ledger.mark_group_dispatched
    run.refuses(LedgerError, "need an environment's instance_id", lambda: dispatch(CUT, run.group_id))
    dispatch(CUT, run.group_id, [0], "env1")
    dispatch(CUT, run.group_id, [1], "env0")
    episodes = run.ledger.active_episodes()
    assert [episode.instance_id for episode in episodes] == ["env0", "env1"]
    run.ledger.prepare_for_restart(CUT, RestoredEnvironmentRollouts(episodes), run.new_id)
    run.refuses(LedgerError, "goes on in instance 'env1'", lambda: dispatch(CUT, run.group_id, [0], "env0"))
    dispatch(CUT, run.group_id)
    assert [run.group.episode(at) for at in (1, 0)] == [replace(episode, attempt=1) for episode in episodes]


# ---- Afterwards ----


def test_attempts_of_groups_that_left_are_remembered_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nrl_rollout_ckpt.state.ledger.FORMER_ATTEMPTS_KEPT", 3)
    run = Run(prompts=2)
    first, second = run.ledger.groups
    ids = [group.rollout_id(index) for group in (first, second) for index in range(2)]
    assert all(run.ledger.has_had_attempt(rollout_id) for rollout_id in ids)
    assert not run.ledger.has_had_attempt(f"{first.sample_id(0)}_a{'0' * 31}f")
    run.ledger.discard_group(CUT, first.group_id)
    run.ledger.discard_group(CUT, second.group_id)
    assert [run.ledger.has_had_attempt(rollout_id) for rollout_id in ids] == [False, True, True, True]
