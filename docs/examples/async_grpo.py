"""Asynchronous GRPO on a processor, that goes on where it was killed: each prompt is trained on once.

Three pumps share a run: one generates groups of rollouts, one trains on them, one takes snapshots of what is under way.
A run that is started again in the same folder goes on. `--kills 10` kills it ten times and gives account.
"""

import argparse
import asyncio
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from arithmetic_run import ArithmeticRun
from grpo_parts import GROUP_SIZE, GROUPS_PER_STEP, PARTITION, TRAINER_FILE, Run, Settings
from grpo_trainer import Batch, group_advantages
from kill_moments import Journal
from nrl_rollout_ckpt.saving.deadline import TimeoutChecker
from nrl_rollout_ckpt.saving.snapshots import RolloutSnapshotter
from nrl_rollout_ckpt.state.completion import in_thread
from nrl_rollout_ckpt.state.ledger_states import PromptGroupPhase, RolloutAttemptStatus
from nrl_rollout_ckpt.state.rollout_state import CheckpointKind
from prompt_account import account_of
from survive_kills import starts_here, survive

# ---- The rollout pump ----


async def rollout_pump(run: Run) -> None:
    """Generate what a restart found under way, then batch after batch, as far ahead of training as the sampler lets."""
    async with asyncio.TaskGroup() as generating:

        async def admit(admission_id: int) -> None:
            for record in await run.transitions.admit(admission_id, wanted=GROUPS_PER_STEP):
                generating.create_task(generate_group(run, record.group_id))

        restored = run.parts.ledger.redispatch_order()
        for record in restored:
            if record.phase is PromptGroupPhase.ADMITTED:
                generating.create_task(generate_group(run, record.group_id))
        for admission_id in sorted({each.admission_id for each in restored if each.phase is PromptGroupPhase.RESERVED}):
            await admit(admission_id)
        while batch := await run.transitions.reserve_batch(
            lambda: run.prompts.next_batch(GROUPS_PER_STEP), expected_generations=GROUP_SIZE
        ):
            await admit(batch[0].admission_id)


async def generate_group(run: Run, group_id: str) -> None:
    """Generate the siblings that are not sealed yet, and put the whole group into the data plane."""
    record = run.parts.ledger.get(group_id)
    to_do = [
        sibling.generation_index
        for sibling in record.siblings
        if sibling.current.status is not RolloutAttemptStatus.SEALED
    ]
    if to_do:
        await run.transitions.dispatch(group_id, to_do, run.instance_for(group_id))
    async with asyncio.TaskGroup() as siblings:
        for index in to_do:
            siblings.create_task(run.generate_sibling(group_id, index))
    await run.transitions.commit_group(group_id, run.columns_of(group_id))
    run.group_ready.set()


# ---- The train pump ----


async def train_pump(run: Run, snapshotter: RolloutSnapshotter) -> None:
    """Train step after step, each on the groups that the sampler gives it, and keep a checkpoint of each."""
    while run.parts.progress.train_steps < run.steps:
        run.group_ready.clear()
        claim = await run.transitions.claim_for_training(GROUPS_PER_STEP)
        if claim is None:
            require_more_to_come(run)
            await run.group_ready.wait()
            continue
        rows = await asyncio.to_thread(run.plane.get_samples, claim.sample_ids, PARTITION, run.fields)
        batch: Batch = dict(rows.items())
        batch["advantages"] = group_advantages(batch["reward"], GROUP_SIZE)
        await run.transitions.write_back(claim, {"advantages": batch["advantages"]})
        await asyncio.to_thread(run.trainer.accumulate, batch)

        prompts = [group.prompt.ref.sample_id for group in claim.groups]
        await snapshotter.begin_optimizer_commit(drain_snapshot=False)  # no snapshot until the counters say what is so
        run.trainer.update(prompts, batch)
        await run.transitions.finish_step(claim)
        run.parts.progress.advance()
        snapshotter.end_optimizer_commit()

        await save_checkpoint(run, snapshotter, await in_thread(run.dump_step, claim, batch))
        step = run.parts.progress.train_steps
        run.report("step", step=step, prompts=prompts, reward=float(batch["reward"].mean()))


def require_more_to_come(run: Run) -> None:
    """Refuse to wait for groups that nobody generates: then a prompt was lost."""
    parts, step = run.parts, run.parts.progress.trainer_version
    here = [group for group in (*parts.ledger.groups, *parts.replay_index.groups) if group.target_step == step]
    wanted = GROUPS_PER_STEP - parts.runtime.batch_shortfall.get(step, 0)
    if parts.sampler.dispatch_index >= step and len(here) < wanted:
        raise RuntimeError(f"step {step} takes {wanted} groups, and {len(here)} of its batch are left: one was lost")


