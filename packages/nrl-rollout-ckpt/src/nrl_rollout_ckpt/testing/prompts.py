"""A prompt source over a list."""

from collections.abc import Callable, Sequence
from typing import Any

from nrl_interfaces.rollout import PromptRef

from nrl_rollout_ckpt.state.records import Prompt


def numbered_prompts(count: int) -> list[Prompt]:
    """Make prompts p0, p1... with a text each.

    >>> numbered_prompts(2)[1].ref.sample_id
    'p1'
    """
    return [Prompt(PromptRef(f"p{number}"), {"text": f"What is {number}?"}) for number in range(count)]


class ListPromptSource:
    """Gives the prompts of a list, in batches.

    Args:
        prompts: The prompts, each with a ``sample_id`` of its own.
        resolves: Whether it has a ``resolve(ref)``, which gives a prompt's payload.

    Attributes:
        prompts: The prompts.
        resolve: Only there if it resolves.

    >>> source = ListPromptSource(numbered_prompts(3))
    >>> [prompt.ref.sample_id for prompt in source.next_batch(2)], source.state_dict()
    (['p0', 'p1'], {'position': 2})
    """

    resolve: Callable[[PromptRef], Any]

    def __init__(self, prompts: Sequence[Prompt], *, resolves: bool = True) -> None:
        self.prompts = list(prompts)
        self._position = 0
        self._payloads = {prompt.ref: prompt.payload for prompt in self.prompts}
        if resolves:
            self.resolve = self._resolve

    def next_batch(self, size: int) -> list[Prompt]:
        """Give the next prompts, `size` of them or what is left; [] at the end."""
        batch = self.prompts[self._position : self._position + size]
        self._position += len(batch)
        return batch

    def state_dict(self) -> dict[str, Any]:
        """See `nrl_interfaces.rollout.PromptSource`."""
        return {"position": self._position}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """See `nrl_interfaces.rollout.PromptSource`.

        Raises:
            ValueError: If the list is shorter than the position.
        """
        position = state["position"]
        if not 0 <= position <= len(self.prompts):
            raise ValueError(f"the position is {position!r}; allowed: 0 to {len(self.prompts)}, as many as there are")
        self._position = position

    def _resolve(self, ref: PromptRef, /) -> Any:
        try:
            return self._payloads[ref]
        except KeyError:
            raise LookupError(f"the source has no prompt {ref.sample_id!r}") from None
