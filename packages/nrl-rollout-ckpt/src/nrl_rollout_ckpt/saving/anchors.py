"""Which durable trainer checkpoint a snapshot belongs to, and the trainer's checkpoints that are still on their way."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

from nrl_interfaces.rollout import TrainerCheckpoints

from nrl_rollout_ckpt.disk.bootstrap import BootstrapCompatibilityIdentity, ensure_bootstrap_anchor
from nrl_rollout_ckpt.saving.capture import Identity
from nrl_rollout_ckpt.saving.commit_window import CommitWindow
from nrl_rollout_ckpt.saving.outcomes import RolloutCheckpointAttemptReason
from nrl_rollout_ckpt.state.completion import in_thread
from nrl_rollout_ckpt.state.rollout_state import RolloutParts

_log = logging.getLogger(__name__)


class Anchors:
    """Finds the anchor of a snapshot.

    Args:
        parts: The run.
        checkpointer: The trainer's checkpoints.
        bootstrap_identity: What stands in for the trainer's state before its first step.
        window: The trainer's commits.

    Attributes:
        failure: Why a trainer checkpoint did not become durable, until `raise_failure` hands it on.
    """

    def __init__(
        self,
        parts: RolloutParts,
        checkpointer: TrainerCheckpoints,
        bootstrap_identity: BootstrapCompatibilityIdentity | None,
        window: CommitWindow,
    ) -> None:
        self.failure: Exception | None = None
        self._parts = parts
        self._checkpointer = checkpointer
        self._bootstrap_identity = bootstrap_identity
        self._window = window
        self._finalizing: asyncio.Task[None] | None = None
        self._warned_of: Identity | None = None

    def protect(self, step: int) -> contextlib.AbstractContextManager[None]:
        """Keep the trainer's retention from the anchor of a step; the bootstrap anchor needs nothing."""
        return self._checkpointer.protect(step) if step > 0 else contextlib.nullcontext()

    async def wait_for_trainer(self) -> None:
        """Wait until the trainer's checkpoints are durable, but not into a train step's commit.

        Weights may take minutes: whoever is cancelled, or has to make way, leaves the thread that waits behind, and
        the next one goes on waiting for it.
        """
        finalizing = self._finalization()
        gave_up = asyncio.get_running_loop().create_future()

        def give_up() -> None:
            if not gave_up.done():
                gave_up.set_result(None)

        with self._window.when_announced(give_up):
            await asyncio.wait([finalizing, gave_up], return_when=asyncio.FIRST_COMPLETED)

    async def hand_over_to_trainer(self) -> None:
        """End the waits that were left behind, and raise what they met.

        Raises:
            RuntimeError: If a trainer checkpoint did not become durable; each failure once.
        """
        if self._finalizing is not None:
            await asyncio.wait([self._finalizing])
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raise what made a trainer checkpoint fail, once."""
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    async def resolve(self) -> tuple[Path, str | None] | None:
        """See `RolloutSnapshotter._resolve_anchor`."""
        at = Identity.now(self._parts)
        if at.train_steps == 0:
            return await self._bootstrap_anchor(at)
        if at.trainer_version != at.train_steps:
            raise RuntimeError(
                f"training is at step {at.train_steps} with version {at.trainer_version}: which checkpoint has these "
                "weights is not known, so advance both together, inside the optimizer-commit window"
            )
        anchor = await in_thread(self._durable_path, at.train_steps)
        if anchor is None:
            self._warn_of_missing(at)
            return None
        return anchor, None

    def why_missing(self) -> tuple[RolloutCheckpointAttemptReason, str]:
        """Say why the last `resolve` gave None."""
        if self.failure is not None:
            return RolloutCheckpointAttemptReason.TRAINER_FINALIZATION_FAILED, str(self.failure)
        missing = self._checkpointer.step_path(self._parts.progress.train_steps)
        return RolloutCheckpointAttemptReason.MISSING_TRAINER_ANCHOR, f"{missing} is not durable"

    def saved(self) -> None:
        """Note that a snapshot was published: the next missing anchor is worth a new warning."""
        self._warned_of = None

    async def _bootstrap_anchor(self, at: Identity) -> tuple[Path, str]:
        if at.trainer_version != 0:
            raise RuntimeError(
                f"training is at step 0 with version {at.trainer_version}: only version 0 has no trainer checkpoint"
            )
        if self._bootstrap_identity is None:
            raise RuntimeError(
                "a snapshot before the first train step needs bootstrap_identity: give RolloutSnapshotter the "
                "BootstrapCompatibilityIdentity of the run's config"
            )
        folder = self._checkpointer.checkpoint_dir
        return await in_thread(ensure_bootstrap_anchor, folder, self._bootstrap_identity, self._parts.file_ops)

    def _durable_path(self, step: int) -> Path | None:
        path = self._checkpointer.step_path(step)
        return path if path.is_dir() else None

    def _warn_of_missing(self, at: Identity) -> None:
        if self._warned_of != at:
            self._warned_of = at
            _log.warning(
                "no snapshots until %s is durable: there is no trainer checkpoint of this step to go with them. "
                "Save the trainer after every step to have snapshots all the time",
                self._checkpointer.step_path(at.train_steps),
            )

    def _finalization(self) -> asyncio.Task[None]:
        if self._finalizing is None or self._finalizing.done():
            self._finalizing = asyncio.ensure_future(self._finalize())
        return self._finalizing

    async def _finalize(self) -> None:
        try:
            await asyncio.to_thread(self._checkpointer.finalize_pending)
        except Exception as error:  # noqa: BLE001 - it is the trainer's: raised where the trainer comes by
            self.failure = error
            _log.warning("a trainer checkpoint did not become durable: %s", error)
