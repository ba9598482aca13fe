"""What stands on top of Energon's datasets, so that a state is exact at the ends of passes too.

Energon's state of a worker says where its dataset is, but not which pass it is in: a worker that is through with its
share and one at the start of the next pass look the same. With several workers one is often through before the
others, and a state saved then would give it batches of the next pass.
"""
# Energon is typed in parts.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.sharedctypes import RawValue
from typing import Any, cast

from megatron.energon import SavableDataset, WorkerConfig
from megatron.energon.flavors.base_dataset import add_sample_restore_key
from megatron.energon.wrappers import (
    BatchDataset,
    ConcatDataset,
    EpochizeDataset,
    GroupBatchDataset,
    LimitDataset,
    PackingDataset,
    RepeatDataset,
    ShuffleBufferDataset,
)
from megatron.energon.wrappers.base import BaseWrapperDataset

from nrl_energon_loader.sample_errors import take_skips

__all__ = ["PassDataset", "exact_pass", "without_progress_bar", "wrapped"]


class PassDataset(BaseWrapperDataset[Any, Any]):
    """Gives a dataset's passes, each once, whatever moment of it a state was saved at.

    The loader's process says by `begin_pass` which pass it wants; a worker that has ended that pass already gives
    nothing. Samples skipped behind a pass's last batch are counted with the next batch.

    Args:
        dataset: The batches (`nrl_energon_loader.samples.DeliveredBatch`).
        worker_config: As of `dataset`.
    """

    _savable_fields = ("_passes", "_given", "_skips")

    def __init__(self, dataset: SavableDataset[Any], *, worker_config: WorkerConfig) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self._wanted = RawValue("q", 0)  # memory that workers share with the loader's process
        self.reset_state_own()

    def begin_pass(self, number: int) -> None:
        """Say which pass the next iteration is, counted from 0; in the loader's process."""
        self._wanted.value = number

    def reset_state_own(self) -> None:
        """Go back to the first pass."""
        self._passes = 0
        self._given = 0
        self._skips: dict[str, int] = {}

    def __iter__(self) -> Iterator[Any]:
        # A state may stand behind the last batch of a pass and before its end: that pass is ended first.
        while self._passes <= self._wanted.value:
            yield from self._rest_of_pass()

    def _rest_of_pass(self) -> Iterator[Any]:
        take_skips()  # left by a loader that failed in this process
        if not self._is_through():
            for batch in self.dataset:
                self._given += 1
                if self._skips:
                    batch.skips_by_source = dict(Counter(self._skips) + Counter(batch.skips_by_source))
                    self._skips = {}
                yield batch
        left = take_skips()
        # LimitDataset reads one batch more than it gives: what was skipped there is nobody's.
        if not isinstance(self.dataset, LimitDataset):
            self._skips = dict(Counter(self._skips) + Counter(left))
        self._passes += 1
        self._given = 0

    def _is_through(self) -> bool:
        """Whether the pass's last batch was given; EpochizeDataset would begin anew, all others end by themselves."""
        length = self.dataset.len_worker() if isinstance(self.dataset, EpochizeDataset) else 0
        return 0 < length == self._given

    def len_worker(self, worker_idx: int | None = None) -> int:
        """The number of batches of a worker's pass, if no sample is skipped and `has_exact_length`."""
        length = self.dataset.len_worker(worker_idx)
        if isinstance(self.dataset, LimitDataset) and not self._repeats():
            return min(length, self.dataset.dataset.len_worker(worker_idx))
        return length

    def has_exact_length(self) -> bool:
        """Whether `len_rank` is the number of batches: with packs or groups it is not, where a pass is all samples."""
        if isinstance(self.dataset, EpochizeDataset) or self._repeats():
            return True
        return not any(self._find_wrapped_dataset(kind) for kind in (PackingDataset, GroupBatchDataset))

    def _repeats(self) -> bool:
        return isinstance(self.dataset, LimitDataset) and isinstance(self.dataset.dataset, RepeatDataset)

    def config(self) -> dict[str, Any]:
        """Energon's description of the dataset within."""
        return self.dataset.config()


