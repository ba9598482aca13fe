"""The replay index: complete groups whose rows are in the data plane, ready for a train step or taken by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nrl_interfaces.rollout import LiveCut

from nrl_rollout_ckpt.state.ledger_checks import UnknownGroupError
from nrl_rollout_ckpt.state.records import ReplayGroup


class ReplayIndexError(RuntimeError):
    """Raised when the index does not allow what was asked; nothing has changed.

    Attributes:
        problem: What does not fit, and what is allowed.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"the replay index: {self.problem}"


@dataclass(frozen=True, slots=True)
class TrainingClaim:
    """Groups that a train step has taken.

    Attributes:
        claim_id: Its number in this process.
        groups: The groups, in the order in which they were asked for.
    """

    claim_id: int
    groups: tuple[ReplayGroup, ...]

    @property
    def sample_ids(self) -> list[str]:
        """The ids of all rows."""
        return [sample_id for group in self.groups for sample_id in group.sample_ids]


class ReplayIndex:
    """Groups by id, in the order in which they came. Whoever changes it shows a live cut.

    Args:
        capacity: How many groups may have rows in the data plane, those of open train steps too; from 1.
        group_size: How many rows each group has; from 1.

    Raises:
        ValueError: If a number is not allowed.
    """

    def __init__(self, capacity: int, group_size: int) -> None:
        for name, number in (("capacity", capacity), ("group_size", group_size)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ValueError(f"{name} is {number!r}; allowed: an int from 1")
        self.capacity, self.group_size = capacity, group_size
        self._ready: dict[str, ReplayGroup] = {}
        self._claims: dict[int, TrainingClaim] = {}
        self._group_ids: set[str] = set()
        self._sample_ids: set[str] = set()
        self._target_steps: Counter[int | None] = Counter()
        self._last_claim_id = 0

    # ---- Reads ----

    def __len__(self) -> int:
        """Count the groups that are ready."""
        return len(self._ready)

    @property
    def groups(self) -> tuple[ReplayGroup, ...]:
        """The groups that are ready, in the order in which they came."""
        return tuple(self._ready.values())

    def training_owned_replay_groups(self) -> tuple[ReplayGroup, ...]:
        """Give the groups of open train steps: out of the index, their rows still in the data plane."""
        return tuple(group for claim in self._claims.values() for group in claim.groups)

    def target_steps(self) -> frozenset[int]:
        """Give the steps that groups, ready or taken, are stamped for."""
        return frozenset(step for step in self._target_steps if step is not None)

    # ---- Changes ----

    def commit(self, cut: LiveCut, group: ReplayGroup) -> None:
        """Take in a group whose rows are in the data plane.

        Raises:
            ReplayIndexError: If the index is full, or the group's size or ids don't fit.
        """
        cut.require_live()
        self.require_room_for([group])
        self._add(group)

    def require_room_for(self, groups: Sequence[ReplayGroup]) -> None:
        """Refuse groups that `commit` would refuse; changes nothing.

        Raises:
            ReplayIndexError: If there is no room, or a size or an id does not fit.
        """
        held = len(self._group_ids)
        if held + len(groups) > self.capacity:
            raise ReplayIndexError(f"{held} groups and {len(groups)} more are over its capacity of {self.capacity}")
        group_ids, sample_ids = set[str](), set[str]()
        for group in groups:
            if len(group.sample_ids) != self.group_size:
                raise ReplayIndexError(
                    f"group {group.group_id!r} has {len(group.sample_ids)} rows; allowed: {self.group_size}"
                )
            if group.group_id in self._group_ids or group.group_id in group_ids:
                raise ReplayIndexError(f"group {group.group_id!r} is there already")
            group_ids.add(group.group_id)
            for sample_id in group.sample_ids:
                if sample_id in self._sample_ids or sample_id in sample_ids:
                    raise ReplayIndexError(f"row {sample_id!r} of group {group.group_id!r} is there already")
                sample_ids.add(sample_id)

    def claim(self, cut: LiveCut, group_ids: Sequence[str]) -> TrainingClaim:
        """Take groups out for a train step; none, where all of a step were given up.

        Raises:
            UnknownGroupError: If one is not ready.
            ValueError: If one is named twice.
        """
        cut.require_live()
        groups = self._chosen(group_ids)
        self._last_claim_id += 1
        claim = TrainingClaim(self._last_claim_id, groups)
        self._claims[claim.claim_id] = claim
        for group in groups:
            del self._ready[group.group_id]
        return claim

    def release(self, cut: LiveCut, claim: TrainingClaim) -> None:
        """Let go of groups that were trained on and whose rows are gone.

        Raises:
            ReplayIndexError: If the claim is not open.
        """
        cut.require_live()
        self.require_open(claim)
        del self._claims[claim.claim_id]
        self._forget(claim.groups)

    def put_back(self, cut: LiveCut, claim: TrainingClaim) -> None:
        """Make groups ready again that were not trained on; they come before all others.

        Raises:
            ReplayIndexError: If the claim is not open.
        """
        cut.require_live()
        self.require_open(claim)
        del self._claims[claim.claim_id]
        self._ready = {group.group_id: group for group in (*claim.groups, *self._ready.values())}

    def remove(self, cut: LiveCut, group_ids: Sequence[str]) -> tuple[ReplayGroup, ...]:
        """Let go of groups that are ready and that no step may train on; their rows go in the same section.

        Raises:
            UnknownGroupError: If one is not ready.
            ValueError: If one is named twice.
        """
        cut.require_live()
        groups = self._chosen(group_ids)
        for group in groups:
            del self._ready[group.group_id]
        self._forget(groups)
        return groups

    def load(self, cut: LiveCut, groups: Sequence[ReplayGroup]) -> None:
        """Take in the groups of a snapshot; only in an index that holds none.

        Raises:
            ReplayIndexError: If it holds groups, or as `commit`.
        """
        cut.require_live()
        if self._group_ids:
            raise ReplayIndexError(f"it holds {len(self._group_ids)} groups; allowed: an empty one to load into")
        self.require_room_for(groups)
        for group in groups:
            self._add(group)

    def require_open(self, claim: TrainingClaim) -> None:
        """Refuse a claim that was released or put back, or is of another index.

        Raises:
            ReplayIndexError: If it is.
        """
        if self._claims.get(claim.claim_id) is not claim:
            raise ReplayIndexError(
                f"claim {claim.claim_id} is not open; allowed: {', '.join(map(str, self._claims)) or 'none is'}"
            )

    def _chosen(self, group_ids: Iterable[str]) -> tuple[ReplayGroup, ...]:
        chosen: dict[str, ReplayGroup] = {}
        for group_id in group_ids:
            if group_id in chosen:
                raise ValueError(f"group {group_id!r} is named twice; allowed: once")
            if group_id not in self._ready:
                raise UnknownGroupError(group_id, "the replay index")
            chosen[group_id] = self._ready[group_id]
        return tuple(chosen.values())

    def _add(self, group: ReplayGroup) -> None:
        self._ready[group.group_id] = group
        self._group_ids.add(group.group_id)
        self._sample_ids.update(group.sample_ids)
        self._target_steps[group.target_step] += 1

    def _forget(self, groups: Iterable[ReplayGroup]) -> None:
        for group in groups:
            self._group_ids.discard(group.group_id)
            self._sample_ids.difference_update(group.sample_ids)
            self._target_steps[group.target_step] -= 1
            if not self._target_steps[group.target_step]:
                del self._target_steps[group.target_step]


def combined(ready: Iterable[ReplayGroup], claimed: Iterable[ReplayGroup]) -> tuple[ReplayGroup, ...]:
    """Give all groups as a restart finds them: those of open train steps first, as if they were put back.

    Raises:
        ValueError: If one is in both.
    """
    groups: dict[str, ReplayGroup] = {}
    for group in (*claimed, *ready):
        if group.group_id in groups:
            raise ValueError(f"group {group.group_id!r} is ready and taken by a train step; allowed: one of both")
        groups[group.group_id] = group
    return tuple(groups.values())
