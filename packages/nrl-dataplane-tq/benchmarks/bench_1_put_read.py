"""Put, claim and read through the plane, beside TransferQueue's own calls on the same queue."""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import ray
import torch
import transfer_queue as tq
from bench_report import ratio, spread, table
from nrl_dataplane_tq import TransferQueueDataPlaneClient, TransferQueueDataPlaneConfig
from tensordict import TensorDict

ROWS, FIELDS = 512, ["f0", "f1", "f2", "f3"]
IDS = [f"prompt{row // 8}/{row % 8}" for row in range(ROWS)]
ROUNDS, CALLS = 7, 5
PLANE, BARE = "nrl-dataplane-tq", "TransferQueue alone"

Way = Callable[[], list[float]]


def through_the_plane(rows: TensorDict) -> Way:
    plane = TransferQueueDataPlaneClient(TransferQueueDataPlaneConfig())

    def run() -> list[float]:
        plane.register_partition("p", FIELDS, ROWS, ["train"])
        times = [time.perf_counter()]
        plane.put_samples(IDS, "p", rows)
        times.append(time.perf_counter())
        meta = plane.claim_meta("p", "train", FIELDS, ROWS)
        times.append(time.perf_counter())
        plane.get_data(meta)
        times.append(time.perf_counter())
        plane.clear_samples(None, "p")
        return times

    return run


def through_transfer_queue(rows: TensorDict) -> Way:
    client = tq.get_client()

    def run() -> list[float]:
        times = [time.perf_counter()]
        tq.kv_batch_put(keys=IDS, partition_id="bare", fields=rows)
        times.append(time.perf_counter())
        meta = client.get_meta(FIELDS, ROWS, "bare", task_name="train")
        times.append(time.perf_counter())
        client.get_data(meta)
        times.append(time.perf_counter())
        client.clear_partition("bare")
        return times

    return run


def measured(ways: dict[str, Way]) -> dict[str, list[list[float]]]:
    """Milliseconds of put, claim, read and all three of each way, a list each, one item a round."""
    seen: dict[str, list[list[float]]] = {name: [[], [], [], []] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            runs = [way() for _ in range(CALLS)]
            for step in range(3):
                seen[name][step].append(1e3 * statistics.median(run[step + 1] - run[step] for run in runs))
            seen[name][3].append(1e3 * statistics.median(run[3] - run[0] for run in runs))
    return seen


def checkpoint_bytes(rows: TensorDict, way: str) -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "checkpoint")
        if way == PLANE:
            plane = TransferQueueDataPlaneClient(TransferQueueDataPlaneConfig())
            plane.register_partition("p", FIELDS, len(rows), ["train"])
            plane.put_samples(IDS[: len(rows)], "p", rows)
            plane.save_checkpoint(folder)
            plane.clear_samples(None, "p")
        else:
            tq.kv_batch_put(keys=IDS[: len(rows)], partition_id="bare", fields=rows)
            tq.save_checkpoint(folder)
            tq.get_client().clear_partition("bare")
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> None:
    print("## nrl-dataplane-tq: put, claim and read\n")
    print(f"{ROWS} rows x {len(FIELDS)} float32 fields in one queue with one storage unit, all on this machine.")
    print(f"Milliseconds, median of {ROUNDS} interleaved rounds (lowest to highest).\n")
    lines: list[list[str]] = []
    for width in (1, 2048):
        rows = TensorDict({name: torch.rand(ROWS, width) for name in FIELDS}, batch_size=[ROWS])
        seen = measured({PLANE: through_the_plane(rows), BARE: through_transfer_queue(rows)})
        for name, steps in seen.items():
            lines.append([f"{width:,}", name, *(spread(step, 1) for step in steps)])
        times = ratio({name: steps[3] for name, steps in seen.items()}, PLANE, BARE)
        lines.append([f"{width:,}", "times as long", "", "", "", f"{times:.2f}"])
    print(table(["width", "way", "put", "claim", "read", "all three"], *lines))
    rows = TensorDict({name: torch.rand(64, 512) for name in FIELDS}, batch_size=[64])
    payload = sum(rows[name].nbytes for name in FIELDS)
    print(f"\nA checkpoint of 64 rows x {len(FIELDS)} fields of 2 KiB ({payload / 2**20:.2f} MiB):\n")
    sizes = [(name, checkpoint_bytes(rows, name)) for name in (PLANE, BARE)]
    print(table(["way", "MiB", "times the rows"], *([n, f"{s / 2**20:.2f}", f"{s / payload:.2f}"] for n, s in sizes)))


if __name__ == "__main__":
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        object_store_memory=100 * 2**20,
        log_to_driver=False,
        logging_level="ERROR",
        _node_ip_address="127.0.0.1",
    )
    backend = {"storage_backend": "SimpleStorage", "SimpleStorage": {"num_data_storage_units": 1}}
    tq.init({"backend": backend})
    try:
        main()
    finally:
        tq.close()
        ray.shutdown()
