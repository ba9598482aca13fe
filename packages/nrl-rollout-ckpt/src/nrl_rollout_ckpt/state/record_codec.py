"""Records as plain data for JSON, and back; tensors stay beside it, by the id of what they belong to.

A stored value's JSON is kept as a string: it comes back byte for byte, as its digest needs it, and without parsing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import StrEnum
from typing import Any, Final, TypeAlias, TypeVar, cast

import torch
from nrl_interfaces.rollout import PromptRef

from nrl_rollout_ckpt.state.ledger_states import (
    PromptGroupPhase,
    PromptGroupStatus,
    RecoveryGranularity,
    RecoveryTargetLevel,
    RolloutAttemptStatus,
)
from nrl_rollout_ckpt.state.payloads import StoredValue
from nrl_rollout_ckpt.state.records import (
    PromptGroupRecoveryRecord,
    ReplayGroup,
    RolloutAttemptRecord,
    RolloutSiblingRecord,
    SavedPrompt,
)

Tensors: TypeAlias = dict[str, tuple[torch.Tensor, ...]]
Plain: TypeAlias = dict[str, Any]
Choice = TypeVar("Choice", bound=StrEnum)
Item = TypeVar("Item")


class RecordFormatError(ValueError):
    """Raised when data is not that of a record.

    Attributes:
        path: Where it stands, such as ``siblings[0].attempts[1].status``.
        problem: What it is, and what is allowed.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path, self.problem = path, problem

    def __str__(self) -> str:
        return f"{self.path} {self.problem}"


# ---- Writing ----


def encode_group(group: PromptGroupRecoveryRecord, prompts: Tensors, results: Tensors) -> Plain:
    """Give a group of the ledger as plain data.

    Args:
        group: The group.
        prompts: Gets the tensors of its prompt, by its id.
        results: Gets the tensors of its sealed attempts, by their ids.
    """
    return {
        "group_id": group.group_id,
        "admission_id": group.admission_id,
        "prompt": encode_prompt(group.prompt, group.group_id, prompts),
        "recovery_granularity": group.recovery_granularity.value,
        "restore_level": group.restore_level.value,
        "expected_generations": group.expected_generations,
        "start_weight_version": group.start_weight_version,
        "target_step": group.target_step,
        "phase": group.phase.value,
        "status": group.status.value,
        "siblings": [
            {
                "generation_index": sibling.generation_index,
                "attempts": [_encode_attempt(attempt, results) for attempt in sibling.attempts],
            }
            for sibling in group.siblings
        ],
    }


def encode_replay_group(group: ReplayGroup, prompts: Tensors) -> Plain:
    """Give a group of the replay index as plain data; `prompts` gets the tensors of its prompt, by its id."""
    return {
        "group_id": group.group_id,
        "sample_ids": list(group.sample_ids),
        "start_weight": group.start_weight,
        "end_weight": group.end_weight,
        "target_step": group.target_step,
        "prompt": encode_prompt(group.prompt, group.group_id, prompts),
    }


def encode_prompt(prompt: SavedPrompt, key: str, prompts: Tensors) -> Plain:
    """Give a prompt as plain data; `prompts` gets its tensors under `key`."""
    return {
        "sample_id": prompt.ref.sample_id,
        "task_name": prompt.ref.task_name,
        "digest": prompt.digest,
        "stored": None if prompt.stored is None else _encode_stored(prompt.stored, key, prompts),
        "task_source": prompt.task_source,
    }


def _encode_attempt(attempt: RolloutAttemptRecord, results: Tensors) -> Plain:
    result = attempt.result
    return {
        "attempt_uuid": attempt.attempt_uuid,
        "status": attempt.status.value,
        "result": None if result is None else _encode_stored(result, attempt.attempt_uuid, results),
        "reward": attempt.reward,
        "mask_sample": attempt.mask_sample,
        "environment_instance_id": attempt.environment_instance_id,
        "environment_attempt": attempt.environment_attempt,
    }


