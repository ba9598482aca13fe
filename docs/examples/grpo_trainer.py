"""The GRPO step, and the trainer that takes it: the weights, the copy that generates, and the history."""

import copy
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Batch = dict[str, torch.Tensor]
"""Rows of a train step: what was answered and its logprobs `[B, ...]`; reward, advantages `[B]`."""


class Policy(nn.Module):
    """A policy that GRPO trains."""

    def logprobs_of(self, batch: Batch) -> torch.Tensor:
        """Log-probabilities of what the rows have as answers, of the shape of their `logprobs`."""
        raise NotImplementedError


def group_advantages(reward: torch.Tensor, group_size: int) -> torch.Tensor:
    """How much better than its group each row did, in standard deviations."""
    groups = reward.view(-1, group_size)
    return ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).view(-1)


def grpo_loss(policy: Policy, batch: Batch, clip: float = 0.2) -> torch.Tensor:
    """The clipped policy-gradient loss over all answers of all rows, or over those in `token_mask`."""
    ratio = (policy.logprobs_of(batch) - batch["logprobs"]).exp()
    advantages = batch["advantages"][:, None]
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    return -gain[batch["token_mask"]].mean() if "token_mask" in batch else -gain.mean()


class Trainer:
    """The weights, their optimizer, the copy that generates, and what was trained on to get there.

    Args:
        make_policy: Makes the policy with its first weights, the same ones each time.
        lr: The learning rate.
        busy_s: How long gradients take in addition, as they would for a model of size.

    Attributes:
        policy: What learns.
        actor: What generates; gets the weights after each step.
        history: For each step done, the prompts and the rows that it trained on.
    """

    def __init__(self, make_policy: Callable[[], Policy], lr: float, busy_s: float = 0.0) -> None:
        self._make_policy = make_policy
        self._lr = lr
        self._busy_s = busy_s
        self.policy = make_policy()
        self.actor = copy.deepcopy(self.policy)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=lr)
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

    def is_made_by_its_history(self) -> bool:
        """Whether training anew on the rows of the history gives these very weights, bit for bit."""
        again = Trainer(self._make_policy, self._lr)
        for step in self.history:
            again.accumulate(step["batch"])
            again.update(step["prompts"], step["batch"])
        weights = self.policy.state_dict()
        return all(torch.equal(tensor, weights[name]) for name, tensor in again.policy.state_dict().items())
