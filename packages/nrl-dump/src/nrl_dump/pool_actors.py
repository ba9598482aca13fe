"""The Ray side of a pool: the actor that writes a shard, how chunks travel to it, and how its errors come back."""

from __future__ import annotations

import json
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from nrl_interfaces.ownership import FolderInUseError, Owner
from numpy.typing import NDArray

from nrl_dump.chunk import Chunk, JaggedColumn
from nrl_dump.columns import DTYPES, ColumnSpec
from nrl_dump.writer import TrainDataDump

try:
    import ray as _typed_ray
    from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
except ModuleNotFoundError as error:
    if error.name != "ray":
        raise
    raise ImportError("nrl_dump.pool needs Ray, which is not installed: pip install nrl-dump[ray]") from error

ray: Any = _typed_ray  # typed in part only
_nested: Any = torch.nested  # the same

_LOCK_WAIT_S = 0.05


class ShardDiedError(RayActorError, RuntimeError):
    """Raised when the process that writes a shard is gone, or can't be reached; its cause is what Ray says.

    Attributes:
        shard_id: The shard.
    """

    def __init__(self, shard_id: str) -> None:
        self.shard_id = shard_id
        super().__init__(
            error_msg=f"the writer of shard {shard_id!r} died: call restart_shard({shard_id!r}) and write the"
            " rows that it returns again"
        )

    def __reduce__(self) -> tuple[type[ShardDiedError], tuple[str]]:
        return type(self), (self.shard_id,)


@dataclass(frozen=True)
class ShippedColumn:
    """A column as it travels: bytes that Ray hands over in shared memory, where pickled tensors would be copied.

    Attributes:
        spec: The column.
        data: The items, one behind the other.
        shape: Of the tensor, `[B, L, *item]` or `[B]`; of a jagged one's values, `[items, *item]`.
        lengths: Of the rows of a jagged one, else None.
    """

    spec: ColumnSpec
    data: NDArray[Any]
    shape: tuple[int, ...]
    lengths: list[int] | None

    def tensor(self) -> torch.Tensor:
        """The column again; its memory is not to be written to."""
        with warnings.catch_warnings():  # shared memory can only be read, which is all that a dump does
            warnings.filterwarnings("ignore", message="The given NumPy array is not writ", category=UserWarning)
            values = torch.from_numpy(self.data)  # pyright: ignore[reportUnknownMemberType]
        values = values.view(DTYPES[self.spec.dtype]).view(self.shape)
        if self.lengths is None:
            return values
        offsets = torch.tensor([0, *self.lengths]).cumsum(0)
        return _nested.nested_tensor_from_jagged(values, offsets)


@dataclass(frozen=True)
class ShippedChunk:
    """A checked chunk as it travels: nothing in it is on a device, needs grad, or is a view of more."""

    sample_ids: list[str]
    tags: list[bytes]
    lengths: list[int]
    lengths_dtype: str
    columns: tuple[ShippedColumn, ...]

    @classmethod
    def of(cls, chunk: Chunk) -> ShippedChunk:
        """Pack a chunk; dense tensors in memory are not copied."""
        tags = [chunk.tag_bytes(row, "constants") for row in range(len(chunk))]
        columns: list[ShippedColumn] = []
        for column in chunk.columns:
            if isinstance(column, JaggedColumn):
                ends = [start + length for start, length in zip(column.starts, column.lengths, strict=True)]
                rows = [column.values[start:end] for start, end in zip(column.starts, ends, strict=True)]
                values = torch.cat([column.values[:0], *rows])
                columns.append(ShippedColumn(column.spec, _bytes(values), tuple(values.shape), column.lengths))
            else:
                columns.append(ShippedColumn(column.spec, _bytes(column.tensor), tuple(column.tensor.shape), None))
        return cls(chunk.sample_ids, tags, chunk.lengths, chunk.lengths_dtype, tuple(columns))

    def arguments(self) -> dict[str, Any]:
        """What `TrainDataDump.add_chunk` takes, but for the step."""
        kinds = {
            kind: {c.spec.name: c.tensor() for c in self.columns if (c.spec.kind == "sequence") is kind}
            for kind in (True, False)
        }
        return {
            "sample_ids": self.sample_ids,
            "tags": [json.loads(tag) for tag in self.tags],
            "input_lengths": torch.tensor(self.lengths, dtype=DTYPES[self.lengths_dtype]),
            "sequences": kinds[True],
            "scalars": kinds[False],
        }


class ShardWriter:
    """A `TrainDataDump` of one shard as a Ray actor; `DumpPool` starts and calls it."""

    def __init__(self, log_dir: Path, shard_id: str, settings: Mapping[str, Any]) -> None:
        self._dump = TrainDataDump(log_dir, shard_id=shard_id, **settings)

    def owner(self) -> Owner:
        """This process."""
        return Owner.this_process()

    def begin_step(self, step: int, patience_s: float) -> None:
        """Take away what this shard has on disk of a step, whoever wrote it; waits so long for one who is dying."""
        deadline = time.monotonic() + patience_s
        while True:
            try:
                self._dump.restart_step(step)
            except FolderInUseError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_LOCK_WAIT_S)
            else:
                return

    def add_chunk(self, step: int, chunk: ShippedChunk) -> None:
        """Write a chunk."""
        self._dump.add_chunk(step=step, **chunk.arguments())

    def flush(self, step: int) -> int:
        """As `TrainDataDump.flush`."""
        return self._dump.flush(step)

    def close(self) -> None:
        """As `TrainDataDump.close`."""
        self._dump.close()


