"""Sums that are found digit by digit: the prompts, the source that they come from, and what an episode is worth."""

import random
from typing import Any

from nrl_interfaces.rollout import PromptRef
from nrl_rollout_ckpt.state.records import Prompt

BASE = 4  # the numbers are 0 to 3, and 3 + 2 is 1
TURNS = 4  # addends a problem; each turn adds one of them

Problem = dict[str, Any]
"""``{"start": 2, "addends": [3, 1, 0]}``: plain data, so that a snapshot can hold it."""


def make_prompts(count: int, seed: int) -> list[Prompt]:
    """Make `count` prompts with the ids p000, p001..."""
    dice = random.Random(seed)
    return [
        Prompt(
            PromptRef(f"p{number:03}"),
            {"start": dice.randrange(BASE), "addends": [dice.randrange(BASE) for _ in range(TURNS)]},
        )
        for number in range(count)
    ]


def reward_of(turns: list[dict[str, Any]]) -> float:
    """The share of turns whose answer is the sum, 0 to 1."""
    return sum(turn["answer"] == (turn["total"] + turn["addend"]) % BASE for turn in turns) / len(turns)


class PromptList:
    """Gives prompts one after the other, and any of them again by its reference, so that snapshots hold no prompts."""

    def __init__(self, prompts: list[Prompt]) -> None:
        self.prompts = prompts
        self._payloads = {prompt.ref: prompt.payload for prompt in prompts}
        self.position = 0

    def next_batch(self, size: int) -> list[Prompt]:
        """Give the next prompts; [] at the end."""
        batch = self.prompts[self.position : self.position + size]
        self.position += len(batch)
        return batch

    def resolve(self, ref: PromptRef) -> Problem:
        return self._payloads[ref]

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]
