"""The recovery ledger: who owns a prompt that has left its source and whose rows are not in the data plane yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from nrl_interfaces.rollout import LiveCut, RestoredEnvironmentRollouts

from nrl_rollout_ckpt.state.ledger_checks import (
    LedgerError,
    UnknownGroupError,
    attempt_uuids,
    check_attempt_uuid,
    check_group,
    check_groups,
    check_same_batch,
    require_settled,
)
from nrl_rollout_ckpt.state.ledger_moves import (
    abandoned,
    attempt_failed,
    dispatched,
    group_sealed,
    keeps_episodes,
    reserved_group,
    restarted,
    retried,
    sibling_sealed,
    taken_up,
)
from nrl_rollout_ckpt.state.ledger_reads import FORMER_ATTEMPTS_KEPT, LedgerReads
from nrl_rollout_ckpt.state.ledger_states import (
    GROUP_PHASES,
    GROUP_STATUSES,
    PromptGroupEvent,
    PromptGroupPhaseEvent,
    PromptGroupStatus,
    RecoveryGranularity,
    RecoveryTargetLevel,
)
from nrl_rollout_ckpt.state.payloads import prompt_digest
from nrl_rollout_ckpt.state.records import Prompt, PromptGroupRecoveryRecord, SavedPrompt, SiblingSealResult

__all__ = ["LedgerError", "RolloutRecoveryLedger", "UnknownGroupError", "reserved_group"]


class RolloutRecoveryLedger(LedgerReads):
    """Groups by id. Whoever changes it shows a live cut; what is refused changes nothing.

    Records are frozen and transitions replace them, so that what was handed out stays as it was. A transition costs
    what its group costs, however many groups there are.
    """

    # ---- Coming in ----

    def reserve_batch(
        self,
        cut: LiveCut,
        prompts: Sequence[tuple[Prompt, SavedPrompt]],
        *,
        expected_generations: int,
        granularity_of: Callable[[str | None], RecoveryGranularity],
        restore_level: RecoveryTargetLevel,
        new_id: Callable[[], str],
    ) -> tuple[PromptGroupRecoveryRecord, ...]:
        """Own a batch of prompts, one group each, under one new admission id.

        Args:
            cut: A live cut.
            prompts: The prompts, and as they are saved; an empty batch takes no admission id.
            expected_generations: How many siblings each group has, from 1.
            granularity_of: Gives what is kept of an incomplete group, by task source.
            restore_level: Where a restart goes on.
            new_id: Gives 32 hex digits, never the same twice.

        Raises:
            LedgerError: If an id is not new, or a group can't be.
        """
        cut.require_live()
        groups = tuple(
            reserved_group(
                saved,
                admission_id=self._next_admission_id,
                expected_generations=expected_generations,
                granularity=granularity_of(saved.task_source),
                restore_level=restore_level,
                new_id=new_id,
                runtime_prompt=prompt.payload,
            )
            for prompt, saved in prompts
        )
        self._add(groups)
        return groups

    def reserve_group(self, cut: LiveCut, group: PromptGroupRecoveryRecord) -> PromptGroupRecoveryRecord:
        """Own one group that `reserved_group` made: a replacement within a batch, or a batch of its own.

        Raises:
            LedgerError: If an id is not new, something was dispatched already, or it does not fit its batch.
        """
        cut.require_live()
        if group.status is not PromptGroupStatus.GENERATING or any(
            len(sibling.attempts) != 1 or sibling.current.status != "reserved" for sibling in group.siblings
        ):
            raise LedgerError(group.group_id, "it is not new; allowed: one reserved attempt for each sibling")
        for other in self.batch(group.admission_id)[:1]:
            check_same_batch(other, group)
        self._add((group,))
        return group

    def load_groups(self, cut: LiveCut, groups: Sequence[PromptGroupRecoveryRecord], next_admission_id: int) -> None:
        """Own the groups of a snapshot; only in a ledger that was never used.

        Raises:
            LedgerError: If a group is here already, or the groups can't be those of a ledger.
        """
        cut.require_live()
        if self._groups or self._next_admission_id:
            raise LedgerError(
                ", ".join(list(self._groups)[:10]), "the ledger was used; allowed: a new one to load into"
            )
        check_groups(groups)
        for group in groups:
            if group.admission_id >= next_admission_id:
                raise LedgerError(
                    group.group_id, f"its admission_id is {group.admission_id}; allowed: below {next_admission_id}"
                )
        for group in groups:
            self._put(group)
        self._next_admission_id = next_admission_id

    def bind_runtime_prompt(self, cut: LiveCut, group_id: str, payload: Any) -> PromptGroupRecoveryRecord:
        """Attach the prompt that a source found again.

        Raises:
            UnknownGroupError: If there is no such group.
            LedgerError: If it is another prompt than the one that was reserved.
        """
        cut.require_live()
        group = self.get(group_id)
        ref, digest = group.prompt.ref, prompt_digest(payload, f"the prompt of group {group_id!r}")
        if digest != group.prompt.digest:
            raise LedgerError(
                group_id,
                f"prompt {ref.sample_id!r} has the digest {digest}, and had {group.prompt.digest} when reserved: "
                "the source was reordered or changed; go on with the data that the run began with",
            )
        return self._put(replace(group, runtime_prompt=payload))

    # ---- Generating ----

    def mark_group_admitted(
        self, cut: LiveCut, group_id: str, *, target_step: int | None, start_weight: int
    ) -> PromptGroupRecoveryRecord:
        """Note that the sampler has admitted the group; admit all of a batch in one section.

        Raises:
            UnknownGroupError, IllegalTransitionError, LedgerError: If it is not there, not reserved, or a value is bad.
        """
        cut.require_live()
        group = self.get(group_id)
        phase = GROUP_PHASES.after(group.phase, PromptGroupPhaseEvent.ADMIT)
        moved = replace(group, phase=phase, target_step=target_step, start_weight_version=start_weight)
        check_group(moved)
        return self._put(moved)

    def mark_group_dispatched(
        self, cut: LiveCut, group_id: str, indices: Iterable[int] | None = None, instance_id: str | None = None
    ) -> PromptGroupRecoveryRecord:
        """Note that attempts began.

        Args:
            cut: A live cut.
            group_id: The group, admitted.
            indices: Its siblings; None: all whose attempt is reserved.
            instance_id: The environment instance that runs them; at TURN level there must be one. An attempt that was
                taken up again stays with its instance.

        Raises:
            UnknownGroupError, IllegalTransitionError, LedgerError: If one of this does not hold.
        """
        cut.require_live()
        return self._put(dispatched(self.get(group_id), indices, instance_id))

    def mark_sibling_sealed(
        self, cut: LiveCut, group_id: str, index: int, result: SiblingSealResult
    ) -> PromptGroupRecoveryRecord:
        """Keep a generation that has ended, at SIBLING granularity; the last one makes the group ready.

        The same once more changes nothing.

        Raises:
            UnknownGroupError, IllegalTransitionError: If there is no such group, or its attempt is not dispatched.
            LedgerError: If it is sealed with another result, or the result is of another attempt.
            PayloadTypeError, ValueError: If the result can't be saved.
        """
        cut.require_live()
        return self._put(sibling_sealed(self.get(group_id), index, result))

    def mark_group_sealed(
        self, cut: LiveCut, group_id: str, results: Mapping[int, SiblingSealResult]
    ) -> PromptGroupRecoveryRecord:
        """Keep all generations of a group at once, at PROMPT_GROUP granularity.

        The same once more changes nothing.

        Raises:
            Exception: As `mark_sibling_sealed`; LedgerError too if an index is missing or too many.
        """
        cut.require_live()
        return self._put(group_sealed(self.get(group_id), results))

    def mark_attempt_failed(self, cut: LiveCut, group_id: str, index: int) -> PromptGroupRecoveryRecord:
        """Note that a dispatched attempt ended without a result.

        Raises:
            UnknownGroupError, IllegalTransitionError, LedgerError: If it is not there or not dispatched.
        """
        cut.require_live()
        return self._put(attempt_failed(self.get(group_id), index))

    def abandon_unsealed(self, cut: LiveCut, group_id: str) -> PromptGroupRecoveryRecord:
        """Give up what is not sealed; at PROMPT_GROUP granularity everything, unless the group is complete.

        Raises:
            UnknownGroupError, IllegalTransitionError: If it is not there or is being finalized.
        """
        cut.require_live()
        return self._put(abandoned(self.get(group_id)))

    def prepare_incomplete_retry(
        self, cut: LiveCut, group_id: str, new_id: Callable[[], str]
    ) -> PromptGroupRecoveryRecord:
        """Reserve a new attempt for each sibling whose attempt failed or was abandoned; sealed ones are kept.

        Raises:
            UnknownGroupError, IllegalTransitionError: If it is not there, or complete.
            LedgerError: If nothing is to be retried; at PROMPT_GROUP granularity if some attempts are not over.
        """
        cut.require_live()
        moved = retried(self.get(group_id), new_id)
        self._check_new_uuids([moved])
        return self._put(moved)

    def begin_again(
        self, cut: LiveCut, group_id: str, new_id: Callable[[], str], *, failed: int | None = None
    ) -> PromptGroupRecoveryRecord:
        """Give up what is not sealed, or fail one attempt, and reserve new attempts for that: whole or not at all.

        Raises:
            UnknownGroupError, IllegalTransitionError, LedgerError: As the two transitions.
        """
        cut.require_live()
        group = self.get(group_id)
        moved = retried(abandoned(group) if failed is None else attempt_failed(group, failed), new_id)
        self._check_new_uuids([moved])
        return self._put(moved)

    # ---- Handing on ----

    def mark_finalization_started(self, cut: LiveCut, group_id: str) -> PromptGroupRecoveryRecord:
        """Note that the rows of a complete group are being written.

        Raises:
            UnknownGroupError, IllegalTransitionError: If it is not there or not ready.
        """
        return self._finalization(cut, group_id, PromptGroupEvent.FINALIZE)

    def mark_finalization_failed(self, cut: LiveCut, group_id: str) -> PromptGroupRecoveryRecord:
        """Note that the rows were refused: none is there, and the group is ready again.

        Raises:
            UnknownGroupError, IllegalTransitionError: If it is not there or not being finalized.
        """
        return self._finalization(cut, group_id, PromptGroupEvent.FINALIZE_FAILED)

    def mark_finalization_unknown(self, cut: LiveCut, group_id: str) -> PromptGroupRecoveryRecord:
        """Note that nobody knows whether the rows are there; until that is settled, there is no snapshot.

        Raises:
            UnknownGroupError, IllegalTransitionError: If it is not there or not being finalized.
        """
        return self._finalization(cut, group_id, PromptGroupEvent.FINALIZE_UNANSWERED)

    def discard_group(self, cut: LiveCut, group_id: str) -> PromptGroupRecoveryRecord:
        """Let go of a group whose prompt has another owner now, or was given up.

        Raises:
            UnknownGroupError: If it is not there.
        """
        cut.require_live()
        group = self.get(group_id)
        del self._groups[group_id]
        batch = self._batches[group.admission_id]
        del batch[group_id]
        if not batch:
            del self._batches[group.admission_id]
        self._attempt_uuids.difference_update(attempt_uuids(group))
        self._former_attempts.update(dict.fromkeys(attempt_uuids(group)))
        while len(self._former_attempts) > FORMER_ATTEMPTS_KEPT:
            del self._former_attempts[next(iter(self._former_attempts))]
        return group

    def discard_canonical_groups(self, cut: LiveCut, group_ids: Iterable[str]) -> tuple[str, ...]:
        """Let go of groups whose rows are in the data plane, whatever their status; others are passed over.

        Returns:
            The ids of those that were here.
        """
        cut.require_live()
        here = tuple(dict.fromkeys(group_id for group_id in group_ids if group_id in self._groups))
        for group_id in here:
            self.discard_group(cut, group_id)
        return here

    # ---- A restart ----

    def prepare_for_restart(
        self, cut: LiveCut, restored: RestoredEnvironmentRollouts, new_id: Callable[[], str]
    ) -> None:
        """Make every group one that can be dispatched or committed: attempts that ended with their process begin anew.

        An episode that the environment goes on with keeps its attempt, one above the number that it was saved with.
        Sealed siblings are kept, but not at PROMPT_GROUP granularity or level. All other attempts are abandoned, with a
        new one reserved.

        Args:
            cut: A live cut.
            restored: What the environment goes on with.
            new_id: Gives 32 hex digits, never the same twice.

        Raises:
            LedgerError: If a group is being finalized, or nobody owns an episode; names them.
        """
        cut.require_live()
        require_settled(self._groups.values())
        left = {(episode.instance_id, episode.rollout_id): episode for episode in restored.episodes}
        if len(left) < len(restored.episodes):
            raise LedgerError("of the environment", "it restored an episode twice; allowed: each attempt once")
        moved: list[PromptGroupRecoveryRecord] = []
        for group in self._groups.values():
            if group.status is PromptGroupStatus.GENERATING:
                kept = taken_up(keeps_episodes(group), left)
                moved.append(restarted(group, kept, new_id))
        if left:
            names = ", ".join(
                f"{episode.rollout_id} on {episode.instance_id}" for episode in sorted(left.values())[:10]
            )
            raise LedgerError(names, f"the environment restored {len(left)} episodes that no group owns")
        self._check_new_uuids(moved)
        for group in moved:
            self._put(group)

    # ---- All changes end here ----

    def _finalization(self, cut: LiveCut, group_id: str, event: PromptGroupEvent) -> PromptGroupRecoveryRecord:
        cut.require_live()
        group = self.get(group_id)
        return self._put(replace(group, status=GROUP_STATUSES.after(group.status, event)))

    def _add(self, groups: Sequence[PromptGroupRecoveryRecord]) -> None:
        seen: set[str] = set()
        for group in groups:
            check_group(group)
            if group.group_id in self._groups or group.group_id in seen:
                raise LedgerError(group.group_id, "its id is there already; ids must be new")
            seen.add(group.group_id)
        self._check_new_uuids(groups)
        for group in groups:
            self._put(group)
            self._next_admission_id = max(self._next_admission_id, group.admission_id + 1)

    def _check_new_uuids(self, groups: Iterable[PromptGroupRecoveryRecord]) -> None:
        seen: set[str] = set()
        for group in groups:
            known = self._groups.get(group.group_id)
            own = set(attempt_uuids(known)) if known else set[str]()
            for attempt_uuid in attempt_uuids(group):
                if attempt_uuid in own:
                    own.remove(attempt_uuid)
                    continue
                check_attempt_uuid(group.group_id, attempt_uuid)
                if attempt_uuid in self._attempt_uuids or attempt_uuid in seen:
                    raise LedgerError(group.group_id, f"attempt {attempt_uuid} is there already; ids must be new")
                seen.add(attempt_uuid)

    def _put(self, group: PromptGroupRecoveryRecord) -> PromptGroupRecoveryRecord:
        self._groups[group.group_id] = group
        self._batches.setdefault(group.admission_id, {})[group.group_id] = None
        self._attempt_uuids.update(attempt_uuids(group))
        return group
