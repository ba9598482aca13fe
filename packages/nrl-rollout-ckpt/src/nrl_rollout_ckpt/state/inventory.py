"""Whether the rows in the data plane are those that the replay index names."""

from __future__ import annotations

from collections.abc import Iterable

from nrl_rollout_ckpt.state.records import ReplayGroup

_SHOWN = 10


class InventoryError(RuntimeError):
    """Raised when rows are missing, or are there that nobody owns.

    Attributes:
        missing: Ids of up to ten rows that the index names and the plane lacks.
        n_missing: How many there are.
        unexpected: Ids of up to ten rows that no group owns.
        n_unexpected: How many there are.
    """

    def __init__(
        self, missing: tuple[str, ...], n_missing: int, unexpected: tuple[str, ...], n_unexpected: int
    ) -> None:
        super().__init__(missing, n_missing, unexpected, n_unexpected)
        self.missing, self.n_missing = missing, n_missing
        self.unexpected, self.n_unexpected = unexpected, n_unexpected

    def __str__(self) -> str:
        return (
            f"the data plane lacks {_named(self.missing, self.n_missing)} of the replay index, and holds "
            f"{_named(self.unexpected, self.n_unexpected)} that no group owns: rows were put or cleared outside of "
            "a section of the barrier"
        )


def validate_replay_inventory(sample_ids: Iterable[str], replay_groups: Iterable[ReplayGroup]) -> None:
    """Compare the rows of the training partition with the index, groups of open train steps among them.

    Args:
        sample_ids: The rows in the data plane.
        replay_groups: The groups.

    Raises:
        InventoryError: If they differ.

    >>> validate_replay_inventory([], [])
    """
    held = set(sample_ids)
    named = {sample_id for group in replay_groups for sample_id in group.sample_ids}
    if held != named:
        missing, unexpected = sorted(named - held), sorted(held - named)
        raise InventoryError(tuple(missing[:_SHOWN]), len(missing), tuple(unexpected[:_SHOWN]), len(unexpected))


def _named(shown: tuple[str, ...], total: int) -> str:
    if not total:
        return "no rows"
    more = "" if total == len(shown) else ", ..."
    return f"{total} rows ({', '.join(shown)}{more})"
