"""A run of the size that the benchmarks measure: complete groups in the data plane, as many more in the ledger."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from nrl_dataplane_local import LocalDataPlaneClient, LocalDataPlaneConfig
from nrl_rollout_ckpt.config import RolloutCheckpointConfig
from nrl_rollout_ckpt.disk.bootstrap import BootstrapCompatibilityIdentity
from nrl_rollout_ckpt.disk.trainer_checkpoints import CheckpointManager
from nrl_rollout_ckpt.samplers import InOrderSampler
from nrl_rollout_ckpt.saving.deadline import TimeoutChecker
from nrl_rollout_ckpt.saving.snapshots import RolloutSnapshotter
from nrl_rollout_ckpt.state.ledger import RolloutRecoveryLedger
from nrl_rollout_ckpt.state.records import ReplayGroup
from nrl_rollout_ckpt.state.replay_index import ReplayIndex
from nrl_rollout_ckpt.state.rollout_state import RolloutParts, TrainingProgress
from nrl_rollout_ckpt.state.transitions import RolloutTransitions
from nrl_rollout_ckpt.testing import ListPromptSource, numbered_prompts

GROUP_SIZE = 8
FIELDS = {"input_ids": torch.int64, "logprobs": torch.float32, "advantages": torch.float32}
BYTES_A_TOKEN = sum(dtype.itemsize for dtype in FIELDS.values())
PARTITION = "train"
IDENTITY = BootstrapCompatibilityIdentity.of({"model": "none", "lr": 1e-6})


def fresh_parts(groups: int, metrics: Callable[[Mapping[str, Any]], object] | None = None) -> RolloutParts:
    """The parts of a run that has done nothing, with room for `groups` complete groups."""
    progress = TrainingProgress()
    return RolloutParts(
        config=RolloutCheckpointConfig(),
        data_plane=LocalDataPlaneClient(LocalDataPlaneConfig(partition_mode="stream")),
        partition_id=PARTITION,
        prompt_source=ListPromptSource(numbered_prompts(2 * groups)),
        sampler=InOrderSampler(progress, max_staleness=10),
        replay_index=ReplayIndex(groups, GROUP_SIZE),
        ledger=RolloutRecoveryLedger(),
        progress=progress,
        metrics=metrics,
    )


async def filled_parts(groups: int, tokens: int, metrics: Callable[[Mapping[str, Any]], object]) -> RolloutParts:
    """A run with `groups` complete groups, put 50 groups at a time, and as many with all siblings dispatched."""
    parts = fresh_parts(groups, metrics)
    plane, source = parts.data_plane, parts.prompt_source
    plane.register_partition(PARTITION, list(FIELDS), groups * GROUP_SIZE, ["train"])
    transitions = RolloutTransitions(parts)
    reserved = await transitions.reserve_batch(lambda: source.next_batch(groups), expected_generations=GROUP_SIZE)
    await transitions.admit(reserved[0].admission_id)
    for start in range(0, groups, 50):
        batch = reserved[start : start + 50]
        ids = [sample_id for group in batch for sample_id in group.sample_ids()]
        plane.put_samples(ids, PARTITION, {name: _column(len(ids), tokens, dtype) for name, dtype in FIELDS.items()})
        async with parts.barrier.mutation("group_commits") as cut:
            for group in batch:
                parts.ledger.discard_group(cut, group.group_id)
                rows = tuple(group.sample_ids())
                parts.replay_index.commit(cut, ReplayGroup(group.group_id, rows, 0, 0, group.prompt, target_step=0))
    in_flight = await transitions.reserve_batch(lambda: source.next_batch(groups), expected_generations=GROUP_SIZE)
    await transitions.admit(in_flight[0].admission_id)
    for group in in_flight:
        await transitions.dispatch(group.group_id)
    return parts


def snapshotter(parts: RolloutParts, folder: Path) -> AbstractContextManager[RolloutSnapshotter]:
    """A snapshotter under the bootstrap anchor of `folder`."""
    return RolloutSnapshotter(
        parts,
        checkpointer=CheckpointManager(folder),
        timeout=TimeoutChecker(None, clock=parts.clock),
        bootstrap_identity=IDENTITY,
        teacher_coordinator=None,
        records_prompt_groups=lambda: True,
    )


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _column(rows: int, tokens: int, dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.rand(rows, tokens, dtype=dtype)
    return torch.randint(0, 32_000, (rows, tokens), dtype=dtype)


async def stalls_ms(stop: asyncio.Event, clock: Callable[[], float]) -> list[float]:
    """How late a loop turn of 1 ms comes, in ms, until `stop` is set."""
    late: list[float] = []
    while not stop.is_set():
        began = clock()
        await asyncio.sleep(0.001)
        late.append(1e3 * (clock() - began) - 1)
    return late
