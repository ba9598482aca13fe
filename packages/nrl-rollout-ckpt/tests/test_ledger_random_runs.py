"""Random runs of the ledger: invariants hold, refusals change nothing, and what is saved comes back or is refused."""

import copy
import itertools
from typing import Any

import orjson
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from nrl_interfaces.rollout import PromptRef, RestoredEnvironmentRollouts
from nrl_rollout_ckpt.state.barrier import DataPlaneMutationCut
from nrl_rollout_ckpt.state.ledger import LedgerError, RolloutRecoveryLedger, UnknownGroupError
from nrl_rollout_ckpt.state.ledger_checks import check_groups
from nrl_rollout_ckpt.state.ledger_states import (
    PromptGroupPhase,
    PromptGroupStatus,
    RecoveryGranularity,
    RecoveryTargetLevel,
    RolloutAttemptStatus,
)
from nrl_rollout_ckpt.state.payloads import saved_prompt
from nrl_rollout_ckpt.state.record_codec import RecordFormatError, Tensors, decode_group, encode_group
from nrl_rollout_ckpt.state.records import Prompt, PromptGroupRecoveryRecord, SiblingSealResult
from nrl_rollout_ckpt.state.transition_table import IllegalTransitionError

CUT = DataPlaneMutationCut("other")
SIZE = 2
REFUSALS = (LedgerError, UnknownGroupError, IllegalTransitionError)
RESULTS = st.sampled_from(
    [SiblingSealResult({"ids": torch.tensor([1, 2])}, 1.0), SiblingSealResult("text", -0.5, mask_sample=True)]
)


def saved(groups: tuple[PromptGroupRecoveryRecord, ...]) -> tuple[list[Any], Tensors, Tensors]:
    prompts: Tensors = {}
    results: Tensors = {}
    data = orjson.loads(orjson.dumps([encode_group(group, prompts, results) for group in groups]))
    return data, prompts, results


def loaded(data: list[Any], prompts: Tensors, results: Tensors) -> tuple[PromptGroupRecoveryRecord, ...]:
    groups = tuple(decode_group(item, prompts, results) for item in data)
    check_groups(groups)
    return groups


