"""Why a pump ended a run in an error."""

from __future__ import annotations


class SnapshotsKeepFailingError(RuntimeError):
    """Raised when so many attempts have failed that going on would only lose more work.

    Attributes:
        failures: How many in a row; attempts that were skipped between them don't count.
    """

    def __init__(self, failures: int) -> None:
        super().__init__(failures)
        self.failures = failures

    def __str__(self) -> str:
        return (
            f"{self.failures} snapshots in a row failed, as many as max_consecutive_failures allows; the last complete "
            "snapshot is still there: mend the cause and start again"
        )


class RequiredSnapshotError(RuntimeError):
    """Raised when the last snapshot of a run failed, so that a restart does without what came after the one before.

    Attributes:
        purpose: What it was for.
    """

    def __init__(self, purpose: str) -> None:
        super().__init__(purpose)
        self.purpose = purpose

    def __str__(self) -> str:
        return f"the required snapshot ({self.purpose}) failed; a restart goes on from the last complete one"
