"""Which part of a dataset each data-parallel replica reads."""
# build uses the name with an underscore.
# pyright: reportUnusedFunction=false

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from nrl_interfaces.identity import fingerprint

from nrl_energon_loader.config import EnergonLoaderConfig
from nrl_energon_loader.registry import Registry

__all__ = ["TOPOLOGY_MAPPERS", "DataLoaderPlacementPlan", "common_batches", "plan_placement"]


@dataclass(frozen=True)
class DataLoaderPlacementPlan:
    """Data-parallel replicas and the logical shards that they read.

    Attributes:
        shards: For each replica the shard that it reads. Several replicas may read the same one; all shards from 0 to
            the highest are read.

    >>> plan = DataLoaderPlacementPlan((0, 1, 0, 1))
    >>> plan.logical_world_size, plan.logical_rank(3)
    (2, 1)
    """

    shards: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.shards or sorted(set(self.shards)) != list(range(max(self.shards) + 1)):
            raise ValueError(
                f"the shards of the replicas are {self.shards}; allowed: all of 0 to the highest, each read"
            )

    @property
    def logical_world_size(self) -> int:
        """The number of shards."""
        return max(self.shards) + 1

    def logical_rank(self, replica: int) -> int:
        """The shard that a replica reads.

        Raises:
            ValueError: If there is no such replica.
        """
        if not 0 <= replica < len(self.shards):
            raise ValueError(f"replica {replica} is not in the plan; allowed: 0 to {len(self.shards) - 1}")
        return self.shards[replica]

    @property
    def fingerprint(self) -> str:
        """The placement hash, 64 hex digits: `placement_fingerprint` of `build_energon_sft_loader`."""
        return fingerprint({"shards": list(self.shards)})


def one_shard_each(replicas: int) -> DataLoaderPlacementPlan:
    """Give each replica a shard of its own: the mapper ``default``."""
    return DataLoaderPlacementPlan(tuple(range(replicas)))


TOPOLOGY_MAPPERS = Registry("topology mapper", {"default": "nrl_energon_loader.topology:one_shard_each"})
"""Functions of the number of data-parallel replicas that give a `DataLoaderPlacementPlan`."""


def plan_placement(replicas: int, topology_mapper: str = "default") -> DataLoaderPlacementPlan:
    """Say which shard each of `replicas` data-parallel replicas reads.

    Args:
        replicas: How many there are, 1 or more.
        topology_mapper: A key of `TOPOLOGY_MAPPERS`, or ``/absolute/path/file.py:name``.

    Raises:
        ValueError: If the mapper is not known, or gives another number of replicas.

    >>> plan_placement(4).shards
    (0, 1, 2, 3)
    """
    if replicas < 1:
        raise ValueError(f"replicas is {replicas}; allowed: 1 or more")
    plan: DataLoaderPlacementPlan = TOPOLOGY_MAPPERS.resolve(topology_mapper).obj(replicas)
    if len(plan.shards) != replicas:
        raise ValueError(f"topology mapper {topology_mapper!r} placed {len(plan.shards)} replicas; allowed: {replicas}")
    return plan


def common_batches(lengths: Iterable[int]) -> int:
    """Give the number of batches that every rank has, so that none waits for one that is through.

    Args:
        lengths: `len(loader)` of every rank, gathered by whatever the trainer has.

    Raises:
        ValueError: If there is no rank.

    >>> common_batches([3, 2, 3, 2])
    2
    """
    numbers = list(lengths)
    if not numbers:
        raise ValueError("lengths has no rank; allowed: the number of batches of 1 rank or more")
    return min(numbers)


def _v2_topology(
    *, loader_config: EnergonLoaderConfig, placement_fingerprint: str, logical_rank: int, logical_world_size: int
) -> dict[str, Any]:
    """Describe the shard that a state belongs to; so one shard refuses another one's state."""
    return {
        "mapper": TOPOLOGY_MAPPERS.resolve(loader_config.topology_mapper).identity,
        "placement_fingerprint": placement_fingerprint,
        "logical_rank": logical_rank,
        "logical_world_size": logical_world_size,
    }