async def save_checkpoint(
    run: Run, snapshotter: RolloutSnapshotter, wait_for_dump: Callable[[], object] | None
) -> None:
    """Write weights, optimizer and the state of the rollouts as one checkpoint, ``step_<N>``, there after its dump."""
    progress = run.parts.progress
    info = {
        "current_step": progress.train_steps,
        "total_steps": run.steps,
        "trainer_version": progress.trainer_version,
        "current_epoch": progress.current_epoch,
    }
    async with snapshotter.trainer_checkpoint():
        begin = run.checkpoints.init_tmp_checkpoint
        path = await asyncio.to_thread(begin, progress.train_steps, info, run.settings.config)
        async with run.parts.barrier.checkpoint() as cut:  # everybody waits, so nothing is written in here
            captured = await snapshotter.capture(cut, path, CheckpointKind.TRAINER_CHECKPOINT)
        await asyncio.to_thread(torch.save, run.trainer.state_dict(), path / TRAINER_FILE)
        await snapshotter.write_rollout_state(path, captured)
        run.checkpoints.begin_finalization(path, wait_for_dump)
    snapshotter.trainer_checkpoint_published(progress.train_steps)


# ---- All of them ----


def stop_at_sigterm(snapshotter: RolloutSnapshotter) -> None:
    """Let SIGTERM have one more snapshot taken; then the run stops."""
    snapshotter.install_sigterm(asyncio.get_running_loop())


async def train(run: Run, at_start: Callable[[RolloutSnapshotter], object] = stop_at_sigterm) -> None:
    """Go on with a run, and take it to its end or to where somebody stops it."""
    await run.resume()
    with RolloutSnapshotter(
        run.parts,
        checkpointer=run.checkpoints,
        timeout=TimeoutChecker(None),
        bootstrap_identity=run.identity,
        teacher_coordinator=None,
        records_prompt_groups=lambda: True,
    ) as snapshotter:
        at_start(snapshotter)
        async with asyncio.TaskGroup() as pumps:
            snapshots = pumps.create_task(snapshotter.run())  # returns only to stop the run
            training = pumps.create_task(train_pump(run, snapshotter))
            rollouts = pumps.create_task(rollout_pump(run))
            await asyncio.wait([snapshots, training], return_when=asyncio.FIRST_COMPLETED)
            for pump in (snapshots, training, rollouts):
                pump.cancel()
        await asyncio.to_thread(run.close)


def main() -> int:
    options = parse_options()
    torch.set_num_threads(1)  # before any work: the children of a parent with threads of torch would hang
    out = options.out
    dump_dir = out / "dump" if options.dump else None
    settings = Settings(out / "checkpoints", options.prompts, options.seed, dump_dir)
    journal = open_folder(out, begin_anew=options.kills > 0 or options.plant_fault)

    def report(event: str, **details: Any) -> None:
        journal.write(event, **details)
        if event == "step" and not options.kills:
            print(
                f"step {details['step']:3}  reward {details['reward']:.2f}  {' '.join(details['prompts'])}", flush=True
            )

    start = starts_here(train, settings, journal, report, plant_fault=options.plant_fault)
    exit_code = survive(
        start,
        lambda problems: asyncio.run(account_of(ArithmeticRun, settings, problems)),
        settings,
        journal,
        options.kills,
    )
    print("\nLook at what it leaves:\n")
    for what in "ls", "verify", "explain":
        print(f"  {shown(Path(sys.executable).parent / 'nrl-rollout-ckpt')} {what} {shown(settings.checkpoint_dir)}")
    return exit_code


def open_folder(out: Path, *, begin_anew: bool) -> Journal:
    """Give the journal of a folder that is new, or an earlier run's, which may be taken away."""
    journal = Journal(out / "journal.jsonl")
    if out.exists() and not journal.path.exists() and (not out.is_dir() or any(out.iterdir())):
        sys.exit(f"{out} is there and was not made by this script: name another folder with --out")
    if journal.path.exists() and begin_anew:
        for made in "checkpoints", "dump":
            shutil.rmtree(out / made, ignore_errors=True)
        journal.path.unlink()
    out.mkdir(parents=True, exist_ok=True)
    journal.path.touch()
    return journal


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("async-grpo-run"), help="folder for the files (%(default)s)")
    parser.add_argument("--prompts", type=int, default=96, help=f"prompts, {GROUPS_PER_STEP} a step (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts, the weights and the kills (%(default)s)")
    parser.add_argument("--kills", type=int, default=0, help="begin anew, and be killed so many times (%(default)s)")
    parser.add_argument("--dump", action="store_true", help="write the rows of each train step to OUT/dump")
    parser.add_argument("--plant-fault", action="store_true", help="begin anew, with a ledger that forgets a prompt")
    options = parser.parse_args()
    for name, least in ("prompts", 1), ("kills", 0):
        if getattr(options, name) < least:
            parser.error(f"--{name} is {getattr(options, name)}: a number from {least} is needed")
    return options


def shown(path: Path) -> str:
    """A path as short as it can be said from here, for a command line."""
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))


if __name__ == "__main__":
    sys.exit(main())
