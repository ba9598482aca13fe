"""What is refused before anything changes, with errors that name it."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from nrl_interfaces.data_plane import Fields

from nrl_dataplane_local.claims import Wanted
from nrl_dataplane_local.columns import ColumnGroup, Found, Slots
from nrl_dataplane_local.config import is_count
from nrl_dataplane_local.partition import Partition

__all__ = [
    "check_declaration",
    "check_tags",
    "check_task",
    "check_there",
    "checked_claim",
    "checked_ids",
    "claimed_slots",
    "find_rows",
    "numbered_ids",
]


def check_declaration(
    partition_id: str,
    fields: list[str],
    num_samples: int,
    consumer_tasks: list[str],
    grpo_group_size: int | None,
    enums: Mapping[str, Sequence[str]] | None,
) -> None:
    """Refuse what can't be registered.

    Raises:
        ValueError: Names the argument.
    """
    _check_names("partition_id", [partition_id])
    _check_names("fields", fields)
    _check_names("consumer_tasks", consumer_tasks)
    if not is_count(num_samples):
        raise ValueError(f"num_samples is {num_samples!r}; allowed: an int from 1")
    if grpo_group_size is not None and (not is_count(grpo_group_size) or num_samples % grpo_group_size):
        raise ValueError(f"grpo_group_size is {grpo_group_size!r}; allowed: None, or a divisor of {num_samples}")
    for name, vocabulary in (enums or {}).items():
        _check_names("a field of enums", [name])
        _check_names(f"the vocabulary of field {name!r}", vocabulary)


def _check_names(what: str, names: Sequence[str]) -> None:
    if isinstance(names, str) or not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"{what} is {names!r}; allowed: strings, at least one, none of them empty")
    if len(set(names)) < len(names):
        raise ValueError(f"{what} has {_first_double(names)!r} twice; allowed: each once")


def _first_double(names: Sequence[str]) -> str:
    seen: set[str] = set()
    return next(name for name in names if name in seen or seen.add(name))


def checked_ids(sample_ids: Sequence[str]) -> list[str]:
    """Give the ids as a list of its own.

    Raises:
        ValueError: One is empty, no string, or there twice.
    """
    ids = list(sample_ids)
    _check_ids(sample_ids, ids, set(ids) if _are_strings(ids) else set())
    return ids


def numbered_ids(sample_ids: Sequence[str]) -> dict[str, int]:
    """Give the ids, each with its number; what `checked_ids` refuses is refused here, too.

    Raises:
        ValueError: As `checked_ids`.
    """
    ids = list(sample_ids)
    numbered = dict(zip(ids, range(len(ids)), strict=True)) if _are_strings(ids) else {}
    _check_ids(sample_ids, ids, numbered)
    return numbered


def _check_ids(given: Sequence[str], ids: list[str], distinct: Collection[str]) -> None:
    if len(distinct) == len(ids) and "" not in distinct and not isinstance(given, str):
        return
    wrong = [item for item in cast("list[Any]", ids) if not isinstance(item, str) or not item]
    if wrong or isinstance(given, str):
        raise ValueError(f"sample_ids has {(wrong or [given])[0]!r}; allowed: a list of strings, none of them empty")
    raise ValueError(f"sample id {_first_double(ids)!r} is there twice; allowed: each once")


def _are_strings(items: list[Any]) -> bool:
    try:
        "".join(items)  # several times as fast as a look at each type
    except TypeError:
        return False
    return True


def check_tags(sample_ids: Collection[str], fields: Fields | None, tags: Sequence[Any] | None) -> None:
    """Refuse tags that are no dicts or not one a row, and a put of nothing.

    Raises:
        ValueError: Says which.
    """
    if tags is None:
        if fields is None or not len(cast("Mapping[str, Any]", fields).keys()):  # a TensorDict's len is its batch size
            raise ValueError("the put has neither fields nor tags; allowed: one of them, or both")
        return
    if len(tags) != len(sample_ids):
        raise ValueError(f"there are {len(tags)} tags; allowed: {len(sample_ids)}, one a sample id")
    for sample_id, tag in zip(sample_ids, tags, strict=True):
        if not isinstance(tag, dict):
            raise ValueError(f"the tag of sample id {sample_id!r} is {tag!r}; allowed: a dict")


def check_task(partition: Partition, task_name: str) -> None:
    """Refuse a task that is not declared.

    Raises:
        KeyError: Names it.
    """
    if task_name not in partition.consumer_tasks:
        raise KeyError(
            f"task {task_name!r} is not declared in partition {partition.partition_id!r}; allowed: "
            f"{list(partition.consumer_tasks)}"
        )


def check_there(partition: Partition, sample_ids: Iterable[str]) -> None:
    """Refuse ids that have no row.

    Raises:
        KeyError: Names the first.
    """
    for sample_id in sample_ids:
        if sample_id not in partition.slots:
            raise KeyError(
                f"sample id {sample_id!r} is not in partition {partition.partition_id!r}, which has "
                f"{len(partition.slots)} rows; list_sample_ids gives their ids"
            )


def checked_claim(partition: Partition, task_name: str, required_fields: list[str], batch_size: int) -> Wanted:
    """Check what a claim asks for.

    Raises:
        KeyError: The task or a field is not declared.
        ValueError: No field, a ``batch_size`` below 1, or one that the group size does not divide.
    """
    check_task(partition, task_name)
    if isinstance(required_fields, str) or not required_fields:
        raise ValueError(f"required_fields is {required_fields!r}; allowed: some of {list(partition.fields)}")
    _check_fields(partition, required_fields)
    if not is_count(batch_size) or batch_size % partition.group:
        allowed = "an int from 1" if partition.group == 1 else f"a multiple of grpo_group_size, {partition.group}"
        raise ValueError(f"batch_size is {batch_size!r}; allowed: {allowed}")
    return Wanted(task_name, tuple(dict.fromkeys(required_fields)), batch_size)


def _check_fields(partition: Partition, fields: Sequence[str]) -> None:
    for name in fields:
        if name not in partition.fields:
            raise KeyError(
                f"field {name!r} is not declared in partition {partition.partition_id!r}; allowed: "
                f"{list(partition.fields)}"
            )


def find_rows(partition: Partition, sample_ids: Sequence[str], fields: Sequence[str]) -> dict[str, Found]:
    """Find the columns ``fields`` of rows.

    Raises:
        KeyError: An id or field is unknown, or a row lacks a field.
        ValueError: An id is there twice, or no field is named.
    """
    ids = checked_ids(sample_ids)
    if isinstance(fields, str) or not fields:
        raise ValueError(f"select_fields is {fields!r}; allowed: some of {list(partition.fields)}")
    _check_fields(partition, fields)
    try:
        slots = partition.slots_of(ids)
    except KeyError:
        check_there(partition, ids)
        raise
    found: dict[ColumnGroup, Found] = {}
    for name in fields:
        group = partition.columns.get(name)
        if group is None:
            raise KeyError(f"field {name!r} is not put yet for any row of partition {partition.partition_id!r}")
        if group not in found:
            places = group.places_of(slots)
            if places.min(initial=0) < 0:
                raise KeyError(f"field {name!r} is not put yet for sample id {ids[int(places.argmin())]!r}")
            found[group] = group.find(places)
    return {name: found[partition.columns[name]] for name in fields}


def claimed_slots(partition: Partition, sample_ids: Sequence[str], task_name: str) -> Slots:
    """Give the slots of rows that a task has claimed.

    Raises:
        KeyError: The task is not declared.
        ValueError: An id is not claimed by it, or there twice, or a group is not whole.
    """
    check_task(partition, task_name)
    ids = checked_ids(sample_ids)
    claimed = partition.claimed[task_name].view
    for sample_id in ids:
        slot = partition.slots.get(sample_id)
        if slot is None or not claimed[slot]:
            raise ValueError(
                f"sample id {sample_id!r} is not claimed by task {task_name!r} in partition "
                f"{partition.partition_id!r}; allowed: ids that it has claimed"
            )
    slots = partition.slots_of(ids)
    groups = set((slots // partition.group).tolist())
    rows = sum(int(partition.live.view[at * partition.group : (at + 1) * partition.group].sum()) for at in groups)
    if rows != len(ids):
        raise ValueError(
            f"{len(ids)} sample ids are of groups that have {rows} rows; allowed: whole groups of "
            f"{partition.group} (what is left of them)"
        )
    return slots
