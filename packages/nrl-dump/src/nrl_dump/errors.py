"""Going on in spite of errors, and then telling all of them by the first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence


def raise_first(errors: Sequence[BaseException]) -> None:
    """Raise the first of some errors, the others named in its notes; nothing if there is none."""
    if errors:
        for other in errors[1:]:
            errors[0].add_note(f"and after it: {other!r}")
        raise errors[0]


def do_all(actions: Iterable[Callable[[], object]]) -> None:
    """Do every action, whatever another one raises, and then `raise_first` what they raised."""
    errors: list[Exception] = []
    for action in actions:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - raised below
            errors.append(error)
    raise_first(errors)


def close_at_exit(close: Callable[[], object], error: BaseException | None, what: str) -> None:
    """Close as a context manager's end does: an error of closing never hides the one that ended the block."""
    try:
        close()
    except Exception as closing_error:
        if error is None:
            raise
        error.add_note(f"and when {what} was closed: {closing_error!r}")
