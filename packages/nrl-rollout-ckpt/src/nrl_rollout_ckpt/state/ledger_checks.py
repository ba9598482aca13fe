"""What holds for a ledger at every cut, as functions without state, and the errors of ledger and replay index."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Final

from nrl_rollout_ckpt.state.ledger_states import PromptGroupPhase, PromptGroupStatus, RolloutAttemptStatus
from nrl_rollout_ckpt.state.records import PromptGroupRecoveryRecord, RolloutAttemptRecord, RolloutSiblingRecord

_UUID: Final = re.compile("[0-9a-f]{32}")
_UNSETTLED: Final = (PromptGroupStatus.FINALIZING, PromptGroupStatus.FINALIZATION_UNKNOWN)


class UnknownGroupError(KeyError):
    """Raised when no group has an id.

    Attributes:
        group_id: The id.
        holder: What was asked: "the ledger" or "the replay index".
    """

    def __init__(self, group_id: str, holder: str) -> None:
        super().__init__(group_id, holder)
        self.group_id, self.holder = group_id, holder

    def __str__(self) -> str:
        return f"{self.holder} has no group {self.group_id!r}: its id is wrong, or it was handed on or given up"


class LedgerError(RuntimeError):
    """Raised when a group does not allow what was asked, or its record can't be; nothing has changed.

    Attributes:
        group_id: The group; several are separated by commas.
        problem: What does not fit, and what is allowed.
    """

    def __init__(self, group_id: str, problem: str) -> None:
        super().__init__(group_id, problem)
        self.group_id, self.problem = group_id, problem

    def __str__(self) -> str:
        return f"group {self.group_id!r}: {self.problem}"


def check_attempt_uuid(group_id: str, attempt_uuid: object) -> None:
    """Refuse what is not 32 lower-case hex digits.

    Raises:
        LedgerError: If it is something else.
    """
    if not isinstance(attempt_uuid, str) or _UUID.fullmatch(attempt_uuid) is None:
        raise LedgerError(group_id, f"an attempt's id is {attempt_uuid!r}; allowed: 32 lower-case hex digits")


def check_group(group: PromptGroupRecoveryRecord) -> None:
    """Check what must hold for one group by itself.

    Raises:
        LedgerError: Names the group and what does not hold.
    """
    _require(group, bool(group.group_id), "its id is empty")
    _require(group, group.admission_id >= 0, f"its admission_id is {group.admission_id}; allowed: from 0")
    _require(group, group.expected_generations >= 1, "it expects no generations")
    indices = [sibling.generation_index for sibling in group.siblings]
    wanted = list(range(group.expected_generations))
    _require(group, indices == wanted, f"its siblings are {indices}; allowed: {wanted}")
    _check_phase(group)
    for sibling in group.siblings:
        _check_sibling(group, sibling)
    statuses = [sibling.current.status for sibling in group.siblings]
    is_complete = all(status is RolloutAttemptStatus.SEALED for status in statuses)
    is_generating = group.status is PromptGroupStatus.GENERATING
    _require(group, is_complete != is_generating, f"it is {group.status.value!r} with attempts {_values(statuses)}")


def check_groups(groups: Sequence[PromptGroupRecoveryRecord]) -> None:
    """Check what must hold for a whole ledger: each group, ids that are unique, batches that agree.

    Raises:
        LedgerError: Names the group and what does not hold.
    """
    ids: set[str] = set()
    uuids: set[str] = set()
    batches: dict[int, PromptGroupRecoveryRecord] = {}
    for group in groups:
        check_group(group)
        _require(group, group.group_id not in ids, "its id is there twice")
        ids.add(group.group_id)
        for attempt_uuid in attempt_uuids(group):
            _require(group, attempt_uuid not in uuids, f"attempt {attempt_uuid} is there twice")
            uuids.add(attempt_uuid)
        check_same_batch(batches.setdefault(group.admission_id, group), group)


def check_same_batch(one: PromptGroupRecoveryRecord, other: PromptGroupRecoveryRecord) -> None:
    """Check that two groups of one admission agree in phase and target step.

    Raises:
        LedgerError: If they don't.
    """
    agree = (one.phase, one.target_step) == (other.phase, other.target_step)
    _require(
        other,
        agree,
        f"it is {other.phase.value!r} for step {other.target_step}, but group {one.group_id!r} of the same admission "
        f"{one.admission_id} is {one.phase.value!r} for step {one.target_step}",
    )


def require_settled(groups: Iterable[PromptGroupRecoveryRecord]) -> None:
    """Refuse groups of which nobody knows whether their rows are in the data plane.

    Raises:
        LedgerError: Names them.
    """
    unsettled = [f"{group.group_id} ({group.status.value})" for group in groups if group.status in _UNSETTLED]
    if unsettled:
        raise LedgerError(
            ", ".join(unsettled),
            "whether the rows are in the data plane is not known, so neither a snapshot nor a restart can go on: "
            "commit the group again, which looks for its rows first, or discard it once they are gone",
        )


def attempt_uuids(group: PromptGroupRecoveryRecord) -> Iterable[str]:
    """Give the ids of all attempts of a group, former ones too."""
    return (attempt.attempt_uuid for sibling in group.siblings for attempt in sibling.attempts)


def _check_phase(group: PromptGroupRecoveryRecord) -> None:
    if group.phase is PromptGroupPhase.ADMITTED:
        weight = group.start_weight_version
        _require(group, weight is not None and weight >= 0, f"it is admitted with start weight {weight}")
        step = group.target_step
        _require(group, step is None or step >= 0, f"its target step is {step}; allowed: from 0, or None")
        return
    is_blank = group.start_weight_version is None and group.target_step is None
    _require(group, is_blank, "it is reserved, but has a start weight or a target step")
    waiting = all(sibling.current.status in _BEFORE_DISPATCH for sibling in group.siblings)
    _require(group, waiting, "it is reserved, but an attempt was dispatched")


_BEFORE_DISPATCH: Final = (RolloutAttemptStatus.RESERVED, RolloutAttemptStatus.ABANDONED)


def _check_sibling(group: PromptGroupRecoveryRecord, sibling: RolloutSiblingRecord) -> None:
    where = f"sibling {sibling.generation_index}"
    _require(group, bool(sibling.attempts), f"{where} has no attempt")
    for attempt in sibling.attempts[:-1]:
        is_over = attempt.status in (RolloutAttemptStatus.ABANDONED, RolloutAttemptStatus.FAILED)
        _require(group, is_over, f"{where} has a former attempt that is {attempt.status.value!r}")
    for attempt in sibling.attempts:
        _check_attempt(group, attempt)


def _check_attempt(group: PromptGroupRecoveryRecord, attempt: RolloutAttemptRecord) -> None:
    check_attempt_uuid(group.group_id, attempt.attempt_uuid)
    where = f"attempt {attempt.attempt_uuid}"
    outcome = (attempt.result, attempt.reward, attempt.mask_sample)
    if attempt.status is RolloutAttemptStatus.SEALED:
        _require(group, None not in outcome, f"{where} is sealed without result, reward or mask")
        _require(group, math.isfinite(attempt.reward or 0.0), f"{where} has the reward {attempt.reward}")
    else:
        _require(group, outcome == (None, None, None), f"{where} is {attempt.status.value!r}, but has an outcome")
    has_owner = attempt.environment_instance_id is not None
    is_first = attempt.status is RolloutAttemptStatus.RESERVED and attempt.environment_attempt == 0
    _require(group, not (has_owner and is_first), f"{where} is reserved, but an environment runs it")
    number = attempt.environment_attempt
    _require(group, number == 0 or (number > 0 and has_owner), f"{where} has environment attempt {number}, no owner")


def _require(group: PromptGroupRecoveryRecord, holds: bool, problem: str) -> None:  # noqa: FBT001
    if not holds:
        raise LedgerError(group.group_id, problem)


def _values(statuses: Iterable[RolloutAttemptStatus]) -> list[str]:
    return [status.value for status in statuses]
