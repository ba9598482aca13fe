"""The contract of data planes on a real TransferQueue, and which of its abilities this adapter has not."""

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from nrl_interfaces.data_plane import DataPlaneClient
from nrl_interfaces.testing.data_plane import DataPlaneContract
from nrl_interfaces.testing.data_plane_clauses.copies import CopiesTests
from nrl_interfaces.testing.data_plane_clauses.ground import Ability, ClauseTests
from nrl_interfaces.testing.data_plane_clauses.loading import LoadingTests
from tensordict import TensorDict


class OnQueues(ClauseTests):
    """Each client is the only one of its queue, as checkpoints are of whole queues."""

    @pytest.fixture(autouse=True)
    def _queues(self, queues: Any) -> None:
        self.queues = queues

    def make_client(self, *, safe_globals: tuple[type, ...], **config: Any) -> DataPlaneClient:
        return self.queues.free().client(**config)

    def drop_client(self, client: Any) -> None:
        self.queues.drop(client)

    def read_around(self, client: Any, partition_id: str, sample_ids: list[str], fields: list[str]) -> dict[str, Any]:
        """By TransferQueue's own client, by keys, field by field."""
        from nrl_dataplane_tq.columns import from_wire
        from nrl_dataplane_tq.engine import meta_of

        kinds = client._ask("locate", partition_id, None, [], fields).kinds
        engine_id = client._ask("declaration", partition_id).engine_id
        rows = client._connection._queue.kv_retrieve_meta(keys=sample_ids, partition_id=engine_id)
        columns = {}
        for name in fields:
            read = client._connection._queue.get_data(meta_of(engine_id, rows.global_indexes, [name]))
            columns[name] = from_wire(read.get(name), kinds[name])
        return columns

    def write_around(self, client: Any, partition_id: str, sample_ids: list[str], columns: Mapping[str, Any]) -> None:
        """By TransferQueue's own client."""
        from nrl_dataplane_tq.columns import kind_of, to_wire

        engine_id = client._ask("declaration", partition_id).engine_id
        rows = client._connection._queue.kv_retrieve_meta(keys=sample_ids, partition_id=engine_id)
        wire = {name: to_wire(name, column, kind_of(column), sample_ids) for name, column in columns.items()}
        client._connection._queue.put(TensorDict(wire, batch_size=[len(sample_ids)]), rows)


class TestTransferQueueDataPlane(OnQueues, DataPlaneContract):
    left_out: ClassVar[Mapping[Ability, str]] = {
        "copies": "rows cross processes: any other object comes as a pickled copy, never by reference",
        "bytes held": "TransferQueue counts rows, not bytes",
        "freeze": "TransferQueue can't hold a moment: it writes a checkpoint at once, or not at all",
        "restricted loading": "TransferQueue's checkpoints are pickles that it unpickles itself",
    }
    random_runs: ClassVar[int] = 25


def only(group: type[ClauseTests], *words: str) -> dict[str, None]:
    """Take the tests out of a group whose names have none of these words."""
    return {name: None for name in dir(group) if name.startswith("test_") and not any(word in name for word in words)}


class TestCopies(OnQueues, CopiesTests):
    """Of what is left out above, what holds all the same: all but that other objects come by reference."""

    locals().update({"test_clause_09_other_objects_are_kept_by_reference": None})


class TestDamage(OnQueues, LoadingTests):
    """Of what is left out above, what holds all the same: a checkpoint that was changed is never loaded."""

    locals().update(only(LoadingTests, "changed_byte", "truncated", "foreign", "views_are_saved", "on_the_cpu"))
