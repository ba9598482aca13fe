"""Write golden files of all formats on disk with the code at hand, into a folder that is named after the version.

    .venv/bin/python tests-integration/golden/make_golden.py 0.2.0

Files that are there are never made anew: later versions have to read them as they are. This is run once for a version
that changes a format, and its folder is added to the repository.
"""

import asyncio
import json
import shutil
import socket
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from golden_contents import CONTENTS, build_loader, rollout_parts
from nrl_dataplane_local import LocalDataPlaneClient, LocalDataPlaneConfig
from nrl_dump import TrainDataDump
from nrl_energon_loader.prepare import prepare_dataset
from nrl_interfaces import PackedTensor
from nrl_interfaces.layout import to_jagged
from nrl_rollout_ckpt import SiblingSealResult
from nrl_rollout_ckpt.testing import SmallRun

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64, "uint8": torch.uint8}


def write_dump(folder: Path) -> None:
    def chunk(step: int, *sample_ids: str) -> dict[str, object]:
        rows = len(sample_ids)
        numbers = torch.tensor([[0.1, -2.5e-8, float("inf")], [float("nan"), 3.0, 0.0]])[:rows]
        return {
            "step": step,
            "sample_ids": list(sample_ids),
            "tags": [{"task": "sum", "n": n, "nested": {"ü": [None, True]}} for n in range(rows)],
            "input_lengths": torch.tensor([3, 2])[:rows],
            "sequences": {"token_ids": torch.arange(6).view(2, 3)[:rows], "logprobs": numbers},
            "scalars": {
                **{name: torch.tensor([0.5, 7.0])[:rows].to(dtype) for name, dtype in DTYPES.items()},
                "prompt_ids": to_jagged(torch.arange(4).view(2, 2)[:rows], [1, 2][:rows]),
            },
        }

    with TrainDataDump(folder) as dump:
        dump.add_chunk(**chunk(0, "prompt0-0", "prompt0-1"))
        dump.finish_step(0, expected_rows=2)
    for shard_id in "a", "b":
        with TrainDataDump(folder, shard_id=shard_id, now=lambda: 0.0) as dump:
            dump.add_chunk(**chunk(1, f"prompt1-{shard_id}"))


def write_plane(folder: Path) -> None:
    with LocalDataPlaneClient(LocalDataPlaneConfig(owner="rank0")) as client:
        fields = ["input_ids", "jagged", "weights", "images", "texts", "records", "array", "to come"]
        client.register_partition("step-1", fields, 3, ["train", "dump"], enums={"texts": ["x", "ü", "z"]})
        columns = {
            "input_ids": torch.tensor([[5, 6], [7, 8], [9, 0]]),
            "jagged": to_jagged(torch.arange(6).view(3, 2), [2, 0, 1]),
            "weights": torch.tensor([0.1, 0.2, 0.3], dtype=torch.bfloat16),
            "images": PackedTensor([torch.ones(2, 3), None, torch.zeros(1, 3)], dim_to_pack=0),
            "texts": ["x", "ü", "z"],
            "records": [{"n": 1, "deep": [None, {"b": True}]}, {}, {"tensor": torch.tensor([1.5])}],
            "array": np.arange(6, dtype=np.int16).reshape(3, 2),
        }
        client.put_samples(["a", "b", "c"], "step-1", columns, tags=[{"prompt": n} for n in range(3)])
        client.claim_meta("step-1", "train", ["texts"], 1)
        client.save_checkpoint(folder, metadata={"step": 1, "nested": {"list": [1, "two"]}})


def write_loader(folder: Path) -> None:
    folder.mkdir()
    source = folder.parent.parent / "conversations.jsonl"
    turns = [(f"{n} + {n}?", str(2 * n)) for n in range(12)]
    messages = [[{"role": "user", "content": q}, {"role": "assistant", "content": a}] for q, a in turns]
    source.write_text("".join(json.dumps({"messages": each}) + "\n" for each in messages))
    prepare_dataset(source, folder / "dataset", shard_size=6)
    with build_loader(folder / "dataset") as loader:
        batches = iter(loader)
        delivered = [next(batches)["source_ids"] for _ in range(2)]
        torch.save(loader.state_dict(), folder / "state.pt")
        to_come = [batch["source_ids"] for batch in batches]
    assert len(delivered) + len(to_come) == 6


async def write_rollouts(folder: Path) -> None:
    for name, train_steps in ("begun", 0), ("trained", 2):
        run = await SmallRun.start(folder / name, lambda: rollout_parts(begins=True))
        await run.fill_reserve()
        for _ in range(train_steps):
            await advance(run)
            await run.begin_step()
            await run.finish_step()
        if train_steps:
            await run.fill_reserve()
            await advance(run)
            await leave_in_flight(run)
            await run.save_trainer_checkpoint()
            await run.begin_step()  # a step that is open when the snapshot is taken
            await run.write_back()
        else:
            await leave_in_flight(run)
        assert (await run.save_snapshot()).saved
        run.close()


async def advance(run: SmallRun) -> None:
    """Take a batch of prompts to the data plane."""
    await run.reserve()
    await run.admit()
    for group in run.parts.ledger.redispatch_order():
        for index in range(2):
            await run.dispatch(group.group_id, index)
            await run.seal(group.group_id, index)
        await run.commit(group.group_id)


async def leave_in_flight(run: SmallRun) -> None:
    """Leave a complete group, one that is half done, and a batch that is not admitted, with one prompt dropped."""
    await run.reserve()
    await run.admit()
    complete, half_done = (group.group_id for group in run.parts.ledger.redispatch_order())
    for group_id in complete, half_done:
        for index in range(2):
            await run.dispatch(group_id, index)
    for index in range(2):
        await run.seal(complete, index)
    await run.commit(complete)
    sealed = run.parts.ledger.get(half_done)
    result = {"prompt": sealed.prompt.ref.sample_id, "tokens": torch.tensor([3, 1, 4])}
    await run.transitions.seal_sibling(half_done, 0, SiblingSealResult(result, reward=0.5))
    run.parts.environment.close(sealed.episode(0))
    await run.reserve()
    await run.drop(run.parts.ledger.redispatch_order()[-1].group_id)


def main(version: str) -> None:
    target = Path(__file__).parent / version
    if target.exists():
        sys.exit(f"{target} is there: golden files are never made anew")
    socket.gethostname = lambda: "golden"  # parts and locks name the machine
    work = Path(tempfile.gettempdir()) / "nrl-golden"  # named in the loader's state
    work.mkdir()
    try:
        made = work / version
        made.mkdir()
        write_dump(made / "dump")
        write_plane(made / "plane")
        write_loader(made / "loader")
        asyncio.run(write_rollouts(made / "rollouts"))
        for lock in made.rglob("*.lock"):
            lock.unlink()
        shutil.copytree(made, work / "read")
        contents = {name: read(work / "read" / name) for name, read in CONTENTS.items()}
        (made / "contents.json").write_text(json.dumps(contents, indent=1, ensure_ascii=False) + "\n")
        shutil.copytree(made, target)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main(sys.argv[1])
