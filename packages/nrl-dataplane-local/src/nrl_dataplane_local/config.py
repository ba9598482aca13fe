"""The config of the process-local data plane."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Self

__all__ = ["LocalDataPlaneConfig", "is_count"]


@dataclass(frozen=True)
class LocalDataPlaneConfig:
    """How a `LocalDataPlaneClient` works.

    Attributes:
        max_partitions: How many partitions may be registered at once.
        partition_mode: "batch": the first put of a partition holds all of its rows. "stream": rows come and go, and
            ``num_samples`` of the registration is the capacity.
        zero_copy: Keep and hand out values without copies. For loops that promise to write into no value that was put
            or read as long as its rows, results and views are in use: whoever writes all the same changes them all.
        owner: Whose checkpoints these are, such as "rank0"; a checkpoint of another owner is refused.
        safe_globals: Classes, besides builtin ones, tensors and arrays, whose objects may be in a checkpoint.

    Raises:
        ValueError: If a value is not allowed.
    """

    max_partitions: int = 2
    partition_mode: Literal["batch", "stream"] = "batch"
    zero_copy: bool = False
    owner: str | None = None
    safe_globals: tuple[type, ...] = ()

    def __post_init__(self) -> None:
        _check("max_partitions", self.max_partitions, "an int from 1", is_count(self.max_partitions))
        _check("partition_mode", self.partition_mode, "'batch' or 'stream'", self.partition_mode in ("batch", "stream"))
        _check("zero_copy", self.zero_copy, "True or False", isinstance(self.zero_copy, bool))
        _check("owner", self.owner, "a string or None", self.owner is None or isinstance(self.owner, str))
        classes = isinstance(self.safe_globals, tuple) and all(isinstance(item, type) for item in self.safe_globals)
        _check("safe_globals", self.safe_globals, "a tuple of classes", classes)

    @classmethod
    def from_mapping(cls, config: Mapping[str, Any]) -> Self:
        """Make a config from plain data.

        Raises:
            ValueError: If a key is not known (names the nearest one), or a value is not allowed.

        >>> LocalDataPlaneConfig.from_mapping({"max_partition": 4})
        Traceback (most recent call last):
        ValueError: the config has the key 'max_partition'; did you mean 'max_partitions'? allowed: max_partitions, \
partition_mode, zero_copy, owner, safe_globals
        """
        known = [field.name for field in fields(cls)]
        for key in config:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise ValueError(f"the config has the key {key!r}; {hint}allowed: {', '.join(known)}")
        values: dict[str, Any] = {**config, "safe_globals": tuple(config.get("safe_globals", ()))}
        return cls(**values)


def is_count(value: object) -> bool:
    """Tell whether a value is an int from 1 (a bool is none)."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _check(name: str, value: object, allowed: str, holds: bool) -> None:  # noqa: FBT001
    if not holds:
        raise ValueError(f"{name} is {value!r}; allowed: {allowed}")
