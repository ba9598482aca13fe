"""Random runs of several writers and a controller against a model of plain lists."""

import contextlib
import json
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from nrl_dump import StepIncompleteError, TrainDataDump, verify

SHARDS = ("0", "2", "10")
shards, steps, counts = st.sampled_from(SHARDS), st.sampled_from([0, 1, 9]), st.integers(0, 3)


def ids_in(path: Path) -> list[str]:
    return [json.loads(line)["sample_id"][0] for line in path.read_bytes().split(b"\n")[:-1]]


class Runs(RuleBasedStateMachine):
    """Parts and published files hold what the calls so far say, whatever their order."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="nrl-dump-runs-"))
        self.writers = {shard: TrainDataDump(self.folder, shard_id=shard) for shard in SHARDS}
        self.controller = TrainDataDump(self.folder, shard_id="controller")
        self.parts: dict[tuple[int, str], list[str]] = {}
        self.begun: set[tuple[int, str]] = set()  # the steps that a writer goes on with, rather than writes anew
        self.published: dict[int, list[str]] = {}
        self.count = 0

    @rule(step=steps, shard=shards, rows=counts)
    def add_chunk(self, step: int, shard: str, rows: int) -> None:
        ids = [f"{self.count + i}" for i in range(rows)]
        self.count += rows
        self.writers[shard].add_chunk(
            step=step,
            sample_ids=ids,
            tags=None,
            input_lengths=torch.ones(rows, dtype=torch.int64),
            sequences={"t": torch.arange(rows).reshape(rows, 1)},
            scalars={},
        )
        if (step, shard) not in self.begun:
            self.parts[step, shard] = []
            self.begun.add((step, shard))
        self.parts[step, shard] += ids

    @rule(step=steps, shard=shards)
    def flush(self, step: int, shard: str) -> None:
        expected = self.parts[step, shard] if (step, shard) in self.begun else []
        assert self.writers[shard].flush(step) == len(expected)

    @rule(shard=shards, closed=st.booleans())
    def start_again(self, shard: str, closed: bool) -> None:
        if closed:
            self.writers[shard].close()
        del self.writers[shard]
        self.writers[shard] = TrainDataDump(self.folder, shard_id=shard)
        self.begun = {key for key in self.begun if key[1] != shard}

    @rule(step=steps, shard=shards)
    def restart_step(self, step: int, shard: str) -> None:
        self.writers[shard].restart_step(step)
        self.forget(step, shard)

    @rule(step=steps)
    def discard_step(self, step: int) -> None:
        self.controller.discard_step(step)
        self.forget(step, *SHARDS)

    @rule(step=steps, publisher=st.sampled_from([*SHARDS, "controller"]), wrong=st.booleans())
    def finish_step(self, step: int, publisher: str, wrong: bool) -> None:
        dump = self.controller if publisher == "controller" else self.writers[publisher]
        rows = [row for shard in SHARDS for row in self.parts.get((step, shard), [])]
        if wrong or not rows:
            with pytest.raises(StepIncompleteError):
                dump.finish_step(step, len(rows) + 1)
            return
        assert dump.finish_step(step, len(rows)).rows == len(rows)
        self.published[step] = rows
        self.forget(step, *SHARDS)

    def forget(self, step: int, *gone: str) -> None:
        for shard in gone:
            self.parts.pop((step, shard), None)
            self.begun.discard((step, shard))

    @invariant()
    def the_folder_holds_what_the_model_says(self) -> None:
        expected = {f"train_data_step{step + 1}.jsonl.part-{shard}": ids for (step, shard), ids in self.parts.items()}
        expected |= {f"train_data_step{step + 1}.jsonl": ids for step, ids in self.published.items()}
        assert {path.name: ids_in(path) for path in self.folder.glob("*.jsonl*")} == expected
        for step, ids in self.published.items():
            if not any(key[0] == step for key in self.parts):
                assert verify(self.folder / f"train_data_step{step + 1}.jsonl").rows == len(ids)

    def teardown(self) -> None:
        with contextlib.ExitStack() as stack:
            for dump in (*self.writers.values(), self.controller):
                stack.callback(dump.close)
        shutil.rmtree(self.folder)


TestRuns = Runs.TestCase
TestRuns.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
