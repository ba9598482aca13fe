"""Put and read everything, against a dict of cloned tensors and against TransferQueue."""

import os
import statistics
import sys
import time
from collections.abc import Callable

import torch
from bench_report import ratio, spread, table
from nrl_dataplane_local import LocalDataPlaneClient, LocalDataPlaneConfig, local_batch_to_tensordict
from tensordict import TensorDict
from transfer_queue_peer import transfer_queue

ROWS, FIELDS = 512, ["f0", "f1", "f2", "f3"]
IDS = [f"prompt{row // 8}/{row % 8}" for row in range(ROWS)]
WIDTHS = (1, 64, 512, 2048, 8192)
PEER_WIDTH = 2048
ROUNDS, CALLS = 9, 15
DICT, COPIES, ZERO, PEER = "a dict of clones", "copies", "zero_copy", "TransferQueue"


def batch(width: int) -> TensorDict:
    return local_batch_to_tensordict({name: torch.rand(ROWS, width) for name in FIELDS}, batch_size=ROWS)


Way = Callable[[], float]


def through_a_plane(rows: TensorDict, *, zero_copy: bool) -> Way:
    plane = LocalDataPlaneClient(LocalDataPlaneConfig(zero_copy=zero_copy))

    def put_and_read() -> float:
        plane.register_partition("p", FIELDS, ROWS, ["train"])
        began = time.perf_counter()
        plane.put_samples(IDS, "p", rows)
        plane.get_samples(IDS, "p", FIELDS)
        ended = time.perf_counter()
        plane.clear_samples(None, "p")
        return ended - began

    return put_and_read


def through_a_dict(rows: TensorDict) -> Way:
    def put_and_read() -> float:
        began = time.perf_counter()
        held = {name: rows[name].clone() for name in FIELDS}
        _ = {name: column.clone() for name, column in held.items()}
        return time.perf_counter() - began

    return put_and_read


def turns(ways: dict[str, Way], rounds: int) -> dict[str, list[float]]:
    """Seconds of each way in each round, the middle of `CALLS` calls; the ways take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            seconds[name].append(statistics.median(way() for _ in range(CALLS)))
    return seconds


def by_width() -> None:
    lines = []
    for width in WIDTHS:
        rows = batch(width)
        ways = {
            DICT: through_a_dict(rows),
            COPIES: through_a_plane(rows, zero_copy=False),
            ZERO: through_a_plane(rows, zero_copy=True),
        }
        turns(ways, 2)  # warm
        seconds = turns(ways, ROUNDS)
        micros = [spread([1e6 * second for second in values], 0) for values in seconds.values()]
        size = f"{4 * len(FIELDS) * ROWS * width / 2**20:,.2f}"
        lines.append([f"{width:,}", size, *micros, f"{ratio(seconds, COPIES, DICT):.2f}"])
    print(
        f"{ROWS} rows x {len(FIELDS)} float32 fields: register, put, read all, clear. Microseconds, median of {ROUNDS}"
    )
    print("interleaved rounds (lowest to highest). Aims: `zero_copy` does not grow with the bytes, below 200;")
    print("copies take at most 1.3 times the dict, which checks nothing, knows no ids and refuses nothing.\n")
    print(table(["width", "MiB", DICT, COPIES, ZERO, "copies / dict"], *lines))


def against_the_peer() -> None:
    rows = batch(PEER_WIDTH)
    with transfer_queue() as queue:
        ways = {
            PEER: lambda: queue.seconds_of_put_and_read(IDS, rows, FIELDS),
            COPIES: through_a_plane(rows, zero_copy=False),
            ZERO: through_a_plane(rows, zero_copy=True),
        }
        turns(ways, 1)  # warm
        seconds = turns(ways, ROUNDS)
    print("\n### Beside TransferQueue's simple backend\n")
    print(
        f"{ROWS} rows x {len(FIELDS)} fields x {PEER_WIDTH:,} float32, put and read all, warm, one storage unit on this"
    )
    print("machine. TransferQueue serves many processes; here it serves one.\n")
    lines = [[name, spread([1e3 * second for second in values], 2)] for name, values in seconds.items()]
    print(table(["way", "ms"], *lines))
    print(f"\nTransferQueue takes {ratio(seconds, PEER, ZERO):,.0f} times as long as `zero_copy` (aim: at least 20),")
    print(f"{ratio(seconds, PEER, COPIES):.1f} times as long as copies (aim: at least 6).")


if __name__ == "__main__":
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # else Ray writes a token into the home folder
    print("## nrl-dataplane-local: put and read\n")
    by_width()
    sys.stdout.flush()
    against_the_peer()