@dataclass(frozen=True)
class SentCall:
    """A call on its way to a writer, with the rows that are lost if it fails."""

    step: int
    sample_ids: list[str]
    ref: Any


class WriterHandle:
    """The controller's end of a `ShardWriter`.

    Attributes:
        shard_id: The shard.
        owner: The process that writes it, once it is known to run.
        sent: Calls by `send` whose end nobody has looked at, oldest first.
    """

    def __init__(self, log_dir: Path, shard_id: str, settings: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        self.shard_id = shard_id
        self.owner: Owner | None = None
        self.sent: deque[SentCall] = deque()
        self._actor: Any = ray.remote(ShardWriter).options(**options).remote(log_dir, shard_id, settings)
        self._started: Any = self._actor.owner.remote()

    def wait_until_started(self, timeout_s: float) -> None:
        """Wait for the actor's process.

        Raises:
            TimeoutError: It is not there in time.
            RuntimeError: It ended at once.
        """
        try:
            self.owner = self._get(self._started, timeout_s)
        except GetTimeoutError as error:
            raise TimeoutError(
                f"the writer of shard {self.shard_id!r} did not start in {timeout_s} s: `ray status` tells whether"
                " actor_options ask for more than the cluster has; start_timeout_s allows more time"
            ) from error
        except ShardDiedError as error:
            raise RuntimeError(f"the writer of shard {self.shard_id!r} could not start") from error.__cause__

    def send(self, method: str, step: int, payload: object, sample_ids: list[str]) -> None:
        """Call a method with the step and the payload, and leave its end to `settle`."""
        self.sent.append(SentCall(step, sample_ids, self.call(method, step, payload)))

    def settle(self, must_wait: Callable[[], bool], on_failure: Callable[[SentCall], object]) -> None:
        """Look at the ends of sent calls: of those that have ended, and of the oldest while `must_wait` says so.

        Raises:
            ShardDiedError: The actor died; so says every further call.
            Exception: What a call raised, after `on_failure` heard of it.
        """
        while self.sent and (must_wait() or ray.wait([self.sent[0].ref], timeout=0)[0]):
            try:
                self.result(self.sent[0].ref)
            except ShardDiedError:
                raise
            except Exception:
                on_failure(self.sent.popleft())
                raise
            self.sent.popleft()

    def call(self, method: str, *args: object) -> Any:
        """Call a method of the actor after those called before; returns Ray's reference to what it will return."""
        return getattr(self._actor, method).remote(*args)

    def result(self, ref: Any) -> Any:
        """Wait for a call and return its value.

        Raises:
            ShardDiedError: The actor died.
            Exception: What the method raised, as it raised it.
        """
        return self._get(ref, None)

    def kill(self) -> None:
        """End the actor's process, if it runs."""
        ray.kill(self._actor)

    def _get(self, ref: Any, timeout_s: float | None) -> Any:
        try:
            return ray.get(ref, timeout=timeout_s)
        except RayActorError as error:
            raise ShardDiedError(self.shard_id) from error
        except RayTaskError as error:
            cause = cast("object", error.cause)
            if not isinstance(cause, Exception):
                raise
            cause.add_note(f"in the writer of shard {self.shard_id!r}")
            raise cause from error


def check_ray_runs() -> None:
    """Raise RuntimeError unless this process is connected to Ray, which would start a cluster of its own accord."""
    if not ray.is_initialized():
        raise RuntimeError("Ray is not running in this process: call ray.init() before making a pool")


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return usable options of an actor; it takes no share of a processor unless they say so.

    Raises:
        ValueError: An option would let Ray start an actor anew, or call it out of order, behind the pool's back.
    """
    harmless: dict[str, Sequence[object]] = {
        "max_restarts": (0,),
        "max_task_retries": (0,),
        "max_concurrency": (None, 1),
        "concurrency_groups": (None, {}),
        "allow_out_of_order_execution": (None, False),
    }
    for name, allowed in harmless.items():
        if name in options and options[name] not in allowed:
            raise ValueError(
                f"actor_options has {name}={options[name]!r}: only {allowed[-1]!r} is allowed; a writer that Ray starts"
                " anew, or calls out of order, would lose rows. restart_shard starts one anew"
            )
    return {"num_cpus": 0, **options}


def _bytes(tensor: torch.Tensor) -> NDArray[Any]:
    """A tensor's bytes in memory, without a copy where they are there already."""
    return tensor.to("cpu").resolve_neg().contiguous().view(-1).view(torch.uint8).numpy()
