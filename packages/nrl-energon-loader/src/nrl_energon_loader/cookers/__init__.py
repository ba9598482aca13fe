"""Cookers make conversations of whatever a dataset holds."""

from collections.abc import Sequence
from typing import Any

from megatron.energon import Cooker  # pyright: ignore[reportMissingTypeStubs]

from nrl_energon_loader.registry import COOKERS

__all__ = ["make_cookers"]


def make_cookers(entries: Sequence[tuple[str, dict[str, Any] | None]]) -> tuple[list[Cooker[Any]], list[Any]]:
    """Make Energon's cookers, in the order in which they are asked whether a dataset is theirs.

    Args:
        entries: For each cooker its name (see `nrl_energon_loader.registry.COOKERS`) and its `has_subflavors`: a
            dataset is the cooker's if it has all of these. None: every dataset is.

    Returns:
        The cookers, and their identity as plain JSON.

    Raises:
        ValueError: If there is none, or one without subflavors is not the last (those behind it would never be asked).
        UnknownNameError: As `Registry.resolve`.
    """
    if not entries:
        raise ValueError("cookers has 0 entries; allowed: 1 or more")
    for number, (name, subflavors) in enumerate(entries[:-1]):
        if not subflavors:
            raise ValueError(
                f"cookers[{number}] ({name!r}) has no has_subflavors and is not the last of {len(entries)}; "
                f"allowed: at most one without, at the end, which takes what no other one takes"
            )
    resolved = [COOKERS.resolve(name) for name, _ in entries]
    cookers = [Cooker(found.obj, subflavors) for found, (_, subflavors) in zip(resolved, entries, strict=True)]
    pairs = zip(resolved, entries, strict=True)
    identity: list[Any] = [{**found.identity, "has_subflavors": subflavors} for found, (_, subflavors) in pairs]
    return cookers, identity
