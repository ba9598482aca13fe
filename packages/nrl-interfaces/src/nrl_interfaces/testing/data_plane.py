"""The contract of data planes as tests: each clause of `nrl_interfaces.data_plane`, on any adapter.

In pytest, subclass `DataPlaneContract` and write `make_client`:

    class TestMine(DataPlaneContract):
        def make_client(self, *, partition_mode, max_partitions, owner, safe_globals):
            return MyClient(mode=partition_mode, limit=max_partitions)

Without pytest, `print(check_data_plane(make_client))`. Both run the same tests, and the names of the tests have the
clause's number. What an adapter can't do it may leave out, with a reason, if it is one of `ABILITIES`; of two more
methods, `read_around` and `write_around`, the tests make use where an author has a way past the API under test.
"""

import re
import unittest
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, Protocol

from nrl_interfaces.data_plane import DataPlaneClient
from nrl_interfaces.testing.data_plane_clauses.checkpoints import CheckpointTests
from nrl_interfaces.testing.data_plane_clauses.claiming import ClaimingTests
from nrl_interfaces.testing.data_plane_clauses.clearing import ClearingTests
from nrl_interfaces.testing.data_plane_clauses.copies import CopiesTests
from nrl_interfaces.testing.data_plane_clauses.ground import (
    ABILITIES,
    Ability,
    ClauseTests,
    ContractBrokenError,
    Mode,
    ability_lacks,
)
from nrl_interfaces.testing.data_plane_clauses.groups import GroupsTests
from nrl_interfaces.testing.data_plane_clauses.loading import LoadingTests
from nrl_interfaces.testing.data_plane_clauses.reading import ReadingTests
from nrl_interfaces.testing.data_plane_clauses.registering import RegisteringTests
from nrl_interfaces.testing.data_plane_clauses.seeing import SeeingTests
from nrl_interfaces.testing.data_plane_clauses.waiting import WaitingTests
from nrl_interfaces.testing.data_plane_clauses.writing import WritingTests
from nrl_interfaces.testing.data_plane_report import ContractReport, ContractResult

__all__ = [
    "ABILITIES",
    "Ability",
    "ContractBrokenError",
    "ContractReport",
    "ContractResult",
    "DataPlaneContract",
    "MakeClient",
    "check_data_plane",
]


class MakeClient(Protocol):
    """Builds a client that was never used; see `DataPlaneContract.make_client`."""

    def __call__(
        self, *, partition_mode: Mode, max_partitions: int, owner: str | None, safe_globals: tuple[type, ...]
    ) -> DataPlaneClient:
        """Build it."""
        ...


class DataPlaneContract(
    RegisteringTests,
    WritingTests,
    CopiesTests,
    ReadingTests,
    ClaimingTests,
    WaitingTests,
    GroupsTests,
    ClearingTests,
    CheckpointTests,
    LoadingTests,
    SeeingTests,
):
    """All tests of the contract. Subclass it under a name that pytest collects, and write `make_client`.

    Attributes:
        left_out: The abilities of `ABILITIES` that the adapter has not, each with the reason.
        id_prefix: Stands before the ids of all partitions.
        limit_s: The time limit, in seconds, of claims that should not reach it.
        random_runs: How many random runs are compared with the model.
    """

    random_runs: ClassVar[int] = 60

    def test_only_abilities_are_left_out(self) -> None:
        """An adapter may leave out, with its reason, only what the contract says; all else holds on every adapter."""
        self.same(ability_lacks(self.left_out), [], "wrong in left_out")
        changed = [name for name in _tests() if getattr(type(self), name) is not getattr(DataPlaneContract, name)]
        self.same(changed, [], "tests of the contract that were replaced")

    def test_random_runs_agree_with_the_model_in_batches(self) -> None:
        """Random calls do in batch partitions what they do in the model of the contract."""
        self._random_runs("batch")

    def test_random_runs_agree_with_the_model_in_streams(self) -> None:
        """Random calls do in stream partitions what they do in the model of the contract."""
        self._random_runs("stream")

    def _random_runs(self, mode: Mode) -> None:
        try:
            from nrl_interfaces.testing.data_plane_runs import random_runs
        except ModuleNotFoundError as error:
            if error.name != "hypothesis":
                raise
            raise unittest.SkipTest("hypothesis is not installed") from error
        random_runs(self, mode, self.random_runs)


