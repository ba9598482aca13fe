"""Errors of data planes, each a subclass of what a caller would catch."""

from pathlib import Path

__all__ = ["CheckpointDamagedError", "StaleMetaError", "UnsupportedByAdapterError"]


class StaleMetaError(ValueError, KeyError):
    """Raised when a meta is of an earlier registration of its partition, or the partition is gone.

    Attributes:
        partition_id: The partition.
        meta_generation: The generation in the meta, None if it has none.
        current_generation: The partition's generation now, None when it is gone.
    """

    def __init__(self, partition_id: str, meta_generation: int | None, current_generation: int | None) -> None:
        super().__init__(partition_id, meta_generation, current_generation)
        self.partition_id = partition_id
        self.meta_generation = meta_generation
        self.current_generation = current_generation

    def __str__(self) -> str:
        now = "is gone" if self.current_generation is None else f"is at generation {self.current_generation}"
        return (
            f"the meta is stale: it is of generation {self.meta_generation} of partition {self.partition_id!r}, which "
            f"{now}; claim or put again for a new meta"
        )


class CheckpointDamagedError(ValueError):
    """Raised when a data plane's checkpoint can't be loaded: damaged, truncated, foreign, or of a newer format.

    Attributes:
        path: The file.
        record: The part of the file that is wrong; None if that is the whole of it.
        problem: What is wrong with it.
    """

    def __init__(self, path: Path, record: str | None, problem: str) -> None:
        super().__init__(path, record, problem)
        self.path, self.record, self.problem = path, record, problem

    def __str__(self) -> str:
        where = str(self.path) if self.record is None else f"{self.path}, record {self.record}"
        return f"{where}: {self.problem}; nothing was loaded: take another checkpoint, or save this one again"


class UnsupportedByAdapterError(NotImplementedError):
    """Raised by an adapter for an ability that the contract lets it leave out.

    Attributes:
        adapter: The adapter's class.
        ability: What was asked for.
    """

    def __init__(self, adapter: str, ability: str) -> None:
        super().__init__(adapter, ability)
        self.adapter, self.ability = adapter, ability

    def __str__(self) -> str:
        return f"{self.adapter} has no {self.ability}; allowed: an adapter that has it, such as nrl-dataplane-local"
