"""nox.py starts in each of the ways that people call it: in a fresh copy, with none of our environments at hand."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SMALL = ["-s", "lock", "--", "--check"]  # a real session, done in less than a second
DEFAULT = {"lint", "types", "tests", "wheels", "integration"}


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """The environment variables of a person who has python3 and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    places = [place for place in os.environ["PATH"].split(os.pathsep) if not Path(place, "nox").exists()]
    ours = ("NOX", "PYTHON", "UV_", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**kept, "PATH": os.pathsep.join([str(tmp_path / "bare" / "bin"), *places])}


def with_nox(bare: dict[str, str], home: Path, *also: str) -> dict[str, str]:
    """The same for a person who has an environment with nox, and has activated it."""
    subprocess.run(["uv", "venv", "--quiet", f"--python={sys.executable}", home], check=True)
    pinned = [f"{name}=={importlib.metadata.version(name)}" for name in ("nox", *also)]
    subprocess.run(["uv", "pip", "install", "--quiet", f"--python={home}", *pinned], check=True)
    return {**bare, "PATH": f"{home / 'bin'}{os.pathsep}{bare['PATH']}"}


def call(copy: Path, env: dict[str, str], *command: str) -> str:
    """Run a command in the copy and return what it printed."""
    program = shutil.which(command[0], path=env["PATH"])
    assert program is not None, command
    done = subprocess.run([program, *command[1:]], cwd=copy, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_python3_alone_selects_the_default_sessions(copy: Path, bare: dict[str, str]) -> None:
    assert shutil.which("nox", path=bare["PATH"]) is None
    printed = call(copy, bare, "python3", "nox.py", "--list")
    selected = {line[2:].split(" ")[0].split("(")[0] for line in printed.splitlines() if line.startswith("* ")}
    assert selected == DEFAULT
    assert (copy / ".nox" / "bootstrap").is_dir()


def test_python3_alone_runs_a_named_session(copy: Path, bare: dict[str, str]) -> None:
    assert shutil.which("nox", path=bare["PATH"]) is None
    assert "Session lock was successful" in call(copy, bare, "python3", "nox.py", *SMALL)


@pytest.mark.parametrize("command", [["nox"], ["python", "-m", "nox"]], ids=" ".join)
@pytest.mark.parametrize("also", [["uv"], []], ids=["with uv", "without uv"])
def test_nox_of_another_environment(
    copy: Path, bare: dict[str, str], tmp_path: Path, command: list[str], also: list[str]
) -> None:
    env = with_nox(bare, tmp_path / "other", *also)
    assert "Session lock was successful" in call(copy, env, *command, "-f", "nox.py", *SMALL)


def test_a_call_from_another_folder(copy: Path, bare: dict[str, str], tmp_path: Path) -> None:
    env = with_nox(bare, tmp_path / "other", "uv")
    assert "Session lock was successful" in call(tmp_path, env, "python", str(copy / "nox.py"), *SMALL)


def test_every_package_is_tested_alone(copy: Path, bare: dict[str, str], tmp_path: Path) -> None:
    """A package added under packages/ gets its sessions without a line in nox.py."""
    shutil.copytree(copy / "packages" / "nrl-interfaces", copy / "packages" / "nrl-new")
    printed = call(copy, with_nox(bare, tmp_path / "other", "uv"), "nox", "-f", "nox.py", "--list")
    for session in ("tests", "wheels", "minimums", "compat"):
        assert f"{session}(nrl-new)" in printed
