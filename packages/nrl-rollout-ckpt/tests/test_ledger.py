"""The ledger: each transition, what it refuses, and that a refusal changes nothing."""

import itertools
import pickle
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from nrl_interfaces.rollout import EnvironmentEpisode, PromptRef, RestoredEnvironmentRollouts
from nrl_rollout_ckpt.state.barrier import DataPlaneMutationCut, ExpiredCutError
from nrl_rollout_ckpt.state.ledger import LedgerError, RolloutRecoveryLedger, UnknownGroupError, reserved_group
from nrl_rollout_ckpt.state.ledger_checks import check_groups, require_settled
from nrl_rollout_ckpt.state.ledger_states import (
    PromptGroupPhase,
    PromptGroupStatus,
    RecoveryGranularity,
    RecoveryTargetLevel,
    RolloutAttemptStatus,
)
from nrl_rollout_ckpt.state.payloads import PayloadTypeError, saved_prompt
from nrl_rollout_ckpt.state.records import Prompt, PromptGroupRecoveryRecord, SiblingSealResult
from nrl_rollout_ckpt.state.transition_table import IllegalTransitionError

WHOLE, SIBLING = RecoveryGranularity.PROMPT_GROUP, RecoveryGranularity.SIBLING
LEVEL = RecoveryTargetLevel
CUT = DataPlaneMutationCut("other")
RESULT = SiblingSealResult({"text": "two", "ids": torch.tensor([2])}, 1.0)
NOTHING = RestoredEnvironmentRollouts()


class Run:
    """A ledger with one batch."""

    def __init__(self, prompts: int = 1, size: int = 2, granularity: Any = SIBLING, level: Any = LEVEL.SIBLING) -> None:
        counter = itertools.count()
        self.new_id = lambda: f"{next(counter):032x}"
        self.ledger = RolloutRecoveryLedger()
        self.granularity, self.level, self.size = granularity, level, size
        self.group_id = self.reserve(prompts)[0].group_id if prompts else ""

    def reserve(self, prompts: int) -> tuple[PromptGroupRecoveryRecord, ...]:
        batch = [Prompt(PromptRef(f"p{number}"), {"text": f"What is {number}?"}) for number in range(prompts)]
        return self.ledger.reserve_batch(
            CUT,
            [(prompt, saved_prompt(prompt, whole=True)) for prompt in batch],
            expected_generations=self.size,
            granularity_of=lambda _: self.granularity,
            restore_level=self.level,
            new_id=self.new_id,
        )

    @property
    def group(self) -> PromptGroupRecoveryRecord:
        return self.ledger.get(self.group_id)

    @property
    def attempts(self) -> list[str]:
        return [sibling.current.status.value for sibling in self.group.siblings]

    def dispatch(self, instance_id: str | None = None) -> "Run":
        for group in self.ledger.batch(self.group.admission_id):
            self.ledger.mark_group_admitted(CUT, group.group_id, target_step=3, start_weight=2)
        self.ledger.mark_group_dispatched(CUT, self.group_id, None, instance_id)
        return self

    def seal(self, *indices: int) -> "Run":
        for index in indices:
            self.ledger.mark_sibling_sealed(CUT, self.group_id, index, RESULT)
        return self

    def refuses(self, error: type[BaseException], match: str, call: Callable[[], object]) -> None:
        before, next_id = self.ledger.groups, self.ledger.next_admission_id
        with pytest.raises(error, match=match) as caught:
            call()
        assert all(now is then for now, then in zip(self.ledger.groups, before, strict=True))
        assert self.ledger.next_admission_id == next_id
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
        check_groups(self.ledger.groups)


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


# ---- Cuts and costs ----

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
