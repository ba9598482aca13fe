"""Each package by itself: its README's examples run where its wheel is installed with what that asks for, no more."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {path.parent.name for path in ROOT.glob("packages/*/pyproject.toml")}


def installed_in(environment: Path) -> set[str]:
    """The names of the distributions that an environment has."""
    found = environment.glob("lib/python3.*/site-packages/*.dist-info")
    return {path.name.split("-")[0].replace("_", "-") for path in found}


def test_each_readme_runs_where_nothing_but_its_package_is_installed() -> None:
    of_the_session_around = {"UV_PYTHON", "UV_PROJECT_ENVIRONMENT", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE"}
    env = {name: value for name, value in os.environ.items() if name not in of_the_session_around}
    command = [sys.executable, "-m", "nox", "-f", "nox.py", "-s", "alone"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    ran = dict(re.findall(r"^packages/(\S+)/README\.md: (\d+) examples ran$", done.stdout, re.MULTILINE))
    assert ran.keys() == PACKAGES
    assert all(int(count) > 0 for count in ran.values())
    for package in PACKAGES:
        there = installed_in(ROOT / ".nox" / f"alone-{package}")
        assert {name for name in there if name.startswith("nrl-")} == {package, "nrl-interfaces"}
        assert "pytest" not in there
