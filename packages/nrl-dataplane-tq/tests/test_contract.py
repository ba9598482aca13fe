"""The contract of data planes on a real TransferQueue, and which of its abilities this adapter has not."""

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from nrl_interfaces.data_plane import DataPlaneClient
from nrl_interfaces.testing.data_plane import DataPlaneContract
from nrl_interfaces.testing.data_plane_clauses.ground import Ability


class TestTransferQueueDataPlane(DataPlaneContract):
    left_out: ClassVar[Mapping[Ability, str]] = {
        "copies": "rows cross processes: any other object comes as a pickled copy, never by reference",
        "bytes held": "TransferQueue counts rows, not bytes",
        "freeze": "TransferQueue can't hold a moment: it writes a checkpoint at once, or not at all",
        "restricted loading": "TransferQueue's checkpoints are pickles that it unpickles itself",
    }
    random_runs: ClassVar[int] = 12

    @pytest.fixture(autouse=True)
    def _queues(self, queues: Any) -> None:
        self.queues = queues

    def make_client(self, *, safe_globals: tuple[type, ...], **config: Any) -> DataPlaneClient:
        return self.queues.free().client(**config)

    def drop_client(self, client: Any) -> None:
        self.queues.drop(client)
