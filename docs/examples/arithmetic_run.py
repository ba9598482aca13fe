"""A run that learns to add, in episodes of several turns."""

import zlib
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from arithmetic_environment import ArithmeticEnvironment
from arithmetic_policy import ArithmeticPolicy
from arithmetic_task import make_prompts, reward_of
from grpo_parts import Run
from grpo_trainer import Trainer
from nrl_rollout_ckpt.state.ledger_states import RecoveryTargetLevel
from nrl_rollout_ckpt.state.records import Prompt, SiblingSealResult


def seconds_of_turn(rollout_id: str) -> float:
    """Sibling 3 of each group is slow, more so in some groups than in others."""
    group_id, _, sibling = rollout_id.partition("_g")
    return 0.04 + 0.04 * (zlib.crc32(group_id.encode()) % 3) if sibling.startswith("3_") else 0.02


@dataclass
class ArithmeticRun(Run):
    """Plays an episode for each sibling; a restart goes on with it at its last saved turn."""

    environment_class: type[ArithmeticEnvironment] = ArithmeticEnvironment
    environment: ArithmeticEnvironment = field(init=False)

    fields: ClassVar = ["totals", "addends", "answers", "logprobs", "reward"]
    target_level: ClassVar = RecoveryTargetLevel.TURN

    def make_prompts(self) -> list[Prompt]:
        return make_prompts(self.settings.prompts, self.settings.seed)

    def make_trainer(self) -> Trainer:
        def make_policy() -> ArithmeticPolicy:
            torch.manual_seed(self.settings.seed)
            return ArithmeticPolicy()

        return Trainer(make_policy, lr=0.02, busy_s=0.1)

    def make_environment(self) -> ArithmeticEnvironment:
        return self.environment_class(seconds_of_turn, self.file_ops)

    def instance_for(self, group_id: str) -> str:
        return self.environment.instance_for(group_id)

    def turns_kept(self) -> int:
        return sum(self.environment.turns_taken().values())

    async def generate_sibling(self, group_id: str, index: int) -> None:
        """Play one episode from its next turn to its end, and seal it."""
        record = self.parts.ledger.get(group_id)
        which = record.episode(index)
        episode = await self.environment.begin(which, record.runtime_prompt)
        self.report("generation", sibling=f"{record.prompt.ref.sample_id}/{index}", from_turn=len(episode.turns))
        while not episode.is_over:
            seed = f"{which.rollout_id} turn {len(episode.turns)}"
            await self.environment.answer(which, *self.trainer.actor.sample(*episode.observation(), seed))
        result = SiblingSealResult(episode.turns, reward_of(episode.turns))
        await self.transitions.seal_sibling(group_id, index, result)
        self.environment.end(which)

    def columns_of(self, group_id: str) -> dict[str, torch.Tensor]:
        """The rows of a complete group, from what its siblings were sealed with."""
        sealed = [sibling.current for sibling in self.parts.ledger.get(group_id).siblings]
        episodes = [attempt.result.value() for attempt in sealed]
        columns = {
            f"{name}s": torch.tensor([[turn[name] for turn in turns] for turns in episodes])
            for name in ("total", "addend", "answer", "logprob")
        }
        return {**columns, "reward": torch.tensor([attempt.reward for attempt in sealed])}
