"""A policy that adds two digits, the copy of it that generates, and the GRPO step that it learns by."""

import copy
import hashlib
import time
from typing import Any

import torch
from arithmetic_task import BASE
from torch import nn

Batch = dict[str, torch.Tensor]
"""Rows of a train step: totals, addends, answers, logprobs `[B, TURNS]`; reward, advantages `[B]`."""


class ArithmeticPolicy(nn.Module):
    """Log-probabilities of the answers 0 to BASE - 1 to a total and an addend."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.total = nn.Embedding(BASE, width)
        self.addend = nn.Embedding(BASE, width)
        self.head = nn.Sequential(nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, BASE))

    def forward(self, total: torch.Tensor, addend: torch.Tensor) -> torch.Tensor:
        return self.head(self.total(total) + self.addend(addend)).log_softmax(-1)

    @torch.no_grad()
    def sample(self, total: int, addend: int, seed: str) -> tuple[int, float]:
        """An answer and its log-probability; the same seed and weights give the same answer again."""
        logprobs = self(torch.tensor(total), torch.tensor(addend))
        dice = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:7], "big"))
        answer = int(torch.multinomial(logprobs.exp(), 1, generator=dice))
        return answer, float(logprobs[answer])


def group_advantages(reward: torch.Tensor, group_size: int) -> torch.Tensor:
    """How much better than its group each row did, in standard deviations."""
    groups = reward.view(-1, group_size)
    return ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).view(-1)


def grpo_loss(policy: ArithmeticPolicy, batch: Batch, clip: float = 0.2) -> torch.Tensor:
    """The clipped policy-gradient loss over all turns of all rows."""
    logprobs = policy(batch["totals"], batch["addends"]).gather(-1, batch["answers"][..., None]).squeeze(-1)
    ratio = (logprobs - batch["logprobs"]).exp()
    advantages = batch["advantages"][:, None]
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages).mean()


class Trainer:
    """The weights, their optimizer, the copy that generates, and what was trained on to get there.

    Args:
        seed: Of the first weights.
        busy_s: How long gradients take in addition, as they would for a model of size.

    Attributes:
        policy: What learns.
        actor: What generates; gets the weights after each step.
        history: For each step done, the prompts and the rows that it trained on.
    """

    def __init__(self, seed: int, busy_s: float = 0.0) -> None:
        torch.manual_seed(seed)
        self._busy_s = busy_s
        self.policy = ArithmeticPolicy()
        self.actor = copy.deepcopy(self.policy)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=0.02)
        self.history: list[dict[str, Any]] = []

    @property
    def updates(self) -> int:
        """How often the weights were changed."""
        return max((int(state["step"]) for state in self.optimizer.state.values()), default=0)

    def accumulate(self, batch: Batch) -> None:
        """Compute gradients; nothing is final yet."""
        time.sleep(self._busy_s)
        self.optimizer.zero_grad()
        grpo_loss(self.policy, batch).backward()

    def update(self, prompts: list[str], batch: Batch) -> None:
        """Change the weights: from here on the step can't be taken back."""
        self.optimizer.step()
        self.actor.load_state_dict(self.policy.state_dict())
        self.history.append({"prompts": prompts, "batch": batch})

    def state_dict(self) -> dict[str, Any]:
        state = {"policy": self.policy.state_dict(), "optimizer": self.optimizer.state_dict()}
        return {**state, "history": self.history}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        self.actor.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.history = state["history"]

    def is_made_by_its_history(self, seed: int) -> bool:
        """Whether training anew on the rows of the history gives these very weights, bit for bit."""
        again = Trainer(seed)
        for step in self.history:
            again.accumulate(step["batch"])
            again.update(step["prompts"], step["batch"])
        weights = self.policy.state_dict()
        return all(torch.equal(tensor, weights[name]) for name, tensor in again.policy.state_dict().items())
