"""All parts of a run at once."""

from __future__ import annotations

from typing import Any

from nrl_rollout_ckpt.config import RolloutCheckpointConfig
from nrl_rollout_ckpt.samplers import InOrderSampler
from nrl_rollout_ckpt.state.ledger import RolloutRecoveryLedger
from nrl_rollout_ckpt.state.replay_index import ReplayIndex
from nrl_rollout_ckpt.state.rollout_state import RolloutParts, TrainingProgress
from nrl_rollout_ckpt.testing.clock import FakeClock
from nrl_rollout_ckpt.testing.data_plane import InMemoryDataPlane
from nrl_rollout_ckpt.testing.prompts import ListPromptSource, numbered_prompts


def make_parts(*, capacity: int = 64, group_size: int = 2, **overrides: Any) -> RolloutParts:
    """Make the parts of a fresh run, in memory: 16 prompts, an in-order sampler, a fake clock.

    Args:
        capacity: Groups that the replay index takes.
        group_size: Generations a prompt.
        **overrides: Attributes of `RolloutParts` that are to be others.
    """
    progress = overrides.pop("progress", TrainingProgress())
    parts: dict[str, Any] = {
        "config": RolloutCheckpointConfig(),
        "data_plane": InMemoryDataPlane(),
        "partition_id": "train",
        "prompt_source": ListPromptSource(numbered_prompts(16)),
        "sampler": InOrderSampler(progress),
        "replay_index": ReplayIndex(capacity, group_size),
        "ledger": RolloutRecoveryLedger(),
        "progress": progress,
        "clock": FakeClock(),
    }
    return RolloutParts(**{**parts, **overrides})