class LedgerRun(RuleBasedStateMachine):
    """Any transition at any time; a refused one may change nothing."""

    def __init__(self) -> None:
        super().__init__()
        counter = itertools.count()
        self.new_id = lambda: f"{next(counter):032x}"
        self.ledger = RolloutRecoveryLedger()
        self.reserved: set[str] = set()
        self.discarded: set[str] = set()

    def group_id(self, number: int) -> str:
        groups = self.ledger.groups
        return groups[number % len(groups)].group_id if groups else "none"

    def attempt(self, method: str, number: int, *args: Any, **more: Any) -> None:
        before = self.ledger.groups
        try:
            getattr(self.ledger, method)(CUT, self.group_id(number), *args, **more)
        except REFUSALS:
            assert len(before) == len(self.ledger.groups)
            assert all(now is then for now, then in zip(self.ledger.groups, before, strict=True))

    @rule(
        prompts=st.integers(1, 2),
        granularity=st.sampled_from(RecoveryGranularity),
        level=st.sampled_from(RecoveryTargetLevel),
        whole=st.booleans(),
    )
    def reserve(self, prompts: int, granularity: Any, level: Any, whole: bool) -> None:
        batch = [Prompt(PromptRef(f"p{at}"), {"x": torch.tensor([at])}) for at in range(prompts)]
        groups = self.ledger.reserve_batch(
            CUT,
            [(prompt, saved_prompt(prompt, whole=whole)) for prompt in batch],
            expected_generations=SIZE,
            granularity_of=lambda _: granularity,
            restore_level=level,
            new_id=self.new_id,
        )
        self.reserved |= {group.group_id for group in groups}

    @rule(number=st.integers(0, 5), step=st.one_of(st.none(), st.integers(0, 3)))
    def admit(self, number: int, step: int | None) -> None:
        group = self.ledger.groups[number % len(self.ledger)] if len(self.ledger) else None
        if group is not None and group.phase is PromptGroupPhase.RESERVED:
            for member in self.ledger.batch(group.admission_id):
                self.ledger.mark_group_admitted(CUT, member.group_id, target_step=step, start_weight=1)

    @rule(
        number=st.integers(0, 5),
        indices=st.one_of(st.none(), st.lists(st.integers(0, SIZE), max_size=2)),
        instance=st.sampled_from([None, "env0", "env1"]),
    )
    def dispatch(self, number: int, indices: Any, instance: Any) -> None:
        self.attempt("mark_group_dispatched", number, indices, instance)

    @rule(
        prompts=st.integers(1, 2),
        granularity=st.sampled_from(RecoveryGranularity),
        level=st.sampled_from(RecoveryTargetLevel),
    )
    def bring_under_way(self, prompts: int, granularity: Any, level: Any) -> None:
        self.reserve(prompts, granularity, level, True)
        for group in self.ledger.batch(self.ledger.next_admission_id - 1):
            self.ledger.mark_group_admitted(CUT, group.group_id, target_step=None, start_weight=1)
            self.ledger.mark_group_dispatched(CUT, group.group_id, None, "env0")

    @rule(number=st.integers(0, 5), instance=st.sampled_from(["env0", "env1"]))
    def dispatch_all(self, number: int, instance: Any) -> None:
        self.attempt("mark_group_dispatched", number, None, instance)

    @rule(number=st.integers(0, 5), index=st.integers(0, SIZE), result=RESULTS)
    def seal(self, number: int, index: int, result: Any) -> None:
        self.attempt("mark_sibling_sealed", number, index, result)

    @rule(number=st.integers(0, 5), one=RESULTS, other=RESULTS)
    def seal_all(self, number: int, one: Any, other: Any) -> None:
        self.attempt("mark_group_sealed", number, {0: one, 1: other})

    @rule(number=st.integers(0, 5), index=st.integers(0, SIZE))
    def fail(self, number: int, index: int) -> None:
        self.attempt("mark_attempt_failed", number, index)

    @rule(number=st.integers(0, 5), method=st.sampled_from(["prepare_incomplete_retry", "begin_again"]))
    def retry(self, number: int, method: str) -> None:
        self.attempt(method, number, self.new_id)

    @rule(
        number=st.integers(0, 5),
        method=st.sampled_from(
            [
                "abandon_unsealed",
                "mark_finalization_started",
                "mark_finalization_started",
                "mark_finalization_failed",
                "mark_finalization_unknown",
            ]
        ),
    )
    def step(self, number: int, method: str) -> None:
        self.attempt(method, number)

    @rule(number=st.integers(0, 5), canonical=st.booleans())
    @precondition(lambda self: len(self.ledger) > 3)
    def discard(self, number: int, canonical: bool) -> None:
        group_id = self.group_id(number)
        self.discarded.add(group_id)
        if canonical:
            assert self.ledger.discard_canonical_groups(CUT, [group_id, "none"]) == (group_id,)
        else:
            self.ledger.discard_group(CUT, group_id)

    @rule(kept=st.integers(0, 3))
    def restart(self, kept: int) -> None:
        """Save, load in a new process, and go on there with some of the episodes."""
        data, prompts, results = saved(self.ledger.groups)
        again = RolloutRecoveryLedger()
        again.load_groups(CUT, loaded(data, prompts, results), self.ledger.next_admission_id)
        assert again.groups == self.ledger.groups
        unsettled = {PromptGroupStatus.FINALIZING, PromptGroupStatus.FINALIZATION_UNKNOWN}
        episodes = RestoredEnvironmentRollouts(again.active_episodes()[:kept])
        if any(group.status in unsettled for group in again.groups):
            with pytest.raises(LedgerError, match="is not known"):
                again.prepare_for_restart(CUT, episodes, self.new_id)
            return
        ready = [group for group in again.groups if group.status is not PromptGroupStatus.GENERATING]
        again.prepare_for_restart(CUT, episodes, self.new_id)
        assert [group for group in again.groups if group.status is not PromptGroupStatus.GENERATING] == ready
        ends = {RolloutAttemptStatus.RESERVED, RolloutAttemptStatus.SEALED}
        assert {sibling.current.status for group in again.groups for sibling in group.siblings} <= ends
        self.ledger = again

    @invariant()
    def the_invariants_hold(self) -> None:
        check_groups(self.ledger.groups)
        assert {group.group_id for group in self.ledger.groups} == self.reserved - self.discarded

    @invariant()
    def lookups_agree_with_the_groups(self) -> None:
        groups = self.ledger.groups
        for group in groups:
            assert self.ledger.get(group.group_id) is group
            assert group in self.ledger.batch(group.admission_id)
        assert self.ledger.target_steps() == {group.target_step for group in groups} - {None}


TestLedgerRun = LedgerRun.TestCase
TestLedgerRun.settings = settings(deadline=None, max_examples=100, stateful_step_count=30)


# ---- One field that was changed on disk ----


def full_ledger() -> tuple[PromptGroupRecoveryRecord, ...]:
    """A ledger with each kind of record in it."""
    run = LedgerRun()
    for level in RecoveryTargetLevel:
        run.reserve(1, RecoveryGranularity.SIBLING, level, True)
    run.reserve(2, RecoveryGranularity.PROMPT_GROUP, RecoveryTargetLevel.TURN, False)
    for number in range(4):
        run.admit(number, number if number else None)
        run.dispatch_all(number, "env0")
    run.seal(0, 0, SiblingSealResult({"ids": torch.tensor([1, 2])}, 1.0))
    run.seal(1, 0, SiblingSealResult("text", 0.5))
    run.seal(1, 1, SiblingSealResult("text", 0.5, mask_sample=True))
    run.fail(2, 1)
    run.retry(2, "prepare_incomplete_retry")
    run.reserve(1, RecoveryGranularity.SIBLING, RecoveryTargetLevel.SIBLING, False)
    return run.ledger.groups


