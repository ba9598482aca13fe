"""What became of each prompt, in the history that leads to the final weights."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from grpo_parts import Run, Settings
from step_dump import problems_of_dump


@dataclass(frozen=True)
class Account:
    """Each prompt is in one of these places, once.

    Attributes:
        prompts: The ids of all prompts.
        trained: How often each was trained.
        dropped: Ids of prompts that were given up on purpose.
        waiting: Ids of prompts that somebody still has: the source, the ledger, the replay index.
        problems: Everything else that is not as it should be.
    """

    prompts: tuple[str, ...]
    trained: Counter[str]
    dropped: tuple[str, ...]
    waiting: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def doubled(self) -> list[str]:
        """Prompts that were trained, or have an owner, more than once."""
        places = self.trained + Counter(self.dropped) + Counter(self.waiting)
        return [prompt for prompt in self.prompts if places[prompt] > 1]

    @property
    def lost(self) -> list[str]:
        return [prompt for prompt in self.prompts if prompt not in {*self.trained, *self.dropped, *self.waiting}]

    @property
    def is_exact(self) -> bool:
        return not (self.doubled or self.lost or self.waiting or self.problems)

    def table(self) -> str:
        once = sum(count == 1 for count in self.trained.values())
        rows: list[tuple[str, int, Iterable[str]]] = [
            ("prompts", len(self.prompts), ()),
            ("  trained once", once, ()),
            ("  trained twice", len(self.doubled), self.doubled),
            ("  lost", len(self.lost), self.lost),
            ("  dropped on purpose", len(self.dropped), self.dropped),
            ("  still to be trained", len(self.waiting), ()),
        ]
        lines = [f"{name:33}{count:6}  {', '.join(ids)}".rstrip() for name, count, ids in rows]
        each = [f"{prompt} {self.trained[prompt]}" for prompt in self.prompts]
        lines += [
            "how often each was trained:",
            *("  " + "   ".join(each[at : at + 12]) for at in range(0, len(each), 12)),
        ]
        problems = [f"! {problem}" for problem in self.problems]
        return "\n".join([*lines, *problems, f"the account is {'exact' if self.is_exact else 'NOT EXACT':>24}"])


async def account_of(make_run: Callable[..., Run], settings: Settings, problems: Iterable[str] = ()) -> Account:
    """Start once more, as the next process would, and look at what is there."""
    run = make_run(settings, lambda *_, **__: None)
    await run.resume()
    parts, found = run.parts, list(problems)
    if parts.progress.train_steps != run.steps:
        found.append(f"{parts.progress.train_steps} of {run.steps} train steps are done; start it again to go on")
    if not run.trainer.is_made_by_its_history():
        found.append("the final weights are not those that training on the history gives")
    if settings.dump_dir is not None:
        found += problems_of_dump(settings.dump_dir, run.trainer.history)
    ids = [prompt.ref.sample_id for prompt in run.prompts.prompts]
    owned = [group.prompt.ref.sample_id for group in (*parts.ledger.groups, *parts.replay_index.groups)]
    return Account(
        prompts=tuple(ids),
        trained=Counter(prompt for step in run.trainer.history for prompt in step["prompts"]),
        dropped=tuple(parts.runtime.dropped),
        waiting=(*owned, *ids[run.prompts.position :]),
        problems=tuple(found),
    )
