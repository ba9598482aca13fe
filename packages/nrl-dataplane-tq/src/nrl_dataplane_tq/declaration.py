"""What was declared of a partition, and the checks that need nothing but that."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Declaration", "checked_ids", "checked_tags", "checked_timeout"]


@dataclass(frozen=True)
class Declaration:
    """A registration. The registry holds it, and clients keep copies: it never changes.

    Attributes:
        partition_id: The partition's id.
        fields: Every field that may be put.
        num_samples: The rows of the batch, or the capacity of the stream.
        tasks: The consumer tasks.
        group: Rows come and go to claims in groups of so many.
        enums: The vocabulary of fields that hold strings.
        is_stream: Whether rows come and go.
        generation: Its number.
        engine_id: The id of its partition in TransferQueue, which no other registration has.
    """

    partition_id: str
    fields: tuple[str, ...]
    num_samples: int
    tasks: tuple[str, ...]
    group: int
    enums: Mapping[str, tuple[str, ...]]
    is_stream: bool = False
    generation: int = 0
    engine_id: str = ""

    @classmethod
    def checked(
        cls,
        partition_id: str,
        fields: Sequence[str],
        num_samples: int,
        tasks: Sequence[str],
        group: int | None,
        enums: Mapping[str, Sequence[str]] | None,
    ) -> "Declaration":
        """Make a declaration that is not registered yet.

        Raises:
            ValueError: Names the argument that is not allowed.
        """
        _check_names("partition_id", [partition_id])
        _check_names("fields", fields)
        _check_names("consumer_tasks", tasks)
        if not _is_count(num_samples):
            raise ValueError(f"num_samples is {num_samples!r}; allowed: an int from 1")
        if group is not None and (not _is_count(group) or num_samples % group):
            raise ValueError(f"grpo_group_size is {group!r}; allowed: None, or a divisor of {num_samples}")
        for name, vocabulary in (enums or {}).items():
            _check_names("a field of enums", [name])
            _check_names(f"the vocabulary of field {name!r}", vocabulary)
        words = {name: tuple(vocabulary) for name, vocabulary in (enums or {}).items()}
        return cls(partition_id, tuple(fields), num_samples, tuple(tasks), group or 1, words)

    def check_fields(self, fields: Sequence[str]) -> None:
        """Refuse names that are not declared.

        Raises:
            KeyError: Names the first.
        """
        for name in fields:
            if name not in self.fields:
                raise KeyError(
                    f"field {name!r} is not declared in partition {self.partition_id!r}; allowed: {list(self.fields)}"
                )

    def check_tasks(self, tasks: Sequence[str]) -> None:
        """Refuse tasks that are not declared, and a call that names none.

        Raises:
            KeyError: Names the first.
            ValueError: No task is named.
        """
        if isinstance(tasks, str) or not tasks:
            raise ValueError(f"the tasks are {tasks!r}; allowed: some of {list(self.tasks)}")
        for task in tasks:
            if task not in self.tasks:
                raise KeyError(
                    f"task {task!r} is not declared in partition {self.partition_id!r}; allowed: {list(self.tasks)}"
                )

    def check_claim(self, task: str, fields: Sequence[str], batch_size: int) -> None:
        """Refuse what can't be claimed.

        Raises:
            KeyError: The task or a field is not declared.
            ValueError: No field, a ``batch_size`` below 1, or one that the group size does not divide.
        """
        self.check_tasks([task])
        if isinstance(fields, str) or not fields:
            raise ValueError(f"required_fields is {fields!r}; allowed: some of {list(self.fields)}")
        self.check_fields(fields)
        if not _is_count(batch_size) or batch_size % self.group:
            allowed = "an int from 1" if self.group == 1 else f"a multiple of grpo_group_size, {self.group}"
            raise ValueError(f"batch_size is {batch_size!r}; allowed: {allowed}")

    def check_columns(self, columns: Mapping[str, Any]) -> None:
        """Refuse columns that are not declared, and words that are not in a vocabulary.

        Raises:
            ValueError: Names the field, and the word.
        """
        for name, column in columns.items():
            if name not in self.fields:
                raise ValueError(
                    f"field {name!r} is not declared in partition {self.partition_id!r}; allowed: {list(self.fields)}"
                )
            if name in self.enums and isinstance(column, list | tuple | np.ndarray):
                for item in np.asarray(column, dtype=object).reshape(-1).tolist():
                    if isinstance(item, str) and item not in self.enums[name]:
                        raise ValueError(f"field {name!r} has {item!r}; allowed: {list(self.enums[name])}")


def checked_ids(sample_ids: Sequence[str]) -> list[str]:
    """Give the ids as a list of its own.

    Raises:
        ValueError: One is empty, no string, or there twice; names it.
    """
    if isinstance(sample_ids, str):
        raise ValueError(f"sample_ids is {sample_ids!r}; allowed: a list of strings")
    _check_each("sample id", sample_ids)
    return list(sample_ids)


def checked_tags(tags: Sequence[Any], sample_ids: Sequence[str]) -> list[dict[str, Any]]:
    """Give the tags as they are.

    Raises:
        ValueError: There is not one dict a row.
    """
    if len(tags) != len(sample_ids):
        raise ValueError(f"there are {len(tags)} tags; allowed: {len(sample_ids)}, one a sample id")
    for sample_id, tag in zip(sample_ids, tags, strict=True):
        if not isinstance(tag, dict):
            raise ValueError(f"the tag of sample id {sample_id!r} is {tag!r}; allowed: a dict")
    return list(tags)


def checked_timeout(timeout_s: float) -> float:
    """Give the time limit.

    Raises:
        ValueError: It is negative or NaN.
    """
    if not timeout_s >= 0:
        raise ValueError(f"timeout_s is {timeout_s}; allowed: 0 or more seconds")
    return timeout_s


def _check_names(what: str, names: Sequence[str]) -> None:
    if isinstance(names, str) or not names:
        raise ValueError(f"{what} is {names!r}; allowed: a list of strings, at least one")
    _check_each(what, names)


def _check_each(what: str, names: Sequence[Any]) -> None:
    seen: set[str] = set()
    for name in names:
        if not isinstance(name, str) or not name:
            raise ValueError(f"{what} {name!r}; allowed: a string that is not empty")
        if name in seen:
            raise ValueError(f"{what} {name!r} is there twice; allowed: each once")
        seen.add(name)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
