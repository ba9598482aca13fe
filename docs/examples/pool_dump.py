"""Dumps train steps by two Ray actors, goes on where it was killed, and compares what is on disk bit for bit."""

import contextlib
import logging
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["RAY_AUTH_MODE"] = "disabled"  # a cluster of one machine; else Ray writes a token under the home folder

import ray
import torch
from grpo_parts import GROUP_SIZE
from library_policy import text_of
from library_questions import Question
from nrl_dump import NotPublishedError, read_step, read_tensors, verify
from nrl_dump.pool import DumpPool, ShardDiedError
from nrl_interfaces import BatchedDataDict
from nrl_interfaces.layout import to_jagged

logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)  # warns of what nested tensors do inside

SEQUENCES = ("input_ids", "token_mask", "logprobs", "logprobs_bf16", "advantages")
SCALARS = ("reward", "prompt_ids")

Rows = BatchedDataDict[Any]


def rows_of(step: int, trained: dict[str, Any], questions: list[Question]) -> Rows:
    """What a step of a trainer's history has trained on, as a dump has it."""
    batch, mask = trained["batch"], trained["batch"]["token_mask"]
    by_name = {question.function: question for question in questions}
    asked = [by_name[prompt] for prompt in trained["prompts"] for _ in range(GROUP_SIZE)]
    answers = [text_of(ids[where].tolist()) for ids, where in zip(batch["input_ids"], mask, strict=True)]
    return BatchedDataDict(
        sample_id=[f"step{step}/{question.function}/{row % GROUP_SIZE}" for row, question in enumerate(asked)],
        tags=[
            {"question": question.text, "answer": answer, "wanted": question.answer}
            for question, answer in zip(asked, answers, strict=True)
        ],
        input_lengths=batch["input_lengths"],
        input_ids=batch["input_ids"],
        token_mask=mask,
        logprobs=batch["logprobs"],
        logprobs_bf16=batch["logprobs"].to(torch.bfloat16),
        advantages=batch["advantages"][:, None].masked_fill(~mask, 0),
        reward=batch["reward"],
        prompt_ids=to_jagged(batch["input_ids"], batch["prompt_lengths"]),
    )


def path_of(folder: Path, step: int) -> Path:
    return folder / f"train_data_step{step + 1}.jsonl"


# ---- Write ----


def dump_steps(folder: Path, steps: list[Rows], report: Callable[..., object]) -> None:
    """Publish each step that is not published yet. A writer is killed in the middle of the first one."""
    with local_ray(), DumpPool(folder, num_shards=2) as pool:
        for step, rows in enumerate(steps):
            try:
                verify(path_of(folder, step))
            except NotPublishedError:
                dump(pool, step, rows, report, kill_a_writer=step == 0)
                pool.finish_step(step)


def dump(pool: DumpPool, step: int, rows: Rows, report: Callable[..., object], *, kill_a_writer: bool) -> None:
    """Give the rows to the pool, a group at a time, and give again what a writer took to its grave."""
    row_of = {sample_id: row for row, sample_id in enumerate(rows["sample_id"])}
    groups = [list(range(first, first + GROUP_SIZE)) for first in range(0, rows.size, GROUP_SIZE)]
    to_do = deque((pool.shard_ids[number % 2], group) for number, group in enumerate(groups))
    while True:
        try:
            while to_do:
                if kill_a_writer and len(to_do) == len(groups) // 2:
                    kill_a_writer = False
                    os.kill(pool.owners["1"].pid, signal.SIGKILL)
                shard, group = to_do[0]
                pool.add_chunk(shard, step=step, **as_chunk(rows.select_indices(group)))
                to_do.popleft()
                report("group dumped", step=step)
            pool.flush(step)
        except ShardDiedError as died:
            lost = pool.restart_shard(died.shard_id).get(step, [])
            to_do.append((died.shard_id, [row_of[sample_id] for sample_id in lost]))
            report("writer killed", step=step, shard=died.shard_id, rows_written_again=len(lost))
        else:
            return


def as_chunk(rows: Rows) -> dict[str, Any]:
    return {
        "sample_ids": rows["sample_id"],
        "tags": rows["tags"],
        "input_lengths": rows["input_lengths"],
        "sequences": {name: rows[name] for name in SEQUENCES},
        "scalars": {name: rows[name] for name in SCALARS},
    }


@contextlib.contextmanager
def local_ray() -> Iterator[None]:
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100 * 2**20,
        log_to_driver=False,
        logging_level="ERROR",
        _node_ip_address="127.0.0.2",  # loopback; Ray takes 127.0.0.1 for the address of the machine
    )
    try:
        yield
    finally:
        ray.shutdown()


# ---- Compare ----


def differences(path: Path, rows: Rows) -> Iterator[str]:
    """What a published step has otherwise than the rows: each of them is there once, with the same bits in it."""
    try:
        manifest = verify(path)
    except (OSError, ValueError) as error:
        yield str(error)
        return
    on_disk = list(read_step(path))
    row_of = {sample_id: row for row, sample_id in enumerate(rows["sample_id"])}
    order = [row_of.pop(row["sample_id"][0], -1) for row in on_disk]
    if row_of or -1 in order or manifest.rows != len(on_disk):
        yield f"{path} lacks {list(row_of)}, or has rows that are not of the step"
        return
    wanted = rows.select_indices(order)
    if [row["metadata"][0] for row in on_disk] != wanted["tags"]:
        yield f"{path} has other tags"
    for name, column in read_tensors(path).items():
        like = to_jagged(wanted[name], wanted["input_lengths"]) if name in SEQUENCES else wanted[name]
        if not same_bits(column, like):
            yield f"column {name!r} of {path} has other bits than what was trained on"


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.is_nested and other.is_nested:
        pairs = [(one.values(), other.values()), (one.offsets(), other.offsets())]
        return all(same_bits(mine, theirs) for mine, theirs in pairs)
    same_kind = one.dtype == other.dtype and one.shape == other.shape
    return same_kind and torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
