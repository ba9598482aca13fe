"""What every test of a clause stands on: clients and folders of its own, and checks that say the clause."""

import contextlib
import itertools
import re
import tempfile
import threading
import time
import unittest
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

import torch

from nrl_interfaces.data_plane import DataPlaneClient
from nrl_interfaces.testing.data_plane_clauses.comparing import columns_as_text

__all__ = [
    "ABILITIES",
    "Ability",
    "ClauseTests",
    "ContractBrokenError",
    "Mode",
    "Waiting",
    "ability_lacks",
    "least_seconds",
]

Mode: TypeAlias = Literal["batch", "stream"]
Ability: TypeAlias = Literal["waking", "crash-safe replacing", "restricted loading", "bytes held", "freeze", "copies"]
ABILITIES: Mapping[Ability, int] = {
    "waking": 18,
    "crash-safe replacing": 26,
    "restricted loading": 28,
    "bytes held": 30,
    "freeze": 31,
    "copies": 9,
}
"""What an adapter may leave out, with the clause of each."""

_Result = TypeVar("_Result")
_Error = TypeVar("_Error", bound=BaseException)
_numbers = itertools.count(1)


class ContractBrokenError(AssertionError):
    """Raised by a test of a clause; says the clause, what was seen and what is right."""


def ability_lacks(left_out: Mapping[Any, Any]) -> list[str]:
    """Say what is wrong with the abilities that an adapter leaves out; nothing where nothing is."""
    wrong = [
        f"{name!r} may not be left out; allowed: {', '.join(ABILITIES)}" for name in left_out if name not in ABILITIES
    ]
    return wrong + [
        f"{name!r} is left out without a reason; allowed: a sentence that says why"
        for name, reason in left_out.items()
        if not isinstance(reason, str) or not reason.strip()
    ]


def least_seconds(call: Callable[[], object]) -> float:
    """Time some runs of a call and give the shortest: the one that was disturbed least."""
    times: list[float] = []
    for _ in range(5):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


class Waiting(Generic[_Result]):
    """A call in a thread of its own, begun at once."""

    def __init__(self, call: Callable[[], _Result]) -> None:
        self._call = call
        self._result: list[_Result] = []
        self._error: BaseException | None = None
        self.ended_at = 0.0  # monotonic seconds
        self._thread = threading.Thread(target=self._run, daemon=True)  # a hang must not keep the process
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result.append(self._call())
        except BaseException as error:  # noqa: BLE001 - goes on to whoever asks for the result
            self._error = error
        finally:
            self.ended_at = time.monotonic()

    def is_waiting(self, within: float = 0.1) -> bool:
        """Tell whether the call still runs after some seconds."""
        self._thread.join(within)
        return self._thread.is_alive()

    def result(self, within: float = 60.0) -> _Result:
        """Wait for the call's result, or raise what it raised."""
        self._thread.join(within)
        if self._thread.is_alive():
            raise ContractBrokenError(f"a call hangs: no result after {within} s")
        if self._error is not None:
            raise self._error
        return self._result[0]