class GatedPass(BaseWrapperDataset[Any, Any]):
    """A finite dataset whose pass is ended where a state says that its source is.

    Where a buffer gives its last samples, the source below it has ended, and Energon's state says of the source that
    it is at its start. A gate above the source keeps it ended until the pass is.

    Args:
        dataset: Batches.
        gates: The gates within.
        worker_config: As of `dataset`.
    """

    def __init__(
        self, dataset: SavableDataset[Any], gates: Sequence[SourceGate], *, worker_config: WorkerConfig
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self._gates = gates

    def reset_state_own(self) -> None:
        """Nothing of its own."""

    def __iter__(self) -> Iterator[Any]:
        yield from self.dataset
        for gate in self._gates:
            gate.reset_state_own()

    def len_worker(self, worker_idx: int | None = None) -> int:
        """As of the dataset within."""
        return self.dataset.len_worker(worker_idx)

    def config(self) -> dict[str, Any]:
        """Energon's description of the dataset within."""
        return self.dataset.config()


class SourceGate(BaseWrapperDataset[Any, Any]):
    """Lets a dataset through once, until it is reset."""

    _savable_fields = ("_ended",)

    def __init__(self, dataset: SavableDataset[Any], *, worker_config: WorkerConfig) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.reset_state_own()

    def reset_state_own(self) -> None:
        """Open the gate."""
        self._ended = False

    def __iter__(self) -> Iterator[Any]:
        if not self._ended:
            yield from self.dataset
            self._ended = True

    def len_worker(self, worker_idx: int | None = None) -> int:
        """As of the dataset within."""
        return self.dataset.len_worker(worker_idx)

    def config(self) -> dict[str, Any]:
        """Energon's description of the dataset within."""
        return self.dataset.config()


class ResumableConcatDataset(ConcatDataset[Any]):
    """Energon's, with the dataset that it is in saved: Energon's own begins at the first one again."""

    _savable_fields = ("_current",)

    def __init__(self, *datasets: SavableDataset[Any], worker_config: WorkerConfig) -> None:
        super().__init__(*datasets, worker_config=worker_config)
        self.reset_state_own()

    def reset_state_own(self) -> None:
        """Go back to the first dataset."""
        self._current = 0

    def __iter__(self) -> Iterator[Any]:
        while self._current < len(self.datasets):
            number = self._current
            for sample in self.datasets[number]:
                yield add_sample_restore_key(sample, number, src=self)
            self._current += 1
        self._current = 0


def without_progress_bar(dataset: SavableDataset[Any]) -> SavableDataset[Any]:
    """Keep Energon from drawing a bar for each pass's first buffer of packs: library code prints nothing."""
    for packing in wrapped(dataset, PackingDataset):
        packing._fill_reading_buffer = partial(_fill_silently, packing._fill_reading_buffer)  # noqa: SLF001
    return dataset


def _fill_silently(fill: Callable[[Iterator[Any]], bool], source: Iterator[Any], *, log_progress: bool) -> bool:
    del log_progress
    return fill(source)


def wrapped(dataset: Any, kind: type[Any]) -> list[Any]:
    """Give all datasets of a kind in a tree of datasets."""
    found = [dataset] if isinstance(dataset, kind) else []
    inner = cast("tuple[Any, ...]", dataset.datasets) if isinstance(dataset, BaseWrapperDataset) else ()
    return found + [each for within in inner for each in wrapped(within, kind)]


def exact_pass(dataset: SavableDataset[Any]) -> SavableDataset[Any]:
    """Make a finite dataset of batches, as Energon's task encoder builds it, exact at the ends of its parts."""
    gates: list[SourceGate] = []
    return GatedPass(_with_gates(dataset, gates), gates, worker_config=dataset.worker_config)


def _with_gates(dataset: SavableDataset[Any], gates: list[SourceGate]) -> SavableDataset[Any]:
    if not isinstance(dataset, BaseWrapperDataset):
        return dataset
    wrapper = cast("BaseWrapperDataset[Any, Any]", dataset)
    workers = wrapper.worker_config
    inner = [_with_gates(each, gates) for each in wrapper.datasets]
    if type(wrapper) is ConcatDataset:
        return ResumableConcatDataset(*inner, worker_config=workers)
    if isinstance(wrapper, BatchDataset | GroupBatchDataset | PackingDataset | ShuffleBufferDataset):
        gates.append(SourceGate(inner[0], worker_config=workers))
        inner = gates[-1:]
    wrapper.datasets = tuple(inner)
    wrapper.reset_state_own()  # their buffers hold the dataset too
    return wrapper
