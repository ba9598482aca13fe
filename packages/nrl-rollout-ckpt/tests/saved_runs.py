"""A run of which a snapshot has something of everything, to restore it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nrl_rollout_ckpt.config import RolloutCheckpointConfig
from nrl_rollout_ckpt.disk.bootstrap import BootstrapCompatibilityIdentity
from nrl_rollout_ckpt.disk.selection import select_resume_source
from nrl_rollout_ckpt.samplers import InOrderSampler
from nrl_rollout_ckpt.state.ledger_states import RecoveryTargetLevel
from nrl_rollout_ckpt.state.rollout_state import ResumeSource, RolloutParts, TrainingProgress
from nrl_rollout_ckpt.testing import (
    FakeEnvironment,
    SmallRun,
    make_parts,
)

LEVEL = RecoveryTargetLevel.TURN


def new_parts(**overrides: Any) -> RolloutParts:
    progress = TrainingProgress()
    config = {"target_level": LEVEL, **overrides.pop("config", {})}
    defaults: dict[str, Any] = {
        "progress": progress,
        "sampler": InOrderSampler(progress, max_staleness=2),
        "environment": FakeEnvironment(),
        "consumer_tasks": ("trainer",),
        "config": RolloutCheckpointConfig(**config),
        "metrics": None,
    }
    return make_parts(**{**defaults, **overrides})


async def saved_run(folder: Path) -> None:
    """A snapshot with something of everything: an open train step, a group in flight, one not admitted, a spare one."""
    run = await SmallRun.start(folder, new_parts)
    ledger = run.parts.ledger
    await run.reserve()
    await run.admit()
    for group in ledger.groups:
        await run._generate(group)
    await run.begin_step()
    assert run.claim is not None
    run.parts.data_plane.claim_samples(run.claim.sample_ids, "train", "trainer")  # type: ignore[attr-defined]
    await run.write_back()
    await run.reserve()
    await run.admit()
    await run.reserve()
    await run.fill_reserve()
    await run.fill_reserve()
    first, second, *_ = ledger.groups
    for index in range(2):
        await run.dispatch(first.group_id, index)
    await run.seal(first.group_id, 0)
    await run.drop(second.group_id)
    run.parts.progress.current_epoch = 3
    run.parts.runtime.batch_shortfall[9] = 1
    result = await run.save_snapshot()
    assert result.saved
    run.close()


def source_of(folder: Path, **config: Any) -> ResumeSource:
    identity = BootstrapCompatibilityIdentity.of({})
    return select_resume_source(folder, RolloutCheckpointConfig(target_level=LEVEL, **config), identity)


def state_of(parts: RolloutParts) -> dict[str, Any]:
    """Everything that restoring could change."""
    plane, environment = parts.data_plane, parts.environment
    ids = plane.list_sample_ids("train")
    return {
        "rows": plane.get_samples(ids, "train", ["prompt"]) if ids else {},  # type: ignore[attr-defined]
        "claims": plane.claimed_ids("train", "trainer"),  # type: ignore[attr-defined]
        "source": parts.prompt_source.state_dict(),
        "cursor": parts.sampler.dispatch_index,
        "progress": (parts.progress.train_steps, parts.progress.trainer_version, parts.progress.current_epoch),
        "ledger": (parts.ledger.groups, parts.ledger.next_admission_id),
        "index": parts.replay_index.groups,
        "runtime": repr(parts.runtime),
        "environment": environment.episodes() if isinstance(environment, FakeEnvironment) else None,
        "mutations": parts.barrier.mutation_version,
    }