def _encode_stored(stored: StoredValue, key: str, tensors: Tensors) -> Plain:
    if stored.tensors:
        if key in tensors:
            raise ValueError(f"tensors of {key!r} are there already; each prompt and result needs a key of its own")
        tensors[key] = stored.tensors
    return {"json": stored.json.decode(), "tensors": len(stored.tensors), "digest": stored.digest}


# ---- Reading ----

_GROUP: Final = frozenset(
    {
        "group_id",
        "admission_id",
        "prompt",
        "recovery_granularity",
        "restore_level",
        "expected_generations",
        "start_weight_version",
        "target_step",
        "phase",
        "status",
        "siblings",
    }
)
_SIBLING: Final = frozenset({"generation_index", "attempts"})
_ATTEMPT: Final = frozenset(
    {
        "attempt_uuid",
        "status",
        "result",
        "reward",
        "mask_sample",
        "environment_instance_id",
        "environment_attempt",
    }
)
_REPLAY_GROUP: Final = frozenset({"group_id", "sample_ids", "start_weight", "end_weight", "target_step", "prompt"})
_PROMPT: Final = frozenset({"sample_id", "task_name", "digest", "stored", "task_source"})
_STORED: Final = frozenset({"json", "tensors", "digest"})


def decode_group(data: Any, prompts: Tensors, results: Tensors, path: str = "group") -> PromptGroupRecoveryRecord:
    """Read what `encode_group` gave; what must hold between fields is for `check_groups`.

    Args:
        data: Plain data.
        prompts: The tensors of prompts.
        results: The tensors of results.
        path: What messages call `data`.

    Raises:
        RecordFormatError: If a field is unknown, missing or of another type, or a stored value is not what was saved.
    """
    fields = _fields(data, _GROUP, path)
    group_id = _text(fields, "group_id", path)
    siblings = _items(fields, "siblings", path, lambda item, at: _decode_sibling(item, results, at), f"{path}.siblings")
    return PromptGroupRecoveryRecord(
        group_id=group_id,
        admission_id=_count(fields, "admission_id", path),
        prompt=decode_prompt(fields["prompt"], group_id, prompts, f"{path}.prompt"),
        recovery_granularity=_choice(fields, "recovery_granularity", path, RecoveryGranularity),
        restore_level=_choice(fields, "restore_level", path, RecoveryTargetLevel),
        expected_generations=_count(fields, "expected_generations", path),
        siblings=siblings,
        start_weight_version=_count_or_none(fields, "start_weight_version", path),
        target_step=_count_or_none(fields, "target_step", path),
        phase=_choice(fields, "phase", path, PromptGroupPhase),
        status=_choice(fields, "status", path, PromptGroupStatus),
    )


def decode_replay_group(data: Any, prompts: Tensors, path: str = "group") -> ReplayGroup:
    """Read what `encode_replay_group` gave.

    Raises:
        RecordFormatError: As `decode_group`.
    """
    fields = _fields(data, _REPLAY_GROUP, path)
    group_id = _text(fields, "group_id", path)
    return ReplayGroup(
        group_id=group_id,
        sample_ids=_items(fields, "sample_ids", path, _as_text, f"{path}.sample_ids"),
        start_weight=_count(fields, "start_weight", path),
        end_weight=_count(fields, "end_weight", path),
        prompt=decode_prompt(fields["prompt"], group_id, prompts, f"{path}.prompt"),
        target_step=_count_or_none(fields, "target_step", path),
    )


def decode_prompt(data: Any, key: str, prompts: Tensors, path: str = "prompt") -> SavedPrompt:
    """Read what `encode_prompt` gave.

    Raises:
        RecordFormatError: As `decode_group`.
    """
    fields = _fields(data, _PROMPT, path)
    digest = _text(fields, "digest", path)
    stored = _decode_stored(fields["stored"], key, prompts, f"{path}.stored")
    if stored is not None and stored.digest != digest:
        raise RecordFormatError(f"{path}.digest", f"is {digest!r}, but the stored prompt has {stored.digest!r}")
    ref = PromptRef(_text(fields, "sample_id", path), _text_or_none(fields, "task_name", path))
    return SavedPrompt(ref, digest, stored, _text_or_none(fields, "task_source", path))


