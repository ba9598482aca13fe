"""What stands in for a trainer checkpoint before the first one: the run's config, without what may differ."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, cast

from nrl_interfaces.fileops import FileOps
from nrl_interfaces.identity import REDACTED, differences, fingerprint, redact
from nrl_interfaces.publish import make_folder, publish

from nrl_rollout_ckpt.config import check_excluded_paths
from nrl_rollout_ckpt.disk.layout import BOOTSTRAP
from nrl_rollout_ckpt.disk.manifest import MANIFEST, refuse_newer_format

__all__ = [
    "BUILT_IN_EXCLUSIONS",
    "BootstrapAnchor",
    "BootstrapCompatibilityIdentity",
    "BootstrapMismatchError",
    "check_bootstrap_anchor",
    "ensure_bootstrap_anchor",
    "read_bootstrap_anchor",
]

FORMAT: Final = 1
_MAX_SHOWN: Final = 20

BUILT_IN_EXCLUSIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "how it is saved": ("checkpointing", "rollout_checkpointing"),
    "machines": (
        "cluster",
        "**.num_nodes",
        "**.gpus_per_node",
        "**.num_workers",
        "**.*_num_workers",
        "**.num_*_workers",
    ),
    "addresses": ("router", "**.generation.router", "**.port", "**.ports", "**.*_port", "**.*_ports"),
    "watching": ("logger", "diagnostics", "**.watchdog", "**.watchdogs", "**.*_watchdog", "**.fleet_health"),
    "folders": ("**.log_dir", "**.results_dir", "**.cache_dir", "**.*_log_dir", "**.*_results_dir", "**.*_cache_dir"),
    "captures": ("**.capture_dir", "**.*_capture_dir"),
    "validation": ("**.validation", "**.val_*", "**.max_val_samples"),
    "the optimizer, which has not made a step": ("**.optimizer", "**.scheduler", "**.lr_scheduler"),
}
"""Dotpaths that may differ in a restart before the first step, by kind. Everything else may not, known or not."""


@dataclass(frozen=True)
class BootstrapCompatibilityIdentity:
    """What has to be the same for rollouts that were made before the first trainer checkpoint to be gone on with.

    Attributes:
        identity: Plain data: ``schema_version``, ``excluded_paths``, and ``config`` without these and without secrets.

    >>> old = BootstrapCompatibilityIdentity.of({"seed": 1, "logger": {"name": "a"}, "hf_token": "t"})
    >>> new = BootstrapCompatibilityIdentity.of({"seed": 1, "logger": {"name": "b"}})
    >>> old.identity["config"], old.fingerprint == new.fingerprint
    ({'seed': 1}, True)
    """

    identity: Mapping[str, Any]

    @classmethod
    def of(cls, config: Mapping[str, Any], extra_excluded_paths: Sequence[str] = ()) -> Self:
        """Make the identity of a run.

        Args:
            config: The run's whole config: plain data with string keys.
            extra_excluded_paths: Dotpaths beside `BUILT_IN_EXCLUSIONS`, the same in every start of the run. ``*``
                stands for any part of one segment, ``**`` for any number of segments; a list's indices are segments.
                With a path everything under it is left out.

        Raises:
            ValueError: A path is not allowed, or the config holds what is no plain data; names where.
        """
        check_excluded_paths(extra_excluded_paths)
        built_in = (path for paths in BUILT_IN_EXCLUSIONS.values() for path in paths)
        excluded = sorted({*built_in, *extra_excluded_paths})
        patterns = [_Pattern.of(path) for path in excluded]
        identity = {
            "schema_version": FORMAT,
            "excluded_paths": excluded,
            "config": _compared(redact(config), patterns),
        }
        fingerprint(identity)  # refuses what is no plain data now, and not at the first snapshot
        return cls(identity)

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the identity as 64 hex digits."""
        return fingerprint(self.identity)


class BootstrapMismatchError(ValueError):
    """Raised when the snapshots of a folder were made by a run with another config; nothing was changed.

    Attributes:
        path: The manifest of the bootstrap anchor.
        changes: ``dotpath saved -> current``, one a change; empty where the manifest does not fit itself.
    """

    def __init__(self, path: Path, changes: Sequence[str]) -> None:
        super().__init__(path, tuple(changes))
        self.path, self.changes = path, tuple(changes)

    def __str__(self) -> str:
        way_out = "choose another checkpoint_dir. Nothing was modified"
        if not self.changes:
            return f"{self.path}: the stored fingerprint does not match the stored identity: {way_out}"
        rest = len(self.changes) - _MAX_SHOWN
        lines = [*self.changes[:_MAX_SHOWN], *([f"and {rest} more"] if rest > 0 else [])]
        shown = "".join(f"\n  {line}" for line in lines)
        return (
            f"{self.path} was written with another config than this run's:{shown}\nGo back to the config of then, name"
            " what does not matter to rollouts in rollout_checkpointing.extra_fingerprint_excluded_paths (in the first"
            f" run and in every restart), or {way_out}"
        )


@dataclass(frozen=True)
class BootstrapAnchor:
    """The bootstrap anchor of a folder, as it is on disk.

    Attributes:
        path: Its folder.
        fingerprint: The fingerprint of `identity`.
        identity: See `BootstrapCompatibilityIdentity`.
    """

    path: Path
    fingerprint: str
    identity: Mapping[str, Any]