class _Given(DataPlaneContract):
    """The contract on what `check_data_plane` was given."""

    def __init__(self, make_client: MakeClient, settings: Mapping[str, Any]) -> None:
        self.make_client = make_client
        for name, value in settings.items():
            setattr(self, name, value)


def check_data_plane(
    make_client: MakeClient,
    *,
    left_out: Mapping[Ability, str] | None = None,
    clauses: Collection[int] | None = None,
    drop_client: Callable[[DataPlaneClient], None] | None = None,
    read_around: Callable[[DataPlaneClient, str, list[str], list[str]], Mapping[str, Any]] | None = None,
    write_around: Callable[[DataPlaneClient, str, list[str], Mapping[str, Any]], None] | None = None,
    id_prefix: str = "",
    limit_s: float = 20.0,
    random_runs: int = 60,
) -> ContractReport:
    """Run the tests of the contract, without pytest.

    Args:
        make_client: Builds a client that was never used and shares nothing with others.
        left_out: The abilities that the adapter has not, each with the reason.
        clauses: The numbers of the clauses to test; None for all, and random runs.
        drop_client: Lets go of a client; closes it by default.
        read_around: See `DataPlaneContract.read_around`.
        write_around: See `DataPlaneContract.write_around`.
        id_prefix: Stands before the ids of all partitions.
        limit_s: The time limit, in seconds, of claims that should not reach it; more where calls take long.
        random_runs: How many random runs are compared with the model.

    Returns:
        The report. It raises nothing that a test raises, but KeyboardInterrupt and SystemExit.

    Raises:
        ValueError: If something is left out that may not be, or without a reason.

    >>> from nrl_interfaces.testing.model_data_plane import ModelDataPlane
    >>> check_data_plane(ModelDataPlane, clauses=[15]).ok
    True
    """
    if wrong := ability_lacks(left_out or {}):
        raise ValueError("; ".join(wrong))
    settings: dict[str, Any] = {"id_prefix": id_prefix, "limit_s": limit_s, "random_runs": random_runs}
    settings["left_out"] = dict(left_out or {})
    hooks = {"drop_client": drop_client, "read_around": read_around, "write_around": write_around}
    settings |= {name: hook for name, hook in hooks.items() if hook is not None}
    names: list[str] = []

    def make(**config: Any) -> DataPlaneClient:
        client = make_client(**config)
        names.append(type(client).__name__)
        return client

    chosen = [name for name in _tests() if clauses is None or _clause_of(name) in clauses]
    results = tuple(_run(_Given(make, settings), name) for name in chosen)
    return ContractReport(names[0] if names else "no client was made", results)


def _tests() -> list[str]:
    """The names of all tests, by clause; those of the whole contract at the end."""
    names = [name for name in dir(DataPlaneContract) if name.startswith("test_")]
    return sorted(names, key=lambda name: (_clause_of(name) is None, name))


def _clause_of(test: str) -> int | None:
    found = re.match(r"test_clause_(\d+)_", test)
    return int(found[1]) if found else None


def _run(contract: ClauseTests, test: str) -> ContractResult:
    clause, method = _clause_of(test), getattr(contract, test)
    try:
        contract.setup_method(method)
        try:
            method()
        finally:
            contract.teardown_method()
    except unittest.SkipTest as reason:
        return ContractResult(clause, test, "left out", str(reason))
    except Exception as error:  # noqa: BLE001 - whatever an adapter raises belongs into the report
        text = str(error) if isinstance(error, ContractBrokenError) else f"{type(error).__name__}: {error}"
        return ContractResult(clause, test, "failed", text, error)
    return ContractResult(clause, test, "passed")
