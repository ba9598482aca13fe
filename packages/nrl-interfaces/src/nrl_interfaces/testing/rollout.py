"""Checks of the parts of a trainer that a rollout checkpoint works on: one function for each Protocol.

A check is given a function that makes the part, uses the part as a checkpoint does, and raises AssertionError with
what is broken. They need no pytest; two of them are coroutines.

>>> import asyncio, tempfile
>>> from pathlib import Path
>>> from nrl_interfaces.rollout import NoEnvironmentCheckpoint
>>> make = NoEnvironmentCheckpoint
>>> folder = Path(tempfile.mkdtemp())
>>> asyncio.run(check_environment_checkpoint(make, folder, runs=lambda environment: True, make_restarted=make))

| Protocol of `nrl_interfaces.rollout` | check |
| --- | --- |
| `PromptSource`, `ResolvingPromptSource` | `check_prompt_source`, `check_resolving_prompt_source` |
| `CheckpointableDataPlane` | `check_checkpointable_data_plane` |
| `RolloutSampler` | `check_rollout_sampler` |
| `EnvironmentCheckpoint` | `check_environment_checkpoint` |
| `TrainerCheckpoints` | `check_trainer_checkpoints` |
| `Deadline` | `check_deadline` |
"""

from nrl_interfaces.testing.rollout_checks.data_plane import check_checkpointable_data_plane
from nrl_interfaces.testing.rollout_checks.environment import check_environment_checkpoint
from nrl_interfaces.testing.rollout_checks.prompts import check_prompt_source, check_resolving_prompt_source
from nrl_interfaces.testing.rollout_checks.sampler import check_rollout_sampler
from nrl_interfaces.testing.rollout_checks.trainer import check_deadline, check_trainer_checkpoints

__all__ = [
    "check_checkpointable_data_plane",
    "check_deadline",
    "check_environment_checkpoint",
    "check_prompt_source",
    "check_resolving_prompt_source",
    "check_rollout_sampler",
    "check_trainer_checkpoints",
]
