"""The background thread that writes chunks while the caller goes on."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable

from nrl_dump.errors import raise_first


class ChunkQueue:
    """Jobs done one by one, in order, by one thread; holds at most `max_bytes` of them.

    An error in a job is kept and raised by the next call, whichever that is; the jobs behind it go on.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._jobs: deque[tuple[int, Callable[[], None]]] = deque()
        self._bytes = 0
        self._errors: list[BaseException] = []
        self._closed = False
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="nrl-dump writer", daemon=True)
        self._thread.start()

    def put(self, n_bytes: int, job: Callable[[], None]) -> None:
        """Hand a job over; waits while the queue is full (a job larger than the whole queue: while it is not empty)."""
        with self._changed:
            self._changed.wait_for(lambda: not self._jobs or self._bytes + n_bytes <= self._max_bytes)
            self._raise_errors()
            self._jobs.append((n_bytes, job))
            self._bytes += n_bytes
            self._changed.notify_all()

    def drain(self) -> None:
        """Wait until every job is done, then raise what went wrong since the last call."""
        with self._changed:
            self._changed.wait_for(lambda: not self._jobs)
            self._raise_errors()

    def check(self) -> None:
        """Raise what went wrong since the last call."""
        with self._changed:
            self._raise_errors()

    def close(self) -> None:
        """Finish the jobs and end the thread; raises nothing. In a forked child, which has no thread, does nothing."""
        if self._pid != os.getpid():  # where the lock may be held for ever
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _raise_errors(self) -> None:
        errors, self._errors = self._errors, []
        raise_first(errors)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closed)
                if not self._jobs:
                    return
                n_bytes, job = self._jobs[0]  # stays in the queue, and counted, until it is done
            try:
                job()
            except BaseException as error:  # noqa: BLE001 - kept for the next call
                with self._changed:
                    self._errors.append(error)
            del job
            with self._changed:
                self._jobs.popleft()
                self._bytes -= n_bytes
                self._changed.notify_all()
