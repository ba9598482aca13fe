"""The files of the quickstart, and what can be counted in them afterwards."""

import asyncio
import functools
import os
import signal
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import grpo_parts
import sft_rank
import torch
from kill_moments import Journal
from library_questions import Question
from library_run import LibraryRun
from nrl_dump import read_step, verify
from nrl_rollout_ckpt import CheckpointManager
from pool_dump import Rows, differences, path_of, rows_of
from prompt_account import account_of
from sft_comparison import newest_checkpoint, trained_on

SFT_ROWS = 16  # a step and rank


@dataclass(frozen=True)
class Files:
    """Where everything is, below `out`.

    Attributes:
        out: The folder.
        questions: What the dataset is made of.
        asked: The questions among them that GRPO asks.
        sft_steps: Steps of fine-tuning.
    """

    out: Path
    questions: list[Question]
    asked: list[Question]
    sft_steps: int

    @property
    def dataset(self) -> Path:
        return self.out / "dataset"

    @property
    def dump(self) -> Path:
        return self.out / "dump"

    @property
    def journal(self) -> Journal:
        return Journal(self.out / "journal.jsonl")

    @property
    def sft(self) -> sft_rank.Settings:
        return sft_rank.Settings(self.out / "fine-tuning", self.dataset, self.sft_steps, rows=SFT_ROWS)

    @property
    def grpo(self) -> grpo_parts.Settings:
        return grpo_parts.Settings(self.out / "grpo", len(self.asked), seed=0)

    @property
    def make_grpo_run(self) -> Callable[..., LibraryRun]:
        """Makes a run of the settings `grpo`, which begins with the weights that fine-tuning gave."""
        first_weights = newest_checkpoint(self.sft)
        if first_weights is None:
            raise FileNotFoundError(f"{self.sft.checkpoints} has no checkpoint to begin with")
        return functools.partial(LibraryRun, questions=self.asked, first_weights=first_weights)

    def grpo_rows(self) -> list[Rows]:
        """What each step of GRPO has trained on, as the newest checkpoint has it."""
        newest = CheckpointManager(self.grpo.checkpoint_dir).get_latest_checkpoint_path()
        if newest is None:
            return []
        history = torch.load(newest / grpo_parts.TRAINER_FILE, weights_only=True)["history"]
        return [rows_of(step, trained, self.asked) for step, trained in enumerate(history)]


@dataclass
class Account:
    """What the files say.

    Attributes:
        lines: A line of the table for each phase, by the names of its columns.
        lost: Prompts that GRPO never trained on.
        doubled: Prompts that it trained on more than once.
        reward: Mean reward of the first and of the last step.
        kept: Where GRPO went on after its kill, and with what.
        problems: Everything else that is not as it should be.
    """

    lines: list[dict[str, Any]]
    lost: list[str]
    doubled: list[str]
    reward: tuple[float, float]
    kept: str
    problems: list[str]

    @classmethod
    def of(cls, files: Files) -> Self:
        """Read everything again: dataset, checkpoints, dumps and journal."""
        prompts = asyncio.run(account_of(files.make_grpo_run, files.grpo))
        steps = files.grpo_rows()
        trained = [trained_on(newest_checkpoint(files.sft), rank) for rank in range(sft_rank.RANKS)]
        of_sft, of_dump = [*_sft_differences(files, trained)], {}
        for step, rows in enumerate(steps):
            of_dump[step] = [*differences(path_of(files.dump, step), rows)]
        whole = [step for step in of_dump if not of_dump[step]]
        rows_dumped = sum(steps[step].size for step in whole)
        if (loaded := load_with_datasets(files, whole)) != rows_dumped:
            of_dump[-1] = [f"`datasets` loads {loaded} rows of the {rows_dumped} that were verified"]
        samples = {
            "dataset": _conversations_in(files.dataset),
            "fine-tuning": sum(map(len, trained)),
            "GRPO": sum(prompts.trained.values()) * grpo_parts.GROUP_SIZE,
            "dump": loaded,
        }
        problems = [*prompts.problems, *of_sft, *(found for each in of_dump.values() for found in each)]
        if samples["dataset"] != len(files.questions):
            problems.append(f"the dataset has {samples['dataset']} conversations of {len(files.questions)}")
        verified = {"fine-tuning": 0 if of_sft else samples["fine-tuning"], "dump": rows_dumped}
        counted = {"fine-tuning": _published(files.sft.dumps), "GRPO": len(steps), "dump": _published(files.dump)}
        kills, seconds = _kills(files.journal), {each["phase"]: each["seconds"] for each in files.journal.read("phase")}
        lines = [
            {
                "phase": phase,
                "steps": counted.get(phase, "-"),
                "samples": samples[phase],
                "kills survived": kills[phase],
                "dump rows verified": verified.get(phase, "-"),
                "seconds": f"{seconds[phase]:.1f}",
            }
            for phase in samples
        ]
        rewards = [float(rows["reward"].mean()) for rows in steps]
        return cls(
            lines,
            lost=[*prompts.lost, *prompts.waiting],
            doubled=prompts.doubled,
            reward=(rewards[0], rewards[-1]),
            kept=_kept(files.journal),
            problems=problems,
        )

    @property
    def is_exact(self) -> bool:
        return not (self.lost or self.doubled or self.problems)

    def table(self, seconds: float) -> str:
        """The account, for people."""
        total = {"phase": "all", "steps": "", "samples": "", "seconds": f"{seconds:.1f}"}
        for name in "kills survived", "dump rows verified":
            total[name] = sum(line[name] for line in self.lines if line[name] != "-")
        widths = {name: max(12 * (name == "phase"), len(name)) for name in self.lines[0]}
        rows = [{name: name for name in widths}, *self.lines, total]
        table = [
            "  ".join(f"{row[name]:{'<' if name == 'phase' else '>'}{widths[name]}}" for name in widths) for row in rows
        ]
        return "\n".join(
            [
                *table,
                "",
                f"prompts lost{len(self.lost):6}  {' '.join(self.lost)}".rstrip(),
                f"prompts doubled{len(self.doubled):3}  {' '.join(self.doubled)}".rstrip(),
                "",
                f"mean reward {self.reward[0]:.3f} in the first step of GRPO, {self.reward[1]:.3f} in the last",
                self.kept,
                *(f"! {problem}" for problem in self.problems),
            ]
        )


