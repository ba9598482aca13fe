"""Snapshots that somebody asked for, from any thread, and that wait for the pump."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from nrl_rollout_ckpt.saving.outcomes import RolloutCheckpointSaveResult


class SnapshotRefusedError(RuntimeError):
    """Raised by a request that no snapshot will answer.

    Attributes:
        reason: What the request was for.
        refusal: Why there will be none.
    """

    def __init__(self, reason: str, refusal: str) -> None:
        super().__init__(reason, refusal)
        self.reason, self.refusal = reason, refusal

    def __str__(self) -> str:
        return f"the snapshot requested for {self.reason!r} was not taken: {self.refusal}"


@dataclass(frozen=True, eq=False)
class SnapshotRequest:
    """One wish for a snapshot.

    Attributes:
        reason: What it is for.
        stop: Whether the run is to stop after it.
        give_up: When nobody waits for it any more, on the pump's clock.
        future: Gets the result.
    """

    reason: str
    stop: bool
    give_up: float = math.inf
    future: Future[RolloutCheckpointSaveResult] = field(default_factory=Future[RolloutCheckpointSaveResult])


class SnapshotRequests:
    """The requests that wait; each method may be called from any thread.

    Args:
        wake: Called after each new one, in its thread.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._waiting: list[SnapshotRequest] = []
        self._refusal: str | None = None

    def add(self, reason: str, *, stop: bool, give_up: float = math.inf) -> Future[RolloutCheckpointSaveResult]:
        """Let a request wait; its future gets `SnapshotRefusedError` where no pump will look any more."""
        request = SnapshotRequest(reason, stop, give_up)
        with self._lock:
            refusal = self._refusal
            if refusal is None:
                self._waiting.append(request)
        if refusal is None:
            self._wake()
        else:
            request.future.set_exception(SnapshotRefusedError(reason, refusal))
        return request.future

    @property
    def waiting(self) -> tuple[SnapshotRequest, ...]:
        """Those that wait, in the order in which they came; cancelled ones are dropped."""
        with self._lock:
            self._waiting = [request for request in self._waiting if not request.future.cancelled()]
            return tuple(self._waiting)

    def answer(
        self, requests: tuple[SnapshotRequest, ...], result: RolloutCheckpointSaveResult | BaseException
    ) -> None:
        """Give these requests what came of their snapshot."""
        with self._lock:
            self._waiting = [request for request in self._waiting if request not in requests]
        for request in requests:
            if not request.future.set_running_or_notify_cancel():
                continue
            if isinstance(result, BaseException):
                request.future.set_exception(result)
            else:
                request.future.set_result(result)

    def refuse(self, refusal: str) -> None:
        """Refuse those that wait, and all that come later; the first refusal stays."""
        with self._lock:
            self._refusal = self._refusal or refusal
        for request in self.waiting:
            self.answer((request,), SnapshotRefusedError(request.reason, self._refusal))
