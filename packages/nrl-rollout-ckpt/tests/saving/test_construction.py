"""What is refused before a run begins."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from nrl_interfaces.ownership import FolderInUseError
from nrl_rollout_ckpt.config import RolloutCheckpointConfig
from nrl_rollout_ckpt.saving.deadline import TimeoutChecker
from nrl_rollout_ckpt.saving.requirements import SnapshotsUnsupportedError
from nrl_rollout_ckpt.saving.snapshots import RolloutSnapshotter
from nrl_rollout_ckpt.state.ledger_states import RecoveryTargetLevel

NewWorld = Callable[..., Any]


@pytest.mark.parametrize(
    ("break_it", "problem"),
    [
        (
            lambda parts: setattr(parts.sampler, "supports_buffer_checkpoint", False),
            "supports_buffer_checkpoint = False",
        ),
        (lambda parts: setattr(parts.sampler, "supports_training_claims", False), "supports_training_claims = False"),
        (lambda parts: setattr(parts.data_plane, "save_checkpoint", None), "no save_checkpoint()"),
        (lambda parts: setattr(parts.environment, "keeps_state", False), "keeps no state"),
    ],
)
def test_parts_that_cant_work_are_refused(new_world: NewWorld, break_it: Callable[[Any], None], problem: str) -> None:
    world = new_world()
    world.close()
    break_it(world.parts)

    def make() -> RolloutSnapshotter:
        return RolloutSnapshotter(
            world.parts,
            checkpointer=world.checkpoints,
            timeout=TimeoutChecker(None, clock=world.parts.clock),
            bootstrap_identity=None,
            teacher_coordinator=None,
            records_prompt_groups=lambda: True,
        )

    with pytest.raises(SnapshotsUnsupportedError) as caught:
        make()
    assert problem in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    object.__setattr__(world.parts, "config", RolloutCheckpointConfig(snapshot_attempt_interval_s=None))
    make().close()  # snapshots are off


def test_a_second_owner_is_told_who_has_the_folder(new_world: NewWorld) -> None:
    import os
    import socket

    world = new_world()
    with pytest.raises(FolderInUseError) as caught:
        new_world(folder=world.folder)
    assert caught.value.owner is not None
    assert (caught.value.owner.host, caught.value.owner.pid) == (socket.gethostname(), os.getpid())
    with world.snapshotter:
        pass
    new_world(folder=world.folder).close()


def test_snapshots_that_are_off_are_not_taken(new_world: NewWorld) -> None:
    async def run() -> None:
        config = RolloutCheckpointConfig(snapshot_attempt_interval_s=None, target_level=RecoveryTargetLevel.TURN)
        world = await new_world(config=config).populate()
        with pytest.raises(RuntimeError, match="snapshot_attempt_interval_s is None"):
            await world.save()
        assert not (world.folder / "bootstrap").exists()
        world.close()

    asyncio.run(run())
