"""The tensors of each train step in a file of its own, which is there before the checkpoint of the step is."""

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from arithmetic_task import TURNS
from grpo_trainer import Batch
from nrl_dump import Manifest, TrainDataDump, read_step, read_tensors, verify
from nrl_interfaces.fileops import FileOps
from nrl_rollout_ckpt.state.replay_index import TrainingClaim

TURN_COLUMNS = ["totals", "addends", "answers", "logprobs"]
ROW_COLUMNS = ["reward", "advantages"]


class StepDump:
    """Writes the rows of steps; a step that a restart does again replaces its file.

    A restart does every step again whose checkpoint is not there. So once the checkpoint of a step is published
    only after `StepDump.add` has given its manifest, each file up to the last checkpoint is of the step that counts.
    """

    def __init__(self, folder: Path, ops: FileOps) -> None:
        self.folder = folder
        self._dump = TrainDataDump(folder, file_ops=ops)

    def add(self, step: int, claim: TrainingClaim, batch: Batch) -> Future[Manifest]:
        """Write the rows of a step, counted from 0, and publish them in the background."""
        rows = len(claim.sample_ids)
        self._dump.add_chunk(
            step=step,
            sample_ids=claim.sample_ids,
            tags=[{"prompt": group.prompt.ref.sample_id} for group in claim.groups for _ in group.sample_ids],
            input_lengths=torch.full((rows,), TURNS),
            sequences={name: batch[name] for name in TURN_COLUMNS},
            scalars={name: batch[name] for name in ROW_COLUMNS},
        )
        return self._dump.publish_in_background(step, expected_rows=rows)

    def close(self) -> None:
        self._dump.close()


def problems_of_dump(folder: Path, history: list[dict[str, Any]]) -> list[str]:
    """Compare the folder with the history that leads to the final weights: each step's rows, and nothing else."""
    found: list[str] = []
    for number, step in enumerate(history, start=1):
        path = folder / f"train_data_step{number}.jsonl"
        try:
            verify(path)
            rows, tensors = list(read_step(path)), read_tensors(path)
        except (OSError, RuntimeError, ValueError) as error:
            found.append(f"the dump of step {number}: {error}")
            continue
        prompts = list(dict.fromkeys(row["metadata"][0]["prompt"] for row in rows))
        if prompts != step["prompts"]:
            found.append(f"the dump of step {number} has the prompts {prompts}, and {step['prompts']} were trained on")
        found += [
            f"the dump of step {number} has other {name} than were trained on"
            for name in (*TURN_COLUMNS, *ROW_COLUMNS)
            if not torch.equal(torch.stack(tuple(tensors[name].unbind())), step["batch"][name])
        ]
    wanted = {f"train_data_step{n}.{what}" for n in range(1, len(history) + 1) for what in ("jsonl", "manifest.json")}
    if more := sorted({path.name for path in folder.glob("*")} - wanted):
        found.append(f"the dump has files that belong to no step: {', '.join(more)}")
    return found
