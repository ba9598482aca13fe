"""The sampler by which the registry moves TransferQueue's cursors: it takes and gives back the rows it is told."""

from typing import Any

from transfer_queue.sampler import BaseSampler  # pyright: ignore[reportMissingTypeStubs]

__all__ = ["GIVE_BACK", "TAKE", "ChosenRowsSampler"]

TAKE = "nrl_take"
GIVE_BACK = "nrl_give_back"


class ChosenRowsSampler(BaseSampler):
    """Takes chosen rows; leaves every other request to the sampler that the queue was started with.

    TransferQueue's cursors are moved by its samplers alone. Its own take rows in the order of numbers that are used
    again, know no order of puts, and reset a task as a whole; a sampler is the way in that it offers to others.

    Args:
        inner: The queue's own sampler.
    """

    def __init__(self, inner: BaseSampler) -> None:
        super().__init__()
        self._inner: Any = inner  # it is typed in part only

    def sample(self, ready_indexes: list[int], batch_size: int, **config: Any) -> tuple[list[int], list[int]]:
        """Give the rows of a request, and those of them that count as consumed from now on."""
        if TAKE in config:
            return config[TAKE], config[TAKE]
        if GIVE_BACK in config:
            indexes, task = config[GIVE_BACK]
            config["partition"].consumption_status[task][indexes] = 0
            return indexes, []
        return self._inner(ready_indexes, batch_size, **config)

    def has_cached_result(
        self, partition_id: str, task_name: str, sampling_config: dict[str, Any] | None = None
    ) -> bool:
        """Ask the queue's own sampler."""
        return self._inner.has_cached_result(partition_id, task_name, sampling_config)

    def clear_cache(self, partition_id: str) -> None:
        """Tell the queue's own sampler."""
        self._inner.clear_cache(partition_id)

    def save_checkpoint(self) -> dict[str, Any]:
        """Save the queue's own sampler."""
        return self._inner.save_checkpoint()

    def load_checkpoint(self, state: dict[str, Any]) -> None:
        """Load the queue's own sampler."""
        self._inner.load_checkpoint(state)
