"""What a transition makes of one group: functions from a frozen record to the next, which check before they build."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from nrl_interfaces.rollout import EnvironmentEpisode

from nrl_rollout_ckpt.state.ledger_checks import LedgerError
from nrl_rollout_ckpt.state.ledger_states import (
    ATTEMPTS,
    GROUP_STATUSES,
    PromptGroupEvent,
    PromptGroupPhase,
    PromptGroupStatus,
    RecoveryGranularity,
    RecoveryTargetLevel,
    RolloutAttemptEvent,
    RolloutAttemptStatus,
)
from nrl_rollout_ckpt.state.payloads import StoredValue
from nrl_rollout_ckpt.state.records import (
    PromptGroupRecoveryRecord,
    RolloutAttemptRecord,
    RolloutSiblingRecord,
    SavedPrompt,
    SiblingSealResult,
)

_OVER = (RolloutAttemptStatus.ABANDONED, RolloutAttemptStatus.FAILED)


def reserved_group(
    prompt: SavedPrompt,
    *,
    admission_id: int,
    expected_generations: int,
    granularity: RecoveryGranularity,
    restore_level: RecoveryTargetLevel,
    new_id: Callable[[], str],
    runtime_prompt: Any = None,
) -> PromptGroupRecoveryRecord:
    """Make a group of a prompt that was just taken, with one reserved attempt for each sibling."""
    return PromptGroupRecoveryRecord(
        group_id=new_id(),
        admission_id=admission_id,
        prompt=prompt,
        recovery_granularity=granularity,
        restore_level=restore_level,
        expected_generations=expected_generations,
        siblings=tuple(
            RolloutSiblingRecord(index, (RolloutAttemptRecord(new_id()),)) for index in range(expected_generations)
        ),
        runtime_prompt=runtime_prompt,
    )


def dispatched(
    group: PromptGroupRecoveryRecord, indices: Iterable[int] | None, instance_id: str | None
) -> PromptGroupRecoveryRecord:
    """Dispatch attempts that are reserved."""
    if group.phase is not PromptGroupPhase.ADMITTED:
        raise LedgerError(group.group_id, "it is not admitted yet; admit its batch before it is dispatched")
    GROUP_STATUSES.after(group.status, PromptGroupEvent.DISPATCH)
    reserved = [at for at, sibling in enumerate(group.siblings) if _is(sibling, RolloutAttemptStatus.RESERVED)]
    chosen = reserved if indices is None else list(indices)
    if not chosen or len(set(chosen)) != len(chosen):
        raise LedgerError(group.group_id, f"siblings {chosen} are to be dispatched; allowed: each once, of {reserved}")
    attempts: dict[int, RolloutAttemptRecord] = {}
    for at in chosen:
        attempt = _current(group, at)
        status = ATTEMPTS.after(attempt.status, RolloutAttemptEvent.DISPATCH)
        owner = _owner(group, attempt, instance_id)
        attempts[at] = replace(attempt, status=status, environment_instance_id=owner)
    return _with_current(group, attempts)


def sibling_sealed(
    group: PromptGroupRecoveryRecord, index: int, result: SiblingSealResult
) -> PromptGroupRecoveryRecord:
    """Seal one attempt at SIBLING granularity."""
    if group.recovery_granularity is not RecoveryGranularity.SIBLING:
        raise LedgerError(group.group_id, "it is kept as a whole; seal all its siblings at once with mark_group_sealed")
    sealed = _sealed(group, index, result)
    if sealed is _current(group, index):
        return group
    status = GROUP_STATUSES.after(group.status, PromptGroupEvent.SEAL)
    moved = _with_current(group, {index: sealed})
    if all(_is(sibling, RolloutAttemptStatus.SEALED) for sibling in moved.siblings):
        status = GROUP_STATUSES.after(status, PromptGroupEvent.ALL_SEALED)
    return replace(moved, status=status)


def group_sealed(
    group: PromptGroupRecoveryRecord, results: Mapping[int, SiblingSealResult]
) -> PromptGroupRecoveryRecord:
    """Seal all attempts at PROMPT_GROUP granularity."""
    if group.recovery_granularity is not RecoveryGranularity.PROMPT_GROUP:
        raise LedgerError(group.group_id, "its siblings are kept one by one; seal each with mark_sibling_sealed")
    wanted = range(group.expected_generations)
    if set(results) != set(wanted):
        raise LedgerError(group.group_id, f"results are there for {sorted(results)}; allowed: {list(wanted)}")
    sealed = {index: _sealed(group, index, results[index]) for index in wanted}
    if all(sealed[index] is _current(group, index) for index in wanted):
        return group
    status = GROUP_STATUSES.after(group.status, PromptGroupEvent.ALL_SEALED)
    return replace(_with_current(group, sealed), status=status)


def attempt_failed(group: PromptGroupRecoveryRecord, index: int) -> PromptGroupRecoveryRecord:
    """Fail a dispatched attempt."""
    attempt = _current(group, index)
    status = ATTEMPTS.after(attempt.status, RolloutAttemptEvent.FAIL)
    return _with_current(group, {index: replace(attempt, status=status)})


def abandoned(group: PromptGroupRecoveryRecord) -> PromptGroupRecoveryRecord:
    """Abandon what is not sealed; everything where the group is kept as a whole and not complete."""
    GROUP_STATUSES.after(group.status, PromptGroupEvent.ABANDON_UNSEALED)
    keeps_sealed = (
        group.recovery_granularity is RecoveryGranularity.SIBLING or group.status is not PromptGroupStatus.GENERATING
    )
    return _abandoned(group, lambda at: keeps_sealed and _is(group.siblings[at], RolloutAttemptStatus.SEALED))


def retried(group: PromptGroupRecoveryRecord, new_id: Callable[[], str]) -> PromptGroupRecoveryRecord:
    """Reserve new attempts for what failed or was abandoned."""
    GROUP_STATUSES.after(group.status, PromptGroupEvent.RETRY)
    over = [at for at, sibling in enumerate(group.siblings) if sibling.current.status in _OVER]
    states = [sibling.current.status.value for sibling in group.siblings]
    if not over:
        raise LedgerError(group.group_id, f"nothing is to be retried: its attempts are {states}")
    if group.recovery_granularity is RecoveryGranularity.PROMPT_GROUP and len(over) < len(group.siblings):
        raise LedgerError(
            group.group_id,
            f"it is kept as a whole, and its attempts are {states}: abandon_unsealed comes before a retry",
        )
    return _with_new_attempts(group, over, new_id)


def restarted(
    group: PromptGroupRecoveryRecord, kept: Mapping[int, EnvironmentEpisode], new_id: Callable[[], str]
) -> PromptGroupRecoveryRecord:
    """Begin anew what ended with its process; siblings in `kept` go on where the environment saved them."""
    goes_on = {at: _counted_up(_current(group, at), episode) for at, episode in kept.items()}
    keeps_sealed = _keeps_siblings(group)

    def stays(at: int) -> bool:
        attempt = _current(group, at)
        if attempt.status is RolloutAttemptStatus.SEALED:
            return keeps_sealed
        is_untouched = attempt.status is RolloutAttemptStatus.RESERVED and attempt.environment_instance_id is None
        return at in kept or is_untouched

    moved = _with_current(_abandoned(group, stays), goes_on)
    over = [at for at, sibling in enumerate(moved.siblings) if sibling.current.status in _OVER]
    return _with_new_attempts(moved, over, new_id)


def keeps_episodes(group: PromptGroupRecoveryRecord) -> dict[int, EnvironmentEpisode]:
    """Give, by sibling, the episodes that a restart can go on with: at TURN level, where siblings are kept."""
    if group.restore_level is not RecoveryTargetLevel.TURN or not _keeps_siblings(group):
        return {}
    active = (RolloutAttemptStatus.DISPATCHED, RolloutAttemptStatus.RESERVED)
    episodes: dict[int, EnvironmentEpisode] = {}
    for at, sibling in enumerate(group.siblings):
        episode = group.episode(at)
        if episode is not None and sibling.current.status in active:
            episodes[at] = episode
    return episodes


def taken_up(
    known: Mapping[int, EnvironmentEpisode], restored: dict[tuple[str, str], EnvironmentEpisode]
) -> dict[int, EnvironmentEpisode]:
    """Take those out of `restored` that are `known`, by sibling.

    An environment that was not told yet of an attempt that was taken up again knows the one before.
    """
    kept: dict[int, EnvironmentEpisode] = {}
    for at, episode in known.items():
        key = (episode.instance_id, episode.rollout_id)
        if key in restored and episode.attempt - restored[key].attempt in (0, 1):
            kept[at] = restored.pop(key)
    return kept


def _keeps_siblings(group: PromptGroupRecoveryRecord) -> bool:
    return (
        group.recovery_granularity is RecoveryGranularity.SIBLING
        and group.restore_level is not RecoveryTargetLevel.PROMPT_GROUP
    )


def _is(sibling: RolloutSiblingRecord, status: RolloutAttemptStatus) -> bool:
    return sibling.current.status is status


def _current(group: PromptGroupRecoveryRecord, index: int) -> RolloutAttemptRecord:
    if index not in range(group.expected_generations):
        raise LedgerError(
            group.group_id, f"it has no sibling {index!r}; allowed: 0 to {group.expected_generations - 1}"
        )
    return group.siblings[index].current


def _owner(group: PromptGroupRecoveryRecord, attempt: RolloutAttemptRecord, instance_id: str | None) -> str | None:
    known = attempt.environment_instance_id
    if known is not None and instance_id not in (None, known):
        raise LedgerError(
            group.group_id,
            f"attempt {attempt.attempt_uuid} goes on in instance {known!r} of the environment, not in {instance_id!r}",
        )
    owner = known if instance_id is None else instance_id
    if group.restore_level is RecoveryTargetLevel.TURN and not owner:
        raise LedgerError(group.group_id, "it goes on at turns, so its attempts need an environment's instance_id")
    return owner


def _sealed(group: PromptGroupRecoveryRecord, index: int, result: SiblingSealResult) -> RolloutAttemptRecord:
    """Give the sealed attempt; the current one itself if it is sealed with the same."""
    attempt = _current(group, index)
    sample_id = group.sample_id(index)
    if result.rollout_id not in (None, group.rollout_id(index)):
        raise LedgerError(
            group.group_id, f"a result of {result.rollout_id!r} came, but the attempt is {group.rollout_id(index)!r}"
        )
    outcome = (_stored(result, sample_id), _reward(result, sample_id), _mask(result, sample_id))
    if attempt.status is RolloutAttemptStatus.SEALED:
        if outcome != (attempt.result, attempt.reward, attempt.mask_sample):
            raise LedgerError(group.group_id, f"sibling {index} is sealed already, with another result")
        return attempt
    status = ATTEMPTS.after(attempt.status, RolloutAttemptEvent.SEAL)
    stored, reward, mask_sample = outcome
    return replace(attempt, status=status, result=stored, reward=reward, mask_sample=mask_sample)


def _stored(result: SiblingSealResult, sample_id: str) -> StoredValue:
    if isinstance(result.result, StoredValue):
        return result.result
    return StoredValue.of(result.result, f"the result of {sample_id!r}")


def _reward(result: SiblingSealResult, sample_id: str) -> float:
    reward: object = result.reward
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        raise ValueError(f"the reward of {sample_id!r} is {reward!r}; allowed: a finite number")
    return float(reward)


def _mask(result: SiblingSealResult, sample_id: str) -> bool:
    mask_sample: object = result.mask_sample
    if not isinstance(mask_sample, bool):
        raise ValueError(f"mask_sample of {sample_id!r} is {mask_sample!r}; allowed: True or False")
    return mask_sample


def _counted_up(attempt: RolloutAttemptRecord, saved: EnvironmentEpisode) -> RolloutAttemptRecord:
    status = ATTEMPTS.after(attempt.status, RolloutAttemptEvent.TAKE_UP_AGAIN)
    return replace(attempt, status=status, environment_attempt=saved.attempt + 1)


def _abandoned(group: PromptGroupRecoveryRecord, stays: Callable[[int], bool]) -> PromptGroupRecoveryRecord:
    attempts: dict[int, RolloutAttemptRecord] = {}
    for at, sibling in enumerate(group.siblings):
        attempt = sibling.current
        if attempt.status is not RolloutAttemptStatus.ABANDONED and not stays(at):
            attempts[at] = _given_up(attempt)
    return _with_current(group, attempts)


def _given_up(attempt: RolloutAttemptRecord) -> RolloutAttemptRecord:
    """Built field by field, as everything that a restart does to each sibling: `replace` takes five times as long."""
    return RolloutAttemptRecord(
        attempt.attempt_uuid,
        ATTEMPTS.after(attempt.status, RolloutAttemptEvent.ABANDON),
        environment_instance_id=attempt.environment_instance_id,
        environment_attempt=attempt.environment_attempt,
    )


def _with_new_attempts(
    group: PromptGroupRecoveryRecord, indices: Iterable[int], new_id: Callable[[], str]
) -> PromptGroupRecoveryRecord:
    new = {at: RolloutAttemptRecord(new_id()) for at in indices}
    if not new:
        return group
    siblings = tuple(
        RolloutSiblingRecord(sibling.generation_index, (*sibling.attempts, new[at])) if at in new else sibling
        for at, sibling in enumerate(group.siblings)
    )
    return replace(group, siblings=siblings)


def _with_current(
    group: PromptGroupRecoveryRecord, attempts: Mapping[int, RolloutAttemptRecord]
) -> PromptGroupRecoveryRecord:
    if not attempts:
        return group
    siblings = tuple(
        RolloutSiblingRecord(sibling.generation_index, (*sibling.attempts[:-1], attempts[at]))
        if at in attempts
        else sibling
        for at, sibling in enumerate(group.siblings)
    )
    return replace(group, siblings=siblings)
