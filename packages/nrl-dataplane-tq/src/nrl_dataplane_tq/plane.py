"""A plane: the partitions that its clients share."""

from dataclasses import dataclass, field

from nrl_interfaces.data_plane import StaleMetaError

from nrl_dataplane_tq.partition import Partition

__all__ = ["Plane"]


@dataclass
class Plane:
    """The partitions of the clients that name the same plane.

    Attributes:
        mode: Their ``partition_mode``.
        limit: Their ``max_partitions``.
        partitions: By id.
        is_used: Whether anything was ever registered or loaded.
    """

    mode: str
    limit: int
    partitions: dict[str, Partition] = field(default_factory=dict[str, Partition])
    is_used: bool = False

    def current(self, partition_id: str, generation: int | None = None) -> Partition:
        """Give a partition.

        Raises:
            KeyError: It is not registered.
            StaleMetaError: A generation is asked for that is not the current one.
        """
        partition = self.partitions.get(partition_id)
        if generation is not None and (partition is None or partition.declaration.generation != generation):
            raise StaleMetaError(partition_id, generation, partition and partition.declaration.generation)
        if partition is None:
            raise KeyError(f"partition {partition_id!r} is not registered; registered: {sorted(self.partitions)}")
        return partition
