"""Every transition with its kind of section, a way into the state before it, and a call of it."""

from collections.abc import Callable
from typing import Any

import torch
from nrl_rollout_ckpt.state.completion import awaited
from nrl_rollout_ckpt.state.ledger_states import RecoveryGranularity
from nrl_rollout_ckpt.state.records import SiblingSealResult
from nrl_rollout_ckpt.state.replay_index import TrainingClaim
from runs import FIELDS, Run

RESULT = SiblingSealResult({"n": 1}, 0.5)


async def finish(it: Run, claim: TrainingClaim) -> None:
    await it.does.finish_step(claim)
    it.trained += [group.prompt.ref.sample_id for group in claim.groups]  # no await in between, so no cut


SECTIONS: dict[str, tuple[str, Callable[[Run], Any], Callable[[Run, Any], Any]]] = {
    "reserve_batch": ("prompt_reservations", lambda it: awaited(None), lambda it, _: it.reserve()),
    "fill_reserve": (
        "prompt_reservations",
        lambda it: awaited(None),
        lambda it, _: it.does.fill_reserve(lambda: it.source.next_batch(1)),
    ),
    "admit": ("other", lambda it: it.reserve(), lambda it, groups: it.does.admit(groups[0].admission_id)),
    "dispatch": ("other", lambda it: admitted(it), lambda it, groups: it.does.dispatch(groups[0].group_id)),
    "seal_sibling": (
        "sibling_seals",
        lambda it: it.dispatched(),
        lambda it, groups: it.does.seal_sibling(groups[0].group_id, 0, RESULT),
    ),
    "seal_group": (
        "sibling_seals",
        lambda it: it.dispatched(),
        lambda it, groups: it.does.seal_group(groups[0].group_id, {0: RESULT, 1: RESULT}),
    ),
    "retry": ("recovery_retries", lambda it: it.dispatched(), lambda it, groups: it.does.retry(groups[0].group_id)),
    "commit_group": (
        "group_commits",
        lambda it: it.ready(),
        lambda it, groups: it.does.commit_group(groups[0].group_id, FIELDS),
    ),
    "claim_for_training": ("group_removals", lambda it: it.committed(), lambda it, _: it.does.claim_for_training(2)),
    "write_back": (
        "advantage_writeback",
        lambda it: it.claimed(1),
        lambda it, claim: it.does.write_back(claim, {"reward": torch.ones(2)}),
    ),
    "finish_step": ("sample_clears", lambda it: it.claimed(), lambda it, claim: finish(it, claim)),
    "put_back": ("other", lambda it: it.claimed(), lambda it, claim: it.does.put_back(claim)),
    "drop_group": (
        "group_removals",
        lambda it: it.dispatched(),
        lambda it, groups: it.does.drop_group(groups[0].group_id),
    ),
    "evict": ("group_removals", lambda it: stale(it), lambda it, _: it.does.evict()),
}


async def admitted(it: Run) -> Any:
    return await it.does.admit((await it.reserve())[0].admission_id)


async def stale(it: Run) -> None:
    await it.committed()
    it.progress.train_steps = it.progress.trainer_version = 5


def make(name: str) -> Run:
    whole = {"default_granularity": RecoveryGranularity.PROMPT_GROUP} if name == "seal_group" else {}
    return Run(**whole)
