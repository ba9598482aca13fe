"""One rank of a supervised fine-tuning run: loader, data plane, train step and dump, and one checkpoint of it all."""

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from nrl_dataplane_local import LocalDataPlaneClient, LocalDataPlaneConfig, materialize_local
from nrl_dump import TrainDataDump
from nrl_energon_loader import build_energon_sft_loader, plan_placement, prepare_sft_batch
from nrl_interfaces import BatchedDataDict
from nrl_rollout_ckpt import CheckpointManager
from torch import distributed, nn
from torch.nn import functional

RANKS = 2
MICRO_BATCHES = 2  # a step and rank
EPOCH = 5  # steps
FIELDS = ["input_ids", "input_lengths", "token_mask", "sample_mask", "source_ids"]
BYTES = SimpleNamespace(pad_token_id=0)  # stands for a tokenizer: a conversation's bytes are its tokens
TIME_LIMIT_S = 60


@dataclass(frozen=True)
class Settings:
    """What a run is made of.

    Attributes:
        folder: Where its checkpoints and dumps are.
        dataset: Where a prepared dataset is.
        steps: Train steps.
        seed: Of the weights.
        rows: Rows of a step and rank.
    """

    folder: Path
    dataset: Path
    steps: int
    seed: int = 0
    rows: int = 4

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def dumps(self) -> Path:
        return self.folder / "dump"


class LittleModel(nn.Module):
    """A language model of bytes that is small enough for a processor."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 256)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Log-probability of each token `[B, L]` given those before it; 0 for the first one."""
        hidden, _ = self.gru(self.embed(input_ids[:, :-1]))
        every_token = self.head(hidden).log_softmax(-1)
        return functional.pad(every_token.gather(-1, input_ids[:, 1:, None]).squeeze(-1), (1, 0))


