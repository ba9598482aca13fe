"""Prompts and results as values that can't change any more: canonical JSON, with the tensors beside it."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self, cast

import torch
from nrl_interfaces.identity import IdentityValueError, canonical_json

from nrl_rollout_ckpt.state.records import Prompt, SavedPrompt

_TENSOR: Final = "__tensor__"
_LEAVES: Final = (str, int, float, bool, type(None))
_MAX_DEPTH: Final = 200  # as canonical_json, before Python's own limit


class PayloadTypeError(TypeError):
    """Raised when a prompt or a result holds what a snapshot can't.

    Attributes:
        what: What it belongs to.
        problem: Where it stands and what it is.
    """

    def __init__(self, what: str, problem: str) -> None:
        super().__init__(what, problem)
        self.what, self.problem = what, problem

    def __str__(self) -> str:
        return (
            f"{self.what} can't be saved: {self.problem}. Allowed: JSON values (None, bool, int, finite float, str, "
            "list, tuple, dict with string keys) and dense tensors; or give the prompt source a resolve(ref)"
        )


@dataclass(frozen=True, slots=True)
class StoredValue:
    """A value apart from the object that it was made of.

    Attributes:
        json: Its canonical JSON; a tensor is ``{"__tensor__": n}``, tuples are lists.
        tensors: Copies of its tensors, on the CPU, by n.
        digest: SHA-256 over the JSON and of each tensor dtype, shape and bytes, as 64 hex digits.

    >>> import torch
    >>> stored = StoredValue.of({"ids": torch.tensor([1, 2]), "text": "hi"}, "prompt 'p0'")
    >>> stored.json, stored.value()["ids"].tolist()
    (b'{"ids":{"__tensor__":0},"text":"hi"}', [1, 2])
    """

    json: bytes
    tensors: tuple[torch.Tensor, ...] = field(default=(), compare=False)
    digest: str = ""

    @classmethod
    def of(cls, value: Any, what: str) -> Self:
        """Copy a value.

        Args:
            value: JSON values and dense tensors, nested at will.
            what: What it belongs to, for messages.

        Raises:
            PayloadTypeError: If something else is in it; names the first such thing and where it is.
        """
        tensors: list[torch.Tensor] = []
        try:
            text = canonical_json(_without_tensors(value, tensors, what))
        except IdentityValueError as error:
            raise PayloadTypeError(what, str(error)) from None
        return cls(text, tuple(tensors), _digest(text, tensors))

    @classmethod
    def restored(cls, text: bytes, tensors: Sequence[torch.Tensor], digest: str) -> Self:
        """Take up a value that was saved.

        Raises:
            ValueError: If it is not what was saved: the digest differs.
        """
        if (found := _digest(text, tensors)) != digest:
            raise ValueError(f"the digest of the value is {found}, and was {digest} when it was saved")
        return cls(text, tuple(tensors), digest)

    def value(self) -> Any:
        """Build the value again; it shares nothing with this one."""
        return _with_tensors(json.loads(self.json), self.tensors)  # orjson makes floats of large ints


def saved_prompt(prompt: Prompt, *, whole: bool) -> SavedPrompt:
    """Give a prompt as a snapshot keeps it.

    Args:
        prompt: The prompt.
        whole: Whether the prompt itself is kept, since its source can't find it again by its reference.

    Raises:
        PayloadTypeError: If its payload can't be saved.
    """
    stored = StoredValue.of(prompt.payload, f"prompt {prompt.ref.sample_id!r}")
    return SavedPrompt(prompt.ref, stored.digest, stored if whole else None, prompt.task_source)


def prompt_digest(payload: Any, what: str) -> str:
    """Give the `SavedPrompt.digest` of a prompt's payload.

    Raises:
        PayloadTypeError: If it can't be saved.
    """
    return StoredValue.of(payload, what).digest


def _without_tensors(value: Any, tensors: list[torch.Tensor], what: str, path: tuple[str, ...] = ()) -> Any:
    if type(value) in _LEAVES:
        return value
    if len(path) > _MAX_DEPTH:
        raise PayloadTypeError(what, f"{''.join(path)[:80]}... is nested more than {_MAX_DEPTH} deep")
    if isinstance(value, torch.Tensor):
        tensors.append(_copied(value, what, "".join(path).lstrip(".") or "<root>"))
        return {_TENSOR: len(tensors) - 1}
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value)
        if _TENSOR in items:
            where = "".join(path).lstrip(".") or "<root>"
            raise PayloadTypeError(what, f"{where} has the key {_TENSOR!r}, which stands for a tensor")
        in_order = sorted(
            items.items(), key=lambda item: str(item[0])
        )  # so that their order changes no tensor's number
        return {key: _without_tensors(item, tensors, what, (*path, f".{key}")) for key, item in in_order}
    if isinstance(value, list | tuple):
        sequence = cast("list[Any]", value)
        return [
            item if type(item) in _LEAVES else _without_tensors(item, tensors, what, (*path, f"[{at}]"))
            for at, item in enumerate(sequence)
        ]
    return value  # for canonical_json to refuse


def _copied(tensor: torch.Tensor, what: str, where: str) -> torch.Tensor:
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
    if not is_plain or tensor.is_nested or tensor.is_quantized or tensor.is_meta:
        kind = f"{type(tensor).__name__} of {tensor.dtype}, {tensor.layout}, on {tensor.device}"
        raise PayloadTypeError(what, f"{where} is a {kind}; allowed: dense tensors that are not quantized")
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())  # `contiguous` may keep odd strides


def _with_tensors(value: Any, tensors: Sequence[torch.Tensor]) -> Any:
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value)
        if _TENSOR in items:
            number: int = items[_TENSOR]
            return tensors[number].clone()
        return {key: _with_tensors(item, tensors) for key, item in items.items()}
    if isinstance(value, list):
        return [_with_tensors(item, tensors) for item in cast("list[Any]", value)]
    return value


def _digest(text: bytes, tensors: Sequence[torch.Tensor]) -> str:
    digest = hashlib.sha256(text)
    for tensor in tensors:
        digest.update(f"\n{tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
