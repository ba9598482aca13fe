"""A clock that tests move by hand."""

import asyncio


class FakeClock:
    """A clock that stands still until `advance`; waits end at the very moment they are due, in no real time.

    Attributes:
        wall: What `time` gives, in seconds since the epoch; may be set, as a system's clock may be.

    >>> clock = FakeClock()
    >>> clock.advance(2.5)
    >>> clock.monotonic(), clock.time()
    (2.5, 1700000002.5)
    """

    def __init__(self, monotonic: float = 0.0, wall: float = 1_700_000_000.0) -> None:
        self.wall = wall
        self._now = monotonic
        self._timers: dict[asyncio.Future[None], float] = {}

    def monotonic(self) -> float:
        """See `nrl_rollout_ckpt.clock.Clock`."""
        return self._now

    def time(self) -> float:
        """See `nrl_rollout_ckpt.clock.Clock`."""
        return self.wall

    @property
    def deadlines(self) -> tuple[float, ...]:
        """When the waits end that run now, in seconds of `monotonic`, in the order in which they began."""
        return tuple(self._timers.values())

    def advance(self, seconds: float) -> None:
        """Let time pass, and wake whose time is over; they run once the caller awaits something."""
        self._now += seconds
        self.wall += seconds
        for timer, due in self._timers.items():
            if due <= self._now and not timer.done():
                timer.set_result(None)

    async def wait(self, event: asyncio.Event, timeout_s: float | None) -> bool:
        """See `nrl_rollout_ckpt.clock.Clock`."""
        if timeout_s is None:
            return await event.wait()
        if timeout_s <= 0:
            await asyncio.sleep(0)
            return event.is_set()
        timer = asyncio.get_running_loop().create_future()
        self._timers[timer] = self._now + timeout_s
        setting = asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait([setting, timer], return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._timers[timer]
            setting.cancel()
        return event.is_set()
