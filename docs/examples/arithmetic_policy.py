"""A policy that adds two digits."""

import hashlib

import torch
from arithmetic_task import BASE
from grpo_trainer import Batch, Policy
from torch import nn


class ArithmeticPolicy(Policy):
    """Log-probabilities of the answers 0 to BASE - 1 to a total and an addend."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.total = nn.Embedding(BASE, width)
        self.addend = nn.Embedding(BASE, width)
        self.head = nn.Sequential(nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, BASE))

    def forward(self, total: torch.Tensor, addend: torch.Tensor) -> torch.Tensor:
        return self.head(self.total(total) + self.addend(addend)).log_softmax(-1)

    def logprobs_of(self, batch: Batch) -> torch.Tensor:
        """Log-probabilities of the answers of the rows, `[B, TURNS]`."""
        return self(batch["totals"], batch["addends"]).gather(-1, batch["answers"][..., None]).squeeze(-1)

    @torch.no_grad()
    def sample(self, total: int, addend: int, seed: str) -> tuple[int, float]:
        """An answer and its log-probability; the same seed and weights give the same answer again."""
        logprobs = self(torch.tensor(total), torch.tensor(addend))
        dice = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:7], "big"))
        answer = int(torch.multinomial(logprobs.exp(), 1, generator=dice))
        return answer, float(logprobs[answer])
