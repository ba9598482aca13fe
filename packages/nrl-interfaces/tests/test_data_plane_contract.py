"""The contract's tests on the model, which keeps it, and on clients that do not."""

import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
import torch
from nrl_interfaces.data_plane import DataPlaneClient
from nrl_interfaces.testing.data_plane import (
    ABILITIES,
    ContractBrokenError,
    ContractReport,
    ContractResult,
    DataPlaneContract,
    check_data_plane,
)
from nrl_interfaces.testing.data_plane_clauses.comparing import described, rows_of
from nrl_interfaces.testing.data_plane_clauses.ground import ClauseTests, Waiting
from nrl_interfaces.testing.model_data_plane import ModelDataPlane
from nrl_interfaces.values import copied

LEFT_OUT = {"restricted loading": "a model is loaded by pickle: it holds what its own tests put"}
TESTS = [name for name in dir(DataPlaneContract) if name.startswith("test_")]


class TestModelDataPlane(DataPlaneContract):
    left_out = LEFT_OUT

    def make_client(self, **config: Any) -> DataPlaneClient:
        return ModelDataPlane(**config)


def test_every_clause_has_a_test_with_its_number() -> None:
    assert {int(name.split("_")[2]) for name in TESTS if "_clause_" in name} == set(range(1, 32))


def test_every_test_says_what_its_clause_says() -> None:
    assert [name for name in TESTS if not getattr(DataPlaneContract, name).__doc__] == []


def test_no_group_of_tests_hides_a_name_of_another() -> None:
    groups = [
        group for group in DataPlaneContract.__mro__ if issubclass(group, ClauseTests) and group is not ClauseTests
    ]
    names = Counter(name for group in groups for name in vars(group) if not name.startswith("__"))
    assert [name for name, count in names.items() if count > 1] == []


# ---- The report ----


class Forgetful(ModelDataPlane):
    """Lists no ids."""

    def list_sample_ids(self, partition_id: str) -> list[str]:
        return []


def test_the_report_of_a_client_that_keeps_the_contract() -> None:
    report = check_data_plane(ModelDataPlane, left_out=LEFT_OUT, clauses=[15, 28])
    assert report.ok
    assert not report.failed
    assert {result.clause for result in report.left_out} == {28}
    assert all(result.reason == f"restricted loading: {LEFT_OUT['restricted loading']}" for result in report.left_out)


def test_the_report_of_a_client_that_does_not() -> None:
    report = check_data_plane(Forgetful, clauses=[15, 13])
    assert not report.ok
    assert [result.test for result in report.failed] == ["test_clause_15_lists_ids_sorted"]
    (failed,) = report.failed
    assert (failed.clause, type(failed.error)) == (15, ContractBrokenError)
    assert failed.reason == "clause 15: list_sample_ids: sorted.\n  seen: []\n  right: ['s1', 's10', 's2']"


def test_the_report_as_text_is_a_table_and_then_what_is_not_in_order() -> None:
    results = (
        ContractResult(15, "test_clause_15_a", "passed"),
        ContractResult(15, "test_clause_15_b", "failed", "clause 15: sorted.\n  seen: []"),
        ContractResult(28, "test_clause_28_a", "left out", "restricted loading: pickle"),
        ContractResult(None, "test_random_runs", "passed"),
    )
    assert str(ContractReport("Mine", results)).splitlines() == [
        "Mine: 2 passed, 1 failed, 1 left out",
        "",
        "clause  passed  failed  left out",
        "    15       1       1         0",
        "    28       0       0         1",
        "   all       1       0         0",
        "",
        "failed:",
        "  test_clause_15_b",
        "    clause 15: sorted.",
        "      seen: []",
        "",
        "left out:",
        "  test_clause_28_a",
        "    restricted loading: pickle",
    ]


def test_the_report_names_the_adapter_and_comes_by_clause() -> None:
    report = check_data_plane(Forgetful, clauses=[30, 15, 3])
    assert report.adapter == "Forgetful"
    assert list(dict.fromkeys(result.clause for result in report.results)) == [3, 15, 30]


