"""A whole run in memory, in single steps, and the account of its prompts: for tests of parts of your own."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import torch
from nrl_interfaces.publish import publish

from nrl_rollout_ckpt.disk.bootstrap import BootstrapCompatibilityIdentity
from nrl_rollout_ckpt.disk.selection import select_resume_source
from nrl_rollout_ckpt.disk.trainer_checkpoints import CheckpointManager
from nrl_rollout_ckpt.restore import RestoreReport, RolloutRestorer
from nrl_rollout_ckpt.saving.deadline import TimeoutChecker
from nrl_rollout_ckpt.saving.outcomes import RolloutCheckpointSaveResult
from nrl_rollout_ckpt.saving.snapshots import RolloutSnapshotter
from nrl_rollout_ckpt.state.ledger_states import (
    PromptGroupPhase,
    PromptGroupStatus,
    RecoveryGranularity,
    RecoveryTargetLevel,
    RolloutAttemptStatus,
)
from nrl_rollout_ckpt.state.records import PromptGroupRecoveryRecord, SiblingSealResult
from nrl_rollout_ckpt.state.replay_index import TrainingClaim
from nrl_rollout_ckpt.state.rollout_state import CheckpointKind, RolloutParts
from nrl_rollout_ckpt.state.transitions import RolloutTransitions

_WEIGHTS: Final = "weights.json"


class AccountError(AssertionError):
    """Raised when prompts were lost or trained twice.

    Attributes:
        lost: Ids of prompts that were neither trained nor dropped, and that nobody holds.
        doubled: Ids of prompts that came more than once.
    """

    def __init__(self, lost: tuple[str, ...], doubled: tuple[str, ...]) -> None:
        super().__init__(lost, doubled)
        self.lost, self.doubled = lost, doubled

    def __str__(self) -> str:
        return f"lost: {', '.join(self.lost) or 'none'}; more than once: {', '.join(self.doubled) or 'none'}"


class SmallRun:
    """What a training loop does, one call each; a crash is `close` and another `start` on the same folder.

    Its weights are the list of prompts that it was trained on, so that they tell what a restart goes on with.

    Attributes:
        parts: The run's parts: a data plane with ``put_samples`` and ``get_samples``, a source with ``next_batch``.
        transitions: Changes them.
        snapshotter: Saves them.
        report: What was restored.
        trained: The ids of the prompts in the weights, in order.
        claim: The groups of the open train step.
    """

    def __init__(
        self, checkpoint_dir: Path, parts: RolloutParts, report: RestoreReport, trained: Iterable[str], batch: int
    ) -> None:
        self.parts, self.report = parts, report
        self.transitions = RolloutTransitions(parts)
        self.trained = list(trained)
        self.claim: TrainingClaim | None = None
        self._batch = batch
        self._checkpoints = CheckpointManager(checkpoint_dir, ops=parts.file_ops)
        self.snapshotter = RolloutSnapshotter(
            parts,
            checkpointer=self._checkpoints,
            timeout=TimeoutChecker(budget_s=None, clock=parts.clock),
            bootstrap_identity=BootstrapCompatibilityIdentity.of(parts.run_config),
            teacher_coordinator=None,
            records_prompt_groups=lambda: True,
        )

    @classmethod
    async def start(cls, checkpoint_dir: Path, make: Callable[[], RolloutParts], *, batch: int = 2) -> SmallRun:
        """Begin, or go on where the folder's newest state was.

        Args:
            checkpoint_dir: The folder.
            make: Makes the parts, new.
            batch: Prompts a batch, and groups a train step.
        """
        parts = make()
        source = select_resume_source(checkpoint_dir, parts.config, BootstrapCompatibilityIdentity.of(parts.run_config))
        report = await RolloutRestorer(parts).restore(source)
        trained: list[str] = []
        if source.anchor is not None and source.train_steps > 0:
            trained = json.loads((source.anchor / _WEIGHTS).read_bytes())
        return cls(checkpoint_dir, parts, report, trained, batch)

    def close(self) -> None:
        """End the run, as a crash does: nothing is saved."""
        self._checkpoints.shutdown()
        self.snapshotter.close()

    # ---- Rollouts; each returns whether there was something to do ----

    async def reserve(self) -> bool:
        """Take a batch of prompts."""
        source: Any = self.parts.prompt_source
        size = self.parts.replay_index.group_size
        return bool(
            await self.transitions.reserve_batch(lambda: source.next_batch(self._batch), expected_generations=size)
        )

    async def fill_reserve(self) -> bool:
        """Take a spare prompt."""
        source: Any = self.parts.prompt_source
        return await self.transitions.fill_reserve(lambda: source.next_batch(1)) > 0

    async def admit(self) -> bool:
        """Admit the batch that was reserved first, if the sampler has room for it."""
        waiting = [group for group in self.parts.ledger.groups if group.phase is PromptGroupPhase.RESERVED]
        if not waiting or not await _ends_at_once(self.parts.sampler.wait_until_admissible()):
            return False
        await self.transitions.admit(min(group.admission_id for group in waiting), wanted=self._batch)
        return True

    async def dispatch(self, group_id: str, index: int) -> bool:
        """Begin a sibling's attempt; in the environment where episodes have turns."""
        group = self.parts.ledger.get(group_id)
        attempt = group.siblings[index].current
        if group.phase is PromptGroupPhase.RESERVED or attempt.status is not RolloutAttemptStatus.RESERVED:
            return False
        instance = None
        if self._has_turns:
            instances = self._environment.instances
            instance = attempt.environment_instance_id or instances[index % len(instances)]
        episode = (await self.transitions.dispatch(group_id, [index], instance)).episode(index)
        if episode is not None:
            await self._environment.open(episode)
            await self._environment.turn(episode, group.prompt.ref.sample_id)
        return True

    async def seal(self, group_id: str, index: int) -> bool:
        """End a sibling's attempt; at PROMPT_GROUP granularity all of its group's."""
        group = self.parts.ledger.get(group_id)
        keeps_siblings = group.recovery_granularity is RecoveryGranularity.SIBLING
        indices = [index] if keeps_siblings else range(group.expected_generations)
        if any(group.siblings[at].current.status is not RolloutAttemptStatus.DISPATCHED for at in indices):
            return False
        results = {at: SiblingSealResult({"prompt": group.prompt.ref.sample_id}, reward=float(at)) for at in indices}
        if keeps_siblings:
            await self.transitions.seal_sibling(group_id, index, results[index])
        else:
            await self.transitions.seal_group(group_id, results)
        for at in indices:
            episode = group.episode(at)
            if episode is not None:
                self._environment.close(episode)
        return True

    async def commit(self, group_id: str) -> bool:
        """Hand a complete group on to the data plane."""
        group = self.parts.ledger.get(group_id)
        if group.status is not PromptGroupStatus.READY_TO_FINALIZE:
            return False
        attempts = [sibling.current for sibling in group.siblings]
        prompts = [attempt.result.value()["prompt"] for attempt in attempts if attempt.result is not None]
        rewards = torch.tensor([attempt.reward for attempt in attempts])
        await self.transitions.commit_group(group_id, {"prompt": prompts, "reward": rewards})
        return True

    async def drop(self, group_id: str) -> bool:
        """Give a prompt up."""
        group = self.parts.ledger.get(group_id)
        if group.phase is PromptGroupPhase.RESERVED and not self.parts.runtime.replacement_reserve:
            return False
        await self.transitions.drop_group(group_id)
        for at in range(group.expected_generations):
            episode = group.episode(at)
            if episode is not None and episode in self._environment.episodes():
                self._environment.close(episode)
        return True

    # ---- Training ----

    async def begin_step(self) -> bool:
        """Take the groups of the next train step."""
        if self.claim is None:
            self.claim = await self.transitions.claim_for_training(self._batch)
            return self.claim is not None
        return False

    async def write_back(self) -> bool:
        """Write advantages for the open step."""
        if self.claim is None or not self.claim.groups:
            return False
        await self.transitions.write_back(self.claim, {"advantage": torch.ones(len(self.claim.sample_ids))})
        return True

    async def put_back(self) -> bool:
        """Give up the open step."""
        if self.claim is None:
            return False
        await self.transitions.put_back(self.claim)
        self.claim = None
        return True

    async def finish_step(self) -> bool:
        """Train on the open step's rows, and drop them."""
        if self.claim is None:
            return False
        plane: Any = self.parts.data_plane
        await self.snapshotter.begin_optimizer_commit(drain_snapshot=True)
        for group in self.claim.groups:
            rows = plane.get_samples(list(group.sample_ids), self.parts.partition_id, ["prompt"])
            self.trained.extend(dict.fromkeys(rows["prompt"]))
        await self.transitions.finish_step(self.claim)
        self.parts.progress.advance()
        self.claim = None
        self.snapshotter.end_optimizer_commit()
        return True

    # ---- Saving ----

    async def save_snapshot(self) -> RolloutCheckpointSaveResult:
        """Take a snapshot."""
        return await self.snapshotter.save_snapshot(force=True)

    async def save_trainer_checkpoint(self) -> bool:
        """Save weights and rollouts between two train steps."""
        step = self.parts.progress.train_steps
        if self.claim is not None or step == 0:
            return False
        async with self.snapshotter.trainer_checkpoint():
            info = {"current_step": step, "trainer_version": step}
            path = self._checkpoints.init_tmp_checkpoint(step, info, self.parts.run_config)
            async with self.parts.barrier.checkpoint() as cut:
                captured = await self.snapshotter.capture(cut, path, CheckpointKind.TRAINER_CHECKPOINT)
            await self.snapshotter.write_rollout_state(path, captured)
            publish(path / _WEIGHTS, json.dumps(self.trained).encode(), self.parts.file_ops)
            self._checkpoints.begin_finalization(path)
            await asyncio.to_thread(self._checkpoints.finalize_pending)
        self.snapshotter.trainer_checkpoint_published(step)
        return True

    # ---- The end ----

    async def run_to_end(self) -> None:
        """Go on until nothing is left to do.

        Raises:
            AccountError: If a prompt was lost or trained twice.
        """
        moved = True
        while moved:
            moved = await self.reserve() if not self._is_waiting() else False
            moved |= await self.admit()
            for group in self.parts.ledger.redispatch_order():
                moved |= await self._generate(group)
            moved |= await self.begin_step()
            moved |= await self.finish_step()
        self.account()

    def account(self) -> None:
        """Compare the prompts of the source with those that were trained, dropped, or are spare.

        Raises:
            AccountError: If one is in none of them, or more than once.
        """
        source: Any = self.parts.prompt_source
        spare = [prompt.ref.sample_id for prompt, _ in self.parts.runtime.replacement_reserve]
        seen = Counter([*self.trained, *self.parts.runtime.dropped, *spare])
        lost = tuple(prompt.ref.sample_id for prompt in source.prompts if prompt.ref.sample_id not in seen)
        doubled = tuple(sample_id for sample_id, times in seen.items() if times > 1)
        if lost or doubled:
            raise AccountError(lost, doubled)

    def _is_waiting(self) -> bool:
        return any(group.phase is PromptGroupPhase.RESERVED for group in self.parts.ledger.groups)

    async def _generate(self, group: PromptGroupRecoveryRecord) -> bool:
        moved = False
        for step in (self.dispatch, self.seal):
            for index in range(group.expected_generations):
                moved |= await step(group.group_id, index)
        return await self.commit(group.group_id) or moved

    @property
    def _has_turns(self) -> bool:
        return self.parts.config.target_level is RecoveryTargetLevel.TURN

    @property
    def _environment(self) -> Any:
        return self.parts.environment


async def _ends_at_once(wait: Any) -> bool:
    task = asyncio.ensure_future(wait)
    await asyncio.sleep(0)
    if task.done():
        return True
    task.cancel()
    await asyncio.wait([task])
    return False
