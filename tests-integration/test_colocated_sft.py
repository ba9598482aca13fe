"""Two ranks of supervised fine-tuning that are killed ten times come to the end of a run that never stopped."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "docs" / "examples" / "colocated_sft.py"
STEPS, ROWS, RANKS = 30, 4, 2


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the script as a person would, with bytecode, which halves the time that imports take."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=180, check=False)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The folder of the two runs, and what the script printed."""
    out = tmp_path_factory.mktemp("killed") / "out"
    return out, run("--kills", 10, "--steps", STEPS, "--out", out)


def test_after_ten_kills_it_comes_to_the_same_end(killed: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    _, done = killed
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    victims = re.findall(r"^start +\d+ from .* SIGKILL to (.*) after", done.stdout, re.MULTILINE)
    assert len(victims) == 10
    assert set(victims) == {"rank 0", "rank 1", "rank 0 and rank 1"}
    assert len(set(re.findall(r"from step_(\d+)", done.stdout))) > 3  # it went on each time, and not from one place
    assert re.search(rf"^rows trained on +{STEPS * ROWS * RANKS}\ndifferences +0$", done.stdout, re.MULTILINE)


def test_each_row_that_was_trained_on_is_in_the_dump(killed: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    ends = [killed[0] / name / "checkpoints" / f"step_{STEPS}" for name in ("undisturbed", "killed")]
    for rank in range(RANKS):
        trained, expected = (
            torch.load(end / f"rank{rank}" / "loader.pt", weights_only=True)["trained"] for end in ends
        )
        assert trained == expected
        dumped = []
        for step in range(STEPS):
            lines = (killed[0] / "killed" / "dump" / f"train_data_step{step + 1}.jsonl").read_text().splitlines()
            rows = [json.loads(line) for line in lines]
            dumped += [row["metadata"][0]["source_id"] for row in rows if f"/rank{rank}/" in row["sample_id"][0]]
        assert dumped == trained
    weights, expected = (torch.load(end / "trainer.pt", weights_only=True)["model"] for end in ends)
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())


def test_no_process_outlives_it(killed: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    commands = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            commands.append(place.read_bytes())
        except OSError:  # it ended meanwhile
            continue
    assert not [command for command in commands if os.fsencode(killed[0]) in command]


def test_every_difference_is_named(
    killed: tuple[Path, subprocess.CompletedProcess[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    from sft_comparison import differences
    from sft_rank import Settings

    out, _ = killed
    runs = [Settings(out / name, out / "dataset", STEPS) for name in ("undisturbed", "killed")]
    assert differences(*runs) == []

    end = out / "killed" / "checkpoints" / f"step_{STEPS}"
    shared = torch.load(end / "trainer.pt", weights_only=True)
    shared["model"]["head.bias"][3] *= -1
    torch.save(shared, end / "trainer.pt")
    own = torch.load(end / "rank1" / "loader.pt", weights_only=True)
    own["trained"][7] = own["trained"][6]
    torch.save(own, end / "rank1" / "loader.pt")
    for name in "train_data_step{}.jsonl", "train_data_step{}.manifest.json":
        shutil.copyfile(out / "killed" / "dump" / name.format(8), out / "killed" / "dump" / name.format(9))
    found = differences(*runs)
    assert [re.sub(r"/\S*/", "", line) for line in found] == [
        f"rank 1 trained on {STEPS * ROWS} and {STEPS * ROWS} rows; the first that differs is 7",
        "trainer.pt differs in .model.head.bias",
        "train_data_step9.jsonl has other bytes than train_data_step9.jsonl",
    ]


def test_a_run_that_is_started_again_goes_on(tmp_path: Path) -> None:
    began = run("--steps", 2, "--out", tmp_path / "run")
    went_on = run("--steps", 4, "--out", tmp_path / "run")
    assert (began.returncode, went_on.returncode) == (0, 0), began.stderr + went_on.stderr
    assert re.findall(r"^step +(\d+)  loss \d\.\d{3}$", began.stdout, re.MULTILINE) == ["1", "2"]
    assert re.findall(r"^step +(\d+)", went_on.stdout, re.MULTILINE) == ["3", "4"]


def test_the_folders_of_others_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")  # the script sets it, too
    from colocated_sft import enter

    (tmp_path / "killed").mkdir()
    with pytest.raises(SystemExit, match="was not made by this script: name another folder with --out"):
        enter(tmp_path, anew=True)
    assert [path.name for path in tmp_path.iterdir()] == ["killed"]
