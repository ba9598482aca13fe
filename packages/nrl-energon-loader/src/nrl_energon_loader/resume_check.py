"""Whether a resume is exact, with the user's own dataset, task encoder and settings."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from nrl_interfaces import PackedTensor

from nrl_energon_loader.loader import EnergonSFTDataLoader

__all__ = ["RecordedRun", "ResumeReport", "check_resume", "compare_run", "record_run"]


@dataclass(frozen=True)
class RecordedRun:
    """A position, and what came behind it in the run that was not stopped.

    Attributes:
        state: What `state_dict` gave there.
        stopped_after: Batches before it.
        batches: For each batch behind it a digest of every column.
    """

    state: dict[str, Any]
    stopped_after: int
    batches: list[dict[str, str]]


@dataclass(frozen=True)
class ResumeReport:
    """How a resumed run compares with the one that was not stopped.

    Attributes:
        stopped_after: Batches before the state was saved.
        compared: Batches behind it that were compared.
        differences: One line for each batch that differs; empty if the resume is exact.
    """

    stopped_after: int
    compared: int
    differences: list[str]

    @property
    def exact(self) -> bool:
        """Whether every batch is the same in every column."""
        return not self.differences


def check_resume(
    make_loader: Callable[[], EnergonSFTDataLoader], *, stop_after: int, compare: int = 32
) -> ResumeReport:
    """Stop a run, resume it in a new loader, and compare it with the run that went on.

    Args:
        make_loader: Makes the loader to be checked, at its start; called twice. Its loaders are closed here.
        stop_after: Batches before the stop, over the ends of epochs where there are more than in one.
        compare: Batches behind it that are compared, over the ends of epochs too.

    Raises:
        ValueError: If a number is not allowed, or the dataset gives no batch.
        StateMismatchError: If `make_loader` does not make the same loader twice.
    """
    return compare_run(make_loader, record_run(make_loader, stop_after=stop_after, compare=compare))


def record_run(make_loader: Callable[[], EnergonSFTDataLoader], *, stop_after: int, compare: int = 32) -> RecordedRun:
    """Run a loader without a stop, and note a position and what came behind it.

    Args:
        make_loader: As of `check_resume`; called once.
        stop_after: Batches before the position; 0 or more.
        compare: Batches behind it; 1 or more.

    Raises:
        ValueError: As `check_resume`.
    """
    for name, number, least in (("stop_after", stop_after, 0), ("compare", compare, 1)):
        if type(number) is not int or number < least:
            raise ValueError(f"{name} is {number!r}; allowed: whole numbers from {least}")
    with make_loader() as loader:
        batches = _Batches(loader)
        for _ in range(stop_after):
            batches.next_batch()
        state = loader.state_dict()
        return RecordedRun(state, stop_after, [_column_digests(batches.next_batch()) for _ in range(compare)])


def compare_run(make_loader: Callable[[], EnergonSFTDataLoader], recorded: RecordedRun) -> ResumeReport:
    """Resume at a recorded position and compare, in this process or another.

    Raises:
        ValueError: If the dataset gives no batch.
        StateMismatchError: If the loader reads another stream than the recorded one.
    """
    saved = io.BytesIO()
    torch.save(recorded.state, saved)  # as a trainer does
    saved.seek(0)
    differences: list[str] = []
    with make_loader() as loader:
        loader.load_state_dict(torch.load(saved))
        batches = _Batches(loader)
        for number, wanted in enumerate(recorded.batches, recorded.stopped_after + 1):
            got = _column_digests(batches.next_batch())
            columns = [name for name in sorted({*wanted, *got}) if wanted.get(name) != got.get(name)]
            if columns:
                differences.append(f"batch {number} differs in {', '.join(columns)}")
    return ResumeReport(recorded.stopped_after, len(recorded.batches), differences)


class _Batches:
    """A loader's batches, over the ends of epochs."""

    def __init__(self, loader: EnergonSFTDataLoader) -> None:
        self._loader = loader
        self._epoch = iter(loader)

    def next_batch(self) -> Mapping[str, Any]:
        batch = next(self._epoch, None)
        if batch is None:
            self._epoch = iter(self._loader)
            batch = next(self._epoch, None)
        if batch is None:
            raise ValueError("the dataset gives no batch; allowed: one that gives some")
        return batch


def _column_digests(batch: Mapping[str, Any]) -> dict[str, str]:
    digests: dict[str, str] = {}
    for name, column in batch.items():
        hashed = hashlib.sha256()
        _feed(column, hashed.update)
        digests[name] = hashed.hexdigest()
    return digests


def _feed(value: Any, update: Callable[[bytes], None]) -> None:
    if isinstance(value, torch.Tensor):
        update(f"{value.dtype}{tuple(value.shape)}".encode())
        update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, PackedTensor):
        _feed([str(value.dtype), value.trailing_shape, *value], update)
    elif isinstance(value, Mapping):
        _feed(list(cast("Mapping[Any, Any]", value).items()), update)
    elif isinstance(value, list | tuple):
        items = cast("Sequence[Any]", value)
        update(f"{type(items).__name__}{len(items)}:".encode())
        for item in items:
            _feed(item, update)
    else:
        text = repr(value)
        update(f"{len(text)}:{text}".encode("utf-8", "backslashreplace"))
