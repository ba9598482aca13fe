"""KVBatchMeta: which rows of a data plane a batch is made of, without the rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nrl_interfaces.packed import RowIndices, row_indices
from nrl_interfaces.values import copied

__all__ = ["KVBatchMeta"]

_GENERATION_SUFFIX = "partition_generation"


def _no_info() -> dict[str, Any]:
    return {}


@dataclass
class KVBatchMeta:
    """The rows of a batch by their ids; what a data plane hands out in place of the rows.

    Every method is pure: it gives a new meta whose lists, dicts and tags are its own.

    Attributes:
        partition_id: The partition that holds the rows.
        task_name: The consumer task that the rows were claimed for; None where no task was.
        sample_ids: B ids.
        fields: The fields that a read of this meta takes; None where none are named.
        sequence_lengths: B ints, from the column ``input_lengths``; None where there is no such column.
        extra_info: More about the batch. The adapter's generation number is here, under a key that ends in
            ``partition_generation``, and ``dp_rank`` where a claim gave one.
        tags: B dicts; None where no row has one.

    Raises:
        ValueError: If ``sequence_lengths`` or ``tags`` have another length than ``sample_ids``.

    >>> meta = KVBatchMeta("p", "train", ["a", "b", "c"], tags=[{"n": 1}, {"n": 2}, {"n": 3}])
    >>> meta.subset([2, 0]).sample_ids, meta.drop(["b"]).tags
    (['c', 'a'], [{'n': 1}, {'n': 3}])
    """

    partition_id: str
    task_name: str | None
    sample_ids: list[str]
    fields: list[str] | None = None
    sequence_lengths: list[int] | None = None
    extra_info: dict[str, Any] = field(default_factory=_no_info)
    tags: list[dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        for name, column in (("sequence_lengths", self.sequence_lengths), ("tags", self.tags)):
            if column is not None and len(column) != len(self.sample_ids):
                raise ValueError(f"{name} has {len(column)} items; allowed: {len(self.sample_ids)}, one a sample id")

    @property
    def size(self) -> int:
        """How many rows."""
        return len(self.sample_ids)

    @property
    def generation(self) -> int | None:
        """The number of the registration that the rows belong to; None if the meta has none."""
        found = (value for key, value in self.extra_info.items() if key.endswith(_GENERATION_SUFFIX))
        return next(found, None)

    def subset(self, indices: RowIndices) -> "KVBatchMeta":
        """Give the rows at ``indices``, in their order.

        Raises:
            IndexError, TypeError, ValueError: As `nrl_interfaces.packed.row_indices`.
        """
        chosen = row_indices(indices, self.size)
        return replace(
            self,
            sample_ids=[self.sample_ids[at] for at in chosen],
            fields=None if self.fields is None else list(self.fields),
            sequence_lengths=None if self.sequence_lengths is None else [self.sequence_lengths[at] for at in chosen],
            extra_info=copied(self.extra_info),
            tags=None if self.tags is None else [copied(self.tags[at]) for at in chosen],
        )

    def slice(self, start: int, stop: int) -> "KVBatchMeta":
        """Give the rows from ``start`` up to ``stop``, bounds as in a list."""
        return self.subset(slice(start, stop))

    def drop(self, sample_ids: Iterable[str]) -> "KVBatchMeta":
        """Give the rows that are not among ``sample_ids``.

        Raises:
            KeyError: If the meta lacks one of them; names it.
        """
        gone = set(sample_ids)
        if missing := gone - set(self.sample_ids):
            raise KeyError(f"sample id {min(missing)!r} is not in this meta of {self.size} rows")
        return self.subset([at for at, sample_id in enumerate(self.sample_ids) if sample_id not in gone])

    def concat(self, *others: "KVBatchMeta") -> "KVBatchMeta":
        """Give the rows of this meta and then those of ``others``.

        What they do not agree in is left out: the task, entries of ``extra_info``, fields that not all of them name.
        Sequence lengths are kept where all have them; where some have tags, the rows of the others get empty ones.

        Raises:
            ValueError: If they are of two partitions, or of two generations of one.
        """
        metas = [self, *others]
        for other in others:
            ours, theirs = (self.partition_id, self.generation), (other.partition_id, other.generation)
            if ours != theirs:
                raise ValueError(
                    f"a meta of partition {theirs[0]!r}, generation {theirs[1]}, can't join one of partition "
                    f"{ours[0]!r}, generation {ours[1]}; allowed: the same partition and generation"
                )
        tagged = any(meta.tags is not None for meta in metas)
        info = {key: value for key, value in self.extra_info.items() if _all_have(metas, key, value)}
        lengths = [meta.sequence_lengths for meta in metas]
        return KVBatchMeta(
            partition_id=self.partition_id,
            task_name=self.task_name if all(meta.task_name == self.task_name for meta in metas) else None,
            sample_ids=[sample_id for meta in metas for sample_id in meta.sample_ids],
            fields=_common_fields(metas),
            sequence_lengths=None if None in lengths else [length for part in lengths for length in part or ()],
            extra_info=copied(info),
            tags=[tag for meta in metas for tag in _tags_of(meta)] if tagged else None,
        )

    def with_fields(self, fields: Sequence[str]) -> "KVBatchMeta":
        """Give the same rows with ``fields`` as what a read takes."""
        return replace(self.subset(slice(None)), fields=list(fields))

    def stamp_tags(self, tags: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> "KVBatchMeta":
        """Give the same rows with more in their tags; a key that is there already gets the new value.

        Args:
            tags: One mapping for all rows, or B of them, one a row.

        Raises:
            ValueError: If there are as many mappings as there are not rows.
        """
        more = [tags] * self.size if isinstance(tags, Mapping) else list(tags)
        if len(more) != self.size:
            raise ValueError(f"there are {len(more)} tags to stamp; allowed: one for all, or {self.size}, one a row")
        stamped = [{**old, **copied(dict(new))} for old, new in zip(_tags_of(self), more, strict=True)]
        return replace(self.subset(slice(None)), tags=stamped)


def _tags_of(meta: KVBatchMeta) -> list[dict[str, Any]]:
    """Its tags, the receiver's own; empty ones where it has none."""
    return [copied(tag) for tag in meta.tags] if meta.tags is not None else [{} for _ in meta.sample_ids]


def _all_have(metas: Sequence[KVBatchMeta], key: str, value: object) -> bool:
    return all(key in meta.extra_info and meta.extra_info[key] == value for meta in metas)


def _common_fields(metas: Sequence[KVBatchMeta]) -> list[str] | None:
    named = [meta.fields for meta in metas]
    if None in named:
        return None
    return [name for name in named[0] or () if all(name in (fields or ()) for fields in named)]
