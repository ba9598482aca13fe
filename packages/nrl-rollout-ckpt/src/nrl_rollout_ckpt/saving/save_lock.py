"""The lock that lets one save at a time touch the checkpoint folder."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from nrl_rollout_ckpt.state.barrier import DataPlaneCheckpointBarrier


class SaveLock:
    """Held by a trainer checkpoint or a snapshot for its whole save; first come, first served.

    It is taken before any section of the barrier: who asks for it inside of one would wait for a save that waits for
    the end of that section.
    """

    def __init__(self, barrier: DataPlaneCheckpointBarrier) -> None:
        self._barrier = barrier
        self._lock = asyncio.Lock()
        self._holder: asyncio.Task[object] | None = None
        self._purpose = ""

    @property
    def is_held(self) -> bool:
        """Whether somebody saves."""
        return self._lock.locked()

    @contextlib.asynccontextmanager
    async def hold(self, purpose: str) -> AsyncGenerator[None]:
        """Hold it for the block.

        Args:
            purpose: What for, for messages.

        Raises:
            RuntimeError: If this task holds it already, or is in a section of the barrier.
        """
        task = asyncio.current_task()
        if task is not None and task is self._holder:
            raise RuntimeError(
                f"{purpose} was begun by the task that holds the save lock for {self._purpose}, and would wait for "
                "itself: end that one first"
            )
        if self._barrier.is_in_section(task):
            raise RuntimeError(
                f"{purpose} was begun inside a section of the barrier, and would wait for a save that waits for the "
                "section's end: leave the section first"
            )
        async with self._lock:
            self._holder, self._purpose = task, purpose
            try:
                yield
            finally:
                self._holder = None
