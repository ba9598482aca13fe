"""What changes rows: complete groups handed to the data plane, taken by train steps, and given up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast, runtime_checkable

from nrl_interfaces.rollout import CheckpointableDataPlane

from nrl_rollout_ckpt.state.barrier import DataPlaneMutationCut
from nrl_rollout_ckpt.state.completion import in_thread, run_to_end
from nrl_rollout_ckpt.state.ledger_states import PromptGroupStatus
from nrl_rollout_ckpt.state.records import PromptGroupRecoveryRecord, ReplayGroup
from nrl_rollout_ckpt.state.replay_index import TrainingClaim
from nrl_rollout_ckpt.state.rollout_state import RolloutParts, _UsesRolloutParts  # pyright: ignore[reportPrivateUsage]


@runtime_checkable
class WritableDataPlane(CheckpointableDataPlane, Protocol):
    """A data plane as loops use it: rows are put, too.

    A put is all or nothing, and a refusal is a ValueError, KeyError or TypeError.
    """

    def put_samples(
        self,
        sample_ids: list[str],
        partition_id: str,
        fields: Any = None,
        tags: list[dict[str, Any]] | None = None,
        *,
        replace: bool = False,
    ) -> object:
        """Put columns of rows; `replace` writes columns again that are there."""
        ...


class RowTransitions(_UsesRolloutParts):
    """The half of `RolloutTransitions` that works on rows.

    Args:
        parts: The parts of the run; its data plane has ``put_samples`` too.

    Raises:
        TypeError: If rows can't be put into the data plane.
    """

    def __init__(self, parts: RolloutParts) -> None:
        super().__init__(parts)
        if not isinstance(parts.data_plane, WritableDataPlane):
            kind = type(parts.data_plane).__name__
            raise TypeError(f"the data plane is a {kind} without put_samples; allowed: one that has it")
        self._plane = parts.data_plane
        self._committing: dict[str, ReplayGroup] = {}  # their rows are being put: the index keeps room for them
        self._claimed: tuple[int, int] | None = None  # the version that claimed last, and how many groups it wanted

    async def commit_group(
        self, group_id: str, fields: Any, *, tags: Sequence[dict[str, Any]] | None = None
    ) -> ReplayGroup:
        """Hand a complete group on: its rows into the data plane, the group into the index, out of the ledger.

        Where an earlier call ended without an answer of the plane, this looks first whether the rows are there.

        Args:
            group_id: The group, all its siblings sealed.
            fields: Columns of its rows, in order of generation.
            tags: A dict each row.

        Raises:
            UnknownGroupError, IllegalTransitionError: If there is no such group, or it is not ready.
            ReplayIndexError: If the index has no room.
            ValueError, KeyError, TypeError: If the data plane refuses the rows; the group is ready as before.
            Exception: Whatever else the data plane raises. Whether the rows are there is not known then, and no
                snapshot is taken until the group was committed again.
        """
        async with self._barrier.mutation("group_commits") as cut:
            return await run_to_end(self._commit(cut, group_id, fields, tags))

    async def claim_for_training(self, wanted: int) -> TrainingClaim | None:
        """Take the groups of the next train step; those that no step may train on are evicted before.

        Args:
            wanted: How many groups a step takes; the sampler takes less where some will never come.

        Returns:
            The claim; None where the step has to wait.
        """
        async with self._barrier.mutation("group_removals") as cut:
            await run_to_end(self._evict(cut))
            # Nothing is awaited from here on: a claim that its caller never gets would be nobody's.
            version = self._progress.trainer_version
            chosen = self._sampler.select(self._replay_index.groups, version, wanted, self._runtime.batch_shortfall)
            if chosen is None:
                return None
            claim = self._replay_index.claim(cut, chosen)
            self._claimed = (version, wanted)
            return claim

    async def write_back(self, claim: TrainingClaim, fields: Any) -> None:
        """Write columns of a claim's rows, such as advantages; again after a restart.

        Args:
            claim: An open claim.
            fields: Columns, in order of `claim.sample_ids`.

        Raises:
            ReplayIndexError: If the claim is not open.
            Exception: What the data plane raises.
        """

        async def write() -> None:
            self._replay_index.require_open(claim)
            await in_thread(self._plane.put_samples, claim.sample_ids, self._partition_id, fields, replace=True)

        async with self._barrier.mutation("advantage_writeback"):
            await run_to_end(write())

    async def finish_step(self, claim: TrainingClaim) -> None:
        """Let go of the groups of a train step that is done, and of their rows; in the optimizer-commit window.

        Raises:
            ReplayIndexError: If the claim is not open.
            Exception: What the data plane raises; the claim stays open.
        """

        async def finish(cut: DataPlaneMutationCut) -> None:
            self._replay_index.require_open(claim)
            await self._clear_rows(claim)
            self._replay_index.release(cut, claim)
            self._settle_shortfall(len(claim.groups))

        async with self._barrier.mutation("sample_clears") as cut:
            await run_to_end(finish(cut))

    async def put_back(self, claim: TrainingClaim) -> None:
        """Make the groups of a train step that did not happen ready again.

        Raises:
            ReplayIndexError: If the claim is not open.
        """
        async with self._barrier.mutation("other") as cut:
            self._replay_index.put_back(cut, claim)
            self._claimed = None

    async def evict(self) -> tuple[str, ...]:
        """Give up the groups that no step may train on any more, and their rows.

        Returns:
            Their ids.

        Raises:
            Exception: What the data plane raises; nothing is given up.
        """
        async with self._barrier.mutation("group_removals") as cut:
            return await run_to_end(self._evict(cut))

    # ---- Inside of a section ----

    async def _commit(
        self, cut: DataPlaneMutationCut, group_id: str, fields: Any, tags: Sequence[dict[str, Any]] | None
    ) -> ReplayGroup:
        group = self._ledger.get(group_id)
        replay = ReplayGroup(
            group_id=group_id,
            sample_ids=tuple(group.sample_ids()),
            start_weight=cast("int", group.start_weight_version),
            end_weight=self._progress.trainer_version,
            prompt=group.prompt,
            target_step=group.target_step,
        )
        self._replay_index.require_room_for([*self._committing.values(), replay])
        self._ledger.mark_finalization_started(cut, group_id)
        self._committing[group_id] = replay
        try:
            await self._put_rows(group, fields, tags)
        except (ValueError, KeyError, TypeError):
            self._ledger.mark_finalization_failed(cut, group_id)
            raise
        except Exception:
            self._ledger.mark_finalization_unknown(cut, group_id)
            raise
        finally:
            del self._committing[group_id]
        self._replay_index.commit(cut, replay)
        self._ledger.discard_group(cut, group_id)
        return replay

    async def _put_rows(
        self, group: PromptGroupRecoveryRecord, fields: Any, tags: Sequence[dict[str, Any]] | None
    ) -> None:
        sample_ids = group.sample_ids()
        if group.status is PromptGroupStatus.FINALIZATION_UNKNOWN:
            held = set(await in_thread(self._plane.list_sample_ids, self._partition_id))
            if held.issuperset(sample_ids):
                return
        await in_thread(
            self._plane.put_samples, sample_ids, self._partition_id, fields, None if tags is None else list(tags)
        )

    async def _evict(self, cut: DataPlaneMutationCut) -> tuple[str, ...]:
        stale = self._sampler.stale(self._replay_index.groups, self._progress.trainer_version)
        if not stale:
            return ()
        claim = self._replay_index.claim(cut, stale)  # so that no train step takes them meanwhile
        try:
            await self._clear_rows(claim)
        except Exception:
            self._replay_index.put_back(cut, claim)
            raise
        self._replay_index.release(cut, claim)
        for group in claim.groups:
            self._runtime.dropped.append(group.prompt.ref.sample_id)
            if group.target_step is None:
                self._count_shortfall(None, 1)
        return tuple(group.group_id for group in claim.groups)

    async def _clear_rows(self, claim: TrainingClaim) -> None:
        if claim.groups:
            await in_thread(self._plane.clear_samples, claim.sample_ids, self._partition_id)

    def _count_shortfall(self, target_step: int | None, groups: int) -> None:
        """Note that groups will never come; where none are stamped, for the step that takes its groups next."""
        if target_step is None:
            version = self._progress.trainer_version
            target_step = version + 1 if self._claimed is not None and self._claimed[0] == version else version
        shortfall = self._runtime.batch_shortfall
        shortfall[target_step] = shortfall.get(target_step, 0) + groups

    def _settle_shortfall(self, trained: int) -> None:
        """Drop what no step asks for again; what the step had more than it could take less is the next one's."""
        shortfall = self._runtime.batch_shortfall
        if self._claimed is not None:
            version, wanted = self._claimed
            left = shortfall.get(version, 0) - (wanted - trained)
            if left > 0:
                shortfall[version] -= left
                shortfall[version + 1] = shortfall.get(version + 1, 0) + left
        for step in [step for step in shortfall if step < self._progress.trainer_version]:
            del shortfall[step]
