"""Every part of a run in memory, to test a training loop with: none needs a cluster, a model or real time."""

from nrl_rollout_ckpt.testing.clock import FakeClock
from nrl_rollout_ckpt.testing.data_plane import InMemoryDataPlane
from nrl_rollout_ckpt.testing.environment import FakeEnvironment, FakeEnvironmentSnapshot
from nrl_rollout_ckpt.testing.parts import make_parts
from nrl_rollout_ckpt.testing.prompts import ListPromptSource, numbered_prompts
from nrl_rollout_ckpt.testing.run import AccountError, SmallRun

__all__ = [
    "AccountError",
    "FakeClock",
    "FakeEnvironment",
    "FakeEnvironmentSnapshot",
    "InMemoryDataPlane",
    "ListPromptSource",
    "SmallRun",
    "make_parts",
    "numbered_prompts",
]
