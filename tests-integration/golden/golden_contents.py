"""What is in a folder of golden files, read with the code at hand, as plain JSON. Give it a copy: reading may write.

A function for each format; its part of `contents.json` is what it gave when the files were made.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nrl_dataplane_local import LocalDataPlaneClient, LocalDataPlaneConfig, materialize_local
from nrl_dump import TrainDataDump, read_step, read_tensors, verify
from nrl_energon_loader import EnergonSFTDataLoader, build_energon_sft_loader
from nrl_interfaces import PackedTensor
from nrl_rollout_ckpt import (
    BootstrapCompatibilityIdentity,
    CheckpointManager,
    Prompt,
    RecoveryTargetLevel,
    RolloutCheckpointConfig,
    RolloutParts,
)
from nrl_rollout_ckpt.disk.bootstrap import read_bootstrap_anchor
from nrl_rollout_ckpt.testing import FakeEnvironment, ListPromptSource, SmallRun, make_parts, numbered_prompts


def plain(value: Any) -> Any:
    """A value as JSON that tells dtype and shape."""
    if isinstance(value, torch.Tensor):
        rows = [row.tolist() for row in value.unbind()] if value.is_nested else value.tolist()
        return {"torch": str(value.dtype), "values": rows}
    if isinstance(value, np.ndarray):
        return {"numpy": str(value.dtype), "values": value.tolist()}
    if isinstance(value, PackedTensor):
        return {"packed": [plain(value.slice([row]).as_tensor()) for row in range(len(value))]}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


# ---- nrl-dump ----


def dump(folder: Path) -> dict[str, Any]:
    """Step 1 is published; of step 2 there are the parts of two shards, which are published now."""
    manifest = verify(folder / "train_data_step1.jsonl")
    found: dict[str, Any] = {
        "published rows": list(read_step(folder / "train_data_step1.jsonl")),
        "published columns": plain(read_tensors(folder / "train_data_step1.jsonl")),
        "shards": [[shard.shard_id, shard.rows] for shard in manifest.shards],
    }
    with TrainDataDump(folder) as controller:
        controller.finish_step(1, expected_rows=2, shard_ids=["a", "b"])
    return {**found, "rows from parts": list(read_step(folder / "train_data_step2.jsonl"))}


# ---- nrl-dataplane-local ----


def plane(folder: Path) -> dict[str, Any]:
    """A partition of three rows; one of them was claimed."""
    with LocalDataPlaneClient(LocalDataPlaneConfig(owner="rank0")) as client:
        metadata = client.load_checkpoint(folder)
        sample_ids = client.list_sample_ids("step-1")
        fields = ["input_ids", "jagged", "weights", "images", "texts", "records", "array"]
        batch = materialize_local(client.get_samples(sample_ids, "step-1", fields), layout="jagged")
        rest = client.claim_meta("step-1", "train", ["texts"], 2, timeout_s=0)
        return {
            "metadata": metadata,
            "ids": sample_ids,
            "columns": plain(dict(batch)),
            "left to claim": rest.sample_ids,
            "tags": rest.tags,
        }


# ---- nrl-energon-loader ----


def build_loader(dataset: Path) -> EnergonSFTDataLoader:
    return build_energon_sft_loader(
        data_config={"shuffle": True, "energon": {"num_workers": 2, "task_encoder": "utf8_bytes"}},
        source={"path": str(dataset)},
        processor=None,
        batch_size=2,
        max_sequence_length=256,
        split_role="train",
        logical_rank=0,
        logical_world_size=1,
        placement_fingerprint="one process",
        packing_algorithm=None,
        max_sequences_per_bin=None,
        sequence_length_pad_multiple=1,
        only_unmask_final=False,
    )


def loader(folder: Path) -> dict[str, Any]:
    """A state behind the second batch of a prepared dataset."""
    with build_loader(folder / "dataset") as made:
        made.load_state_dict(torch.load(folder / "state.pt", weights_only=True))
        return {"counters": made.counters, "batches to come": [batch["source_ids"] for batch in made]}


# ---- nrl-rollout-ckpt ----

RUN_CONFIG = {"model": "small", "seed": 1, "api_key": "a secret", "logger": {"name": "golden"}}


def rollout_parts(*, begins: bool, restore_mode: str = "latest") -> RolloutParts:
    """Parts with turns, with prompts that are saved whole and have tensors, and with a data plane that is ours."""
    texts = numbered_prompts(12)
    prompts = [Prompt(each.ref, {**each.payload, "ids": torch.tensor([n, n + 1])}) for n, each in enumerate(texts)]
    client = LocalDataPlaneClient(LocalDataPlaneConfig(partition_mode="stream"))
    if begins:
        client.register_partition("train", ["prompt", "reward", "advantage"], 64, ["train"], 2)
    return make_parts(
        config=RolloutCheckpointConfig(target_level=RecoveryTargetLevel.TURN, restore_mode=restore_mode),
        prompt_source=ListPromptSource(prompts, resolves=False),
        environment=FakeEnvironment(),
        data_plane=client,
        run_config=RUN_CONFIG,
    )


def rollouts(folder: Path) -> dict[str, Any]:
    """Snapshots of a run: before its first train step, after its second one, and the trainer checkpoint of that."""
    begun, trained = folder / "begun", folder / "trained"
    identity = read_bootstrap_anchor(begun)
    manager = CheckpointManager(trained)
    newest = manager.get_latest_checkpoint_path()
    return {
        "config of the anchor": identity.identity["config"],
        "the anchor's run is this one": identity.fingerprint
        == BootstrapCompatibilityIdentity.of(RUN_CONFIG).fingerprint,
        "training info": manager.load_training_info(newest),
        "snapshot before the first step": asyncio.run(restored_run(begun, "latest")),
        "trainer checkpoint": asyncio.run(restored_run(trained, "trainer_checkpoint")),
        "snapshot after it": asyncio.run(restored_run(trained, "latest")),
    }


async def restored_run(checkpoints: Path, restore_mode: str) -> dict[str, Any]:
    """What a restart has before it does anything, and what it has trained on in the end."""
    run = await SmallRun.start(checkpoints, lambda: rollout_parts(begins=False, restore_mode=restore_mode))
    try:
        return {**state_of(run), "trained in the end": await trained_in_the_end(run)}
    finally:
        run.close()


async def trained_in_the_end(run: SmallRun) -> list[str]:
    await run.run_to_end()  # raises if a prompt is lost or comes twice
    return run.trained


def state_of(run: SmallRun) -> dict[str, Any]:
    """Everything that was saved, but for ids that are drawn at random."""
    parts = run.parts
    environment: Any = parts.environment
    client: Any = parts.data_plane
    complete = [
        {
            "prompt": group.prompt.ref.sample_id,
            "target step": group.target_step,
            "rows": plain(
                dict(materialize_local(client.get_samples(list(group.sample_ids), "train", ["prompt", "reward"])))
            ),
        }
        for group in parts.replay_index.groups
    ]
    incomplete = [
        {
            "prompt": group.prompt.ref.sample_id,
            "payload": plain(group.runtime_prompt),
            "phase": group.phase.name,
            "target step": group.target_step,
            "siblings": [
                {
                    "status": sibling.current.status.name,
                    "result": None if sibling.current.result is None else plain(sibling.current.result.value()),
                    "reward": sibling.current.reward,
                    "environment": [sibling.current.environment_instance_id, sibling.current.environment_attempt],
                }
                for sibling in group.siblings
            ],
        }
        for group in parts.ledger.redispatch_order()
    ]
    return {
        "complete groups": complete,
        "incomplete groups": incomplete,
        "reserve": [prompt.ref.sample_id for prompt, _ in parts.runtime.replacement_reserve],
        "dropped": list(parts.runtime.dropped),
        "turns": sorted(environment.turns(episode) for episode in environment.episodes()),
        "groups of the open train step": run.report.rolled_back_groups,
        "train steps": parts.progress.train_steps,
        "batches admitted": parts.sampler.dispatch_index,
        "source": parts.prompt_source.state_dict(),
        "trained": list(run.trained),
    }


CONTENTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "dump": dump,
    "plane": plane,
    "loader": loader,
    "rollouts": rollouts,
}
