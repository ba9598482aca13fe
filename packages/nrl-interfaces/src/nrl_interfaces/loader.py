"""What a trainer holds of an SFT data loader: batches, their number, and a state that can be saved and loaded."""

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from nrl_interfaces.batch import BatchedDataDict

__all__ = ["SFTDataLoader"]


@runtime_checkable
class SFTDataLoader(Protocol):
    """Gives the batches of one data shard, epoch by epoch, from wherever a saved state says.

    >>> class TwoBatches:
    ...     def __iter__(self): yield from (BatchedDataDict(x=[1]), BatchedDataDict(x=[2]))
    ...     def __len__(self): return 2
    ...     def state_dict(self): return {}
    ...     def load_state_dict(self, state): ...
    >>> isinstance(TwoBatches(), SFTDataLoader)
    True
    """

    def __iter__(self) -> Iterator[BatchedDataDict[Any]]:
        """Give the batches of one epoch, or of the rest of it after a load."""
        ...

    def __len__(self) -> int:
        """The number of batches of an epoch on this rank.

        Raises:
            TypeError: If it can't be known.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Give the position behind the last batch as plain data and tensors, at any time; moves nothing."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a state was saved; before the first batch only.

        Raises:
            ValueError: If the state is damaged or belongs to another stream; the loader is then at its start.
        """
        ...
