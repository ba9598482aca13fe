"""A run in memory for tests of transitions, with an account of every prompt."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import torch
from nrl_interfaces.rollout import PromptRef
from nrl_rollout_ckpt.config import RolloutCheckpointConfig
from nrl_rollout_ckpt.samplers import InOrderSampler, WindowedSampler
from nrl_rollout_ckpt.state.inventory import validate_replay_inventory
from nrl_rollout_ckpt.state.ledger_checks import check_groups
from nrl_rollout_ckpt.state.records import Prompt, PromptGroupRecoveryRecord, ReplayGroup, SiblingSealResult
from nrl_rollout_ckpt.state.replay_index import TrainingClaim, combined
from nrl_rollout_ckpt.state.rollout_state import TrainingProgress
from nrl_rollout_ckpt.state.transitions import RolloutTransitions
from nrl_rollout_ckpt.testing import InMemoryDataPlane, ListPromptSource, make_parts

SIZE = 2
FIELDS = {"reward": torch.zeros(SIZE)}


class FaultyPlane(InMemoryDataPlane):
    """A data plane that fails when it is told to, before a call or after it."""

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[str, Exception] = {}
        self.after: dict[str, Exception] = {}

    def put_samples(self, *args: Any, **more: Any) -> None:
        self._call("put_samples", *args, **more)

    def clear_samples(self, *args: Any, **more: Any) -> None:
        self._call("clear_samples", *args, **more)

    def _call(self, name: str, *args: Any, **more: Any) -> None:
        if error := self.before.pop(name, None):
            raise error
        getattr(super(), name)(*args, **more)
        if error := self.after.pop(name, None):
            raise error


def numbered(count: int) -> list[Prompt]:
    return [Prompt(PromptRef(f"p{number}"), {"text": f"What is {number}?"}) for number in range(count)]


class Run:
    """The parts of a run, its transitions, and the shortest ways into each state."""

    def __init__(
        self,
        *,
        prompts: Any = 8,
        windowed: bool = False,
        transitions: type[RolloutTransitions] = RolloutTransitions,
        capacity: int = 16,
        max_staleness: int = 1,
        **config: Any,
    ) -> None:
        counter = itertools.count()
        progress = TrainingProgress()
        self.plane = FaultyPlane()
        self.source = ListPromptSource(numbered(prompts) if isinstance(prompts, int) else prompts)
        self.parts = make_parts(
            capacity=capacity,
            group_size=SIZE,
            progress=progress,
            data_plane=self.plane,
            prompt_source=self.source,
            sampler=(WindowedSampler if windowed else InOrderSampler)(progress, max_staleness),
            config=RolloutCheckpointConfig(**config),
        )
        self.progress, self.ledger, self.index = progress, self.parts.ledger, self.parts.replay_index
        self.runtime, self.barrier, self.sampler = self.parts.runtime, self.parts.barrier, self.parts.sampler
        self.does = transitions(self.parts, new_id=lambda: f"{next(counter):032x}")
        self.trained: list[str] = []

    async def reserve(self, count: int = 2) -> tuple[PromptGroupRecoveryRecord, ...]:
        return await self.does.reserve_batch(lambda: self.source.next_batch(count), expected_generations=SIZE)

    async def dispatched(self, count: int = 2) -> tuple[PromptGroupRecoveryRecord, ...]:
        groups = await self.does.admit((await self.reserve(count))[0].admission_id)
        return tuple([await self.does.dispatch(group.group_id) for group in groups])

    async def ready(self, count: int = 2) -> tuple[PromptGroupRecoveryRecord, ...]:
        groups = await self.dispatched(count)
        for group, index in itertools.product(groups, range(SIZE)):
            await self.does.seal_sibling(group.group_id, index, SiblingSealResult({"n": index}, 0.5))
        return tuple(self.ledger.get(group.group_id) for group in groups)

    async def committed(self, count: int = 2) -> tuple[ReplayGroup, ...]:
        return tuple([await self.does.commit_group(group.group_id, FIELDS) for group in await self.ready(count)])

    async def claimed(self, count: int = 2) -> TrainingClaim:
        await self.committed(count)
        claim = await self.does.claim_for_training(count)
        assert claim is not None
        return claim

    def indexed(self) -> tuple[ReplayGroup, ...]:
        return combined(self.index.groups, self.index.training_owned_replay_groups())

    def check_account(self) -> None:
        """Each prompt that left its source has exactly one owner, and each row one group."""
        owners = Counter(self.trained)
        owners.update(self.runtime.dropped)
        owners.update(prompt.ref.sample_id for prompt, _ in self.runtime.replacement_reserve)
        owners.update(group.prompt.ref.sample_id for group in self.ledger.groups)
        owners.update(group.prompt.ref.sample_id for group in self.indexed())
        taken = [prompt.ref.sample_id for prompt in self.source.prompts[: self.source.state_dict()["position"]]]
        assert owners == Counter(taken), f"owners {owners} of the prompts {taken}"
        validate_replay_inventory(self.plane.list_sample_ids("train"), self.indexed())
        check_groups(self.ledger.groups)

    def summary(self) -> dict[str, Any]:
        """Everything that a transition can change, apart from the objects themselves."""
        rows = self.plane.list_sample_ids("train")
        return {
            "source": self.source.state_dict(),
            "reserve": [prompt.ref.sample_id for prompt, _ in self.runtime.replacement_reserve],
            "ledger": self.ledger.groups,
            "admissions": self.ledger.next_admission_id,
            "ready": self.index.groups,
            "claimed": self.index.training_owned_replay_groups(),
            "shortfall": dict(self.runtime.batch_shortfall),
            "dropped": list(self.runtime.dropped),
            "cursor": self.sampler.dispatch_index,
            "rows": {row: self.plane.get_samples([row], "train", ["reward"])["reward"][0].item() for row in rows},
        }
