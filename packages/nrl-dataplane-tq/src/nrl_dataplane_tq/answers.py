"""What the registry answers to clients."""

from dataclasses import dataclass
from typing import Any

from nrl_interfaces.data_plane import ClaimExplanation

from nrl_dataplane_tq.columns import Kind

__all__ = ["Begun", "Claimed", "Located", "Refusal", "Waits"]


@dataclass(frozen=True)
class Refusal:
    """An error, as an answer: an exception of an actor would come with the actor's traceback as its message."""

    error: Exception


@dataclass(frozen=True)
class Begun:
    """A put may go on.

    Attributes:
        number: What its end is called with; None if it is over, as it has no columns.
        rows: The rows, as TransferQueue names them.
        has_lengths: Whether all rows have ``input_lengths`` already.
    """

    number: int | None
    rows: Any
    has_lengths: bool


@dataclass(frozen=True)
class Located:
    """Where rows are.

    Attributes:
        engine_id: TransferQueue's partition.
        numbers: The rows' numbers in it.
        kinds: What the columns asked for are.
        clears: What `Registry.clears` said at that moment.
    """

    engine_id: str
    numbers: list[int]
    kinds: dict[str, Kind]
    clears: int


@dataclass(frozen=True)
class Claimed:
    """Rows that were claimed.

    Attributes:
        sample_ids: Their ids.
        tags: What TransferQueue holds as their tags.
        has_lengths: Whether all have ``input_lengths``.
    """

    sample_ids: list[str]
    tags: list[dict[str, Any]]
    has_lengths: bool


@dataclass(frozen=True)
class Waits:
    """A claim that would wait.

    Attributes:
        explanation: Why.
        version: The partition's version at which it looked.
    """

    explanation: ClaimExplanation
    version: int
