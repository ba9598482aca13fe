"""The contract of data planes on the process-local one: no clause left out, none but copies with `zero_copy`."""

from typing import Any

from nrl_dataplane_local import LocalDataPlaneClient, LocalDataPlaneConfig
from nrl_interfaces.data_plane import DataPlaneClient
from nrl_interfaces.testing.data_plane import DataPlaneContract


class TestLocalDataPlane(DataPlaneContract):
    def make_client(self, **config: Any) -> DataPlaneClient:
        return LocalDataPlaneClient(LocalDataPlaneConfig(**config))

    def read_around(self, client: Any, partition_id: str, sample_ids: list[str], fields: list[str]) -> dict[str, Any]:
        """From the columns' segments, without the lock, the checks and the copies of a read."""
        partition = client._partitions[partition_id]
        slots = partition.slots_of(sample_ids)
        groups = {name: partition.columns[name] for name in fields}
        return {name: group.find(group.places_of(slots)).read(name, copy=False) for name, group in groups.items()}


class TestLocalDataPlaneWithoutCopies(DataPlaneContract):
    left_out = {"copies": "zero_copy turns them off, by the user's promise not to write"}  # noqa: RUF012
    random_runs = 20

    def make_client(self, **config: Any) -> DataPlaneClient:
        return LocalDataPlaneClient(LocalDataPlaneConfig(**config, zero_copy=True))
