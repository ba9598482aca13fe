"""Whether a data plane saves and loads what a snapshot needs of it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from nrl_interfaces.rollout import CheckpointableDataPlane
from nrl_interfaces.testing.rollout_checks.ground import must, refused, same

Plane = TypeVar("Plane", bound=CheckpointableDataPlane)


def check_checkpointable_data_plane(
    make: Callable[[], Plane],
    tmp_path: Path,
    *,
    fill: Callable[[Plane], object],
    claim: Callable[[Plane], Sequence[str]],
    partition_id: str,
    task_name: str,
) -> None:
    """Check what snapshots need of a data plane; `nrl_interfaces.testing.data_plane` checks all that adapters promise.

    Args:
        make: Makes a data plane that was never used.
        tmp_path: An empty folder.
        fill: Registers the partition and puts three rows or more.
        claim: Claims some rows, not all, for the task, and gives their ids.
        partition_id: The partition.
        task_name: The task.

    Raises:
        AssertionError: If something does not hold.
    """
    plane = make()
    must(
        isinstance(plane, CheckpointableDataPlane), f"{type(plane).__name__} lacks a method of CheckpointableDataPlane"
    )
    same(plane.list_sample_ids(partition_id), [], "the ids of an unknown partition")
    fill(plane)
    ids = plane.list_sample_ids(partition_id)
    must(len(set(ids)) == len(ids) >= 3, f"three rows or more, each with an id of its own; listed are {ids}")
    claimed = list(claim(plane))
    must(0 < len(claimed) < len(ids), f"`claim` claims some of the rows; it claimed {claimed} of {ids}")

    metadata = {"kind": "check", "counts": [1, 2], "nested": {"step": 3}}
    saved = tmp_path / "deep" / "saved"
    plane.save_checkpoint(saved, metadata=metadata)
    same(plane.list_sample_ids(partition_id), ids, "the ids of a plane that was saved")
    plane.save_checkpoint(tmp_path / "without metadata")
    _check_clearing(plane, ids, partition_id)
    with refused(Exception, "loading into a plane that was used"):
        plane.load_checkpoint(saved)

    loaded = make()
    same(loaded.load_checkpoint(saved), metadata, "the metadata")
    same(loaded.list_sample_ids(partition_id), ids, "the ids after loading; rows dropped after the save are in it")
    _check_claims(loaded, ids, claimed, lambda: claim(loaded), partition_id, task_name)
    same(make().load_checkpoint(tmp_path / "without metadata"), {}, "the metadata where none was given")
    with refused(Exception, "loading a folder that holds no checkpoint"):
        make().load_checkpoint(tmp_path / "nothing is here")


def _check_clearing(plane: CheckpointableDataPlane, ids: list[str], partition_id: str) -> None:
    with refused(KeyError, "dropping an unknown row"):
        plane.clear_samples([ids[0], "no row has this id"], partition_id)
    same(plane.list_sample_ids(partition_id), ids, "the ids after rows were not dropped")
    plane.clear_samples([ids[1]], partition_id)
    same(plane.list_sample_ids(partition_id), [ids[0], *ids[2:]], "the ids after one was dropped")
    plane.clear_samples(None, partition_id)
    same(plane.list_sample_ids(partition_id), [], "the ids after all were dropped")


def _check_claims(
    plane: CheckpointableDataPlane,
    ids: list[str],
    claimed: list[str],
    claim: Callable[[], Sequence[str]],
    partition_id: str,
    task_name: str,
) -> None:
    free = next(sample_id for sample_id in ids if sample_id not in claimed)
    with refused(ValueError, "releasing a row that is not claimed"):
        plane.release_claims([claimed[0], free], partition_id, task_name)
    try:
        plane.release_claims(claimed, partition_id, task_name)
    except ValueError as error:
        raise AssertionError(
            f"rows that were claimed when they were saved can't be released after loading: {error}"
        ) from error
    with refused(ValueError, "releasing rows twice"):
        plane.release_claims(claimed, partition_id, task_name)
    same(sorted(claim()), sorted(claimed), "the rows that are claimed again after their release")
