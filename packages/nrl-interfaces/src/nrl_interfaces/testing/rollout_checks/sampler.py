"""Whether a sampler admits batches and chooses groups so that training goes on, before and after a restart."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from nrl_interfaces.rollout import RolloutSampler
from nrl_interfaces.testing.rollout_checks.ground import Cut, broken, must, refused, same

MakeSampler: TypeAlias = Callable[[], tuple[RolloutSampler, Callable[[int], object]]]


@dataclass(frozen=True)
class _Group:
    group_id: str
    start_weight: int
    target_step: int | None


async def check_rollout_sampler(make: MakeSampler, *, steps: int = 4, wanted: int = 2, limit_s: float = 5.0) -> None:
    """Check a sampler in a run of some train steps that take one batch each.

    Args:
        make: Makes a sampler that admitted nothing yet, at trainer version 0, and what sets its trainer version.
        steps: How many train steps.
        wanted: Groups a batch and a step, from 2.
        limit_s: How long a sampler may take, in seconds, to see that a batch became admissible.

    Raises:
        AssertionError: If something does not hold.
    """
    sampler, _ = make()
    must(isinstance(sampler, RolloutSampler), f"{type(sampler).__name__} lacks a part of RolloutSampler")
    must(isinstance(sampler.name, str) and sampler.name, f"its name is {sampler.name!r}")
    for flag in ("stamps_target_steps", "supports_buffer_checkpoint", "supports_training_claims"):
        must(isinstance(getattr(sampler, flag), bool), f"{flag} is {getattr(sampler, flag)!r}")
    same(sampler.dispatch_index, -1, "dispatch_index before the first batch")
    with refused(RuntimeError, "admission with a cut that has ended"):
        sampler.commit_admission(Cut(live=False))
    same(sampler.dispatch_index, -1, "dispatch_index after a refused admission")
    stamps = await _check_run(make, steps, wanted, limit_s)
    await _check_waiting(make, limit_s)
    _check_restart(make, stamps)
    _check_shortfall(make, wanted)


async def _check_run(make: MakeSampler, steps: int, wanted: int, limit_s: float) -> list[int | None]:
    """Admit what is admissible and train, step by step; gives the stamp of each batch."""
    sampler, set_version = make()
    ready: list[_Group] = []
    stamps: list[int | None] = []
    for version in range(steps):
        set_version(version)
        while len(stamps) < steps and (len(stamps) <= version or await _is_admissible(sampler)):
            await _wait(sampler, limit_s, f"batch {len(stamps)} is not admissible at trainer version {version}")
            ready += _admit(sampler, version, wanted, stamps)
        _check_part_of_a_batch(sampler, ready[: wanted - 1], version, wanted)
        chosen = _choose(sampler, ready, version, wanted, {})
        same(len(chosen), wanted, f"how many groups step {version} takes")
        ready = [group for group in ready if group.group_id not in chosen]
        lost = sampler.stale(ready, version + 1)
        same(lost, [], f"the groups that are stale at version {version + 1} in a run without delay")
    return stamps


def _admit(sampler: RolloutSampler, version: int, wanted: int, stamps: list[int | None]) -> list[_Group]:
    """Admit one batch, and give its groups."""
    batch = len(stamps)
    stamp = sampler.commit_admission(Cut())
    same(sampler.dispatch_index, batch, f"dispatch_index after batch {batch}")
    must((stamp is not None) == sampler.stamps_target_steps, f"batch {batch} is stamped {stamp!r}")
    must(stamp is None or stamp >= max(filter(None, stamps), default=0), f"stamps must grow: {[*stamps, stamp]}")
    stamps.append(stamp)
    return [_Group(f"{batch}/{number}", version, stamp) for number in range(wanted)]


def _check_part_of_a_batch(sampler: RolloutSampler, ready: list[_Group], version: int, wanted: int) -> None:
    got = sampler.select(ready, version, wanted, {})
    must(got is None, f"select must wait for {wanted} groups; of {len(ready)} it took {got}")


def _choose(
    sampler: RolloutSampler, ready: list[_Group], version: int, wanted: int, shortfall: Mapping[int, int]
) -> list[str]:
    chosen = sampler.select(tuple(ready), version, wanted, shortfall)
    if chosen is None:
        broken(f"step {version} waits for ever: select gave None although its batch is ready: {ready}, {shortfall=}")
    same(sampler.select(tuple(ready), version, wanted, shortfall), chosen, "select, called twice")
    must(len(set(chosen)) == len(chosen), f"select took a group twice: {chosen}")
    must(set(chosen) <= {group.group_id for group in ready}, f"select took groups that are not ready: {chosen}")
    stale = sampler.stale(tuple(ready), version)
    must(set(stale) <= {group.group_id for group in ready}, f"stale named groups that it was not given: {stale}")
    must(not set(stale) & set(chosen), f"select took stale groups: {set(stale) & set(chosen)}")
    return chosen


async def _check_waiting(make: MakeSampler, limit_s: float) -> None:
    """A batch too many is refused; who waits for it can be cancelled, and is woken by the trainer."""
    sampler, set_version = make()
    for _ in range(100):
        if not await _is_admissible(sampler):
            break
        sampler.commit_admission(Cut())
    else:
        return  # it holds nothing back
    before = sampler.dispatch_index
    with refused(RuntimeError, f"admission of batch {before + 1}, for which wait_until_admissible waits"):
        sampler.commit_admission(Cut())
    waits = [asyncio.ensure_future(sampler.wait_until_admissible()) for _ in range(2)]
    await asyncio.sleep(0)
    waits[0].cancel()
    set_version(before + 1)
    done, _ = await asyncio.wait(waits, timeout=limit_s)
    waits[1].cancel()
    await asyncio.wait(waits)
    must(waits[0].cancelled(), "wait_until_admissible must end when it is cancelled")
    must(waits[1] in done, f"who waits for batch {before + 1} must be woken at trainer version {before + 1}")
    waits[1].result()
    same(sampler.dispatch_index, before, "dispatch_index after waiting, which admits nothing")


def _check_restart(make: MakeSampler, stamps: list[int | None]) -> None:
    for index in range(-1, len(stamps) - 1):
        sampler, set_version = make()
        set_version(index + 1)
        sampler.restore_dispatch_index(index)
        same(sampler.dispatch_index, index, "dispatch_index after it was restored")
        same(sampler.commit_admission(Cut()), stamps[index + 1], f"the stamp of batch {index + 1} after a restart")
        same(sampler.dispatch_index, index + 1, "dispatch_index after a restart and a batch")
        with refused(ValueError, "restore_dispatch_index(-2)"):
            sampler.restore_dispatch_index(-2)
        same(sampler.dispatch_index, index + 1, "dispatch_index after a refused restore")


def _check_shortfall(make: MakeSampler, wanted: int) -> None:
    """A step takes what there is when the rest will never come."""
    sampler, _ = make()
    ready = _admit(sampler, 0, wanted, [])
    step = ready[0].target_step or 0
    chosen = _choose(sampler, ready[1:], step, wanted, {step: 1})
    same(sorted(chosen), [group.group_id for group in ready[1:]], "what a step takes with a shortfall of 1")


async def _is_admissible(sampler: RolloutSampler) -> bool:
    wait = asyncio.ensure_future(sampler.wait_until_admissible())
    for _ in range(20):
        if wait.done():
            break
        await asyncio.sleep(0)
    admissible = wait.done()
    wait.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await wait
    return admissible


async def _wait(sampler: RolloutSampler, limit_s: float, what: str) -> None:
    try:
        async with asyncio.timeout(limit_s):
            await sampler.wait_until_admissible()
    except TimeoutError as error:
        raise AssertionError(what) from error
