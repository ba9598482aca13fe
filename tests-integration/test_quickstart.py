"""The quickstart survives a kill in each phase, says nothing but its table, and finds what was altered afterwards."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "docs" / "examples" / "quickstart.py"
SFT_STEPS, SFT_ROWS, PROMPTS, ANSWERS, GRPO_STEPS = 6, 32, 12, 4, 3

Table = dict[str, list[str]]
Done = subprocess.CompletedProcess[str]

ACCOUNT_AGAIN = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from quickstart import files_of
from quickstart_account import Account
account = Account.of(files_of(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
print(account.table(0))
sys.exit(not account.is_exact)
"""


def run(*command: object) -> Done:
    """Run a command as a person would, with bytecode, which halves the time that imports take."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run(list(map(str, command)), env=env, capture_output=True, text=True, timeout=300, check=False)


def account_again(out: Path) -> Done:
    return run(sys.executable, "-c", ACCOUNT_AGAIN, SCRIPT.parent, out, SFT_STEPS, PROMPTS)


def table_of(printed: str) -> Table:
    """The lines of the table, by their first columns."""
    phases = ("dataset", "fine-tuning", "GRPO", "dump", "all")
    lines = [line.split() for line in printed[printed.index("phase ") :].splitlines()]
    return {line[0]: line[1:] for line in lines if line and line[0] in phases}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """The folder of a run, in which an earlier one and somebody else had left something, and what it printed."""
    out = tmp_path_factory.mktemp("quickstart") / "run"
    (out / "dump").mkdir(parents=True)
    (out / ".made-by-quickstart").touch()
    (out / "dump" / "train_data_step7.jsonl").touch()  # of an earlier run
    (out / "notes.txt").write_text("mine")
    return out, run(sys.executable, SCRIPT, "--sft-steps", SFT_STEPS, "--prompts", PROMPTS, "--out", out)


def test_each_phase_is_killed_once_and_comes_to_its_end(finished: tuple[Path, Done]) -> None:
    out, done = finished
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    table = table_of(done.stdout)
    assert table["dataset"][2] == table["fine-tuning"][2] == table["GRPO"][2] == "1"
    assert table["fine-tuning"][:2] == [str(SFT_STEPS), str(SFT_STEPS * SFT_ROWS)]
    assert table["GRPO"][:2] == table["dump"][:2] == [str(GRPO_STEPS), str(PROMPTS * ANSWERS)]
    assert table["dump"][2:4] == ["2", str(PROMPTS * ANSWERS)]
    assert re.search(r"^prompts lost +0\nprompts doubled +0$", done.stdout, re.MULTILINE)
    kept = re.search(r"went on from (\S+) with (\d+) answers", done.stdout)
    assert kept is not None
    assert kept[1] != "nothing"
    assert int(kept[2]) > 0

    journal = [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()]
    ends = [(line["phase"], line["ended_by"]) for line in journal if line["event"] == "process"]
    phases = ("dataset", "fine-tuning", "GRPO", "dump")
    assert ends == [(phase, code) for phase in phases for code in (-signal.SIGKILL, 0)]
    assert [line["rows_written_again"] > 0 for line in journal if line["event"] == "writer killed"] == [True]
    assert (out / "notes.txt").read_text() == "mine"
    left = {path.name for path in (out / "dump").iterdir()}
    assert left == {f"train_data_step{n + 1}.{what}" for n in range(GRPO_STEPS) for what in ("jsonl", "manifest.json")}


def test_the_commands_that_it_names_show_something(finished: tuple[Path, Done]) -> None:
    _, done = finished
    hints = [line.strip() for line in done.stdout.splitlines() if line.startswith("  ")]
    assert len(hints) == 7
    for hint in hints:
        tried = subprocess.run(hint, shell=True, capture_output=True, text=True, timeout=120, check=False)
        assert tried.returncode == 0, hint + tried.stdout + tried.stderr
        assert tried.stdout, hint


def test_what_was_altered_is_found(finished: tuple[Path, Done], tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished[0], out)
    newest = out / "grpo" / f"step_{GRPO_STEPS}" / "trainer.pt"
    state = torch.load(newest, weights_only=True)
    lost, doubled = state["history"][1]["prompts"][0], state["history"][0]["prompts"][0]
    state["history"][1]["prompts"][0] = doubled
    torch.save(state, newest)
    for dump in out / "dump", out / "fine-tuning" / "dump":
        path = dump / "train_data_step1.jsonl"
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    found = account_again(out)
    assert found.returncode == 1, found.stdout + found.stderr
    assert re.search(rf"^prompts lost +1  {re.escape(lost)}$", found.stdout, re.MULTILINE), found.stdout
    assert re.search(rf"^prompts doubled +1  {re.escape(doubled)}$", found.stdout, re.MULTILINE), found.stdout
    table = table_of(found.stdout)
    assert table["fine-tuning"][3] == "0"
    assert table["dump"][3] == str((GRPO_STEPS - 2) * PROMPTS * ANSWERS // GRPO_STEPS)  # step 2 lacks the lost prompt
    problems = "".join(line for line in found.stdout.splitlines() if line.startswith("!"))
    assert str(out / "dump" / "train_data_step1.jsonl") in problems
    assert str(out / "fine-tuning" / "dump" / "train_data_step1.jsonl") in problems


def test_quickstart_leaves_the_folders_of_others_alone(tmp_path: Path) -> None:
    (tmp_path / "dump").mkdir()
    done = run(sys.executable, SCRIPT, "--out", tmp_path)
    assert done.returncode == 1
    assert "was not made by this script: name another folder with --out" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["dump"]