def test_an_error_of_the_adapter_is_a_failed_test() -> None:
    class Broken(ModelDataPlane):
        def stats(self) -> Any:
            raise ZeroDivisionError("no stats")

    report = check_data_plane(Broken, clauses=[30])
    assert "ZeroDivisionError: no stats" in {result.reason for result in report.failed}


def test_all_clauses_are_checked_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nrl_interfaces.testing.data_plane._run", lambda contract, test: test)
    assert sorted(check_data_plane(ModelDataPlane).results) == sorted(TESTS)  # type: ignore[type-var]


def test_a_pair_of_hooks_goes_around_the_api() -> None:
    """A put that stores nothing, and a read that hides it: seen by whoever looks around the API."""

    class Hiding(ModelDataPlane):
        def put_samples(self, sample_ids: Any, partition_id: str, fields: Any = None, *args: Any, **more: Any) -> Any:
            self.put = fields
            zeros = None if fields is None else {"x": torch.zeros(len(sample_ids))}
            return super().put_samples(sample_ids, partition_id, zeros, *args, **more)

        def get_samples(self, sample_ids: Any, partition_id: str, select_fields: Any) -> Any:
            return super().get_samples(sample_ids, partition_id, select_fields) if self.put is None else self.put

    def read_around(client: Any, partition_id: str, sample_ids: list[str], fields: list[str]) -> dict[str, Any]:
        (partition,) = client.partitions
        return {name: [partition.rows[sample_id][name] for sample_id in sample_ids] for name in fields}

    test = "test_clause_06_replace_writes_a_column_again"
    assert test in {result.test for result in check_data_plane(Hiding, read_around=read_around, clauses=[6]).failed}
    assert check_data_plane(ModelDataPlane, read_around=read_around, clauses=[5, 6, 8, 10]).ok


def test_clients_are_dropped_by_whoever_made_them() -> None:
    made, dropped = list[DataPlaneClient](), list[DataPlaneClient]()

    def make(**config: Any) -> DataPlaneClient:
        made.append(ModelDataPlane(**config))
        return made[-1]

    report = check_data_plane(make, drop_client=dropped.append, clauses=[1, 24, 27], id_prefix="mine-")
    assert report.ok
    assert {id(client) for client in made} == {id(client) for client in dropped}
    names = {partition.partition_id for client in made for partition in client.partitions}
    assert names
    assert all(name.startswith("mine-") for name in names)


# ---- What may be left out ----


