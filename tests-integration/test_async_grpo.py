"""The asynchronous GRPO loop gives an exact account of its prompts after ten kills, and finds a planted fault."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from nrl_interfaces.fileops import FileOps
from nrl_interfaces.rollout import EnvironmentEpisode
from nrl_interfaces.testing.rollout import check_environment_checkpoint, check_resolving_prompt_source

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "docs" / "examples" / "async_grpo.py"
# With bytecode, which halves the time that imports take.
ENV = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def run(*command: object) -> subprocess.CompletedProcess[str]:
    """Run a command as a person would."""
    return subprocess.run(list(map(str, command)), env=ENV, capture_output=True, text=True, timeout=180, check=False)


def counts(printed: str) -> dict[str, int]:
    """The account by the names of its lines."""
    return {name: int(count) for name, count in re.findall(r"^ *(\w[\w ]*?) +(\d+)(?:  .*)?$", printed, re.MULTILINE)}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The folder of a run with dumps that was killed ten times, and what it printed."""
    out = tmp_path_factory.mktemp("killed") / "run"
    return out, run(sys.executable, SCRIPT, "--kills", 10, "--dump", "--out", out)


def test_after_ten_kills_each_prompt_was_trained_once(
    killed: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    out, done = killed
    assert done.returncode == 0, done.stdout + done.stderr
    account = counts(done.stdout)
    assert account["prompts"] == account["trained once"] == 96
    assert account["trained twice"] == account["lost"] == account["still to be trained"] == 0
    assert account["kills"] == 10
    phases = ("snapshot", "optimizer commit", "publication", "generation")
    assert min(account[f"during {phase}"] for phase in phases) >= 2
    assert account["kept over a kill"] > 0
    assert len(list((out / "dump").glob("train_data_step*.jsonl"))) == 24  # compared with what was trained on, too
    journal = [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()]
    assert len({line["pid"] for line in journal if line["event"] == "kill"}) == 10


@pytest.mark.parametrize("command", ["ls", "verify", "explain"])
def test_the_commands_read_what_ten_kills_left(
    command: str, killed: tuple[Path, subprocess.CompletedProcess[str]]
) -> None:
    out, _ = killed
    done = run(Path(sys.executable).parent / "nrl-rollout-ckpt", command, out / "checkpoints")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step_24" in done.stdout


def test_a_prompt_that_the_ledger_forgets_is_named(tmp_path: Path) -> None:
    done = run(sys.executable, SCRIPT, "--plant-fault", "--kills", 2, "--prompts", 48, "--out", tmp_path / "run")
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"^  lost +1  p015$", done.stdout, re.MULTILINE), done.stdout + done.stderr


def stopped(command: list[str], at: str, by: signal.Signals) -> tuple[str, int]:
    """Start a run, send it a signal once a line begins with `at`, and give what it printed and its end."""
    with subprocess.Popen(command, env=ENV, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        printed = ""
        for line in started.stdout:
            if line.startswith(at) and at not in printed:
                started.send_signal(by)
            printed += line
    return printed, started.returncode


def test_a_run_goes_on_when_it_is_started_again(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, str(SCRIPT), "--prompts", "32", "--out", str(out)]
    printed, code = stopped(command, "step   2", signal.SIGTERM)
    assert code == 1
    assert re.search(r"^! \d of 8 train steps are done; start it again to go on$", printed, re.MULTILINE), printed
    assert counts(printed)["lost"] == 0

    printed, code = stopped(command, "step   5", signal.SIGKILL)
    assert code == -signal.SIGKILL
    assert "step   2" not in printed

    again = run(*command)
    assert again.returncode == 0, again.stdout + again.stderr
    assert counts(again.stdout)["trained once"] == 32

    newest = out / "checkpoints" / "step_8" / "trainer.pt"
    state = torch.load(newest, weights_only=True)
    state["policy"]["total.weight"][0, 0] += 1e-6
    torch.save(state, newest)
    altered = run(*command)
    assert altered.returncode == 1, altered.stdout + altered.stderr
    assert "! the final weights are not those that training on the history gives" in altered.stdout


def test_the_environment_and_the_prompts_meet_their_protocols(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    from arithmetic_environment import ArithmeticEnvironment
    from arithmetic_task import PromptList, make_prompts

    def made() -> ArithmeticEnvironment:
        return ArithmeticEnvironment(lambda rollout_id: 0.0, FileOps())

    async def with_episodes() -> ArithmeticEnvironment:
        environment = made()
        for number, prompt in enumerate(make_prompts(3, seed=0)):
            which = EnvironmentEpisode(f"calculator-{number % 2}", f"rollout {number}")
            await environment.begin(which, prompt.payload)
            await environment.answer(which, 1, -1.0)
        return environment

    def runs(environment: ArithmeticEnvironment) -> bool:
        return all(instance.gate.is_set() for instance in environment._instances.values())

    asyncio.run(check_environment_checkpoint(with_episodes, tmp_path, runs=runs, make_restarted=made))
    prompts = make_prompts(4, seed=0)
    check_resolving_prompt_source(
        lambda: PromptList(prompts),
        ref_of=lambda prompt: prompt.ref,
        payload_of=lambda prompt: prompt.payload,
        prompts=lambda source: (batch[0] for batch in iter(lambda: source.next_batch(1), [])),
    )


def test_the_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    done = run(sys.executable, SCRIPT, "--kills", 1, "--out", tmp_path)
    assert done.returncode == 1
    assert "was not made by this script: name another folder with --out" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]
