"""TransferQueueDataPlaneConfig: which queue, which plane in it, and how that works."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Self

__all__ = ["TransferQueueDataPlaneConfig"]


@dataclass(frozen=True)
class TransferQueueDataPlaneConfig:
    """How a `TransferQueueDataPlaneClient` works.

    Attributes:
        max_partitions: How many partitions the plane may hold at once.
        partition_mode: "batch": the first put of a partition holds all of its rows. "stream": rows come and go, and
            ``num_samples`` of the registration is the capacity.
        owner: Whose checkpoints these are; a checkpoint of another owner is refused.
        plane: The name of the plane. Clients of one queue and one name share partitions, whatever process they are in,
            and have to agree in ``max_partitions`` and ``partition_mode``; planes of other names share nothing.
        controller_name: The Ray name of the queue's controller, the one that ``transfer_queue.init`` gives.
        ray_namespace: The Ray namespace of that name.

    Raises:
        ValueError: If a value is not allowed.
    """

    max_partitions: int = 2
    partition_mode: Literal["batch", "stream"] = "batch"
    owner: str | None = None
    plane: str = "default"
    controller_name: str = "TransferQueueController"
    ray_namespace: str = "transfer_queue"

    def __post_init__(self) -> None:
        count = self.max_partitions
        is_count = isinstance(count, int) and not isinstance(count, bool) and count >= 1
        _check("max_partitions", count, "an int from 1", is_count)
        _check("partition_mode", self.partition_mode, "'batch' or 'stream'", self.partition_mode in ("batch", "stream"))
        _check("owner", self.owner, "a string or None", self.owner is None or isinstance(self.owner, str))
        for name in ("plane", "controller_name", "ray_namespace"):
            value: object = getattr(self, name)
            _check(name, value, "a string that is not empty", isinstance(value, str) and bool(value))

    @classmethod
    def from_mapping(cls, config: Mapping[str, Any]) -> Self:
        """Make a config from plain data.

        Raises:
            ValueError: If a key is not known (names the nearest one), or a value is not allowed.

        >>> TransferQueueDataPlaneConfig.from_mapping({"planes": "rollouts"})
        Traceback (most recent call last):
        ValueError: the config has the key 'planes'; did you mean 'plane'? allowed: max_partitions, partition_mode, \
owner, plane, controller_name, ray_namespace
        """
        known = [field.name for field in fields(cls)]
        for key in config:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise ValueError(f"the config has the key {key!r}; {hint}allowed: {', '.join(known)}")
        return cls(**config)


def _check(name: str, value: object, allowed: str, holds: bool) -> None:  # noqa: FBT001
    if not holds:
        raise ValueError(f"{name} is {value!r}; allowed: {allowed}")
