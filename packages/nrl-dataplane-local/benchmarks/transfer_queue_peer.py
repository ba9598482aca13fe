"""TransferQueue with its simple backend, started for real on this machine and ended again."""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import ray
import transfer_queue as tq
from tensordict import TensorDict


class Queue:
    """What the benchmarks do with it."""

    def seconds_of_put_and_read(self, ids: list[str], rows: TensorDict, fields: list[str]) -> float:
        """Put rows and read them all; clearing them is not counted."""
        began = time.perf_counter()
        tq.kv_batch_put(keys=ids, partition_id="p", fields=rows)
        tq.kv_batch_get(keys=ids, partition_id="p", select_fields=fields)
        ended = time.perf_counter()
        tq.kv_clear(keys=ids, partition_id="p")
        return ended - began

    def checkpoint_bytes(self, ids: list[str], rows: TensorDict) -> int:
        """Put rows, save a checkpoint, and say how large it is."""
        tq.kv_batch_put(keys=ids, partition_id="p", fields=rows)
        with tempfile.TemporaryDirectory() as folder:
            tq.save_checkpoint(folder)
            size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        tq.kv_clear(keys=ids, partition_id="p")
        return size


@contextlib.contextmanager
def transfer_queue() -> Iterator[Queue]:
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100 * 2**20,
        log_to_driver=False,
        logging_level="ERROR",
        _node_ip_address="127.0.0.1",
    )
    try:
        backend = {"storage_backend": "SimpleStorage", "SimpleStorage": {"num_data_storage_units": 1}}
        tq.init({"backend": backend})
        yield Queue()
        tq.close()
    finally:
        ray.shutdown()
