"""SIGTERM to a process of its own."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from nrl_rollout_ckpt.config import RolloutCheckpointConfig
from nrl_rollout_ckpt.disk.layout import FolderOwner
from nrl_rollout_ckpt.disk.selection import select_resume_source
from nrl_rollout_ckpt.restore import RolloutRestorer
from nrl_rollout_ckpt.testing import ListPromptSource, make_parts, numbered_prompts

SCRIPT = Path(__file__).with_name("sigterm_run.py")


def terminated(folder: Path, grace_s: float) -> tuple[int, str]:
    """Start a run, end it by SIGTERM, and give its exit code and what it logged."""
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), str(folder), str(grace_s)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            ready = process.stdout.readline()
            if ready == "ready\n":
                process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=60)
        finally:
            process.kill()
    assert ready == "ready\n", log
    return process.returncode, log


@pytest.mark.slow
def test_a_process_told_to_end_leaves_a_snapshot_that_restores(tmp_path: Path) -> None:
    code, log = terminated(tmp_path, 60)
    assert code == 0, log
    assert "SIGTERM: a snapshot is requested" in log
    FolderOwner(tmp_path, make_parts().file_ops).close()  # the folder is free
    source = select_resume_source(tmp_path, RolloutCheckpointConfig())
    assert source.path == tmp_path / "bootstrap" / "rollout_snapshots" / "snapshot_000001"
    prompts = ListPromptSource(numbered_prompts(4))
    parts = make_parts(prompt_source=prompts)
    asyncio.run(RolloutRestorer(parts).restore(source))
    assert [group.prompt.ref.sample_id for group in parts.ledger.groups] == ["p0", "p1"]
    assert [prompt.ref.sample_id for prompt in prompts.next_batch(4)] == ["p2", "p3"]


@pytest.mark.slow
def test_a_process_that_can_take_none_ends_by_the_signal_and_says_so(tmp_path: Path) -> None:
    code, log = terminated(tmp_path, 0.1)
    assert code == -signal.SIGTERM, log
    assert "SIGTERM: given up, there is no snapshot after 0.1 s" in log
    assert not list(tmp_path.rglob("*snapshot_0*"))
