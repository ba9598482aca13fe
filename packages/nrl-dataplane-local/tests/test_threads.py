"""Eight threads on one stream: put, claim, read and clear at random, and then the account is exact."""

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from nrl_dataplane_local import LocalDataPlaneClient, LocalDataPlaneConfig, materialize_local
from nrl_interfaces.data_plane import KVBatchMeta
from nrl_interfaces.testing.data_plane_clauses.ground import Waiting

TASKS = ("train", "eval")
CAPACITY = 64
PUTTERS = 3
SECONDS = 3.0
LIMIT_S = 30.0


def value_of(sample_id: str) -> int:
    putter, number = sample_id[1:].split("-")
    return 1_000_000 * int(putter) + int(number)


@dataclass
class Account:
    """What the threads did; each thread writes to lists of its own."""

    put: list[str] = field(default_factory=list)
    claimed: list[tuple[str, str]] = field(default_factory=list)  # task and id
    cleared: list[str] = field(default_factory=list)


class Run:
    """The client and its threads."""

    def __init__(self, seed: int) -> None:
        self.client = LocalDataPlaneClient(LocalDataPlaneConfig(partition_mode="stream"))
        self.client.register_partition("p", ["x", "c", "y"], CAPACITY, list(TASKS))
        self.seed = seed
        self.putting, self.clearing = threading.Event(), threading.Event()
        self.putting.set()
        self.clearing.set()
        self.done: Counter[str] = Counter()  # by id, the tasks that are through with it
        self.lock = threading.Lock()
        self.to_clear: list[str] = []

    def put(self, putter: int) -> Account:
        """Put rows of 1 to 6 ids, in one go or the second column later, as long as there is room."""
        account, rng, number = Account(), random.Random(f"{self.seed}-{putter}"), 0
        while self.putting.is_set():
            ids = [f"s{putter}-{number + at}" for at in range(rng.randint(1, 6))]
            values = [value_of(sample_id) for sample_id in ids]
            columns: dict[str, Any] = {"x": torch.tensor(values), "c": [str(value) for value in values]}
            try:
                self.client.put_samples(ids, "p", columns, [{"of": sample_id} for sample_id in ids])
            except ValueError:  # it is full
                time.sleep(0.001)
                continue
            number += len(ids)
            account.put += ids
            rng.shuffle(ids)
            self.client.put_samples(ids, "p", {"y": torch.tensor([-value_of(sample_id) for sample_id in ids])})
        return account

    def claim(self, task: str, claimer: int) -> Account:
        """Claim 1 to 8 rows with all columns, waiting for them; read, and now and then release and claim again."""
        account, rng = Account(), random.Random(f"{self.seed}-{task}-{claimer}")
        while True:
            try:
                rows = rng.choice([1, 1, 2, 8]) if self.putting.is_set() else 1
                meta = self.client.claim_meta("p", task, ["x", "y"], rows, timeout_s=LIMIT_S)
            except RuntimeError:  # closed: the run is over
                return account
            if rng.random() < 0.2:
                self.client.release_claims(meta.sample_ids, "p", task)
                continue
            self.check(meta)
            account.claimed += [(task, sample_id) for sample_id in meta.sample_ids]
            with self.lock:
                for sample_id in meta.sample_ids:
                    self.done[sample_id] += 1
                    if self.done[sample_id] == len(TASKS):
                        self.to_clear.append(sample_id)

    def check(self, meta: KVBatchMeta) -> None:
        """Every column and tag is in step with the ids."""
        batch = materialize_local(self.client.get_data(meta, ["x", "c", "y"]))
        values = [value_of(sample_id) for sample_id in meta.sample_ids]
        assert batch["x"].tolist() == values
        assert batch["y"].tolist() == [-value for value in values]
        assert batch["c"] == [str(value) for value in values]
        assert meta.tags == [{"of": sample_id} for sample_id in meta.sample_ids]

    def clear(self) -> Account:
        """Clear rows that all tasks are through with, which makes room."""
        account = Account()
        while self.clearing.is_set():
            with self.lock:
                ids, self.to_clear = self.to_clear, []
            if ids:
                self.client.clear_samples(ids, "p")
                account.cleared += ids
            else:
                time.sleep(0.001)
        return account


@pytest.mark.slow
def test_eight_threads_lose_no_row_and_double_none() -> None:
    run = Run(seed=random.randrange(1_000_000))
    putters = [Waiting(lambda putter=putter: run.put(putter)) for putter in range(PUTTERS)]
    claimers = [Waiting(lambda task=task, at=at: run.claim(task, at)) for task in TASKS for at in range(2)]
    clearer = Waiting(run.clear)
    time.sleep(SECONDS)
    run.putting.clear()
    put = Counter(sample_id for putter in putters for sample_id in putter.result().put)
    finish(run, put)
    run.clearing.clear()
    cleared = Counter(clearer.result().cleared)
    run.client.close()
    claimed = Counter(pair for claimer in claimers for pair in claimer.result(LIMIT_S / 2).claimed)  # all are woken
    assert sum(put.values()) > 10 * CAPACITY, f"too few rows for a test, seed {run.seed}"
    assert set(put.values()) == {1}, run.seed
    assert claimed == Counter((task, sample_id) for task in TASKS for sample_id in put), run.seed
    assert cleared == put, run.seed


def finish(run: Run, put: Counter[str]) -> None:
    """Give claims of many rows, which wait for more than are left, what they lack, until no row is left."""
    until, number = time.monotonic() + LIMIT_S, 0
    while run.client.list_sample_ids("p"):  # nobody else puts any more, so none is left when there is none
        assert time.monotonic() < until, f"rows {run.client.list_sample_ids('p')} are never claimed; seed {run.seed}"
        number += 1
        sample_id = f"s{PUTTERS}-{number}"
        columns = {"x": torch.tensor([value_of(sample_id)]), "c": [str(value_of(sample_id))]}
        try:
            run.client.put_samples([sample_id], "p", columns, [{"of": sample_id}])
        except ValueError:  # it is full
            time.sleep(0.001)
            continue
        put[sample_id] += 1
        run.client.put_samples([sample_id], "p", {"y": torch.tensor([-value_of(sample_id)])})
        time.sleep(0.02)
