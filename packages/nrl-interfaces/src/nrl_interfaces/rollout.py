"""What a rollout checkpoint asks of the parts of a trainer: Protocols that they meet as they are, by their methods.

Every call is made from one asyncio event loop, except where a docstring says that it may run in a thread.
`nrl_interfaces.testing.rollout` has a conformance check for each Protocol.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

__all__ = [
    "CheckpointableDataPlane",
    "Deadline",
    "EnvironmentCheckpoint",
    "EnvironmentEpisode",
    "EnvironmentSnapshot",
    "LiveCut",
    "NoEnvironmentCheckpoint",
    "PromptRef",
    "PromptSource",
    "ReplayCandidate",
    "ResolvingPromptSource",
    "RestoredEnvironmentRollouts",
    "RolloutSampler",
    "TrainerCheckpoints",
]


@dataclass(frozen=True, slots=True)
class PromptRef:
    """Where a prompt comes from, so that a source can give it again.

    Attributes:
        sample_id: The prompt's id in its source, not empty.
        task_name: The task that it belongs to; None where a source has one task.

    Raises:
        ValueError: If a value is not allowed.
    """

    sample_id: str
    task_name: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.sample_id, str) or not self.sample_id:
            raise ValueError(f"sample_id is {self.sample_id!r}; allowed: a string that is not empty")
        if self.task_name is not None and not isinstance(self.task_name, str):
            raise ValueError(f"task_name is {self.task_name!r}; allowed: a string or None")


# ---- Prompts ----


@runtime_checkable
class PromptSource(Protocol):
    """Gives prompts in an order that a saved state goes on with, such as a stateful data loader."""

    def state_dict(self) -> dict[str, Any]:
        """Give the position behind the last prompt as plain data and tensors; moves nothing.

        What is given is not changed afterwards, whatever the source goes on to give.
        """
        ...

    def load_state_dict(self, state: dict[str, Any], /) -> object:
        """Go on where a state was saved, in a source that has given nothing yet; what is returned is ignored."""
        ...


@runtime_checkable
class ResolvingPromptSource(PromptSource, Protocol):
    """A source that finds a prompt by its reference, so that snapshots need not hold prompts."""

    def resolve(self, ref: PromptRef, /) -> Any:
        """Give the prompt that `ref` names, wherever the source stands, and move nothing; may run in a thread.

        Raises:
            LookupError: If the source has no such prompt.
        """
        ...


# ---- The data plane ----


@runtime_checkable
class CheckpointableDataPlane(Protocol):
    """The part of `nrl_interfaces.data_plane.DataPlaneClient` that snapshots need; calls may run in a thread.

    One that has ``freeze()`` too is written after the exclusive cut; any other is written inside of it.
    """

    def list_sample_ids(self, partition_id: str) -> list[str]:
        """List the ids of a partition in a fixed order; [] for an unknown one."""
        ...

    def clear_samples(self, sample_ids: list[str] | None, partition_id: str) -> None:
        """Drop rows, with None the whole partition; KeyError, and nothing is dropped, where an id is unknown."""
        ...

    def release_claims(self, sample_ids: Sequence[str], partition_id: str, task_name: str) -> None:
        """Make rows claimable again; ValueError, and none is released, where one is not claimed."""
        ...

    def save_checkpoint(self, checkpoint_dir: str | Path, *, metadata: dict[str, Any] | None = None) -> None:
        """Write everything that is held into a folder, which is made if it is missing, claims too."""
        ...

    def load_checkpoint(self, checkpoint_dir: str | Path) -> dict[str, Any]:
        """Load what was saved into a client that was never used, and return the metadata; {} where none was given."""
        ...


# ---- The sampler ----


class LiveCut(Protocol):
    """Proof that its holder is inside a section of the checkpoint barrier."""

    def require_live(self) -> None:
        """Raise RuntimeError once the section has ended."""
        ...


class ReplayCandidate(Protocol):
    """What a sampler sees of a group of rollouts that is ready for training."""

    @property
    def group_id(self) -> str:
        """The group's id."""
        ...

    @property
    def start_weight(self) -> int:
        """The trainer version whose weights began its generations."""
        ...

    @property
    def target_step(self) -> int | None:
        """The train step that it is stamped for; None where the sampler stamps none."""
        ...


@runtime_checkable
class RolloutSampler(Protocol):
    """Decides when a batch of prompts may be dispatched, and which groups a train step takes.

    Attributes:
        name: Its name; a snapshot of another one is refused.
        stamps_target_steps: Whether each batch is made for one train step.
        supports_buffer_checkpoint: Whether groups that are ready may be restored.
        supports_training_claims: Whether groups of an open train step may be put back.
    """

    name: str
    stamps_target_steps: bool
    supports_buffer_checkpoint: bool
    supports_training_claims: bool

    @property
    def dispatch_index(self) -> int:
        """The number of the last batch admitted; -1 before the first."""
        ...

    def restore_dispatch_index(self, index: int, /) -> None:
        """Go on behind batch `index`.

        Raises:
            ValueError: If it is below -1; nothing changes then.
        """
        ...

    async def wait_until_admissible(self) -> None:
        """Wait, in no section of the barrier, until one more batch may be admitted; admits none.

        Batch k is admissible at trainer version k at the latest.
        """
        ...

    def commit_admission(self, cut: LiveCut, /) -> int | None:
        """Admit one batch and return the train step it is stamped for, None where none is.

        Raises:
            RuntimeError: If the cut is not live, or no batch is admissible; nothing changes then.
        """
        ...

    def select(
        self, groups: Sequence[ReplayCandidate], trainer_version: int, wanted: int, shortfall: Mapping[int, int]
    ) -> list[str] | None:
        """Choose the groups that the train step takes at `trainer_version`, by id.

        Args:
            groups: The groups that are ready, in the order in which they came.
            trainer_version: The version that the step trains.
            wanted: Groups a step.
            shortfall: By train step, how many of its groups will never come: so many fewer are taken.

        Returns:
            The ids, none of them stale, or None where the step has to wait.
        """
        ...

    def stale(self, groups: Sequence[ReplayCandidate], trainer_version: int) -> list[str]:
        """Name the groups that no step may train on any more, by id."""
        ...


