"""Two samplers: train steps that take the batch that was made for them, and steps that take what is oldest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nrl_interfaces.rollout import LiveCut, ReplayCandidate

from nrl_rollout_ckpt.state.rollout_state import TrainingProgress


class _BatchCountingSampler:
    """Admits batch k, from 0 on, once the trainer version is at most `max_staleness` behind it."""

    supports_buffer_checkpoint: bool = True
    supports_training_claims: bool = True

    def __init__(self, progress: TrainingProgress, max_staleness: int = 1) -> None:
        if not isinstance(max_staleness, int) or isinstance(max_staleness, bool) or max_staleness < 0:
            raise ValueError(f"max_staleness is {max_staleness!r}; allowed: an int from 0")
        self.max_staleness = max_staleness
        self._progress = progress
        self._dispatch_index = -1

    @property
    def dispatch_index(self) -> int:
        """The number of the last batch admitted; -1 before the first."""
        return self._dispatch_index

    def restore_dispatch_index(self, index: int, /) -> None:
        """Go on behind batch `index`.

        Raises:
            ValueError: If it is no int from -1.
        """
        if not isinstance(index, int) or isinstance(index, bool) or index < -1:
            raise ValueError(f"the dispatch index is {index!r}; allowed: an int from -1")
        self._dispatch_index = index

    async def wait_until_admissible(self) -> None:
        """Wait, in no section of the barrier, until one more batch may be admitted."""
        await self._progress.wait_until(self._is_admissible)

    def _is_admissible(self) -> bool:
        return self._dispatch_index + 1 <= self._progress.trainer_version + self.max_staleness

    def _admit(self, cut: LiveCut) -> int:
        cut.require_live()
        if not self._is_admissible():
            raise RuntimeError(
                f"batch {self._dispatch_index + 1} is not admissible at trainer version "
                f"{self._progress.trainer_version} with max_staleness {self.max_staleness}: await "
                "wait_until_admissible() before, outside of the section, and let one task admit at a time"
            )
        self._dispatch_index += 1
        return self._dispatch_index


class InOrderSampler(_BatchCountingSampler):
    """Stamps batch k for train step k, which takes these groups and no others.

    Args:
        progress: Where training is.
        max_staleness: How many steps ahead of training a batch may be admitted; 0 is on policy.

    Attributes:
        name: "in_order".
        stamps_target_steps: True.
        supports_buffer_checkpoint: True.
        supports_training_claims: True.

    Raises:
        ValueError: If `max_staleness` is no int from 0.
    """

    name: str = "in_order"
    stamps_target_steps: bool = True

    def commit_admission(self, cut: LiveCut, /) -> int:
        """Admit one batch and return the train step that it is stamped for.

        Raises:
            RuntimeError: If the cut is not live, or no batch is admissible.
        """
        return self._admit(cut)

    def select(
        self, groups: Sequence[ReplayCandidate], trainer_version: int, wanted: int, shortfall: Mapping[int, int]
    ) -> list[str] | None:
        """Choose the groups stamped for `trainer_version`, once all are there that will come.

        Returns:
            Their ids, `wanted` less the step's shortfall; None where the step has to wait.
        """
        stamped = [group.group_id for group in groups if group.target_step == trainer_version]
        return _first(stamped, wanted - shortfall.get(trainer_version, 0))

    def stale(self, groups: Sequence[ReplayCandidate], trainer_version: int) -> list[str]:
        """Name the groups whose step is over."""
        return [
            group.group_id for group in groups if group.target_step is not None and group.target_step < trainer_version
        ]


class WindowedSampler(_BatchCountingSampler):
    """Stamps nothing: a step takes the groups that came first, of those whose weights are not too old.

    Args:
        progress: Where training is.
        max_staleness: How many versions a group's first weights may be behind the version that trains on it.

    Attributes:
        name: "windowed".
        stamps_target_steps: False.
        supports_buffer_checkpoint: True.
        supports_training_claims: True.

    Raises:
        ValueError: If `max_staleness` is no int from 0.
    """

    name: str = "windowed"
    stamps_target_steps: bool = False

    def commit_admission(self, cut: LiveCut, /) -> None:
        """Admit one batch.

        Raises:
            RuntimeError: If the cut is not live, or no batch is admissible.
        """
        self._admit(cut)

    def select(
        self, groups: Sequence[ReplayCandidate], trainer_version: int, wanted: int, shortfall: Mapping[int, int]
    ) -> list[str] | None:
        """Choose the first groups that are fresh enough.

        Returns:
            Their ids, `wanted` less the step's shortfall; None where the step has to wait.
        """
        stale = set(self.stale(groups, trainer_version))
        fresh = [group.group_id for group in groups if group.group_id not in stale]
        return _first(fresh, wanted - shortfall.get(trainer_version, 0))

    def stale(self, groups: Sequence[ReplayCandidate], trainer_version: int) -> list[str]:
        """Name the groups whose first weights are too old."""
        oldest = trainer_version - self.max_staleness
        return [group.group_id for group in groups if group.start_weight < oldest]


def _first(group_ids: list[str], count: int) -> list[str] | None:
    needed = max(count, 0)
    return group_ids[:needed] if len(group_ids) >= needed else None
