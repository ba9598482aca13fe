"""What a rollout loop and a trainer call: each method is one section of the barrier, and happens whole or not at all.

A cancellation that comes before the change has begun leaves all as it was; one that comes later waits for its end.
What happened then stands in the ledger, the index and the runtime state.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from nrl_interfaces.rollout import ResolvingPromptSource

from nrl_rollout_ckpt.state.barrier import DataPlaneMutationCut
from nrl_rollout_ckpt.state.completion import awaited, in_thread, run_to_end
from nrl_rollout_ckpt.state.ledger_checks import LedgerError, require_settled
from nrl_rollout_ckpt.state.ledger_moves import reserved_group
from nrl_rollout_ckpt.state.ledger_states import PromptGroupPhase
from nrl_rollout_ckpt.state.payloads import StoredValue, saved_prompt
from nrl_rollout_ckpt.state.records import (
    Prompt,
    PromptGroupRecoveryRecord,
    SavedPrompt,
    SiblingSealResult,
)
from nrl_rollout_ckpt.state.rollout_state import RolloutParts
from nrl_rollout_ckpt.state.row_transitions import RowTransitions

Pull: TypeAlias = Callable[[], Sequence[Prompt] | Awaitable[Sequence[Prompt]]]
"""Takes the next prompts from the source; [] at the end of its data. It runs on the loop: one that blocks gives
``asyncio.to_thread(...)``. One that never ends keeps its section, and no snapshot is taken."""


class TargetStepTakenError(RuntimeError):
    """Raised when a batch is stamped for a step that groups of another batch are there for already.

    Attributes:
        admission_id: The batch; it is still reserved, and the sampler's cursor is where it was.
        target_step: The step.
    """

    def __init__(self, admission_id: int, target_step: int) -> None:
        super().__init__(admission_id, target_step)
        self.admission_id, self.target_step = admission_id, target_step

    def __str__(self) -> str:
        return (
            f"batch {self.admission_id} would be stamped for step {self.target_step}, which has groups already: "
            "the sampler's cursor is behind them; restore it together with the groups"
        )


class RolloutTransitions(RowTransitions):
    """Changes of a run that keep one owner for every prompt.

    Args:
        parts: The parts of the run; its data plane has ``put_samples`` too.
        new_id: Gives 32 hex digits, never the same twice.

    Raises:
        TypeError: If rows can't be put into the data plane.
    """

    def __init__(self, parts: RolloutParts, *, new_id: Callable[[], str] = lambda: uuid.uuid4().hex) -> None:
        super().__init__(parts)
        self._new_id = new_id
        self._keeps_prompts = not isinstance(parts.prompt_source, ResolvingPromptSource)

    # ---- From the source to the ledger ----

    async def reserve_batch(self, pull: Pull, *, expected_generations: int) -> tuple[PromptGroupRecoveryRecord, ...]:
        """Take prompts from their source and own them, as one batch.

        Args:
            pull: Takes them.
            expected_generations: Siblings a group, as many as the replay index has rows a group.

        Returns:
            The groups; () at the end of the data.

        Raises:
            ValueError: If `expected_generations` is another number; nothing was pulled.
            PayloadTypeError: If a prompt can't be saved. Nothing is reserved, but the source has moved on: end the run
                and restart it from the last snapshot with prompts that can be saved.
            Exception: What `pull` raises; nothing is reserved.
        """
        if expected_generations != self._replay_index.group_size:
            raise ValueError(
                f"expected_generations is {expected_generations!r}; allowed: {self._replay_index.group_size}, the "
                "group size of the replay index"
            )
        async with self._barrier.mutation("prompt_reservations") as cut:
            return await run_to_end(self._reserve(cut, pull, expected_generations))

    async def fill_reserve(self, pull: Pull) -> int:
        """Take spare prompts from the source, for prompts that will be dropped.

        Returns:
            How many came.

        Raises:
            Exception: As `reserve_batch`.
        """

        async def fill() -> int:
            prompts = await self._pulled(pull)
            self._runtime.replacement_reserve.extend(prompts)
            return len(prompts)

        async with self._barrier.mutation("prompt_reservations"):
            return await run_to_end(fill())

    async def admit(self, admission_id: int, *, wanted: int | None = None) -> tuple[PromptGroupRecoveryRecord, ...]:
        """Admit a batch and stamp its groups; to be called by one task at a time.

        Waits until the sampler has room for it, outside of any section.

        Args:
            admission_id: The batch.
            wanted: How many groups a train step takes: what the batch has less, as the last one of the data may, the
                step does not wait for. None: the batch is complete.

        Returns:
            Its groups.

        Raises:
            LedgerError, IllegalTransitionError: If there is no such batch, or it is admitted already.
            TargetStepTakenError: If the sampler's cursor is behind groups that are there.
        """
        await self._sampler.wait_until_admissible()
        async with self._barrier.mutation("other") as cut:
            batch = self._ledger.batch(admission_id)
            if not batch or any(group.phase is not PromptGroupPhase.RESERVED for group in batch):
                raise LedgerError(
                    f"of batch {admission_id}", "there is none that is reserved; reserve_batch gives batches"
                )
            before = self._sampler.dispatch_index
            step = self._sampler.commit_admission(cut)
            try:
                self._require_free(admission_id, step)
                version = self._progress.trainer_version
                admitted = tuple(
                    self._ledger.mark_group_admitted(cut, group.group_id, target_step=step, start_weight=version)
                    for group in batch
                )
            except Exception:
                self._sampler.restore_dispatch_index(before)
                raise
            self._runtime.sampler_stamps_target_steps = self._sampler.stamps_target_steps
            if wanted is not None and len(batch) < wanted:
                self._count_shortfall(step, wanted - len(batch))
            return admitted

    # ---- Generating ----

    async def dispatch(
        self, group_id: str, indices: Sequence[int] | None = None, instance_id: str | None = None
    ) -> PromptGroupRecoveryRecord:
        """Note that attempts begin, before they do; see `RolloutRecoveryLedger.mark_group_dispatched`."""
        async with self._barrier.mutation("other") as cut:
            return self._ledger.mark_group_dispatched(cut, group_id, indices, instance_id)

    async def seal_sibling(self, group_id: str, index: int, result: SiblingSealResult) -> PromptGroupRecoveryRecord:
        """Keep one generation that has ended; see `RolloutRecoveryLedger.mark_sibling_sealed`."""
        stored = (await in_thread(_all_stored, group_id, {index: result}))[index]
        async with self._barrier.mutation("sibling_seals") as cut:
            return self._ledger.mark_sibling_sealed(cut, group_id, index, stored)

    async def seal_group(self, group_id: str, results: Mapping[int, SiblingSealResult]) -> PromptGroupRecoveryRecord:
        """Keep all generations of a group; see `RolloutRecoveryLedger.mark_group_sealed`."""
        stored = await in_thread(_all_stored, group_id, results)
        async with self._barrier.mutation("sibling_seals") as cut:
            return self._ledger.mark_group_sealed(cut, group_id, stored)

    async def retry(self, group_id: str, failed: int | None = None) -> PromptGroupRecoveryRecord:
        """Reserve new attempts, to be dispatched again.

        Args:
            group_id: The group.
            failed: The sibling whose attempt failed; the others go on. None: all that are not sealed are given up; at
                PROMPT_GROUP granularity the only way, which gives up the sealed ones too.

        Raises:
            UnknownGroupError, IllegalTransitionError, LedgerError: If there is nothing to be retried.
        """
        async with self._barrier.mutation("recovery_retries") as cut:
            return self._ledger.begin_again(cut, group_id, self._new_id, failed=failed)

    # ---- Giving up ----

    async def drop_group(self, group_id: str) -> PromptGroupRecoveryRecord | None:
        """Give up a prompt on purpose; a spare one takes its place in the batch.

        Cancel its generations afterwards: what they still report is then refused with `UnknownGroupError`.

        Returns:
            The group of the spare prompt, to be dispatched; None where there is none: then its step takes one less.

        Raises:
            UnknownGroupError: If the ledger has no such group.
            LedgerError: If it is being committed; or if its batch is not admitted and there is no spare prompt, since
                the step that takes one less is not known yet.
        """
        async with self._barrier.mutation("group_removals") as cut:
            group = self._ledger.get(group_id)
            require_settled([group])
            reserve = self._runtime.replacement_reserve
            if not reserve and group.phase is PromptGroupPhase.RESERVED:
                raise LedgerError(
                    group_id, "it is reserved, and no spare prompt is there; admit its batch, then drop it"
                )
            new = self._replacement(group, *reserve[0]) if reserve else None
            if new is None:
                self._count_shortfall(group.target_step, 1)
            else:
                self._ledger.reserve_group(cut, new)
                reserve.popleft()
            self._ledger.discard_group(cut, group_id)
            self._runtime.dropped.append(group.prompt.ref.sample_id)
            return new

    # ---- Inside of a section ----

    async def _reserve(
        self, cut: DataPlaneMutationCut, pull: Pull, expected_generations: int
    ) -> tuple[PromptGroupRecoveryRecord, ...]:
        prompts = await self._pulled(pull)
        return self._ledger.reserve_batch(
            cut,
            prompts,
            expected_generations=expected_generations,
            granularity_of=self._config.granularity_of,
            restore_level=self._config.target_level,
            new_id=self._new_id,
        )

    async def _pulled(self, pull: Pull) -> list[tuple[Prompt, SavedPrompt]]:
        prompts = await awaited(pull())
        saved = await in_thread(_all_saved, prompts, whole=self._keeps_prompts)
        self._runtime.recent_prompts.extend(replace(prompt, stored=None) for _, prompt in saved)
        return saved

    def _require_free(self, admission_id: int, step: int | None) -> None:
        if step in self._replay_index.target_steps() or step in self._ledger.target_steps():
            raise TargetStepTakenError(admission_id, step)

    def _replacement(
        self, group: PromptGroupRecoveryRecord, prompt: Prompt, saved: SavedPrompt
    ) -> PromptGroupRecoveryRecord:
        is_admitted = group.phase is PromptGroupPhase.ADMITTED
        new = reserved_group(
            saved,
            admission_id=group.admission_id,
            expected_generations=group.expected_generations,
            granularity=self._config.granularity_of(saved.task_source),
            restore_level=self._config.target_level,
            new_id=self._new_id,
            runtime_prompt=prompt.payload,
        )
        return replace(
            new,
            phase=group.phase,
            target_step=group.target_step,
            start_weight_version=self._progress.trainer_version if is_admitted else None,
        )


def _all_stored(group_id: str, results: Mapping[int, SiblingSealResult]) -> dict[int, SiblingSealResult]:
    return {
        index: replace(result, result=StoredValue.of(result.result, f"the result of '{group_id}_g{index}'"))
        for index, result in results.items()
    }


def _all_saved(prompts: Sequence[Prompt], *, whole: bool) -> list[tuple[Prompt, SavedPrompt]]:
    for prompt in prompts:
        if not isinstance(prompt, Prompt):
            raise TypeError(f"pull gave a {type(prompt).__name__}; allowed: nrl_rollout_ckpt.Prompt")
    return [(prompt, saved_prompt(prompt, whole=whole)) for prompt in prompts]
