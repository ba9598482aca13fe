"""Whether a source of prompts goes on where its state was saved."""

import io
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from nrl_interfaces.rollout import PromptRef, PromptSource, ResolvingPromptSource
from nrl_interfaces.testing.data_plane_clauses.comparing import described
from nrl_interfaces.testing.rollout_checks.ground import broken, must, refused, same

Source = TypeVar("Source", bound=PromptSource)
Resolving = TypeVar("Resolving", bound=ResolvingPromptSource)


def _iterate(source: Any) -> Iterator[Any]:
    return iter(source)


def check_prompt_source(
    make: Callable[[], Source], *, prompts: Callable[[Source], Iterator[Any]] = _iterate, count: int = 6
) -> None:
    """Check that a source which loads a state gives what the one that saved it would have given.

    Args:
        make: Makes a source that has given nothing yet; always the same one. Closed after use if it has a ``close``.
        prompts: Gives the prompts of a source one by one, from where it stands; iterates over it by default.
        count: How many prompts are looked at; more than one batch of the source.

    Raises:
        AssertionError: If it is not so.

    >>> class Numbers:
    ...     def __init__(self): self.at = 0
    ...     def __iter__(self):
    ...         while self.at < 6:
    ...             self.at += 1
    ...             yield self.at
    ...     def state_dict(self): return {"at": 0}
    ...     def load_state_dict(self, state): self.at = state["at"]
    >>> check_prompt_source(Numbers)
    Traceback (most recent call last):
    AssertionError: after a state saved behind 1 prompts: got '[1, 2, 3, 4, 5]', expected '[2, 3, 4, 5, 6]'
    """
    with _Made(make, prompts) as (source, given):
        must(isinstance(source, PromptSource), f"{type(source).__name__} has no state_dict and load_state_dict")
        everything = _take(given, count)
    must(len(everything) > 1, f"a source for this check gives more than {len(everything)} prompts")
    for behind in range(len(everything)):
        with _Made(make, prompts) as (source, given):
            _take(given, behind)
            state = source.state_dict()
            seen = described(state)
            saved = _through_a_file(state)
            source.state_dict()
            rest = _take(given, len(everything) - behind)
            source.state_dict()
            same(described(state), seen, "a state that was saved, once its source went on")
        same(described(rest), described(everything[behind:]), f"what a source gives that saved a state behind {behind}")
        with _Made(make, prompts) as (source, _):
            source.load_state_dict(saved)
            again = _take(prompts(source), len(rest))
        same(described(again), described(rest), f"after a state saved behind {behind} prompts")


def check_resolving_prompt_source(
    make: Callable[[], Resolving],
    *,
    ref_of: Callable[[Any], PromptRef],
    payload_of: Callable[[Any], Any] = lambda prompt: prompt,
    prompts: Callable[[Resolving], Iterator[Any]] = _iterate,
    count: int = 6,
) -> None:
    """Check a source as `check_prompt_source` does, and that it finds each prompt again by its reference.

    Args:
        make: Makes a source that has given nothing yet; always the same one.
        ref_of: The reference of a prompt that was given.
        payload_of: What of a prompt ``resolve`` gives.
        prompts: Gives the prompts of a source one by one, from where it stands.
        count: How many prompts are looked at.

    Raises:
        AssertionError: If it is not so.
    """
    check_prompt_source(make, prompts=prompts, count=count)
    with _Made(make, prompts) as (source, given):
        must(isinstance(source, ResolvingPromptSource), f"{type(source).__name__} has no resolve")
        everything = _take(given, count)
    with _Made(make, prompts) as (source, given), ThreadPoolExecutor(1) as thread:
        for prompt in reversed(everything):
            found = thread.submit(source.resolve, ref_of(prompt)).result()
            same(described(found), described(payload_of(prompt)), f"resolve({ref_of(prompt)})")
        with refused(LookupError, "resolve of a reference to nothing"):
            source.resolve(PromptRef("no prompt has this id", ref_of(everything[0]).task_name))
        same(described(_take(given, count)), described(everything), "what a source gives that resolved")


class _Made:
    """A source and the prompts it gives, closed at the end."""

    def __init__(self, make: Callable[[], Any], prompts: Callable[[Any], Iterator[Any]]) -> None:
        self._make, self._prompts = make, prompts

    def __enter__(self) -> tuple[Any, Iterator[Any]]:
        self._source = self._make()
        return self._source, _lazily(self._prompts, self._source)

    def __exit__(self, *error: object) -> None:
        if close := getattr(self._source, "close", None):
            close()


def _lazily(prompts: Callable[[Any], Iterator[Any]], source: Any) -> Iterator[Any]:
    yield from prompts(source)


def _take(given: Iterator[Any], count: int) -> list[Any]:
    return list(itertools.islice(given, count))


def _through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    try:
        return torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    except Exception as error:  # noqa: BLE001 - whatever unpickling raises means the same
        broken(f"state_dict must give plain data and tensors: {error}")