# ---- The environment ----


@dataclass(frozen=True, slots=True, order=True)
class EnvironmentEpisode:
    """One attempt as the environment knows it.

    Attributes:
        instance_id: The environment instance that runs it.
        rollout_id: The attempt's id, which the environment was given at dispatch.
        attempt: How often the environment took it up again, from 0.
    """

    instance_id: str
    rollout_id: str
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class RestoredEnvironmentRollouts:
    """Which episodes an environment goes on with.

    Attributes:
        episodes: As they were saved; the ledger counts their attempts up.
    """

    episodes: tuple[EnvironmentEpisode, ...] = ()


class EnvironmentSnapshot(Protocol):
    """The environment's part of a snapshot, while it is paused."""

    @property
    def episodes(self) -> Collection[EnvironmentEpisode]:
        """The episodes whose state is in the files."""
        ...

    async def check_against_cut(self, cut: LiveCut, /) -> None:
        """Refuse, inside the exclusive cut, what the files can't be restored from.

        Raises:
            RuntimeError: If they don't fit what the environment holds now.
        """
        ...


@runtime_checkable
class EnvironmentCheckpoint(Protocol):
    """Pauses an environment of several turns, saves its episodes, and goes on with them after a restart.

    Attributes:
        keeps_state: Whether episodes advance without any change of the data plane.
    """

    keeps_state: bool

    def snapshot(self, path: Path, /) -> AbstractAsyncContextManager[EnvironmentSnapshot | None]:
        """Pause, write the episodes into the folder `path`, give the snapshot, and resume at the end.

        Whatever happens, cancellation while entering or leaving too, and twice: afterwards the environment runs and
        dispatch is open. It may be left by another task than the one that entered it.

        Args:
            path: A folder that is not there yet, in one that is. What is left in it after an error, the caller removes.

        Raises:
            OSError, TimeoutError: What a later attempt may not meet again.
        """
        ...

    async def restore(self, path: Path, episodes: Sequence[EnvironmentEpisode], /) -> RestoredEnvironmentRollouts:
        """Take up `episodes` from the files in `path`, in an environment that has none yet.

        Returns:
            These episodes, as they were saved. Others that are in the files are left out.
        """
        ...


class NoEnvironmentCheckpoint:
    """For environments without a state of their own: nothing is paused, nothing is saved.

    >>> isinstance(NoEnvironmentCheckpoint(), EnvironmentCheckpoint)
    True
    """

    keeps_state: bool = False

    @contextlib.asynccontextmanager
    async def snapshot(self, path: Path, /) -> AsyncGenerator[EnvironmentSnapshot | None]:  # noqa: ARG002
        """Give None."""
        yield None

    async def restore(self, path: Path, episodes: Sequence[EnvironmentEpisode], /) -> RestoredEnvironmentRollouts:  # noqa: ARG002
        """Restore nothing."""
        return RestoredEnvironmentRollouts()


# ---- The trainer ----


@runtime_checkable
class TrainerCheckpoints(Protocol):
    """The folder of the trainer's own checkpoints, each ``step_<N>``.

    Attributes:
        checkpoint_dir: The folder.
    """

    @property
    def checkpoint_dir(self) -> Path:
        """The folder that holds the checkpoints."""
        ...

    def step_path(self, step: int, /) -> Path:
        """Where the checkpoint of a step is, once it is durable, or will be; a folder is there only then."""
        ...

    def finalize_pending(self) -> None:
        """Wait until checkpoints under way are durable; runs in a thread.

        Raises:
            RuntimeError: If one failed; each failure is raised once.
        """
        ...

    def protect(self, step: int, /) -> contextlib.AbstractContextManager[None]:
        """Keep retention from the checkpoint of a step, as long as a block runs; blocks may overlap."""
        ...


@runtime_checkable
class Deadline(Protocol):
    """The end of a run's time budget."""

    def would_save(self) -> bool:
        """Whether `check_save` would give True; changes nothing."""
        ...

    def check_save(self) -> bool:
        """Whether the last save is due: True once, then False for ever."""
        ...

    def remaining_s(self) -> float:
        """Seconds until the last save is due; negative afterwards, whether or not `check_save` was asked."""
        ...

    def save_took(self, seconds: float, /) -> None:
        """Be told how long a save took, so that the last one is due early enough."""
        ...