@pytest.mark.parametrize(
    ("left_out", "wrong"),
    [
        ({"blocking": "slow"}, "'blocking' may not be left out; allowed: waking, crash-safe replacing"),
        ({"freeze": ""}, "'freeze' is left out without a reason"),
        ({"freeze": True}, "'freeze' is left out without a reason"),
    ],
)
def test_nothing_else_may_be_left_out_nor_without_a_reason(left_out: Any, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        check_data_plane(ModelDataPlane, left_out=left_out)

    class Contract(TestModelDataPlane):
        pass

    Contract.left_out = left_out
    contract = Contract()
    contract.setup_method(contract.test_only_abilities_are_left_out)
    with pytest.raises(ContractBrokenError, match=wrong):
        contract.test_only_abilities_are_left_out()


def test_a_test_of_the_contract_may_not_be_replaced() -> None:
    class Contract(TestModelDataPlane):
        def test_clause_17_no_id_is_claimed_twice(self) -> None:
            """It does not matter."""

    contract = Contract()
    contract.setup_method(contract.test_only_abilities_are_left_out)
    with pytest.raises(ContractBrokenError, match="test_clause_17_no_id_is_claimed_twice"):
        contract.test_only_abilities_are_left_out()


@pytest.mark.parametrize(("ability", "clause"), ABILITIES.items())
def test_an_ability_left_out_leaves_out_tests_of_its_clause_and_says_why(ability: Any, clause: int) -> None:
    report = check_data_plane(ModelDataPlane, left_out={ability: "not here"}, clauses=[clause])
    assert report.left_out
    assert {result.reason for result in report.left_out} == {f"{ability}: not here"}
    others = [
        name for name in TESTS if f"_clause_{clause:02}_" in name and name not in {r.test for r in report.left_out}
    ]
    assert bool(others) == (clause in (18, 30)), "of waking and of bytes held something else is left of the clause"


# ---- Without pytest ----


def test_check_runs_without_pytest_and_hypothesis() -> None:
    """All clauses can run; random runs are left out with the reason."""
    code = """
import sys
sys.modules["pytest"] = sys.modules["_pytest"] = sys.modules["hypothesis"] = None
from nrl_interfaces.testing.data_plane import check_data_plane
from nrl_interfaces.testing.model_data_plane import ModelDataPlane
report = check_data_plane(ModelDataPlane, clauses=[1, 11, 18])
assert report.ok, report
from nrl_interfaces.testing import data_plane
result = data_plane._run(data_plane._Given(ModelDataPlane, {}), "test_random_runs_agree_with_the_model_in_batches")
print(result.outcome, result.reason, sep=": ")
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert ran.stdout == "left out: hypothesis is not installed\n"


# ---- Random runs ----


class ForgetsTags(ModelDataPlane):
    """Drops the tags of rows whose columns are replaced."""

    def put_samples(self, *args: Any, replace: bool = False, **more: Any) -> Any:
        meta = super().put_samples(*args, replace=replace, **more)
        for partition in self.partitions if replace else ():
            partition.tags.clear()
        return meta


class SortsClaims(ModelDataPlane):
    """Claims rows in the order of their ids."""

    def claim_meta(self, *args: Any, **more: Any) -> Any:
        meta = super().claim_meta(*args, **more)
        return meta.subset(sorted(range(meta.size), key=lambda at: meta.sample_ids[at]))


@pytest.mark.parametrize(("adapter", "mode"), [(ForgetsTags, "streams"), (SortsClaims, "batches")])
def test_random_runs_find_what_differs_from_the_model(adapter: Any, mode: str) -> None:
    class Contract(TestModelDataPlane):
        def make_client(self, **config: Any) -> DataPlaneClient:
            return adapter(**config)

    contract = Contract()
    runs = getattr(contract, f"test_random_runs_agree_with_the_model_in_{mode}")
    contract.setup_method(runs)
    with pytest.raises(ContractBrokenError, match=r"in a random run(.|\n)*all calls:\n    register_partition"):
        runs()


# ---- What the tests stand on ----


def test_values_are_described_exactly() -> None:
    pairs = [
        (torch.tensor([1, 2]), torch.tensor([1.0, 2.0])),
        (torch.tensor([1, 2]), torch.tensor([1, 2], dtype=torch.int32)),
        (torch.tensor([[1], [2]]), torch.tensor([1, 2])),
        ([1], (1,)),
        (True, 1),
        ({1}, frozenset({1})),
        (float("nan"), 0.0),
    ]
    for one, other in pairs:
        assert described(one) == described(copied(one))
        assert described(one) != described(other)


def test_rows_of_a_dense_and_a_jagged_column_are_the_same() -> None:
    dense = torch.tensor([[1, 2], [3, 4]])
    jagged = torch.nested.nested_tensor_from_jagged(dense.reshape(4), torch.tensor([0, 2, 4]))
    assert [described(row) for row in rows_of(dense)] == [described(row) for row in rows_of(jagged)]


def test_a_call_that_waits_hands_on_what_it_raises() -> None:
    with pytest.raises(ZeroDivisionError):
        Waiting(lambda: 1 // 0).result()


def test_a_call_that_hangs_is_told() -> None:
    import threading

    end = threading.Event()
    waiting = Waiting(end.wait)
    assert waiting.is_waiting(0.01)
    with pytest.raises(ContractBrokenError, match=r"no result after 0.01 s"):
        waiting.result(0.01)
    end.set()
    assert waiting.result()
