"""Time as an argument: two clocks and one way to wait."""

import asyncio
import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """What the package asks about time."""

    def monotonic(self) -> float:
        """Seconds on a clock that never steps; for intervals."""
        ...

    def time(self) -> float:
        """Seconds since the epoch; for what people read."""
        ...

    async def wait(self, event: asyncio.Event, timeout_s: float | None) -> bool:
        """Wait for `event`, at most so long (None: without end); whether it is set."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return time.monotonic()

    def time(self) -> float:
        """See `Clock.time`."""
        return time.time()

    async def wait(self, event: asyncio.Event, timeout_s: float | None) -> bool:
        """See `Clock.wait`."""
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return event.is_set()
        return True
