"""What came of a run of the contract's tests."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["ContractReport", "ContractResult", "Outcome"]

Outcome: TypeAlias = Literal["passed", "failed", "left out"]


@dataclass(frozen=True)
class ContractResult:
    """What came of one test.

    Attributes:
        clause: The clause's number; None for a test of the whole contract.
        test: The test's name.
        outcome: "passed", "failed" or "left out".
        reason: Why it was left out, or the message of the error; "" where it passed.
        error: The error of a test that failed, with its traceback.
    """

    clause: int | None
    test: str
    outcome: Outcome
    reason: str = ""
    error: BaseException | None = None


@dataclass(frozen=True)
class ContractReport:
    """What came of the contract's tests; as text, a table of the clauses and then what is not in order.

    Attributes:
        adapter: The class of the clients.
        results: One a test, by clause.
    """

    adapter: str
    results: tuple[ContractResult, ...]

    @property
    def failed(self) -> tuple[ContractResult, ...]:
        """The tests that failed."""
        return tuple(result for result in self.results if result.outcome == "failed")

    @property
    def left_out(self) -> tuple[ContractResult, ...]:
        """The tests that were left out."""
        return tuple(result for result in self.results if result.outcome == "left out")

    @property
    def ok(self) -> bool:
        """Whether no test failed."""
        return not self.failed

    def __str__(self) -> str:
        counts = Counter(result.outcome for result in self.results)
        lines = [
            f"{self.adapter}: {counts['passed']} passed, {counts['failed']} failed, {counts['left out']} left out",
            "",
            "clause  passed  failed  left out",
        ]
        lines += [_row(clause, self.results) for clause in dict.fromkeys(result.clause for result in self.results)]
        for title, results in (("failed", self.failed), ("left out", self.left_out)):
            if results:
                lines += ["", f"{title}:"]
                lines += [f"  {result.test}\n    {_indented(result.reason)}" for result in results]
        return "\n".join(lines)


def _row(clause: int | None, results: Iterable[ContractResult]) -> str:
    counts = Counter(result.outcome for result in results if result.clause == clause)
    name = "all" if clause is None else str(clause)
    return f"{name:>6}  {counts['passed']:>6}  {counts['failed']:>6}  {counts['left out']:>8}"


def _indented(text: str) -> str:
    return text.replace("\n", "\n    ")
