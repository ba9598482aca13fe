"""What a run must have so that snapshots of it can be taken and restored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from nrl_rollout_ckpt.state.ledger_states import RecoveryTargetLevel
from nrl_rollout_ckpt.state.rollout_state import RolloutParts

_PLANE_CALLS: Final = ("save_checkpoint", "load_checkpoint", "list_sample_ids", "clear_samples", "release_claims")


class SnapshotsUnsupportedError(ValueError):
    """Raised when snapshots are on and a part of the run can't do what they need.

    Attributes:
        problems: Each part and what it lacks.
    """

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return (
            f"rollout snapshots are on, but {'; '.join(self.problems)}. Use parts that can, or set "
            "snapshot_attempt_interval_s to None"
        )


def require_snapshots_work(parts: RolloutParts) -> None:
    """Check the parts of a run whose snapshots are on.

    Raises:
        SnapshotsUnsupportedError: Names all that is missing.
    """
    problems = tuple(_problems(parts))
    if parts.config.snapshot_attempt_interval_s is not None and problems:
        raise SnapshotsUnsupportedError(problems)


def _problems(parts: RolloutParts) -> Iterator[str]:
    plane = type(parts.data_plane).__name__
    for call in _PLANE_CALLS:
        if not callable(getattr(parts.data_plane, call, None)):
            yield f"the data plane {plane} has no {call}()"
    for flag in ("supports_buffer_checkpoint", "supports_training_claims"):
        if not getattr(parts.sampler, flag):
            yield f"the sampler {parts.sampler.name!r} says {flag} = False"
    wants_turns = parts.config.target_level is RecoveryTargetLevel.TURN
    if wants_turns and not parts.environment.keeps_state:
        yield f"target_level is 'turn' and the environment {type(parts.environment).__name__} keeps no state"
