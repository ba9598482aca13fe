"""A snapshot when the process is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from nrl_rollout_ckpt.clock import Clock
from nrl_rollout_ckpt.saving.outcomes import RolloutCheckpointSaveResult
from nrl_rollout_ckpt.saving.requests import SnapshotRefusedError

_log = logging.getLogger(__name__)


class NotTheMainThreadError(RuntimeError):
    """Raised when a signal can't reach an event loop.

    Attributes:
        thread: The thread that asked.
    """

    def __init__(self, thread: str) -> None:
        super().__init__(thread)
        self.thread = thread

    def __str__(self) -> str:
        return (
            f"SIGTERM can't be handled from thread {self.thread!r}: Python runs signal handlers on the main thread, "
            "and this is another one, or the loop runs on another one, as in an async Ray actor. Let whoever learns of "
            "the end, such as the driver or the job, call request_snapshot('SIGTERM', stop=True)"
        )


class SnapshotRequester(Protocol):
    """`SnapshotPump.request`."""

    def __call__(self, reason: str, *, stop: bool, within_s: float) -> Future[RolloutCheckpointSaveResult]:
        """Request a snapshot that is there, or given up, within so many seconds."""
        ...


def install_sigterm(
    loop: asyncio.AbstractEventLoop, request: SnapshotRequester, *, grace_s: float, clock: Clock
) -> Callable[[], None]:
    """Let SIGTERM request a snapshot that stops the run.

    As soon as that is answered, the handler of before is back, so that a second signal does what it always did. If it
    is refused, or not there after `grace_s`, that is logged and the handler of before gets the signal.

    Args:
        loop: The loop that the pump runs in, on the main thread.
        request: Requests a snapshot.
        grace_s: How long to wait for it; less than what lies between SIGTERM and SIGKILL.
        clock: The time.

    Returns:
        A function that puts the handler of before back, if it is not; called on the main thread.

    Raises:
        NotTheMainThreadError: If this is not the main thread, or the loop runs on another one.
        ValueError: If `grace_s` is not allowed.
    """
    if isinstance(grace_s, bool) or not isinstance(grace_s, int | float) or not (0 < grace_s < math.inf):
        raise ValueError(f"grace_s is {grace_s!r}; allowed: seconds above 0")
    _require_main_thread(loop)
    handler = _SigtermHandler(loop, request, grace_s, clock)
    return handler.uninstall


def _require_main_thread(loop: asyncio.AbstractEventLoop) -> None:
    here = threading.current_thread()
    running_here = None
    with contextlib.suppress(RuntimeError):
        running_here = asyncio.get_running_loop()
    if here is not threading.main_thread() or (loop.is_running() and running_here is not loop):
        raise NotTheMainThreadError(here.name)


class _SigtermHandler:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, request: SnapshotRequester, grace_s: float, clock: Clock
    ) -> None:
        self._loop = loop
        self._request = request
        self._grace_s = grace_s
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._before = signal.getsignal(signal.SIGTERM)
        loop.add_signal_handler(signal.SIGTERM, self._on_sigterm)
        self._installed = True

    def uninstall(self) -> None:
        if not self._installed:
            return
        self._installed = False
        self._loop.remove_signal_handler(signal.SIGTERM)
        if self._before is not None:  # None: not made in Python, and can't be put back from there
            signal.signal(signal.SIGTERM, self._before)

    def _on_sigterm(self) -> None:
        if self._task is None:
            _log.warning(
                "SIGTERM: a snapshot is requested, then the run stops; waiting for at most %g s", self._grace_s
            )
            self._task = self._loop.create_task(self._wait_for_snapshot())

    async def _wait_for_snapshot(self) -> None:
        try:
            answered = asyncio.Event()
            future = self._request("SIGTERM", stop=True, within_s=self._grace_s)
            future.add_done_callback(lambda _: self._loop.call_soon_threadsafe(answered.set))
            in_time = await self._clock.wait(answered, self._grace_s)
        finally:
            self.uninstall()
        if not in_time:
            _log.error("SIGTERM: given up, there is no snapshot after %g s", self._grace_s)
        elif isinstance(error := future.exception(), SnapshotRefusedError):
            _log.error("SIGTERM: given up, %s", error)
        else:
            return  # the pump stops the run, and has logged why
        signal.raise_signal(signal.SIGTERM)
