"""The config of rollout checkpoints."""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self

from nrl_rollout_ckpt.state.ledger_states import RecoveryGranularity, RecoveryTargetLevel

__all__ = ["RolloutCheckpointConfig", "check_excluded_paths"]


@dataclass(frozen=True)
class RolloutCheckpointConfig:
    """When snapshots are taken, how many are kept, and what a restart goes on with.

    Attributes:
        snapshot_attempt_interval_s: Seconds between attempts; None is off: no snapshot is taken or restored. The
            rollout state in the trainer's own checkpoints is saved and restored all the same.
        max_consecutive_failures: After so many failed attempts the run stops; attempts that were skipped don't count.
        keep_latest_k: Snapshots that are kept, of those under one anchor.
        max_disk_bytes: How much all snapshots together may take; None is no limit.
        restore_mode: "latest": the newest snapshot of the newest trainer checkpoint. "trainer_checkpoint": the rollout
            state of the trainer checkpoint itself. "fresh": nothing; snapshots from before the first one
            are left alone, and a folder with trainer checkpoints is refused.
        restore_buffer: Whether complete groups are restored; False generates them anew.
        deadline_grace_s: How long the last snapshot waits for the trainer's own last checkpoint.
        extra_fingerprint_excluded_paths: Dotpaths of the run's config that may differ in a restart before step 1.
        default_granularity: What is kept of a group that was not complete.
        granularity_by_task_source: The same for single task sources.
        target_level: Where a restart goes on within a group.

    Raises:
        ValueError: If a value is not allowed.
    """

    snapshot_attempt_interval_s: float | None = 300.0
    max_consecutive_failures: int = 3
    keep_latest_k: int = 2
    max_disk_bytes: int | None = None
    restore_mode: Literal["latest", "trainer_checkpoint", "fresh"] = "latest"
    restore_buffer: bool = True
    deadline_grace_s: float = 120.0
    extra_fingerprint_excluded_paths: tuple[str, ...] = ()
    default_granularity: RecoveryGranularity = RecoveryGranularity.SIBLING
    granularity_by_task_source: Mapping[str, RecoveryGranularity] = field(
        default_factory=dict[str, RecoveryGranularity]
    )
    target_level: RecoveryTargetLevel = RecoveryTargetLevel.SIBLING

    def __post_init__(self) -> None:
        interval = self.snapshot_attempt_interval_s
        _check(
            "snapshot_attempt_interval_s", interval, "seconds above 0, or None", interval is None or _is_span(interval)
        )
        _check(
            "max_consecutive_failures",
            self.max_consecutive_failures,
            "an int from 1",
            _is_count(self.max_consecutive_failures),
        )
        _check("keep_latest_k", self.keep_latest_k, "an int from 1", _is_count(self.keep_latest_k))
        budget = self.max_disk_bytes
        _check("max_disk_bytes", budget, "an int from 1, or None", budget is None or _is_count(budget))
        modes = ("latest", "trainer_checkpoint", "fresh")
        _check(
            "restore_mode", self.restore_mode, "'latest', 'trainer_checkpoint' or 'fresh'", self.restore_mode in modes
        )
        _check("restore_buffer", self.restore_buffer, "True or False", isinstance(self.restore_buffer, bool))
        grace = self.deadline_grace_s
        _check("deadline_grace_s", grace, "seconds from 0", _is_span(grace) or grace == 0)
        check_excluded_paths(self.extra_fingerprint_excluded_paths)
        object.__setattr__(self, "extra_fingerprint_excluded_paths", tuple(self.extra_fingerprint_excluded_paths))
        object.__setattr__(self, "default_granularity", RecoveryGranularity(self.default_granularity))
        by_source = {source: RecoveryGranularity(value) for source, value in self.granularity_by_task_source.items()}
        object.__setattr__(self, "granularity_by_task_source", by_source)
        object.__setattr__(self, "target_level", RecoveryTargetLevel(self.target_level))

    @classmethod
    def from_mapping(cls, config: Mapping[str, Any]) -> Self:
        """Make a config from plain data.

        Raises:
            ValueError: If a key is not known (names the nearest one), or a value is not allowed.

        >>> RolloutCheckpointConfig.from_mapping({"keep_latest": 2})
        Traceback (most recent call last):
        ValueError: the config has the key 'keep_latest'; did you mean 'keep_latest_k'?
        """
        known = [field.name for field in fields(cls)]
        for key in config:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(known)}"
                raise ValueError(f"the config has the key {key!r}; {hint}")
        return cls(**config)

    def granularity_of(self, task_source: str | None) -> RecoveryGranularity:
        """What is kept of an incomplete group of this task source."""
        return self.granularity_by_task_source.get(task_source or "", self.default_granularity)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_span(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def check_excluded_paths(paths: Sequence[str]) -> None:
    """Refuse dotpaths that name nothing, or everything.

    Raises:
        ValueError: They are one string; or one is empty, padded with blanks, has an empty segment, or is a bare
            ``*`` or ``**``.
    """
    name, allowed = "extra_fingerprint_excluded_paths", "dotpaths such as 'logger.**', not a bare * or **"
    _check(name, paths, f"a list of {allowed}", not isinstance(paths, str))
    for path in paths:
        segments = path.split(".") if isinstance(path, str) else []
        bare = path in ("*", "**")
        holds = bool(segments) and all(segments) and path == path.strip() and not bare
        _check(name, path, allowed, holds)


def _check(name: str, value: object, allowed: str, holds: bool) -> None:  # noqa: FBT001
    if not holds:
        raise ValueError(f"{name} is {value!r}; allowed: {allowed}")
