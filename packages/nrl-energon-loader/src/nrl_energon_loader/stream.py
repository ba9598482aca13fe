"""Energon's savable loader as a stream of passes that can be saved at any moment, set to a state, and ended."""
# Energon is typed in parts.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, Self, cast

import torch
from megatron.energon import SavableDataLoader, SavableDataset, get_savable_loader
from megatron.energon.savable_loader import SavableDataLoaderState, SavableDatasetCheckpoint
from megatron.energon.wrappers import GcDataset
from megatron.energon.wrappers.watchdog_dataset import WatchdogDataset

from nrl_energon_loader.passes import PassDataset

__all__ = ["EnergonStream"]

_Batches = SavableDataLoader[Any]


class EnergonStream:
    """Owns Energon's loader and its workers, and makes them anew where Energon can't go on or back.

    Args:
        make: Makes Energon's loader, at its start, for a run that begins at the epoch of that number.
    """

    def __init__(self, make: Callable[[int], _Batches]) -> None:
        self._make = make
        self._process = os.getpid()
        self._use(make(0), first_epoch=0)

    @classmethod
    def of(cls, loader: _Batches) -> Self:
        """Take a loader of Energon's, not iterated yet.

        It can be made anew only with workers, which leave this process's dataset as it is, and in its own order only.
        """
        begun = False

        def make(first_epoch: int) -> _Batches:
            nonlocal begun
            if first_epoch or (begun and not loader.num_workers):
                raise RuntimeError(
                    "a loader of Energon's without workers can be begun once only, and none at another epoch; "
                    "allowed: an EnergonStream, whose function makes one"
                )
            begun = True
            return _with_passes(loader)

        return cls(make)

    def _use(self, loader: _Batches, first_epoch: int) -> None:
        self.first_epoch, self._loader = first_epoch, loader
        self._loader.pin_memory = self._loader.pin_memory and torch.accelerator.is_available()  # else torch warns
        self._passes = _pass_dataset(self._loader)
        self._iterator: Iterator[Any] | None = None
        self._loaded: SavableDataLoaderState | None = None
        self._failure: BaseException | None = None
        self._counters_at_start = self._counters()

    @property
    def num_workers(self) -> int:
        """Worker processes; 0: batches are made in this process."""
        return self._loader.num_workers

    @property
    def length(self) -> int | None:
        """Batches of a pass if no sample is skipped; None where that can't be known."""
        return self._passes.len_rank() if self._passes.has_exact_length() else None

    def next_batch(self, epoch: int) -> Any:
        """Give the next batch of a pass; None where the pass ends, and the next call begins another.

        Args:
            epoch: The number of the pass, counted as `first_epoch` is.

        Raises:
            RuntimeError: If an earlier call raised: what was in work then is lost.
        """
        self._refuse_after_failure()
        try:
            if self._iterator is None:
                if self._workers_are_turned():
                    self.load(self.save(), self.first_epoch)
                self._passes.begin_pass(epoch - self.first_epoch)
                self._iterator = iter(self._loader)
            batch = next(self._iterator, None)
        except BaseException as error:
            self._failure = error
            raise
        if batch is None:
            self._iterator = None
        return batch

    def save(self) -> SavableDataLoaderState | None:
        """Give Energon's state behind the last batch; None at the very start of workers. Moves nothing.

        Raises:
            RuntimeError: If `next_batch` raised, or a worker has died.
        """
        self._refuse_after_failure()
        self._refuse_dead_workers()
        try:
            state = self._loader.save_state_rank()
        except BaseException as error:
            self._failure = error  # answers that nobody waited for would be taken for the next ones
            raise
        if state is not None and self.num_workers:
            # Of a worker that has given nothing yet Energon forgets how far behind its state the stream was.
            counters = zip(self._counters(), self._counters_at_start, strict=True)
            state.worker_states = [
                self._state_at_start(worker) if now == at_start else state.worker_states[worker]
                for worker, (now, at_start) in enumerate(counters)
            ]
        return state

    def load(self, state: SavableDataLoaderState | None, first_epoch: int) -> None:
        """Set the stream to a state, from the start of a new loader of Energon's.

        Raises:
            ValueError: If Energon does not take it; the stream is then at its start.
        """
        self.restart(first_epoch)
        if state is None:
            return
        try:
            self._check(state)
            self._loader.restore_state_rank(state)
        except (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            self._dataset().reset_state_deep()
            self.restart(first_epoch=0)
            raise ValueError(f"Energon does not take it: {error or 'its parts are others'}") from error
        self._loaded, self._counters_at_start = state, self._counters()

    def restart(self, first_epoch: int) -> None:
        """End the workers and go to the start of an epoch."""
        if not self._is_fresh() or first_epoch != self.first_epoch:
            made = self._make(first_epoch)  # before anything is ended: it may raise
            self.close()
            self._use(made, first_epoch)

    def close(self) -> None:
        """End the workers and threads, and wait for them."""
        if os.getpid() != self._process:
            return  # a worker's copy
        iterator, self._iterator = self._iterator, None
        if iterator is not None:
            cast("Any", iterator).close()
        workers = getattr(self._loader, "_iterator", None)
        if workers is not None:
            for queue in self._loader.cmd_queues:
                queue.put((None,))  # ends the thread that takes commands; without it a worker waits a second for it
            workers._shutdown_workers()  # noqa: SLF001 - what its __del__ calls, at a time nobody knows
            for queue in workers._index_queues:  # noqa: SLF001 - torch closes them, and leaves their threads
                if queue._thread is not None:  # noqa: SLF001
                    queue._thread.join()  # noqa: SLF001
            cast("Any", self._loader)._iterator = None  # noqa: SLF001
        for queue in (*self._loader.cmd_queues, *self._loader.result_queues):
            queue.close()
            queue.join_thread()

    def _refuse_after_failure(self) -> None:
        if self._failure is not None:
            raise RuntimeError(
                f"this loader failed with {self._failure!r}, and what was in work then is lost; "
                f"make a new loader and load the last state that was saved"
            ) from self._failure

    def _refuse_dead_workers(self) -> None:
        # Energon would wait for their answer for ever.
        workers = getattr(self._loader, "_iterator", None)
        processes = [] if workers is None else workers._workers  # noqa: SLF001
        dead = [process.pid for process in processes if not process.is_alive()]
        if dead:
            raise RuntimeError(f"worker {dead[0]} has died; make a new loader and load the last state that was saved")

    def _is_fresh(self) -> bool:
        return self._loaded is None and self._counters() == [-1] * len(self._counters()) and self._iterator is None

    def _workers_are_turned(self) -> bool:
        # After a resume Energon numbers its workers from the one whose turn it was, for good: the next pass would
        # begin with another worker than it did in the run that never stopped.
        return self.num_workers > 1 and self._loaded is not None and self._loaded.next_worker_id != 0

    def _counters(self) -> list[int]:
        return list(self._loader._worker_sample_counters)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]

    def _state_at_start(self, worker: int) -> Any:
        if self._loaded is None:
            return SavableDatasetCheckpoint(state=None, offset=0)
        return self._loaded.worker_states[worker]

    def _dataset(self) -> Any:
        """This process's own dataset, which is iterated in workers if there are any."""
        return cast("Any", self._loader.dataset).dataset

    def _check(self, state: SavableDataLoaderState) -> None:
        """Raise what a worker would raise at its first batch."""
        states = cast("list[Any]", state.worker_states)
        workers = max(self.num_workers, 1)
        if len(states) != workers:
            raise ValueError(f"{len(states)} workers' states; allowed: {workers}")
        if not 0 <= state.next_worker_id < workers:
            raise ValueError(f"next_worker_id {state.next_worker_id}; allowed: 0 to {workers - 1}")
        if self.num_workers:
            for worker in states:
                if worker.state is not None:
                    self._dataset().restore_state(worker.state.dataset_state)
            self._dataset().reset_state_deep()


def _pass_dataset(loader: _Batches) -> PassDataset:
    dataset = cast("Any", loader.dataset)
    while not isinstance(dataset, PassDataset):
        dataset = dataset.dataset
    return dataset


def _with_passes(loader: _Batches) -> _Batches:
    """Make the same loader, with its dataset in a `PassDataset`."""
    outer = cast("Any", loader.dataset)
    dataset, watchdog = outer.dataset, None
    while isinstance(dataset, GcDataset | WatchdogDataset):
        watchdog = dataset if isinstance(dataset, WatchdogDataset) else watchdog
        dataset = cast("SavableDataset[Any]", dataset.dataset)
    return get_savable_loader(
        PassDataset(dataset, worker_config=dataset.worker_config),
        checkpoint_every_sec=getattr(outer, "checkpoint_every_sec", 60),
        prefetch_factor=loader.prefetch_factor or 2,
        watchdog_timeout_seconds=watchdog.timeout_seconds if watchdog and loader.num_workers else None,
    )