def _kills(journal: Journal) -> Counter[str]:
    """How many processes of each phase SIGKILL ended, where the phase came to its end after that."""
    ends = journal.read("process")
    done = {end["phase"] for end in ends if end["ended_by"] == 0}
    kills = Counter(end["phase"] for end in ends if end["ended_by"] == -signal.SIGKILL and end["phase"] in done)
    kills["dump"] += len(journal.read("writer killed")) if "dump" in done else 0
    return kills


def _kept(journal: Journal) -> str:
    last = journal.read("start")[-1]
    answers = last["siblings_kept"] + grpo_parts.GROUP_SIZE * last["groups_kept"]
    return f"after its kill GRPO went on from {last['source']} with {answers} answers that no step had trained on yet"


def _published(folder: Path) -> int:
    return len(list(folder.glob("train_data_step*.jsonl")))


def _conversations_in(dataset: Path) -> int:
    """Conversations in its shards, which are tar files."""
    count = 0
    for path in dataset.glob("*.tar"):
        with tarfile.open(path) as shard:
            count += len(shard.getnames())
    return count


def _sft_differences(files: Files, trained: list[list[str]]) -> Iterator[str]:
    """Where the dump of fine-tuning has other rows than the ranks trained on, in the same order."""
    dumped: list[list[str]] = [[] for _ in trained]
    for step in range(files.sft_steps):
        path = path_of(files.sft.dumps, step)
        try:
            verify(path)
            for row in read_step(path):
                rank = int(row["sample_id"][0].split("/rank")[1].split("/")[0])
                dumped[rank].append(row["metadata"][0]["source_id"])
        except (OSError, ValueError) as error:
            yield str(error)
    for rank, (ids, wanted) in enumerate(zip(dumped, trained, strict=True)):
        if ids != wanted or len(ids) != files.sft_steps * SFT_ROWS:
            yield f"rank {rank} trained on {len(wanted)} rows, and {files.sft.dumps} has {len(ids)}, or others"


def load_with_datasets(files: Files, steps: list[int]) -> int:
    """Load steps of the dump as one data set, and return its rows; no network is used."""
    os.environ.update(HF_HUB_OFFLINE="1", HF_HOME=str(files.out / "cache"), HF_DATASETS_DISABLE_PROGRESS_BARS="1")
    import datasets  # slow to import

    paths = [str(path_of(files.dump, step)) for step in steps]
    return len(datasets.load_dataset("json", data_files=paths, split="train")) if paths else 0
