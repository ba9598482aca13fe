"""A process with a run that ends by SIGTERM: `python sigterm_run.py FOLDER GRACE_S` (started by test_sigterm.py)."""

import asyncio
import logging
import sys
from pathlib import Path

from nrl_rollout_ckpt.clock import SystemClock
from nrl_rollout_ckpt.disk.bootstrap import BootstrapCompatibilityIdentity
from nrl_rollout_ckpt.disk.trainer_checkpoints import CheckpointManager
from nrl_rollout_ckpt.saving.deadline import TimeoutChecker
from nrl_rollout_ckpt.saving.snapshots import RolloutSnapshotter
from nrl_rollout_ckpt.state.transitions import RolloutTransitions
from nrl_rollout_ckpt.testing import ListPromptSource, make_parts, numbered_prompts


def say_ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


async def main(folder: Path, grace_s: float) -> int:
    source = ListPromptSource(numbered_prompts(4))
    parts = make_parts(prompt_source=source, clock=SystemClock())
    await RolloutTransitions(parts).reserve_batch(lambda: source.next_batch(2), expected_generations=2)
    with RolloutSnapshotter(
        parts,
        checkpointer=CheckpointManager(folder),
        timeout=TimeoutChecker(None),
        bootstrap_identity=BootstrapCompatibilityIdentity.of({"seed": 1}),
        teacher_coordinator=None,
        records_prompt_groups=lambda: True,
    ) as snapshotter:
        if grace_s < 1:  # a run that hangs in a commit
            await snapshotter.begin_optimizer_commit(drain_snapshot=False)
        snapshotter.install_sigterm(asyncio.get_running_loop(), grace_s=grace_s)
        asyncio.get_running_loop().call_soon(say_ready)  # once the pump sleeps
        await snapshotter.run()
        return 0 if snapshotter.stop_requested else 1


if __name__ == "__main__":
    logging.basicConfig()
    sys.exit(asyncio.run(main(Path(sys.argv[1]), float(sys.argv[2]))))
