"""The quickstart runs, says nothing but its table, and leaves whole steps."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "docs" / "examples" / "quickstart.py"
STEPS, PROMPTS, ANSWERS = 2, 3, 8  # the writer is killed in step 2


def run(*command: object) -> subprocess.CompletedProcess[str]:
    """Run a command as a person would, with bytecode, which halves the time that imports take."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run(list(map(str, command)), env=env, capture_output=True, text=True, timeout=180, check=False)


def test_quickstart(tmp_path: Path) -> None:
    out = tmp_path / "run"
    (out / "dump").mkdir(parents=True)
    (out / ".made-by-quickstart").touch()
    (out / "dump" / "train_data_step7.jsonl").touch()  # of an earlier run
    (out / "notes.txt").write_text("mine")

    done = run(sys.executable, SCRIPT, "--steps", STEPS, "--prompts", PROMPTS, "--out", out)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr

    lines = [line.split(maxsplit=8) for line in done.stdout.splitlines()]
    table = {line[0]: line for line in lines if line and line[0].isdigit() and line[7] == "yes"}
    assert list(table) == ["1", "2"]
    assert [int(line[1]) for line in table.values()] == [PROMPTS * ANSWERS] * STEPS
    assert all(0 <= float(line[3]) <= 1 for line in table.values())
    assert table["1"][8] == "-"
    assert "writer 1 was killed" in table["2"][8]
    assert f"`datasets` loads the {STEPS * PROMPTS * ANSWERS} rows" in done.stdout

    assert (out / "notes.txt").read_text() == "mine"
    left = {path.name for path in (out / "dump").iterdir()}
    assert left == {f"train_data_step{n}.{what}" for n in (1, 2) for what in ("jsonl", "manifest.json")}
    verified = run(Path(sys.executable).parent / "nrl-dump", "verify", "--json", out / "dump")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert len([json.loads(line) for line in verified.stdout.splitlines()]) == STEPS
    for hint in [line.strip() for line in done.stdout.splitlines() if "nrl-dump" in line]:
        tried = subprocess.run(hint, shell=True, capture_output=True, text=True, timeout=60, check=False)
        assert tried.returncode == 0, hint + tried.stderr


def test_quickstart_leaves_the_folders_of_others_alone(tmp_path: Path) -> None:
    (tmp_path / "dump").mkdir()
    done = run(sys.executable, SCRIPT, "--out", tmp_path)
    assert done.returncode == 1
    assert "was not made by this script: name another folder with --out" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["dump"]
