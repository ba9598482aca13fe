"""The loader that a trainer holds: batches by epochs, a state at any time, and refusals that say what differs."""
# pyright: reportPrivateUsage=false

from __future__ import annotations

import copy
import logging
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Self, cast

from megatron.energon import SavableDataLoader  # pyright: ignore[reportMissingTypeStubs]
from nrl_interfaces import BatchedDataDict, Metrics
from nrl_interfaces.metrics import emit

from nrl_energon_loader.counters import Counters
from nrl_energon_loader.identity import RECORDED, StateMismatchError, _identity_differences, _identity_fingerprint
from nrl_energon_loader.samples import DeliveredBatch
from nrl_energon_loader.state_codec import StateFormatError, decode, digest, encode
from nrl_energon_loader.stream import EnergonStream

__all__ = ["EnergonSFTDataLoader"]

_V2_STATE_FORMAT_VERSION: Final = 2
_BACKEND: Final = "energon"
_KEYS: Final = ("backend", "format_version", "fingerprint", "identity", "counters", "first_epoch", "loader_state")

_log = logging.getLogger(__name__)


class EnergonSFTDataLoader:
    """Gives the batches of one data shard and split, and resumes exactly.

    `build_energon_sft_loader` makes it. It is an `nrl_interfaces.loader.SFTDataLoader`, and a context manager that
    closes it.

    An iteration gives one epoch. Left early (a `break`), a training epoch goes on in the next iteration, and a
    validation begins anew.

    Args:
        loader: An `EnergonStream`; or Energon's own savable loader, not iterated yet, which can't be set to another
            epoch.
        identity: What a state must agree with, as plain JSON. What stands under ``recorded`` is told when it has
            changed, and not refused.

    Attributes:
        metrics: Called for every batch with `wait_ms` (how long the trainer waited for it), `step_ms` (from the batch
            before to this one), `samples`, and `samples_per_s`.
        clock: Gives seconds, for the metrics.

    Raises:
        IdentityValueError: If the identity is no plain JSON.
    """

    def __init__(self, loader: Any, *, identity: Mapping[str, Any]) -> None:
        self.metrics: Metrics | None = None
        self.clock: Callable[[], float] = time.perf_counter
        self._fingerprint = _identity_fingerprint(identity)
        self._identity = copy.deepcopy(dict(identity))
        is_energons = isinstance(loader, SavableDataLoader)
        self._stream: EnergonStream = EnergonStream.of(cast("Any", loader)) if is_energons else loader
        self._counters = Counters()
        self._iterations = 0
        self._finalizer = weakref.finalize(self, self._stream.close)

    def __iter__(self) -> Iterator[BatchedDataDict[Any]]:
        """Give the batches of one epoch, or of the rest of it.

        An epoch of which nothing is left (its last batch was delivered before a state was saved, or before the last
        iteration was left) is ended, and the batches are those of the next one: no iteration of a dataset that has
        batches is empty.

        Raises:
            RuntimeError: If the loader is closed or failed before; from an iterator that a newer one has replaced.
            FatalSampleError: If 100 samples in a row are bad, or the task encoder has a bug such as a NameError.
        """
        self._refuse_closed()
        if self._iterations and self._is_validation() and self._counters.batches_in_epoch:
            self._begin_validation_anew()
        self._iterations += 1
        return self._epoch(self._iterations)

    def _epoch(self, iteration: int) -> Iterator[BatchedDataDict[Any]]:
        resumed = self._counters.batches_in_epoch > 0
        before = self.clock()
        try:
            while True:
                asked = self.clock()
                item = self._next(iteration)
                if item is None:
                    self._counters.end_epoch()
                    if not resumed:
                        return
                    resumed = False
                    continue
                resumed = False
                now = self.clock()
                self._report(item, wait=now - asked, step=now - before)
                before = now
                yield item.batch if isinstance(item, DeliveredBatch) else item
        except GeneratorExit:
            if iteration == self._iterations and self._is_validation() and self._finalizer.alive:
                self._begin_validation_anew()
            raise

    def _next(self, iteration: int) -> Any:
        self._refuse_closed()
        if iteration != self._iterations:
            raise RuntimeError("this iterator was replaced by a newer one of the same loader; allowed: one at a time")
        item = self._stream.next_batch(self._counters.epoch)
        if item is not None:
            self._counters.add(item)
        return item

    def _report(self, item: Any, *, wait: float, step: float) -> None:
        if self.metrics is None:
            return
        samples = item.samples if isinstance(item, DeliveredBatch) else 0
        emit(
            self.metrics,
            op="next_batch",
            epoch=self._counters.epoch,
            batch=self._counters.batches_in_epoch,
            samples=samples,
            wait_ms=1000 * wait,
            step_ms=1000 * step,
            samples_per_s=samples / step if step > 0 else None,
        )

    def __len__(self) -> int:
        """The number of batches of an epoch on this rank, if no sample is bad.

        Raises:
            TypeError: With packing or groups and no `virtual_epoch_length`: it depends on the samples.
        """
        length = self._stream.length
        if length is None:
            raise TypeError(
                "the number of batches of an epoch is not known: with packing or groups it depends on the samples; "
                "give virtual_epoch_length, or count the batches of one epoch"
            )
        return length

    @property
    def epoch(self) -> int:
        """The epoch that the next batch is of, from 0."""
        return self._counters.epoch

    @property
    def counters(self) -> dict[str, Any]:
        """What was delivered so far: a copy of `Counters` as plain data."""
        return self._counters.to_state()

    @property
    def identity(self) -> dict[str, Any]:
        """What a state must agree with, and under ``recorded`` what is only told."""
        return copy.deepcopy(self._identity)

    def state_dict(self) -> dict[str, Any]:
        """Give the position behind the last batch that was delivered; at any time, and nothing moves by it.

        Returns:
            `backend`, `format_version`, `fingerprint`, `identity`, `counters`, `first_epoch`, `loader_state` and
            `digest`: plain data, which shares nothing with the loader that can change. `torch.load` reads it back
            with `weights_only=True`.

        Raises:
            RuntimeError: If the loader is closed, failed, or lost a worker.
            StateFormatError: If Energon's state has a class that can't be written down.
        """
        self._refuse_closed()
        state: dict[str, Any] = {
            "backend": _BACKEND,
            "format_version": _V2_STATE_FORMAT_VERSION,
            "fingerprint": self._fingerprint,
            "identity": self.identity,
            "counters": self._counters.to_state(),
            "first_epoch": self._stream.first_epoch,
            "loader_state": encode(self._stream.save()),
        }
        return {**state, "digest": digest(state)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a state was saved; before the first iteration.

        A refused state leaves the loader at its start, and usable.

        Args:
            state: What `state_dict` gave, in this process or any other. It stays as it is.

        Raises:
            StateMismatchError: If it belongs to another stream; its `differences` say what differs, one line a leaf.
            StateFormatError: If it is none of ours, of another version, or damaged.
            RuntimeError: If this loader was iterated or closed.
        """
        self._refuse_closed()
        if self._iterations:
            raise RuntimeError("a state can be loaded before the first iteration only; make a new loader for it")
        check_format(state)
        self._check_identity(state)
        counters, first_epoch = _counters_of(state)
        loader_state = decode(state["loader_state"])
        try:
            self._stream.load(loader_state, first_epoch)
        except ValueError as error:
            raise StateFormatError("loader_state", str(error)) from error
        self._counters = counters
        self._tell_moved(state["identity"])

    def start_at_epoch(self, epoch: int) -> None:
        """Begin at the start of an epoch, with nothing of an earlier run but its number; before the first iteration.

        For what must not change within an epoch, as the number of workers or ranks. A training stream is shuffled in
        an order of its own for each `epoch`; counts of samples begin at 0.

        Args:
            epoch: The number of the epoch, from 0.

        Raises:
            ValueError: If `epoch` is negative.
            RuntimeError: If this loader was iterated or closed.
        """
        self._refuse_closed()
        if self._iterations:
            raise RuntimeError("an epoch can be set before the first iteration only; make a new loader for it")
        if type(epoch) is not int or epoch < 0:
            raise ValueError(f"epoch is {epoch!r}; allowed: 0 or more")
        self._stream.restart(first_epoch=epoch)
        self._counters = Counters(epoch=epoch)

    def close(self) -> None:
        """End the workers and wait for them; the loader can't be used afterwards. Safe to call twice."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _is_validation(self) -> bool:
        return self._identity.get("split_role") == "validation"

    def _begin_validation_anew(self) -> None:
        counted, self._counters = self._counters, Counters()
        for name in ("batches", "samples", "skipped", "samples_by_source", "skipped_by_source"):
            setattr(self._counters, name, getattr(counted, name))
        self._counters.epoch = counted.epoch + 1
        self._stream.restart(first_epoch=self._counters.epoch)

    def _check_identity(self, state: Mapping[str, Any]) -> None:
        lines = _identity_differences(state["identity"], self._identity)
        if not lines:
            return
        advice = ""
        if any(line.startswith("loader.num_workers ") for line in lines):
            advice = (
                "Energon divides the data among world size x workers and keeps that fixed within an epoch; "
                "at an epoch's border start_at_epoch(n) allows a change, giving up the position inside the epoch "
                f"(the state is in epoch {state['counters']['epoch']})"
            )
        raise StateMismatchError(lines, advice)

    def _tell_moved(self, saved: Mapping[str, Any]) -> None:
        moved = _identity_differences({"": saved.get(RECORDED)}, {"": self._identity.get(RECORDED)})
        for line in moved:
            _log.warning("the same data, elsewhere: %s", line.removeprefix('[""].'))

    def _refuse_closed(self) -> None:
        if not self._finalizer.alive:
            raise RuntimeError("this loader is closed; make a new one")


def check_format(state: object) -> None:
    """Refuse what is none of our states, or not as it was saved."""
    if not isinstance(state, Mapping):
        raise StateFormatError("", f"a {type(state).__name__}; allowed: what state_dict gave")
    given = cast("Mapping[str, Any]", state)
    for key, wanted in (("backend", _BACKEND), ("format_version", _V2_STATE_FORMAT_VERSION)):
        if key not in given:
            raise StateFormatError(key, f"missing; allowed: {wanted!r}")
        if given[key] != wanted or type(given[key]) is not type(wanted):
            raise StateFormatError(key, f"{given[key]!r}; allowed: {wanted!r}")
    missing = [key for key in (*_KEYS, "digest") if key not in given]
    if missing:
        raise StateFormatError(missing[0], f"missing; allowed: the keys {', '.join((*_KEYS, 'digest'))}")
    if given["digest"] != digest({key: given[key] for key in _KEYS}):
        raise StateFormatError("digest", "not that of the rest: the state was changed or damaged after it was saved")
    identity: Any = given["identity"]
    if type(identity) is not dict or _identity_fingerprint(cast("dict[str, Any]", identity)) != given["fingerprint"]:
        raise StateFormatError("fingerprint", "not that of the identity beside it; allowed: what state_dict gave")


def _counters_of(state: Mapping[str, Any]) -> tuple[Counters, int]:
    try:
        counters = Counters.from_state(state["counters"])
    except (TypeError, ValueError) as error:
        raise StateFormatError("counters", str(error)) from error
    first_epoch = state["first_epoch"]
    if type(first_epoch) is not int or not 0 <= first_epoch <= counters.epoch:
        raise StateFormatError("first_epoch", f"{first_epoch!r}; allowed: 0 to the epoch, {counters.epoch}")
    return counters, first_epoch