class ClauseTests:
    """Base of the groups of tests. One instance runs one test: `setup_method`, the test, `teardown_method`.

    The docstring of a test is what the clause says; a check that fails shows it.
    """

    left_out: ClassVar[Mapping[Ability, str]] = {}
    """The abilities that the adapter has not, each with the reason."""

    id_prefix: ClassVar[str] = ""
    """Stands before the ids of all partitions."""

    limit_s: ClassVar[float] = 20.0
    """The time limit of claims that should not reach it; more for an adapter whose calls take long."""

    FIELDS = ("x", "y", "c", "input_lengths")
    TASKS = ("train", "eval", "look")

    def make_client(
        self, *, partition_mode: Mode, max_partitions: int, owner: str | None, safe_globals: tuple[type, ...]
    ) -> DataPlaneClient:
        """Build a client that was never used and shares nothing with others; an adapter's author writes this.

        Args:
            partition_mode: The kind of its partitions.
            max_partitions: How many partitions it holds at most.
            owner: Whose checkpoints it saves and loads. Only used by tests of "crash-safe replacing".
            safe_globals: Classes that its checkpoints may hold. Only used by tests of "restricted loading".
        """
        raise NotImplementedError("make_client: build a fresh client of the adapter here")

    def drop_client(self, client: DataPlaneClient) -> None:
        """Let go of a client at the end of a test; an author whose clients leave things behind removes them here."""
        client.close()

    def read_around(
        self, client: DataPlaneClient, partition_id: str, sample_ids: list[str], fields: list[str]
    ) -> Mapping[str, Any]:
        """Read columns in the order of ``sample_ids``, without `get_samples` where the author knows another way.

        Tests of writing read through this, so that a wrong read can't hide a wrong put.
        """
        return client.get_samples(sample_ids, partition_id, fields)  # type: ignore[return-value] # a mapping in all but name

    def write_around(
        self, client: DataPlaneClient, partition_id: str, sample_ids: list[str], columns: Mapping[str, Any]
    ) -> None:
        """Write columns of rows that are there, without `put_samples` where the author knows another way."""
        client.put_samples(sample_ids, partition_id, columns, replace=True)

    def setup_method(self, method: Callable[..., object]) -> None:
        """Prepare one test."""
        number = re.search(r"clause_(\d+)", method.__name__)
        says = " ".join((method.__doc__ or "").split())
        self._clause = f"clause {int(number[1])}: {says}" if number else says
        self._stack = contextlib.ExitStack()
        self.p, self.q = (f"{self.id_prefix}{letter}{next(_numbers)}" for letter in "pq")

    def teardown_method(self) -> None:
        """Let go of the test's clients and folders."""
        self._stack.close()

    def needs(self, ability: Ability) -> None:
        """Leave the test out where the adapter has not this ability. pytest takes the error for a skip."""
        if ability in self.left_out:
            raise unittest.SkipTest(f"{ability}: {self.left_out[ability]}")

    def client(
        self,
        mode: Mode = "batch",
        *,
        max_partitions: int = 4,
        owner: str | None = None,
        safe_globals: tuple[type, ...] = (),
    ) -> DataPlaneClient:
        """Make a client that ends with the test."""
        made = self.make_client(
            partition_mode=mode, max_partitions=max_partitions, owner=owner, safe_globals=safe_globals
        )
        self._stack.callback(self.drop_client, made)
        return made

    def folder(self) -> Path:
        """Make an empty folder that ends with the test."""
        return Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="nrl-contract-")))

    def without_rows(self, mode: Mode = "batch") -> DataPlaneClient:
        """Make a client whose partition `p` is registered for 3 rows, 16 in a stream, and has none."""
        client = self.client(mode)
        client.register_partition(self.p, list(self.FIELDS), 3 if mode == "batch" else 16, list(self.TASKS))
        return client

    def with_rows(self, mode: Mode = "batch", ids: Sequence[str] = ("a", "b", "d"), **columns: Any) -> DataPlaneClient:
        """Make a client whose partition `p` holds these rows, 1, 2, 3, ... in ``x`` if nothing else is given."""
        client = self.client(mode)
        size = len(ids) if mode == "batch" else 8
        fields = [*self.FIELDS, *(name for name in columns if name not in self.FIELDS)]
        client.register_partition(self.p, fields, size, list(self.TASKS))
        client.put_samples(list(ids), self.p, columns or {"x": torch.arange(1, len(ids) + 1)})
        return client

    def claimed(self, client: DataPlaneClient, task: str, fields: Sequence[str], size: int) -> list[str]:
        """Claim what is there, without waiting."""
        return client.claim_meta(self.p, task, list(fields), size, blocking=False).sample_ids

    def stored(self, client: DataPlaneClient, ids: Sequence[str], *fields: str) -> dict[str, list[str]]:
        """Give rows of partition `p` as text."""
        return columns_as_text(self.read_around(client, self.p, list(ids), list(fields)), fields)

    def state(self, client: DataPlaneClient, *fields: str) -> dict[str, Any]:
        """Give all that can be seen of partition `p` but data: ids, their order and tags, claims, counters.

        The task "look" claims the rows that have the fields, and releases them.
        """
        ids = client.list_sample_ids(self.p)
        meta = client.claim_meta(self.p, "look", list(fields), max(1, len(ids)), blocking=False)
        if meta.sample_ids:
            client.release_claims(meta.sample_ids, self.p, "look")
        stats = client.stats()
        return {
            "ids": ids,
            "order": meta.sample_ids,
            "tags": meta.tags,
            "lengths": meta.sequence_lengths,
            "rows": stats.rows,
            "puts": stats.operations.get("put_samples", 0),
            "claims": [client.explain(self.p, task, list(fields), 1).rows_claimed for task in ("train", "eval")],
            "data": self.stored(client, meta.sample_ids, *fields) if meta.sample_ids else {},
        }

    def same(self, seen: object, wanted: object, what: str = "") -> None:
        """Fail unless both are equal."""
        if seen != wanted:
            raise ContractBrokenError(f"{self._clause}\n  {what or 'seen'}: {seen!r}\n  right: {wanted!r}")

    def holds(self, condition: bool, what: str) -> None:  # noqa: FBT001 - it is the subject
        """Fail unless a condition holds; ``what`` says what was seen."""
        if not condition:
            raise ContractBrokenError(f"{self._clause}\n  seen: {what}")

    def raises(self, kind: type[_Error], call: Callable[[], object], *names: object) -> _Error:
        """Fail unless a call raises ``kind`` with a message that has each of ``names`` in it; give the error."""
        try:
            result = call()
        except kind as error:
            text = str(error)
            if missing := [name for name in names if str(name) not in text]:
                raise ContractBrokenError(
                    f"{self._clause}\n  seen: {type(error).__name__}: {text}\n  right: the message names {missing}"
                ) from error
            return error
        except Exception as error:
            seen = f"{type(error).__name__}: {error}"
            raise ContractBrokenError(f"{self._clause}\n  seen: {seen}\n  right: {kind.__name__}") from error
        raise ContractBrokenError(f"{self._clause}\n  seen: no error, but {result!r}\n  right: {kind.__name__}")
