"""What the checks share."""

import contextlib
from collections.abc import Generator
from typing import NoReturn


class Cut:
    """A section's proof, of a section that lasts or has ended."""

    def __init__(self, *, live: bool = True) -> None:
        self.live = live

    def require_live(self) -> None:
        """Raise RuntimeError if the section has ended."""
        if not self.live:
            raise RuntimeError("the section has ended")


def must(holds: object, what: str) -> None:
    """Raise AssertionError with `what` unless it holds."""
    if not holds:
        broken(what)


def same(got: object, expected: object, what: str) -> None:
    """Raise AssertionError unless two plain values are equal."""
    must(got == expected, f"{what}: got {got!r}, expected {expected!r}")


def broken(what: str) -> NoReturn:
    """Raise AssertionError."""
    raise AssertionError(what)


@contextlib.contextmanager
def refused(error: type[Exception], what: str) -> Generator[None]:
    """Raise AssertionError unless the block raises `error`; another error goes on as it is."""
    try:
        yield
    except error:
        return
    broken(f"{what}: must raise {error.__name__}")
