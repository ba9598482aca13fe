"""Real parts meet the Protocols that a rollout checkpoint works on, as they are."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from nrl_energon_loader import EnergonSFTDataLoader, build_energon_sft_loader
from nrl_energon_loader.prepare import prepare_dataset
from nrl_interfaces import DataPlaneClient, build_data_plane_client
from nrl_interfaces.testing.rollout import check_checkpointable_data_plane, check_prompt_source
from torchdata.stateful_dataloader import StatefulDataLoader

ENCODER = """
import torch
from megatron.energon import stateless
from nrl_energon_loader.encoders.base import BaseSFTTaskEncoder
from nrl_energon_loader.samples import EncodedSFTSample


class Numbers(BaseSFTTaskEncoder):
    @stateless
    def encode_conversation(self, sample):
        text = sample.messages[-1]["content"]
        message = {"role": "assistant", "content": text, "token_ids": torch.tensor([int(text)])}
        return EncodedSFTSample.of(sample, [message])
"""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve conversations, and the encoder beside them."""
    folder = tmp_path_factory.mktemp("prompts")
    records = [
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": str(n)}]} for n in range(12)
    ]
    source = folder / "source.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in records))
    prepare_dataset(source, folder / "dataset", shard_size=5)
    (folder / "numbers_encoder.py").write_text(ENCODER)
    return folder / "dataset"


@pytest.mark.parametrize("workers", [0, 2])
def test_the_energon_loader_is_a_source_of_prompts(dataset: Path, workers: int) -> None:
    def make() -> EnergonSFTDataLoader:
        encoder = f"{dataset.parent / 'numbers_encoder.py'}:Numbers"
        return build_energon_sft_loader(
            data_config={"shuffle": True, "energon": {"num_workers": workers, "task_encoder": encoder}},
            source={"path": str(dataset), "split": "train"},
            processor=None,
            batch_size=2,
            max_sequence_length=16,
            split_role="train",
            logical_rank=0,
            logical_world_size=1,
            placement_fingerprint="0" * 64,
            packing_algorithm=None,
            max_sequences_per_bin=None,
            sequence_length_pad_multiple=1,
            only_unmask_final=False,
        )

    def batches(loader: EnergonSFTDataLoader) -> Iterator[dict[str, Any]]:
        while True:  # epoch by epoch
            for batch in loader:
                yield dict(batch)

    check_prompt_source(make, prompts=batches, count=3)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 calls it
@pytest.mark.parametrize("workers", [0, 2])
def test_torchdatas_loader_is_a_source_of_prompts(workers: int) -> None:
    def make() -> StatefulDataLoader:
        prompts = [{"id": f"p{n}", "tokens": torch.tensor([n])} for n in range(7)]
        generator = torch.Generator().manual_seed(3)
        return StatefulDataLoader(prompts, batch_size=2, shuffle=True, generator=generator, num_workers=workers)

    check_prompt_source(make, count=4)


def test_the_local_data_plane_is_one_that_snapshots_can_save(tmp_path: Path) -> None:
    def make() -> DataPlaneClient:
        return build_data_plane_client({"impl": "local", "partition_mode": "stream"})

    def fill(plane: DataPlaneClient) -> None:
        plane.register_partition("rollouts", ["tokens"], num_samples=8, consumer_tasks=["train"])
        plane.put_samples(["a", "b", "c", "d"], "rollouts", {"tokens": torch.arange(8).reshape(4, 2)})

    def claim(plane: DataPlaneClient) -> list[str]:
        return list(plane.claim_meta("rollouts", "train", ["tokens"], 2, timeout_s=0).sample_ids)

    check_checkpointable_data_plane(make, tmp_path, fill=fill, claim=claim, partition_id="rollouts", task_name="train")
