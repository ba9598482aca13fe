"""Whether a trainer's checkpoints and its deadline keep to what snapshots need of them."""

from collections.abc import Callable
from typing import TypeVar

from nrl_interfaces.rollout import Deadline, TrainerCheckpoints
from nrl_interfaces.testing.rollout_checks.ground import must, refused, same

Checkpoints = TypeVar("Checkpoints", bound=TrainerCheckpoints)


def check_trainer_checkpoints(
    make: Callable[[], Checkpoints],
    *,
    save: Callable[[Checkpoints, int], object],
    fail: Callable[[Checkpoints, int], object],
    retained: int,
) -> None:
    """Check the folder of a trainer's checkpoints.

    Args:
        make: Makes one over an empty folder that keeps the newest `retained` checkpoints; called once.
        save: Begins the checkpoint of a step; it may end in the background.
        fail: Begins the checkpoint of a step that will not become durable.
        retained: How many checkpoints are kept, from 1.

    Raises:
        AssertionError: If something does not hold.
    """
    checkpoints = make()
    must(
        isinstance(checkpoints, TrainerCheckpoints), f"{type(checkpoints).__name__} lacks a part of TrainerCheckpoints"
    )
    same(checkpoints.step_path(7), checkpoints.checkpoint_dir / "step_7", "step_path of a step to come")
    checkpoints.finalize_pending()  # nothing is under way

    def is_there(step: int) -> bool:
        return checkpoints.step_path(step).is_dir()

    def save_steps(steps: range) -> None:
        for step in steps:
            must(not is_there(step), f"there is a folder of step {step}, which was not saved")
            save(checkpoints, step)
            checkpoints.finalize_pending()
            must(is_there(step), f"step_path({step}) is no folder after finalize_pending")

    last = retained + 1
    with refused(ZeroDivisionError, "an error in a block of protect"), checkpoints.protect(1):
        with checkpoints.protect(1):
            save_steps(range(1, 2))
        save_steps(range(2, last + 1))
        must(is_there(1), "retention removed step 1 although a block of protect(1) was open")
        raise ZeroDivisionError
    save_steps(range(last + 1, last + 2))
    must(not is_there(1), f"retention kept step 1 beside {retained} newer ones, after protect(1) had ended")
    fail(checkpoints, last + 2)
    with refused(RuntimeError, "finalize_pending after a checkpoint that failed"):
        checkpoints.finalize_pending()
    must(not is_there(last + 2), "there is a folder of a checkpoint that failed")
    try:
        checkpoints.finalize_pending()
    except RuntimeError as error:
        raise AssertionError("finalize_pending raised one failure twice") from error
    must(is_there(last + 1), "a checkpoint that failed took the one before it along")


def check_deadline(make: Callable[[], tuple[Deadline, Callable[[float], object]]]) -> None:
    """Check the end of a run's time budget.

    Args:
        make: Makes a deadline of at least 10 seconds, and what lets seconds pass on its clock.

    Raises:
        AssertionError: If something does not hold.
    """
    deadline, let_pass = make()
    must(isinstance(deadline, Deadline), f"{type(deadline).__name__} lacks a method of Deadline")
    left = deadline.remaining_s()
    must(left >= 10, f"a deadline for this check leaves at least 10 seconds, not {left}")
    let_pass(4.0)
    must(abs(deadline.remaining_s() - (left - 4)) < 1e-6, f"{deadline.remaining_s()} s remain of {left} after 4 s")
    same((deadline.would_save(), deadline.check_save()), (False, False), "would_save and check_save before the time")
    let_pass(left)
    must(deadline.remaining_s() < 0, "remaining_s must be negative afterwards")
    same([deadline.would_save(), deadline.would_save()], [True, True], "would_save, which changes nothing")
    same([deadline.check_save(), deadline.check_save()], [True, False], "check_save, True once")
    let_pass(left)
    same(
        (deadline.would_save(), deadline.check_save()), (False, False), "would_save and check_save after the last save"
    )
    must(deadline.remaining_s() < 0, "remaining_s must stay negative")

    deadline, _ = make()
    before = deadline.remaining_s()
    deadline.save_took(1.0)
    must(deadline.remaining_s() < before, "a save that took 1 s must make the last one due earlier")
