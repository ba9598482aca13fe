"""The asynchronous GRPO loop as a Ray actor that is killed: prompts trained once, dumps whole, on both data planes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "docs" / "examples" / "grpo_actor.py"
# With bytecode, which halves the time that imports take.
ENV = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
STEPS, KILLS = 6, 2
# By seeds that draw different places, one of them between a dump that is published and its checkpoint.
DRAWN = {"local": 19, "transfer_queue": 13}
PLACES = {
    "local": ["of a dumped step", "the environment is paused"],
    "transfer_queue": ["the weights were changed", "of a dumped step"],
}


def run(plane: str, out: Path) -> subprocess.CompletedProcess[str]:
    """Run the script as a person would."""
    options = ("--plane", plane, "--prompts", 4 * STEPS, "--kills", KILLS, "--seed", DRAWN[plane], "--out", out)
    command = list(map(str, (sys.executable, SCRIPT, *options)))
    return subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("plane", ["local", "transfer_queue"])
def test_a_killed_actor_goes_on(plane: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    done = run(plane, out)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = dict(re.findall(r"^ *(\w[\w ]*?) +(\d+)$", done.stdout, re.MULTILINE))
    expected = {"prompts": 4 * STEPS, "trained once": 4 * STEPS, "trained twice": 0, "lost": 0, "kills": KILLS}
    assert {name: int(counts[name]) for name in expected} == expected

    journal = [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()]
    killed = [line for line in journal if line["event"] == "kill"]
    assert [kill["place"] for kill in killed] == PLACES[plane]
    assert len({start["pid"] for start in journal if start["event"] == "start"}) == KILLS + 1
    assert int(counts["kept over a kill"]) > 0
    assert any(start["groups_kept"] for start in journal if start["event"] == "start")  # rows came back
    assert any(request["saved"] for request in journal if request["event"] == "request")

    dump = out / "dump"
    wanted = {f"train_data_step{n}.{what}" for n in range(1, STEPS + 1) for what in ("jsonl", "manifest.json")}
    assert {path.name for path in dump.iterdir()} == wanted
    command = [Path(sys.executable).parent / "nrl-dump", "verify", dump]
    verified = subprocess.run(command, env=ENV, capture_output=True, timeout=60, check=False)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    check_that_other_rows_are_noticed(dump, out / "checkpoints" / f"step_{STEPS}" / "trainer.pt", monkeypatch)


def check_that_other_rows_are_noticed(dump: Path, trainer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The account compares the dump with what was trained on: a whole file with other rows is a problem."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    from step_dump import problems_of_dump

    history: list[dict[str, Any]] = torch.load(trainer, weights_only=True)["history"]
    assert problems_of_dump(dump, history) == []
    other = [*history[:-1], {**history[-1], "batch": {**history[-1]["batch"], "reward": torch.full((16,), 2.0)}}]
    assert problems_of_dump(dump, other) == [f"the dump of step {STEPS} has other reward than were trained on"]
    assert problems_of_dump(dump, [*history[:-2], history[-1], history[-2]]) != []
    (more,) = problems_of_dump(dump, history[:-1])
    assert "files that belong to no step" in more
    last = dump / f"train_data_step{STEPS}.jsonl"
    last.write_bytes(last.read_bytes()[:-1])
    (damaged,) = problems_of_dump(dump, history)
    assert damaged.startswith(f"the dump of step {STEPS}: ")