def ensure_bootstrap_anchor(
    checkpoint_dir: Path, identity: BootstrapCompatibilityIdentity, ops: FileOps
) -> tuple[Path, str]:
    """Give the anchor for snapshots before the first trainer checkpoint; write it where there is none.

    Returns:
        Its folder and the fingerprint.

    Raises:
        BootstrapMismatchError: Another run wrote it.
        NewerFormatError: A later version wrote it.
        ValueError: It is damaged.
        OSError: The disk refused.
    """
    anchor = check_bootstrap_anchor(checkpoint_dir, identity)
    if anchor is None:
        folder = checkpoint_dir / BOOTSTRAP
        make_folder(folder, ops)
        publish(folder / MANIFEST, _to_json(identity), ops)
        ops.fsync_folder(checkpoint_dir)
        return folder, identity.fingerprint
    return anchor.path, anchor.fingerprint


def check_bootstrap_anchor(
    checkpoint_dir: Path, identity: BootstrapCompatibilityIdentity | None
) -> BootstrapAnchor | None:
    """Read the anchor, None where there is none, and compare it with this run's; None compares nothing.

    Raises:
        BootstrapMismatchError, NewerFormatError, ValueError, OSError: As `ensure_bootstrap_anchor`.
    """
    anchor = read_bootstrap_anchor(checkpoint_dir)
    if anchor is not None and identity is not None and anchor.fingerprint != identity.fingerprint:
        raise BootstrapMismatchError(anchor.path / MANIFEST, _changes(anchor.identity, identity.identity))
    return anchor


def read_bootstrap_anchor(checkpoint_dir: Path) -> BootstrapAnchor | None:
    """Read the anchor; None where there is none.

    Raises:
        BootstrapMismatchError: Its fingerprint is not that of its identity.
        NewerFormatError: A later version wrote it.
        ValueError: It is damaged.
        OSError: It can't be read.
    """
    path = checkpoint_dir / BOOTSTRAP / MANIFEST
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged: it holds {type(content).__name__}; allowed: an object")
    fields = cast("dict[str, Any]", content)
    refuse_newer_format(str(path), fields.get("schema_version"), (FORMAT,))
    identity, stored = fields.get("bootstrap_identity"), fields.get("bootstrap_fingerprint")
    if not isinstance(identity, dict) or fields != _content(cast("dict[str, Any]", identity), stored):
        raise ValueError(f"{path} is damaged: its fields are not those of a bootstrap anchor")
    if stored != fingerprint(identity):
        raise BootstrapMismatchError(path, ())
    return BootstrapAnchor(path.parent, str(stored), cast("dict[str, Any]", identity))


def _content(identity: Mapping[str, Any], fingerprint_of_it: object) -> dict[str, Any]:
    return {
        "schema_version": FORMAT,
        "base_train_step": 0,
        "trainer_version": 0,
        "bootstrap_fingerprint": fingerprint_of_it,
        "bootstrap_identity": identity,
    }


def _to_json(identity: BootstrapCompatibilityIdentity) -> bytes:
    content = _content(identity.identity, identity.fingerprint)
    return (json.dumps(content, sort_keys=True, indent=2, allow_nan=False) + "\n").encode()


def _changes(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Compare excluded paths as a set: one more would else move all that follow it."""

    def by_path(side: Mapping[str, Any]) -> dict[str, Any]:
        return {**side, "excluded_paths": dict.fromkeys(map(str, side.get("excluded_paths", ())), "excluded")}

    lines = differences(by_path(saved), by_path(current))
    return [line.removeprefix("config").removeprefix(".") for line in lines]


# ---- What is compared ----


@dataclass(frozen=True)
class _Pattern:
    """A dotpath with ``*`` and ``**``, by segments; None stands for ``**``."""

    segments: tuple[re.Pattern[str] | None, ...]

    @classmethod
    def of(cls, dotpath: str) -> Self:
        segments = dotpath.split(".")
        return cls(tuple(None if part == "**" else _glob(part) for part in segments))

    def matches(self, path: tuple[str, ...]) -> bool:
        return _matches(self.segments, path)


def _matches(segments: tuple[re.Pattern[str] | None, ...], path: tuple[str, ...]) -> bool:
    if not segments:
        return not path
    first, rest = segments[0], segments[1:]
    if first is None:
        return any(_matches(rest, path[at:]) for at in range(len(path) + 1))
    return bool(path) and first.fullmatch(path[0]) is not None and _matches(rest, path[1:])


def _glob(segment: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in segment.split("*")), re.DOTALL)


def _compared(value: Any, patterns: Sequence[_Pattern], path: tuple[str, ...] = ()) -> Any:
    """Copy redacted data without excluded paths and without secrets."""
    if isinstance(value, dict):
        items = {key: (item, (*path, str(key))) for key, item in cast("dict[Any, Any]", value).items()}
        return {
            key: _compared(item, patterns, where)
            for key, (item, where) in items.items()
            if item != REDACTED and not _is_excluded(where, patterns)
        }
    if isinstance(value, list | tuple):
        items = [(item, (*path, str(at))) for at, item in enumerate(cast("list[Any]", value))]
        return [_compared(item, patterns, where) for item, where in items if not _is_excluded(where, patterns)]
    return value


def _is_excluded(path: tuple[str, ...], patterns: Sequence[_Pattern]) -> bool:
    return any(pattern.matches(path) for pattern in patterns)