FULL = full_ledger()


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in leaves(item, (*path, key))]
    if isinstance(value, list):
        return [leaf for at, item in enumerate(value) for leaf in leaves(item, (*path, at))]
    return [path]


def at(data: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        data = data[key]
    return data


# Any value is legal by itself there: what a change of them would mean is for the digest of the whole file.
FREE_NUMBERS = {"admission_id", "start_weight_version", "target_step", "reward", "environment_attempt"}
FREE_TEXTS = {"group_id", "sample_id", "task_name", "task_source", "environment_instance_id", "attempt_uuid"}
FREE_CHOICES = {"recovery_granularity", "restore_level", "mask_sample"}  # and the digest of a prompt that is not stored


@pytest.mark.parametrize("path", leaves(saved(FULL)[0]), ids=lambda path: ".".join(map(str, path)))
def test_a_leaf_of_another_type_is_refused_with_its_path(path: tuple[Any, ...]) -> None:
    original = saved(FULL)
    right = at(original[0], path)
    for wrong in (
        [],
        {},
        {"a": 1},
        1.5 if not isinstance(right, float) else 1,
        "\u2020",
        -1,
        True if right is not True else 1,
    ):
        is_text = isinstance(wrong, str) and (path[-1] in FREE_TEXTS or path[-1] == "digest")
        is_flag = isinstance(wrong, bool) and path[-1] == "mask_sample"
        if is_text or is_flag or (isinstance(wrong, float) and path[-1] == "reward"):
            continue
        data = copy.deepcopy(original[0])
        at(data, path[:-1])[path[-1]] = wrong
        with pytest.raises((RecordFormatError, LedgerError)) as caught:
            loaded(data, *original[1:])
        if isinstance(caught.value, RecordFormatError) and path[-1] != "tensors" and "stored" not in path:
            assert str(caught.value).startswith("group.")
            assert str(path[-1]) in caught.value.path or "result" in caught.value.path


VALUES = [
    None,
    True,
    False,
    -1,
    0,
    1,
    2,
    7,
    0.5,
    "",
    "x",
    "0" * 32,
    "0" * 64,
    "env1",
    *PromptGroupPhase,
    *PromptGroupStatus,
]
VALUES += [*RolloutAttemptStatus, *RecoveryGranularity, *RecoveryTargetLevel]
VALUES = [str(value) if isinstance(value, str) else value for value in VALUES]
UNSEALED = {str(status) for status in RolloutAttemptStatus} - {"sealed"}
COMPLETE = {str(status) for status in PromptGroupStatus} - {"generating"}


def test_a_single_leaf_that_was_changed_is_refused_or_legal_by_itself() -> None:
    records, prompts, results = saved(FULL)
    accepted = 0
    for path, value in itertools.product(leaves(records), VALUES):
        before = at(records, path)
        if type(value) is type(before) and value == before:
            continue
        at(records, path[:-1])[path[-1]] = value
        try:
            groups = loaded(records, prompts, results)
        except (RecordFormatError, LedgerError):
            continue
        finally:
            at(records, path[:-1])[path[-1]] = before
        accepted += 1
        assert groups != FULL
        same_meaning = UNSEALED if "attempts" in path else COMPLETE
        is_status = path[-1] == "status" and {str(before), str(value)} <= same_meaning
        is_reference = path[-1] == "digest" and at(records, path[:-1]).get("stored", 1) is None
        is_free = is_reference or path[-1] in FREE_NUMBERS | FREE_TEXTS | FREE_CHOICES
        assert is_free or is_status, f"{path}: {before!r} -> {value!r} was accepted"
    assert accepted > 100
    assert loaded(records, prompts, results) == FULL


@pytest.mark.parametrize("path", sorted({path[:-1] for path in leaves(saved(FULL)[0])}, key=str), ids=str)
def test_missing_and_unknown_fields_are_refused_at_every_level(path: tuple[Any, ...]) -> None:
    records, prompts, results = saved(FULL)
    for name in list(at(records, path)):
        changed = copy.deepcopy(records)
        del at(changed, path)[name]
        with pytest.raises(RecordFormatError, match=rf"lacks the fields \['{name}'\]"):
            loaded(changed, prompts, results)
    at(records, path)["note"] = 1
    with pytest.raises(RecordFormatError, match=r"has the unknown fields \['note'\]"):
        loaded(records, prompts, results)


def test_tensors_that_are_missing_or_changed_are_refused() -> None:
    records, prompts, results = saved(FULL)
    assert prompts
    assert results
    for kind in (prompts, results):
        for key, tensors in list(kind.items()):
            del kind[key]
            with pytest.raises(RecordFormatError, match=f"but 0 are there for '{key}'"):
                loaded(records, prompts, results)
            kind[key] = (tensors[0] + 1,)
            with pytest.raises(RecordFormatError, match="is not what was saved"):
                loaded(records, prompts, results)
            kind[key] = tensors
    assert loaded(records, prompts, results) == FULL
