"""The model of sft_rank.py as a policy that writes answers, byte by byte, and what an answer is worth."""

import hashlib
from collections import Counter

import torch
from grpo_trainer import Batch, Policy
from library_questions import bytes_of
from sft_rank import LittleModel

ASSISTANT_BEGINS = b'{"content": "'  # as `bytes_of` a message; the model was taught to go on behind it
END = ord('"')
LONGEST_ANSWER = 48  # bytes


class LibraryPolicy(LittleModel, Policy):
    """Writes answers, and tells how likely they were."""

    def logprobs_of(self, batch: Batch) -> torch.Tensor:
        """Log-probabilities of all bytes of the rows, `[B, L]`."""
        return self(batch["input_ids"])

    @torch.no_grad()
    def sample(self, prompt: bytes, seed: str) -> tuple[list[int], list[float]]:
        """The bytes of an answer, its end included, and their log-probabilities; the same seed gives the same again."""
        dice = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:7], "big"))
        _, state = self.gru(self.embed(torch.tensor(list(prompt)))[None])
        answer, logprobs = [], []
        while len(answer) < LONGEST_ANSWER and answer[-1:] != [END]:
            every_byte = self.head(state[0, 0]).log_softmax(-1)
            answer.append(int(torch.multinomial(every_byte.exp(), 1, generator=dice)))
            logprobs.append(float(every_byte[answer[-1]]))
            _, state = self.gru(self.embed(torch.tensor([answer[-1:]])), state)
        return answer, logprobs


def prompt_of(question: str) -> bytes:
    """What stands before an answer."""
    return bytes_of({"role": "user", "content": question}) + ASSISTANT_BEGINS


def text_of(answer: list[int]) -> str:
    """An answer without its end."""
    return bytes(byte for byte in answer if byte != END).decode(errors="replace")


def pair_overlap(text: str, wanted: str) -> float:
    """F1 of the pairs of letters that two texts share, 0 to 1."""
    pairs, wanted_pairs = (Counter(zip(each.lower(), each.lower()[1:], strict=False)) for each in (text, wanted))
    return 2 * (pairs & wanted_pairs).total() / max(pairs.total() + wanted_pairs.total(), 1)
