"""Builds a loader again and again, whose workers are forks of this process, while Ray's threads are at work in it.

Prints how many of the loaders gave the batches that came before Ray was started.
"""

import gc
import json
import logging
import sys
from pathlib import Path

import ray
from nrl_energon_loader import build_energon_sft_loader
from nrl_energon_loader.prepare import prepare_dataset


def make_dataset(folder: Path) -> Path:
    turns = [("Which number?", f"The number is {n}.") for n in range(12)]
    messages = [[{"role": "user", "content": q}, {"role": "assistant", "content": a}] for q, a in turns]
    source = folder / "numbers.jsonl"
    source.write_text("".join(json.dumps({"messages": each}) + "\n" for each in messages))
    prepare_dataset(source, folder / "numbers", shard_size=3)
    return folder / "numbers"


def epoch(dataset: Path) -> list[list[str]]:
    """The source ids of an epoch's batches, of a loader with two workers."""
    with build_energon_sft_loader(
        data_config={"shuffle": True, "energon": {"num_workers": 2, "task_encoder": "utf8_bytes"}},
        source={"path": str(dataset)},
        processor=None,
        batch_size=4,
        max_sequence_length=256,
        split_role="train",
        logical_rank=0,
        logical_world_size=1,
        placement_fingerprint="one process",
        packing_algorithm=None,
        max_sequences_per_bin=None,
        sequence_length_pad_multiple=1,
        only_unmask_final=False,
    ) as loader:
        return [batch["source_ids"] for batch in loader]


@ray.remote(num_cpus=0)
class Echo:
    """Keeps Ray at work."""

    def same(self, value: int) -> int:
        return value


def main(folder: Path, loaders: int) -> None:
    dataset = make_dataset(folder)
    before = epoch(dataset)
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100 * 2**20,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _node_ip_address="127.0.0.2",  # loopback; Ray takes 127.0.0.1 for the address of the machine
    )
    gc.freeze()  # as a trainer should: a fork goes through all objects that are not
    echo = Echo.remote()
    for number in range(1, loaders + 1):
        on_its_way = [echo.same.remote(value) for value in range(50)]
        if epoch(dataset) != before:
            sys.exit(f"loader {number} gave other batches")
        if ray.get(on_its_way) != list(range(50)):
            sys.exit(f"Ray gave other values beside loader {number}")
        print(number, flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
