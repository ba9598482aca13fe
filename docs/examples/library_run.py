"""A run that learns to answer questions about the library, from the weights that fine-tuning gave."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from grpo_parts import Run
from grpo_trainer import Trainer
from library_policy import LONGEST_ANSWER, LibraryPolicy, pair_overlap, prompt_of, text_of
from library_questions import Question
from nrl_rollout_ckpt.state.records import Prompt, PromptRef, SiblingSealResult

SECONDS_A_BYTE = 0.005


@dataclass
class LibraryRun(Run):
    """Writes one answer for each sibling; a restart keeps those that are sealed.

    Args:
        questions: The prompts.
        first_weights: A checkpoint of sft_rank.py.
    """

    questions: list[Question] = field(kw_only=True)
    first_weights: Path = field(kw_only=True)

    fields: ClassVar = ["input_ids", "input_lengths", "prompt_lengths", "token_mask", "logprobs", "reward"]

    def make_prompts(self) -> list[Prompt]:
        return [Prompt(PromptRef(question.function), question._asdict()) for question in self.questions]

    def make_trainer(self) -> Trainer:
        weights = torch.load(self.first_weights / "trainer.pt", weights_only=True)["model"]

        def make_policy() -> LibraryPolicy:
            policy = LibraryPolicy()
            policy.load_state_dict(weights)
            return policy

        return Trainer(make_policy, lr=0.003, busy_s=0.1)

    async def generate_sibling(self, group_id: str, index: int) -> None:
        """Write an answer and seal it."""
        record = self.parts.ledger.get(group_id)
        question: dict[str, Any] = record.runtime_prompt
        sibling = f"{record.prompt.ref.sample_id}/{index}"
        answer, logprobs = self.trainer.actor.sample(prompt_of(question["text"]), sibling)
        await asyncio.sleep(SECONDS_A_BYTE * len(answer))  # as a model of size would take
        reward = pair_overlap(text_of(answer), question["answer"])
        sealed = SiblingSealResult({"answer": answer, "logprobs": logprobs}, reward)
        await self.transitions.seal_sibling(group_id, index, sealed)
        self.report("answer", sibling=sibling)

    def columns_of(self, group_id: str) -> dict[str, torch.Tensor]:
        """The rows of a complete group, as wide as the longest of all."""
        record = self.parts.ledger.get(group_id)
        prompt = list(prompt_of(record.runtime_prompt["text"]))
        sealed = [sibling.current for sibling in record.siblings]
        shape = len(sealed), max(len(prompt_of(question.text)) for question in self.questions) + LONGEST_ANSWER
        input_ids, logprobs = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape)
        input_lengths = torch.zeros(len(sealed), dtype=torch.int64)
        for row, attempt in enumerate(sealed):
            result = attempt.result.value()
            input_lengths[row] = end = len(prompt) + len(result["answer"])
            input_ids[row, :end] = torch.tensor(prompt + result["answer"])
            logprobs[row, len(prompt) : end] = torch.tensor(result["logprobs"])
        positions = torch.arange(shape[1])
        return {
            "input_ids": input_ids,
            "input_lengths": input_lengths,
            "prompt_lengths": torch.full_like(input_lengths, len(prompt)),
            "token_mask": (positions >= len(prompt)) & (positions < input_lengths[:, None]),
            "logprobs": logprobs,
            "reward": torch.tensor([attempt.reward for attempt in sealed]),
        }
