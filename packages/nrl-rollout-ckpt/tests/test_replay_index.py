"""The replay index: complete groups that are ready, or taken by a train step, and never both."""

import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from nrl_interfaces.rollout import PromptRef
from nrl_rollout_ckpt.state.barrier import DataPlaneMutationCut, ExpiredCutError
from nrl_rollout_ckpt.state.inventory import InventoryError, validate_replay_inventory
from nrl_rollout_ckpt.state.ledger_checks import UnknownGroupError
from nrl_rollout_ckpt.state.record_codec import decode_replay_group, encode_replay_group
from nrl_rollout_ckpt.state.records import ReplayGroup, SavedPrompt
from nrl_rollout_ckpt.state.replay_index import ReplayIndex, ReplayIndexError, TrainingClaim, combined

CUT = DataPlaneMutationCut("other")


def group(name: str, *, step: int | None = None, rows: list[str] | None = None) -> ReplayGroup:
    sample_ids = [f"{name}_g0", f"{name}_g1"] if rows is None else rows
    return ReplayGroup(name, tuple(sample_ids), 1, 2, SavedPrompt(PromptRef(name), "0" * 64), step)


def index_of(*names: str, capacity: int = 4) -> ReplayIndex:
    index = ReplayIndex(capacity, 2)
    for name in names:
        index.commit(CUT, group(name))
    return index


def names(groups: Any) -> list[str]:
    return [group.group_id for group in groups]


def refuses(index: ReplayIndex, error: Any, match: str, call: Callable[[], object]) -> None:
    before = (index.groups, index.training_owned_replay_groups(), index.target_steps())
    with pytest.raises(error, match=match) as caught:
        call()
    assert (index.groups, index.training_owned_replay_groups(), index.target_steps()) == before
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_groups_are_claimed_released_and_put_back() -> None:
    index = index_of("a", "b", "c", "d")
    claim = index.claim(CUT, ["c", "a"])
    assert claim.sample_ids == ["c_g0", "c_g1", "a_g0", "a_g1"]
    assert (names(index.groups), names(index.training_owned_replay_groups())) == (["b", "d"], ["c", "a"])
    index.put_back(CUT, claim)
    assert names(index.groups) == ["c", "a", "b", "d"]
    assert len(index) == 4
    claim = index.claim(CUT, ["a"])
    index.release(CUT, claim)
    assert names(index.groups) == ["c", "b", "d"]
    assert index.training_owned_replay_groups() == ()
    index.commit(CUT, group("a"))  # its ids are free again


def test_a_claim_is_open_once() -> None:
    index = index_of("a", "b")
    claim = index.claim(CUT, ["a"])
    index.release(CUT, claim)
    refuses(index, ReplayIndexError, "claim 1 is not open; allowed: none is", lambda: index.release(CUT, claim))
    refuses(index, ReplayIndexError, "claim 1 is not open", lambda: index.put_back(CUT, claim))
    refuses(index, ReplayIndexError, "not open", lambda: index.put_back(CUT, TrainingClaim(2, (group("b"),))))
    assert index.claim(CUT, []).groups == ()  # a step whose groups were all given up


def test_what_does_not_fit_is_refused() -> None:
    index = index_of("a", "b", "c", capacity=3)
    claim = index.claim(CUT, ["a"])
    full = "3 groups and 1 more are over its capacity of 3"
    refuses(index, ReplayIndexError, full, lambda: index.commit(CUT, group("d")))  # a step may put its group back
    index.release(CUT, claim)
    refuses(index, ReplayIndexError, "has 1 rows; allowed: 2", lambda: index.commit(CUT, group("d", rows=["d_g0"])))
    refuses(index, ReplayIndexError, "'b' is there already", lambda: index.commit(CUT, group("b")))
    refuses(index, ReplayIndexError, "row 'b_g1'", lambda: index.commit(CUT, group("d", rows=["d_g0", "b_g1"])))
    refuses(index, ReplayIndexError, "row 'd_g0'", lambda: index.commit(CUT, group("d", rows=["d_g0", "d_g0"])))
    for method in (index.claim, index.remove):
        refuses(
            index, UnknownGroupError, "the replay index has no group 'x'", lambda method=method: method(CUT, ["b", "x"])
        )
        refuses(index, ValueError, "'b' is named twice", lambda method=method: method(CUT, ["b", "b"]))


@pytest.mark.parametrize(("capacity", "size"), [(0, 1), (1, 0), (True, 1), (1, 2.0)])
def test_bad_sizes_are_refused(capacity: Any, size: Any) -> None:
    with pytest.raises(ValueError, match="allowed: an int from 1"):
        ReplayIndex(capacity, size)


def test_an_index_loads_whole_or_not_at_all() -> None:
    index = index_of(capacity=2)
    refuses(index, ReplayIndexError, "over its capacity", lambda: index.load(CUT, [group(name) for name in "abc"]))
    refuses(index, ReplayIndexError, "'a' is there already", lambda: index.load(CUT, [group("a"), group("a")]))
    index.load(CUT, [group("a", step=4), group("b", step=4)])
    assert index.target_steps() == {4}
    claim = index.claim(CUT, ["a", "b"])
    refuses(index, ReplayIndexError, "holds 2 groups", lambda: index.load(CUT, []))
    assert index.target_steps() == {4}
    index.release(CUT, claim)
    assert index.target_steps() == frozenset()


