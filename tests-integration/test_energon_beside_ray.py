"""Energon's workers are forks: in a process where Ray runs its threads, none may hang or give other batches."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "energon_beside_ray.py"
LOADERS = 20
TIME_LIMIT_S = 150  # a fork that inherits a lock of one of Ray's threads waits for ever


def test_workers_are_forked_twenty_times_where_ray_runs(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["RAY_AUTH_MODE"] = "disabled"  # else Ray writes a token under the home folder
    command = [sys.executable, str(PROGRAM), str(tmp_path), str(LOADERS)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=env, text=True, start_new_session=True, **pipes) as program:
        try:
            printed, errors = program.communicate(timeout=TIME_LIMIT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):  # workers that hang, too
                os.killpg(program.pid, signal.SIGKILL)
    assert program.returncode == 0, printed + errors
    assert printed.split() == [str(number) for number in range(1, LOADERS + 1)]
