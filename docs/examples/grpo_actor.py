"""The run of async_grpo.py as an async Ray actor, whose process is killed and which is started again until it ends.

`--plane local` keeps the rows in the actor, `--plane transfer_queue` in a TransferQueue beside it, a new one each time.
Each train step is dumped. At the end it gives account of each prompt, and compares the dump with what was trained on.
It begins anew each time that this script is run.
"""

import argparse
import asyncio
import contextlib
import os
import select
import signal
import sys
import traceback
from collections.abc import Generator
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # else Ray writes a token into the home folder
os.environ.setdefault("TQ_NUM_THREADS", "1")  # else TransferQueue warns at each call on a machine with few cores
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns of what it will do some day

import ray
import torch
from arithmetic_run import ArithmeticRun
from async_grpo import open_folder, train
from grpo_parts import Settings
from kill_moments import Journal, Killer, Moment
from nrl_rollout_ckpt.saving.outcomes import RolloutCheckpointSaveResult
from nrl_rollout_ckpt.saving.snapshots import RolloutSnapshotter
from prompt_account import Account, account_of
from ray.exceptions import RayActorError
from survive_kills import survive

LIMIT_S = 180  # for whatever a controller is asked
CPUS = {"local": 1, "transfer_queue": 3}  # one for the controller; two for the queue's own controller and its storage

# ---- The actor ----


class Controller:
    """The run. Its event loop is not on the main thread, so no signal gets there: a snapshot is asked for by a call."""

    def __init__(self, settings: Settings, journal: Journal) -> None:
        torch.set_num_threads(1)
        self._settings = settings
        self._journal = journal
        self._has_started = asyncio.Event()

    async def pid(self) -> int:
        return os.getpid()

    async def train(self, moment: Moment | None) -> None:
        """Go on with the run, to its end or to where this process kills itself."""
        if moment is None:
            run = ArithmeticRun(self._settings, self._journal.write)
        else:
            run = Killer(moment, self._journal).run(self._settings)
        await train(run, self._take_requests)

    def _take_requests(self, snapshotter: RolloutSnapshotter) -> None:
        self._snapshotter = snapshotter
        self._has_started.set()

    async def snapshot(self, reason: str) -> RolloutCheckpointSaveResult:
        """Have a snapshot taken, as soon as the run has started."""
        await self._has_started.wait()
        result = await asyncio.wrap_future(self._snapshotter.request_snapshot(reason))
        self._journal.write("request", saved=result.saved, path=str(result.path))
        return result

    async def account(self, problems: list[str]) -> Account:
        """Give account of what is on the disk."""
        return await account_of(ArithmeticRun, self._settings, problems)


# ---- The driver ----


@contextlib.contextmanager
def started(settings: Settings, journal: Journal) -> Generator[Any]:
    """Start a controller, and a new queue for its rows; both are gone when the block ends, with all that they hold."""
    controller = ray.remote(Controller).remote(settings, journal)  # imports what it needs while the queue starts
    with contextlib.nullcontext() if settings.plane == "local" else new_queue():
        process = os.pidfd_open(ray.get(controller.pid.remote(), timeout=LIMIT_S))
        try:
            yield controller
        finally:
            ray.kill(controller)
            select.select([process], [], [], LIMIT_S)  # until then it owns the folder
            os.close(process)


@contextlib.contextmanager
def new_queue() -> Generator[None]:
    """Start a queue, that the controller finds by its name."""
    import transfer_queue

    storage = {"storage_backend": "SimpleStorage", "SimpleStorage": {"num_data_storage_units": 1}}
    transfer_queue.init({"backend": storage})
    try:
        yield
    finally:
        transfer_queue.close()


def start_in_actor(settings: Settings, journal: Journal, moment: Moment | None) -> int:
    """Let a new controller go on with the run, and ask it for a snapshot; gives how it ended, as a process would."""
    with started(settings, journal) as controller:
        training = controller.train.remote(moment)
        controller.snapshot.remote("the driver asks")
        try:
            ray.get(training, timeout=LIMIT_S)
        except RayActorError:
            return -signal.SIGKILL
        except Exception:  # noqa: BLE001 - the account says what came of it
            traceback.print_exc()
            return 1
        return 0


def account_in_actor(settings: Settings, journal: Journal, problems: list[str]) -> Account:
    """Let a new controller give account."""
    with started(settings, journal) as controller:
        return ray.get(controller.account.remote(problems), timeout=LIMIT_S)


def main() -> int:
    options = parse_options()
    out = options.out.absolute()
    settings = Settings(out / "checkpoints", options.prompts, options.seed, out / "dump", options.plane)
    journal = open_folder(out, begin_anew=True)
    ray.init(
        num_cpus=CPUS[options.plane],
        include_dashboard=False,
        object_store_memory=100 * 2**20,
        log_to_driver=False,
        logging_level="ERROR",
        _node_ip_address="127.0.0.1",
    )
    try:
        return survive(
            lambda moment: start_in_actor(settings, journal, moment),
            lambda problems: account_in_actor(settings, journal, problems),
            settings,
            journal,
            options.kills,
        )
    finally:
        ray.shutdown()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plane", choices=["local", "transfer_queue"], default="local", help="(%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("grpo-actor-run"), help="folder for the files (%(default)s)")
    parser.add_argument("--prompts", type=int, default=24, help="4 a step (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts, the weights and the kills (%(default)s)")
    parser.add_argument("--kills", type=int, default=3, help="how often it is killed (%(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
