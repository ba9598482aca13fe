"""A language model small enough for a processor, and the reinforcement learning that it is put through."""

from collections import Counter

import torch
from library_questions import Question
from nrl_interfaces.batch import BatchedDataDict
from nrl_interfaces.layout import to_jagged
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

END = 0
LONGEST_ANSWER = 40


class LittlePolicy(nn.Module):
    """A GRU over tokens, which reads and writes them with the same embeddings."""

    def __init__(self, vocab_size: int, width: int = 48) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocab_size)
        self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=0.1)

    def logprobs(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Log-probability of each token `[B, L]` given those before it; 0 for the first one."""
        hidden, _ = self.gru(self.embed(token_ids[:, :-1]))
        all_tokens = self.head(hidden).log_softmax(-1)
        return functional.pad(all_tokens.gather(-1, token_ids[:, 1:, None]).squeeze(-1), (1, 0))

    @torch.no_grad()
    def sample(self, prompts: list[torch.Tensor], dice: torch.Generator) -> list[torch.Tensor]:
        """An answer to each prompt, token by token, its end token included."""
        ends = torch.tensor([len(prompt) - 1 for prompt in prompts])
        rows = torch.arange(len(prompts))
        hidden, _ = self.gru(self.embed(pad_sequence(prompts, batch_first=True)))
        hidden = hidden[rows, ends]  # one layer: a GRU's output is its state
        answers = torch.zeros(len(prompts), LONGEST_ANSWER, dtype=torch.int64)
        for position in range(LONGEST_ANSWER):
            answers[:, position] = torch.multinomial(self.head(hidden).softmax(-1), 1, generator=dice).squeeze(-1)
            hidden = self.gru(self.embed(answers[:, position, None]), hidden[None])[0][:, 0]
        lengths = [int(((row == END).cumsum(0) == 0).sum()) + 1 for row in answers]
        return [row[:length] for row, length in zip(answers, lengths, strict=True)]


def teach(policy: LittlePolicy, tokenizer: Tokenizer, questions: list[Question], updates: int) -> None:
    """Show the policy some questions with their answers, so that what it samples has words in it."""
    texts = tokenizer.encode_batch([f"{q.text} {q.answer}" for q in questions])
    rows = [torch.tensor([*text.ids, END]) for text in texts]
    dice = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    for _ in range(updates):
        picked = [rows[i] for i in torch.randint(len(rows), (24,), generator=dice)]
        lengths = torch.tensor([len(row) for row in picked])
        logprobs = policy.logprobs(pad_sequence(picked, batch_first=True, padding_value=END))
        mask = torch.arange(logprobs.size(1)) < lengths[:, None]
        optimizer.zero_grad()
        (-(logprobs * mask).sum() / mask.sum()).backward()
        optimizer.step()


def roll_out(
    policy: LittlePolicy, tokenizer: Tokenizer, questions: list[Question], group_size: int, step: int
) -> BatchedDataDict[dict]:
    """Sample `group_size` answers to each question, rate them, and return the step's training batch."""
    asked = [question for question in questions for _ in range(group_size)]
    prompts = [torch.tensor(tokenizer.encode(question.text).ids) for question in asked]
    answers = policy.sample(prompts, torch.Generator().manual_seed(step))
    texts = [tokenizer.decode(answer.tolist()).strip() for answer in answers]
    reward = torch.tensor([word_overlap(text, q.answer) for text, q in zip(texts, asked, strict=True)])

    rows = [torch.cat(pair) for pair in zip(prompts, answers, strict=True)]
    token_ids = pad_sequence(rows, batch_first=True, padding_value=END)
    prompt_lengths = torch.tensor([len(prompt) for prompt in prompts])
    input_lengths = torch.tensor([len(row) for row in rows])
    positions = torch.arange(token_ids.size(1))
    token_mask = (positions >= prompt_lengths[:, None]) & (positions < input_lengths[:, None])

    groups = reward.view(-1, group_size)
    advantage = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-6)).view(-1)
    with torch.no_grad():
        logprobs = policy.logprobs(token_ids).masked_fill(~token_mask, 0)
    longest_prompt = int(prompt_lengths.max())
    return BatchedDataDict(
        sample_id=[f"step{step}/{q.function}/{row % group_size}" for row, q in enumerate(asked)],
        tags=[
            {"function": q.function, "question": q.text, "answer": text, "wanted": q.answer}
            for q, text in zip(asked, texts, strict=True)
        ],
        input_lengths=input_lengths,
        token_ids=token_ids,
        token_mask=token_mask,
        logprobs=logprobs,
        logprobs_bf16=logprobs.to(torch.bfloat16),
        advantages=advantage[:, None].masked_fill(~token_mask, 0),
        reward=reward,
        prompt_ids=to_jagged(token_ids[:, :longest_prompt], prompt_lengths),
    )


def learn(policy: LittlePolicy, optimizer: torch.optim.Optimizer, batch: BatchedDataDict[dict]) -> None:
    """One step of policy gradient: tokens of answers better than their group's mean become likelier."""
    ratio = (policy.logprobs(batch["token_ids"]) - batch["logprobs"]).exp()
    gain = (ratio * batch["advantages"] * batch["token_mask"]).sum() / batch["token_mask"].sum()
    optimizer.zero_grad()
    (-gain).backward()
    optimizer.step()


def word_overlap(text: str, wanted: str) -> float:
    """F1 of the words that two texts share, 0 to 1."""
    words, wanted_words = (Counter(t.lower().split()) for t in (text, wanted))
    shared = (words & wanted_words).total()
    return 2 * shared / max(words.total() + wanted_words.total(), 1)