def test_pitfall_28_removal_goes_by_id_and_not_by_place() -> None:
    index = index_of("a", "b", "c")
    stale = ["a", "c"]  # looked up before an await
    index.release(CUT, index.claim(CUT, ["b"]))
    index.commit(CUT, group("d"))
    index.remove(CUT, stale)
    assert names(index.groups) == ["d"]


def test_a_snapshot_has_each_group_once() -> None:
    index = index_of("a", "b", "c")
    index.claim(CUT, ["b"])
    assert names(combined(index.groups, index.training_owned_replay_groups())) == ["b", "a", "c"]
    with pytest.raises(ValueError, match="'a' is ready and taken"):
        combined(index.groups, [group("a")])


CHANGES: dict[str, Callable[[ReplayIndex, Any], object]] = {
    "commit": lambda index, cut: index.commit(cut, group("z")),
    "claim": lambda index, cut: index.claim(cut, ["a"]),
    "release": lambda index, cut: index.release(cut, TrainingClaim(0, ())),
    "put_back": lambda index, cut: index.put_back(cut, TrainingClaim(0, ())),
    "remove": lambda index, cut: index.remove(cut, ["a"]),
    "load": lambda index, cut: index.load(cut, []),
}


@pytest.mark.parametrize("name", CHANGES)
def test_pitfall_21_every_change_needs_a_live_cut(name: str) -> None:
    index, cut = index_of("a"), DataPlaneMutationCut("other")
    cut.end()
    refuses(index, ExpiredCutError, "'other'", lambda: CHANGES[name](index, cut))


def test_the_list_of_changes_is_complete() -> None:
    methods = {name: method for name, method in vars(ReplayIndex).items() if callable(method) and name != "__init__"}
    assert {name for name, method in methods.items() if "cut" in method.__code__.co_varnames[:2]} == set(CHANGES)


class IndexRun(RuleBasedStateMachine):
    """Against a model: a list of names, and a list of claims."""

    def __init__(self) -> None:
        super().__init__()
        self.index = ReplayIndex(5, 2)
        self.ready: list[str] = []
        self.claims: list[TrainingClaim] = []
        self.steps: dict[str, int | None] = {}
        self.numbers = itertools.count()

    def held(self) -> list[str]:
        return [*self.ready, *(group.group_id for claim in self.claims for group in claim.groups)]

    @rule(step=st.one_of(st.none(), st.integers(0, 2)))
    def commit(self, step: int | None) -> None:
        name = f"n{next(self.numbers)}"
        if len(self.held()) == 5:
            with pytest.raises(ReplayIndexError):
                self.index.commit(CUT, group(name, step=step))
            return
        self.index.commit(CUT, group(name, step=step))
        self.ready.append(name)
        self.steps[name] = step

    @rule(data=st.data())
    def claim(self, data: Any) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.ready), unique=True)) if self.ready else []
        self.claims.append(self.index.claim(CUT, chosen))
        self.ready = [name for name in self.ready if name not in chosen]

    @rule(data=st.data(), back=st.booleans())
    def end(self, data: Any, back: bool) -> None:
        if not self.claims:
            return
        claim = self.claims.pop(data.draw(st.integers(0, len(self.claims) - 1)))
        if back:
            self.index.put_back(CUT, claim)
            self.ready = [*names(claim.groups), *self.ready]
        else:
            self.index.release(CUT, claim)

    @rule(data=st.data())
    def remove(self, data: Any) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.ready), unique=True)) if self.ready else []
        assert names(self.index.remove(CUT, chosen)) == chosen
        self.ready = [name for name in self.ready if name not in chosen]

    @invariant()
    def it_agrees_with_the_model(self) -> None:
        index = self.index
        assert names(index.groups) == self.ready
        assert sorted(names(combined(index.groups, index.training_owned_replay_groups()))) == sorted(self.held())
        assert index.target_steps() == {self.steps[name] for name in self.held()} - {None}


TestIndexRun = IndexRun.TestCase
TestIndexRun.settings = settings(deadline=None, max_examples=60, stateful_step_count=30)


# ---- The codec and the inventory of groups ----


def test_a_replay_group_comes_back_and_bad_rows_are_refused() -> None:
    one = group("a", step=3)
    data = encode_replay_group(one, {})
    assert decode_replay_group(data, {}) == one
    for rows in ("a_g0", ["a_g0", 1], [""], None):
        with pytest.raises(ValueError, match=r"group.sample_ids"):
            decode_replay_group({**data, "sample_ids": rows}, {})
    for name in ("start_weight", "end_weight"):
        with pytest.raises(ValueError, match=f"groups\\[3\\].{name} is True; allowed: an integer from 0"):
            decode_replay_group({**data, name: True}, {}, "groups[3]")


def test_the_inventory_names_up_to_ten_rows_of_each_kind_and_counts_all() -> None:
    groups = [group(f"n{number:02}") for number in range(8)]
    rows = [sample_id for one in groups for sample_id in one.sample_ids]
    validate_replay_inventory(reversed(rows), groups)
    with pytest.raises(InventoryError, match=r"lacks 1 rows \(n00_g0\) of the replay index, and holds no rows"):
        validate_replay_inventory(rows[1:], groups)
    with pytest.raises(InventoryError) as caught:
        validate_replay_inventory([f"x{number:02}" for number in range(12)], groups)
    error = caught.value
    assert (error.n_missing, len(error.missing), error.n_unexpected, len(error.unexpected)) == (16, 10, 12, 10)
    assert "16 rows (n00_g0, " in str(error)
    assert "12 rows (x00, " in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