def _decode_sibling(data: Any, results: Tensors, path: str) -> RolloutSiblingRecord:
    fields = _fields(data, _SIBLING, path)
    attempts = _items(fields, "attempts", path, lambda item, at: _decode_attempt(item, results, at), f"{path}.attempts")
    return RolloutSiblingRecord(_count(fields, "generation_index", path), attempts)


def _decode_attempt(data: Any, results: Tensors, path: str) -> RolloutAttemptRecord:
    fields = _fields(data, _ATTEMPT, path)
    attempt_uuid = _text(fields, "attempt_uuid", path)
    reward, mask_sample = fields["reward"], fields["mask_sample"]
    if reward is not None and not isinstance(reward, float):
        raise _wrong(f"{path}.reward", reward, "a float or null")
    if mask_sample is not None and not isinstance(mask_sample, bool):
        raise _wrong(f"{path}.mask_sample", mask_sample, "true, false or null")
    return RolloutAttemptRecord(
        attempt_uuid,
        _choice(fields, "status", path, RolloutAttemptStatus),
        _decode_stored(fields["result"], attempt_uuid, results, f"{path}.result"),
        reward,
        mask_sample,
        _text_or_none(fields, "environment_instance_id", path),
        _count(fields, "environment_attempt", path),
    )


def _decode_stored(data: Any, key: str, tensors: Tensors, path: str) -> StoredValue | None:
    if data is None:
        return None
    fields = _fields(data, _STORED, path)
    json = fields["json"]
    if not isinstance(json, str):
        raise _wrong(f"{path}.json", json, "a string")
    own = tensors.get(key, ())
    if _count(fields, "tensors", path) != len(own):
        raise RecordFormatError(f"{path}.tensors", f"is {fields['tensors']}, but {len(own)} are there for {key!r}")
    try:
        return StoredValue.restored(json.encode(), own, _text(fields, "digest", path))
    except ValueError as error:
        raise RecordFormatError(path, f"is not what was saved: {error}") from None


# ---- Fields ----


def _fields(data: Any, names: Collection[str], path: str) -> Plain:
    if not isinstance(data, dict):
        raise _wrong(path, data, "an object")
    fields = cast("Plain", data)
    if fields.keys() != names:
        missing, unknown = sorted(names - fields.keys()), sorted(map(str, fields.keys() - names))
        raise RecordFormatError(path, f"lacks the fields {missing} and has the unknown fields {unknown}")
    return fields


def _items(fields: Plain, name: str, path: str, decode: Callable[[Any, str], Item], at: str) -> tuple[Item, ...]:
    items = fields[name]
    if not isinstance(items, list):
        raise _wrong(f"{path}.{name}", items, "a list")
    return tuple(decode(item, f"{at}[{number}]") for number, item in enumerate(cast("list[Any]", items)))


def _as_text(value: Any, path: str) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(path, value, "a string that is not empty")
    return value


def _text(fields: Plain, name: str, path: str) -> str:
    return _as_text(fields[name], f"{path}.{name}")


def _text_or_none(fields: Plain, name: str, path: str) -> str | None:
    value = fields[name]
    if value is not None and not isinstance(value, str):
        raise _wrong(f"{path}.{name}", value, "a string or null")
    return value


def _count(fields: Plain, name: str, path: str) -> int:
    value = fields[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _wrong(f"{path}.{name}", value, "an integer from 0")
    return value


def _count_or_none(fields: Plain, name: str, path: str) -> int | None:
    return None if fields[name] is None else _count(fields, name, path)


def _choice(fields: Plain, name: str, path: str, choices: type[Choice]) -> Choice:
    value = fields[name]
    try:
        if isinstance(value, str):
            return choices(value)
    except ValueError:
        pass
    raise _wrong(f"{path}.{name}", value, f"one of {', '.join(choices)}")


def _wrong(path: str, value: Any, allowed: str) -> RecordFormatError:
    shown = repr(value)
    return RecordFormatError(path, f"is {shown if len(shown) <= 80 else shown[:77] + '...'}; allowed: {allowed}")
