"""Each check of testing.rollout passes a right part and names what is broken in wrong ones."""

import asyncio
import contextlib
import re
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from nrl_interfaces.rollout import LiveCut, PromptRef
from nrl_interfaces.testing.model_data_plane import ModelDataPlane
from nrl_interfaces.testing.rollout import (
    check_checkpointable_data_plane,
    check_deadline,
    check_prompt_source,
    check_resolving_prompt_source,
    check_rollout_sampler,
    check_trainer_checkpoints,
)


def finds(message: str):
    return pytest.raises(AssertionError, match=re.escape(message))


# ---- Prompts ----


class Prompts:
    """Six prompts with a tensor each."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while self.at < 6:
            self.at += 1
            yield self.prompt(self.at - 1)

    def prompt(self, number: int) -> dict[str, Any]:
        return {"id": f"p{number}", "tokens": torch.tensor([number, number])}

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]

    def resolve(self, ref: PromptRef) -> dict[str, Any]:
        if ref.sample_id not in {f"p{number}" for number in range(6)}:
            raise KeyError(ref.sample_id)
        return self.prompt(int(ref.sample_id[1:]))


class OneBehind(Prompts):
    def state_dict(self) -> dict[str, Any]:
        return {"at": max(self.at - 1, 0)}


class Moves(Prompts):
    def state_dict(self) -> dict[str, Any]:
        self.at += 1
        return {"at": self.at - 1}


class LiveState(Prompts):
    def __init__(self) -> None:
        super().__init__()
        self.live = {"at": 0}

    def state_dict(self) -> dict[str, Any]:
        self.live["at"] = self.at
        return self.live


class Opaque(Prompts):
    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "path": threading.Event}


class Forgets(Prompts):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class OtherTensors(Prompts):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.prompt = lambda number: {"id": f"p{number}", "tokens": torch.tensor([number, 0])}


class NoState:
    def __iter__(self) -> Iterator[int]:
        return iter(range(6))


def test_a_right_source_of_prompts_passes() -> None:
    check_prompt_source(Prompts)
    check_resolving_prompt_source(Prompts, ref_of=lambda prompt: PromptRef(prompt["id"]))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (OneBehind, "after a state saved behind 1 prompts"),
        (Moves, "what a source gives that saved a state behind 0"),
        (LiveState, "a state that was saved, once its source went on"),
        (Opaque, "state_dict must give plain data and tensors"),
        (Forgets, "after a state saved behind 1 prompts"),
        (OtherTensors, "after a state saved behind 0 prompts"),
        (NoState, "NoState has no state_dict"),
    ],
)
def test_wrong_sources_of_prompts_are_named(wrong, message: str) -> None:
    with finds(message):
        check_prompt_source(wrong)


class ResolvesAnything(Prompts):
    def resolve(self, ref: PromptRef) -> dict[str, Any]:
        return self.prompt(int(ref.sample_id[1:]) if ref.sample_id[1:].isdigit() else 0)


class ResolvesTheWrongOne(Prompts):
    def resolve(self, ref: PromptRef) -> dict[str, Any]:
        return self.prompt((int(super().resolve(ref)["id"][1:]) + 1) % 6)


class ResolvingMoves(Prompts):
    def resolve(self, ref: PromptRef) -> dict[str, Any]:
        found = super().resolve(ref)
        self.at = 1
        return found


class CannotResolve(Prompts):
    resolve = None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (ResolvesAnything, "resolve of a reference to nothing: must raise LookupError"),
        (ResolvesTheWrongOne, "resolve(PromptRef(sample_id='p5', task_name=None))"),
        (ResolvingMoves, "what a source gives that resolved"),
        (CannotResolve, "CannotResolve has no resolve"),
    ],
)
def test_wrong_resolving_is_named(wrong, message: str) -> None:
    with finds(message):
        check_resolving_prompt_source(wrong, ref_of=lambda prompt: PromptRef(prompt["id"]))


# ---- The data plane ----


class Plane(ModelDataPlane):
    def __init__(self) -> None:
        super().__init__(partition_mode="stream", max_partitions=2, owner=None, safe_globals=())


def check_plane(make: Callable[[], Any], folder: Path) -> None:
    def fill(plane: Any) -> None:
        plane.register_partition("p", ["x"], num_samples=4, consumer_tasks=["train"])
        plane.put_samples(["a", "b", "c", "d"], "p", {"x": torch.arange(4)})

    def claim(plane: Any) -> list[str]:
        return list(plane.claim_meta("p", "train", ["x"], 2, timeout_s=0).sample_ids)

    check_checkpointable_data_plane(make, folder, fill=fill, claim=claim, partition_id="p", task_name="train")


class ForgetsMetadata(Plane):
    def load_checkpoint(self, checkpoint_dir):
        super().load_checkpoint(checkpoint_dir)
        return {}


class ForgetsClaims(Plane):
    def save_checkpoint(self, checkpoint_dir, *, metadata=None):
        claimed = [i for i in self.list_sample_ids("p") if self._is_claimed(i)]
        self.release_claims(claimed, "p", "train")
        super().save_checkpoint(checkpoint_dir, metadata=metadata)

    def _is_claimed(self, sample_id: str) -> bool:
        try:
            self.release_claims([sample_id], "p", "train")
        except ValueError:
            return False
        self.claim_meta("p", "train", ["x"], 1, timeout_s=0)
        return True


class SavingDrops(Plane):
    def save_checkpoint(self, checkpoint_dir, *, metadata=None):
        super().save_checkpoint(checkpoint_dir, metadata=metadata)
        self.clear_samples(["a"], "p")


class LoadsOverRows(Plane):
    def load_checkpoint(self, checkpoint_dir):
        fresh = Plane()
        metadata = fresh.load_checkpoint(checkpoint_dir)
        self.__dict__.update(fresh.__dict__)
        return metadata


class ClearsWhatItCan(Plane):
    def clear_samples(self, sample_ids, partition_id):
        known = set(self.list_sample_ids(partition_id))
        super().clear_samples(sample_ids and [i for i in sample_ids if i in known], partition_id)


class ReleasesAnything(Plane):
    def release_claims(self, sample_ids, partition_id, task_name):
        for sample_id in sample_ids:
            with contextlib.suppress(ValueError):
                super().release_claims([sample_id], partition_id, task_name)


class InventsAPartition(Plane):
    def list_sample_ids(self, partition_id):
        try:
            return super().list_sample_ids(partition_id) or ["a"]
        except KeyError:
            return ["a"]


def test_a_right_data_plane_passes(tmp_path: Path) -> None:
    check_plane(Plane, tmp_path)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (ForgetsMetadata, "the metadata: got {}"),
        (ForgetsClaims, "can't be released after loading"),
        (SavingDrops, "the ids of a plane that was saved"),
        (LoadsOverRows, "loading into a plane that was used: must raise"),
        (ClearsWhatItCan, "dropping an unknown row: must raise KeyError"),
        (ReleasesAnything, "releasing a row that is not claimed: must raise ValueError"),
        (InventsAPartition, "the ids of an unknown partition"),
    ],
)
def test_wrong_data_planes_are_named(tmp_path: Path, wrong, message: str) -> None:
    with finds(message):
        check_plane(wrong, tmp_path)


# ---- The sampler ----


class Sampler:
    """Step k takes batch k, which may be admitted one step ahead."""

    name = "in_order"
    stamps_target_steps = True
    supports_buffer_checkpoint = True
    supports_training_claims = True

    def __init__(self) -> None:
        self.dispatch_index = -1
        self.version = 0
        self.moved = asyncio.Event()

    def set_version(self, version: int) -> None:
        self.version = version
        self.moved.set()

    def restore_dispatch_index(self, index: int) -> None:
        if index < -1:
            raise ValueError(index)
        self.dispatch_index = index

    def is_admissible(self) -> bool:
        return self.dispatch_index <= self.version

    async def wait_until_admissible(self) -> None:
        while not self.is_admissible():
            self.moved.clear()
            await self.moved.wait()

    def commit_admission(self, cut: LiveCut) -> int | None:
        cut.require_live()
        if not self.is_admissible():
            raise RuntimeError
        self.dispatch_index += 1
        return self.dispatch_index

    def select(self, groups, trainer_version, wanted, shortfall) -> list[str] | None:
        ids = [group.group_id for group in groups if group.target_step == trainer_version]
        return ids if len(ids) >= wanted - shortfall.get(trainer_version, 0) else None

    def stale(self, groups, trainer_version) -> list[str]:
        return [group.group_id for group in groups if group.target_step < trainer_version]


class AdmitsWithoutACut(Sampler):
    def commit_admission(self, cut):
        self.dispatch_index += 1
        return self.dispatch_index


class AdmitsTooMany(Sampler):
    def commit_admission(self, cut):
        cut.require_live()
        self.dispatch_index += 1
        return self.dispatch_index


class CountsFromOne(Sampler):
    def __init__(self) -> None:
        super().__init__()
        self.dispatch_index = 0


class WaitingAdmits(Sampler):
    async def wait_until_admissible(self) -> None:
        await super().wait_until_admissible()
        self.dispatch_index += 1


class NeverWoken(Sampler):
    def set_version(self, version: int) -> None:
        self.version = version


class AdmissibleTooLate(Sampler):
    def is_admissible(self) -> bool:
        return self.dispatch_index < self.version - 1


class StampsNothing(Sampler):
    def commit_admission(self, cut):
        super().commit_admission(cut)


class StampsByVersion(Sampler):
    def commit_admission(self, cut):
        return super().commit_admission(cut) and self.version


class TakesHalfABatch(Sampler):
    def select(self, groups, trainer_version, wanted, shortfall):
        return [group.group_id for group in groups if group.target_step == trainer_version]


class IgnoresShortfall(Sampler):
    def select(self, groups, trainer_version, wanted, shortfall):
        return super().select(groups, trainer_version, wanted, {})


class TakesStaleOnes(Sampler):
    def stale(self, groups, trainer_version):
        return [group.group_id for group in groups if group.target_step <= trainer_version]


class LosesWhatIsAhead(Sampler):
    def stale(self, groups, trainer_version):
        return [group.group_id for group in groups if group.start_weight < trainer_version]


class RestoresOneOff(Sampler):
    def restore_dispatch_index(self, index):
        super().restore_dispatch_index(index)
        self.dispatch_index += 1


class RestoresAnything(Sampler):
    def restore_dispatch_index(self, index):
        self.dispatch_index = index


class StampsAnewAfterRestart(Sampler):
    first = -1

    def restore_dispatch_index(self, index):
        super().restore_dispatch_index(index)
        self.first = index

    def commit_admission(self, cut):
        return super().commit_admission(cut) - self.first - 1


def check_sampler(kind: type[Sampler]) -> None:
    def make() -> tuple[Sampler, Callable[[int], None]]:
        sampler = kind()
        return sampler, sampler.set_version

    asyncio.run(check_rollout_sampler(make, limit_s=0.05))


def test_a_right_sampler_passes() -> None:
    check_sampler(Sampler)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (AdmitsWithoutACut, "admission with a cut that has ended: must raise RuntimeError"),
        (AdmitsTooMany, "for which wait_until_admissible waits: must raise RuntimeError"),
        (CountsFromOne, "dispatch_index before the first batch: got 0"),
        (WaitingAdmits, "dispatch_index after batch 0"),
        (NeverWoken, "must be woken at trainer version"),
        (AdmissibleTooLate, "batch 0 is not admissible at trainer version 0"),
        (StampsNothing, "batch 0 is stamped None"),
        (StampsByVersion, "how many groups step 0 takes: got 4, expected 2"),
        (TakesHalfABatch, "select must wait for 2 groups"),
        (IgnoresShortfall, "step 0 waits for ever"),
        (TakesStaleOnes, "select took stale groups"),
        (LosesWhatIsAhead, "that are stale at version 1 in a run without delay"),
        (RestoresOneOff, "dispatch_index after it was restored"),
        (RestoresAnything, "restore_dispatch_index(-2): must raise ValueError"),
        (StampsAnewAfterRestart, "the stamp of batch 1 after a restart: got 0, expected 1"),
    ],
)
def test_wrong_samplers_are_named(wrong, message: str) -> None:
    with finds(message):
        check_sampler(wrong)


# ---- The trainer ----


class Checkpoints:
    """Makes a folder in a thread, keeps two."""

    def __init__(self, folder: Path) -> None:
        self.checkpoint_dir = folder
        self.protected: Counter[int] = Counter()
        self.pending: threading.Thread | None = None
        self.failures: list[str] = []

    def step_path(self, step: int) -> Path:
        return self.checkpoint_dir / f"step_{step}"

    def save(self, step: int) -> None:
        self.pending = threading.Thread(target=self.publish, args=(step,))
        self.pending.start()

    def fail(self, step: int) -> None:
        self.failures.append(f"step {step}")

    def publish(self, step: int) -> None:
        self.step_path(step).mkdir()
        steps = sorted((int(path.name[5:]) for path in self.checkpoint_dir.iterdir()), reverse=True)
        for old in steps[2:]:
            if not self.protected[old]:
                shutil.rmtree(self.step_path(old))

    def finalize_pending(self) -> None:
        if self.pending:
            self.pending.join()
        if self.failures:
            raise RuntimeError(self.failures.pop())

    @contextlib.contextmanager
    def protect(self, step: int) -> Generator[None]:
        self.protected[step] += 1
        try:
            yield
        finally:
            self.protected[step] -= 1


class MakesTheFolderFirst(Checkpoints):
    def save(self, step: int) -> None:
        self.step_path(step + 1).mkdir(exist_ok=True)
        self.step_path(step).mkdir(exist_ok=True)


class DoesNotWait(Checkpoints):
    def save(self, step: int) -> None:
        pass


class ProtectsNothing(Checkpoints):
    @contextlib.contextmanager
    def protect(self, step: int) -> Generator[None]:
        yield


class ProtectsOnce(Checkpoints):
    @contextlib.contextmanager
    def protect(self, step: int) -> Generator[None]:
        self.protected[step] = 1
        try:
            yield
        finally:
            self.protected[step] = 0


class ProtectsForEver(Checkpoints):
    @contextlib.contextmanager
    def protect(self, step: int) -> Generator[None]:
        self.protected[step] += 1
        yield
        self.protected[step] -= 1


class SwallowsErrors(Checkpoints):
    @contextlib.contextmanager
    def protect(self, step: int) -> Generator[None]:
        with super().protect(step), contextlib.suppress(Exception):
            yield


class HidesFailures(Checkpoints):
    def fail(self, step: int) -> None:
        pass


class RepeatsFailures(Checkpoints):
    def finalize_pending(self) -> None:
        if self.failures:
            raise RuntimeError(self.failures[0])
        super().finalize_pending()


class LeavesHalfAFolder(Checkpoints):
    def fail(self, step: int) -> None:
        super().fail(step)
        self.step_path(step).mkdir()


def check_checkpoints(kind: type[Checkpoints], folder: Path) -> None:
    check_trainer_checkpoints(lambda: kind(folder), save=kind.save, fail=kind.fail, retained=2)


def test_right_trainer_checkpoints_pass(tmp_path: Path) -> None:
    check_checkpoints(Checkpoints, tmp_path)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (MakesTheFolderFirst, "there is a folder of step 2, which was not saved"),
        (DoesNotWait, "step_path(1) is no folder after finalize_pending"),
        (ProtectsNothing, "retention removed step 1 although a block"),
        (ProtectsOnce, "retention removed step 1 although a block"),
        (ProtectsForEver, "after protect(1) had ended"),
        (SwallowsErrors, "an error in a block of protect: must raise"),
        (HidesFailures, "finalize_pending after a checkpoint that failed: must raise RuntimeError"),
        (RepeatsFailures, "raised one failure twice"),
        (LeavesHalfAFolder, "there is a folder of a checkpoint that failed"),
    ],
)
def test_wrong_trainer_checkpoints_are_named(tmp_path: Path, wrong, message: str) -> None:
    with finds(message):
        check_checkpoints(wrong, tmp_path)


class Budget:
    """Ten seconds."""

    def __init__(self) -> None:
        self.left = 10.0
        self.taken = False

    def let_pass(self, seconds: float) -> None:
        self.left -= seconds

    def remaining_s(self) -> float:
        return self.left

    def would_save(self) -> bool:
        return self.left <= 0 and not self.taken

    def check_save(self) -> bool:
        due = self.would_save()
        self.taken = self.taken or due
        return due

    def save_took(self, seconds: float) -> None:
        self.left -= seconds


class StandsStill(Budget):
    def let_pass(self, seconds: float) -> None:
        pass


class SavesAgain(Budget):
    def check_save(self) -> bool:
        return self.would_save()


class LookingTakes(Budget):
    def would_save(self) -> bool:
        due = super().would_save()
        self.taken = self.taken or due
        return due


class EndsAtZero(Budget):
    def remaining_s(self) -> float:
        return max(self.left, 0.0)


class IgnoresSaves(Budget):
    def save_took(self, seconds: float) -> None:
        pass


def check_budget(kind: type[Budget]) -> None:
    def make() -> tuple[Budget, Callable[[float], None]]:
        budget = kind()
        return budget, budget.let_pass

    check_deadline(make)


def test_a_right_deadline_passes() -> None:
    check_budget(Budget)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (StandsStill, "10.0 s remain of 10.0 after 4 s"),
        (SavesAgain, "check_save, True once"),
        (LookingTakes, "would_save, which changes nothing"),
        (EndsAtZero, "remaining_s must be negative afterwards"),
        (IgnoresSaves, "must make the last one due earlier"),
    ],
)
def test_wrong_deadlines_are_named(wrong, message: str) -> None:
    with finds(message):
        check_budget(wrong)