class Rank:
    """Trains its share of a run, from where the newest checkpoint is to the end.

    A checkpoint, `step_<N>`, has the weights and the optimizer, which are the same on all ranks, and a folder for each
    rank: where its loader is, the rows that its data plane holds, and what it has trained on.

    Args:
        settings: What the run is made of; the same on all ranks.
        rank: Which one this is.
        report: Called for each phase that is done, with its name and step, and what there is to tell.
    """

    def __init__(self, settings: Settings, rank: int, report: Callable[..., object]) -> None:
        self.settings = settings
        self.rank = rank
        self.report = report
        torch.manual_seed(settings.seed)
        self.model = LittleModel()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.trained: list[str] = []  # the source_ids of all rows so far
        self.checkpoints = CheckpointManager(settings.checkpoints, keep_latest_k=2)  # rank 0 writes, all read
        self.plane = LocalDataPlaneClient(LocalDataPlaneConfig(owner=f"rank{rank}"))
        self.dump = TrainDataDump(settings.dumps, shard_id=str(rank))
        placement = plan_placement(RANKS)
        self.loader = build_energon_sft_loader(
            data_config={
                "shuffle": True,
                "energon": {"num_workers": 2, "shuffle_buffer_size": 8, "task_encoder": "utf8_bytes"},
            },
            source={"path": str(settings.dataset), "virtual_epoch_length": EPOCH},
            processor=None,
            batch_size=settings.rows,
            max_sequence_length=256,
            split_role="train",
            logical_rank=placement.logical_rank(rank),
            logical_world_size=placement.logical_world_size,
            placement_fingerprint=placement.fingerprint,
            packing_algorithm=None,
            max_sequences_per_bin=None,
            sequence_length_pad_multiple=1,
            only_unmask_final=False,
        )
        self.batches = self._batches()

    def run(self) -> None:
        """Train to the end. A step's rows are dumped after its checkpoint, which has them: so none is ever missed."""
        with self.loader, self.plane, self.dump:
            step = self.resume()
            while step < self.settings.steps:
                self.train(step)
                step += 1
                self.feed(step)
                self.save(step)
                self.dump_rows(step - 1)
            self.checkpoints.shutdown()
            distributed.barrier()  # no rank leaves while another one needs it

    def resume(self) -> int:
        """Go on where the newest checkpoint was, and return how many steps are done."""
        newest = self.checkpoints.get_latest_checkpoint_path()
        if newest is None:
            self.feed(0)
            return 0
        shared = torch.load(newest / "trainer.pt", weights_only=True)
        self.model.load_state_dict(shared["model"])
        self.optimizer.load_state_dict(shared["optimizer"])
        own = newest / f"rank{self.rank}"
        state = torch.load(own / "loader.pt", weights_only=True)
        self.loader.load_state_dict(state["loader"])
        self.trained = state["trained"]
        self.plane.load_checkpoint(own / "plane")
        self.report("resume", shared["step"])
        self.dump_rows(shared["step"] - 1)
        return shared["step"]

    # ---- The phases of a step ----

    def feed(self, step: int) -> None:
        """Put the rows of a step into the data plane."""
        batch = prepare_sft_batch(
            next(self.batches), BYTES, only_unmask_final=False, make_sequence_length_divisible_by=8
        )
        ids = [f"step{step}/rank{self.rank}/{row}" for row in range(self.settings.rows)]
        self.plane.register_partition(f"step-{step}", [*FIELDS, "logprobs"], self.settings.rows, ["train", "dump"])
        self.plane.put_samples(ids, f"step-{step}", {name: batch[name] for name in FIELDS})
        self.report("feed", step)

    def train(self, step: int) -> None:
        """Claim the step's rows in micro-batches, and change the weights by the mean over all ranks' tokens."""
        loss, tokens = torch.zeros(()), torch.zeros(())
        self.optimizer.zero_grad()
        for _ in range(MICRO_BATCHES):
            claimed = self.plane.claim_meta(f"step-{step}", "train", FIELDS, self.settings.rows // MICRO_BATCHES)
            batch = materialize_local(self.plane.get_data(claimed))
            logprobs = self.model(batch["input_ids"])
            mask = batch["token_mask"] * batch["sample_mask"][:, None]
            micro_loss = -(logprobs * mask).sum()
            micro_loss.backward()
            loss += micro_loss.detach()
            tokens += mask.sum()
            self.plane.put_samples(claimed.sample_ids, f"step-{step}", {"logprobs": logprobs.detach()})
            self.trained += batch["source_ids"]
        distributed.all_reduce(loss)
        distributed.all_reduce(tokens)
        for parameter in self.model.parameters():
            distributed.all_reduce(parameter.grad)
            parameter.grad /= tokens
        self.optimizer.step()
        self.report("train", step, loss=float(loss / tokens))

    def save(self, step: int) -> None:
        """Write one checkpoint of all ranks, which appears when everything in it is on the disk."""
        path = [self._begin_checkpoint(step) if self.rank == 0 else None]
        distributed.broadcast_object_list(path)
        own = path[0] / f"rank{self.rank}"
        own.mkdir()
        torch.save({"loader": self.loader.state_dict(), "trained": self.trained}, own / "loader.pt")
        self.plane.save_checkpoint(own / "plane")
        distributed.barrier()
        if self.rank == 0:
            self.checkpoints.begin_finalization(path[0])
        self.report("save", step)

    def dump_rows(self, step: int) -> None:
        """Write down what the step trained on; rank 0 publishes the rows of all ranks in one move."""
        claimed = self.plane.claim_meta(f"step-{step}", "dump", [*FIELDS, "logprobs"], self.settings.rows)
        rows = materialize_local(self.plane.get_data(claimed))
        self.dump.add_chunk(
            step=step,
            sample_ids=claimed.sample_ids,
            tags=[{"source_id": source_id} for source_id in rows["source_ids"]],
            input_lengths=rows["input_lengths"],
            sequences={name: rows[name] for name in ("input_ids", "token_mask", "logprobs")},
            scalars={"sample_mask": rows["sample_mask"]},
        )
        written = torch.tensor(self.dump.flush(step))
        distributed.all_reduce(written)
        if self.rank == 0:
            self.dump.finish_step(step, int(written), shard_ids=[str(rank) for rank in range(RANKS)])
        self.plane.clear_samples(None, f"step-{step}")
        self.report("dump", step)

    # ---- Within them ----

    def _batches(self) -> Iterator[BatchedDataDict[Any]]:
        while True:  # epoch by epoch
            yield from self.loader

    def _begin_checkpoint(self, step: int) -> Path:
        info = {"current_step": step, "total_steps": self.settings.steps}
        path = self.checkpoints.init_tmp_checkpoint(step, info, {"seed": self.settings.seed, "ranks": RANKS})
        shared = {"step": step, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(shared, path / "trainer.pt")
        return path


def run_rank(settings: Settings, rank: int, meeting_point: Path, report: Callable[..., object]) -> None:
    """Meet the other ranks over the loopback, and train."""
    distributed.init_process_group(
        "gloo",
        store=distributed.FileStore(str(meeting_point), RANKS),
        rank=rank,
        world_size=RANKS,
        timeout=dt.timedelta(seconds=TIME_LIMIT_S),
    )
    Rank(settings, rank, report).run()
    distributed.destroy_process_group()
