"""The part of the snapshotter that decides when snapshots are taken."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future

from nrl_interfaces.rollout import Deadline, TrainerCheckpoints

from nrl_rollout_ckpt.disk.bootstrap import BootstrapCompatibilityIdentity
from nrl_rollout_ckpt.saving.capture import TeacherCoordinator
from nrl_rollout_ckpt.saving.outcomes import RolloutCheckpointSaveResult
from nrl_rollout_ckpt.saving.pump import SnapshotPump
from nrl_rollout_ckpt.saving.signals import install_sigterm
from nrl_rollout_ckpt.saving.state_saving import SavesRolloutState
from nrl_rollout_ckpt.state.rollout_state import RolloutParts


class PumpedSnapshots(SavesRolloutState, ABC):
    """The part of `RolloutSnapshotter` around its pump; see there."""

    def __init__(
        self,
        parts: RolloutParts,
        *,
        checkpointer: TrainerCheckpoints,
        timeout: Deadline,
        bootstrap_identity: BootstrapCompatibilityIdentity | None,
        teacher_coordinator: TeacherCoordinator | None,
        records_prompt_groups: Callable[[], bool],
    ) -> None:
        super().__init__(
            parts,
            checkpointer=checkpointer,
            bootstrap_identity=bootstrap_identity,
            teacher_coordinator=teacher_coordinator,
            records_prompt_groups=records_prompt_groups,
        )
        self._pump = SnapshotPump(
            save=self.save_snapshot,
            window=self._window,
            progress=parts.progress,
            timeout=timeout,
            config=parts.config,
            clock=parts.clock,
        )
        self._put_sigterm_back: Callable[[], None] | None = None

    @abstractmethod
    async def save_snapshot(self, *, force: bool = False) -> RolloutCheckpointSaveResult:
        """See `RolloutSnapshotter.save_snapshot`."""

    @property
    def stop_requested(self) -> bool:
        """Whether the run is to stop, since its last snapshot was taken or could not be had; never False again."""
        return self._pump.stop_requested

    async def run(self) -> None:
        """Take snapshots at intervals and whenever one is due; beside training, as one task for the whole run.

        The first comes after one interval. A published trainer checkpoint gets one at once, and so does a request. At
        the deadline, or for a request that stops the run, a last one is taken: before the first train step under the
        bootstrap anchor; afterwards, at the deadline, under the checkpoint that the trainer then makes, for which
        `deadline_grace_s` are left. Where that is not durable in time, the run stops without one.

        It returns only when the run is to stop. With snapshots off (no interval) it sleeps until it is cancelled.

        Raises:
            SnapshotsKeepFailingError: `max_consecutive_failures` attempts failed without a snapshot between them.
            RequiredSnapshotError: The last snapshot failed.
            RuntimeError: It was started before.
            Exception: What an attempt raised that is neither `OSError` nor `TimeoutError`, at once.
        """
        await self._pump.run()

    def trainer_checkpoint_published(self, step: int) -> None:
        """Have a snapshot taken under the trainer checkpoint of `step`, which holds no environment; from any thread."""
        self._pump.trainer_checkpoint_published(step)

    def request_snapshot(self, reason: str, *, stop: bool = False) -> Future[RolloutCheckpointSaveResult]:
        """Have a snapshot taken now, from any thread; requests that wait share one.

        One that meets a train step's commit waits for its end. `run` has to run, or to be about to.

        Args:
            reason: What for, for messages.
            stop: Let the run stop afterwards; then a trainer checkpoint that is not durable is waited for, too.

        Returns:
            Gets the result, or what the attempt raised, or `SnapshotRefusedError` where snapshots are off or `run` has
            ended.
        """
        return self._pump.request(reason, stop=stop)

    def install_sigterm(self, loop: asyncio.AbstractEventLoop, grace_s: float = 30.0) -> Callable[[], None]:
        """Let SIGTERM request a snapshot that stops the run; until it is answered, `close` or the function returned.

        Then the handler of before is back. If the attempt has not ended after `grace_s`, that is logged and the handler
        of before gets the signal. A checkpoint that the trainer still has to make is waited for as long as that leaves
        the time of the last save; then the run stops without a snapshot.

        Args:
            loop: The loop that `run` runs in, on the main thread.
            grace_s: Seconds to wait; less than what lies between SIGTERM and SIGKILL.

        Raises:
            NotTheMainThreadError: If this is not the main thread, or the loop runs on another one.
            ValueError: If `grace_s` is not allowed.
        """
        self._let_sigterm_be()
        self._put_sigterm_back = install_sigterm(loop, self._pump.request, grace_s=grace_s, clock=self._clock)
        return self._put_sigterm_back

    def _end_pump(self) -> None:
        self._let_sigterm_be()
        self._pump.close()

    def _let_sigterm_be(self) -> None:
        if self._put_sigterm_back is not None:
            self._put_sigterm_back()
