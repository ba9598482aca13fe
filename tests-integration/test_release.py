"""`nox.py -s release` in a copy of the repository: what it writes, and what it refuses."""

import subprocess
import sys
from pathlib import Path

import pytest

UNRELEASED = "## Unreleased\n"
CHANGELOG = Path("packages/nrl-dump/CHANGELOG.md")
PYPROJECT = Path("packages/nrl-dump/pyproject.toml")


def git(copy: Path, *args: str) -> str:
    command = ["git", "-C", copy, "-c", "user.name=x", "-c", "user.email=x@localhost", *args]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def release(copy: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "nox.py", "-s", "release", "--", *args]
    return subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture
def ready(copy: Path) -> Path:
    """A copy, all of it committed, where nrl-dump has version 0.1.0 and something unreleased."""
    text = (copy / CHANGELOG).read_text()
    heading, rest = text.split(UNRELEASED)
    released = rest[rest.index("\n## ") :]
    (copy / CHANGELOG).write_text(f"{heading}{UNRELEASED}\n### Added\n\n- More.\n{released}")
    git(copy, "init", "--quiet")
    commit(copy)
    return copy


def commit(copy: Path) -> None:
    git(copy, "add", ".")
    git(copy, "commit", "--quiet", "-m", "all")


def test_a_release_sets_the_version_dates_the_changelog_and_names_the_tag(ready: Path) -> None:
    before = (ready / CHANGELOG).read_text()
    done = release(ready, "nrl-dump", "7.2.0", "--date", "2027-01-31")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "git tag nrl-dump-v7.2.0" in done.stdout
    changed = git(ready, "diff", "--name-only").split()
    module = "packages/nrl-dump/src/nrl_dump/__init__.py"
    assert changed == ["docs/compatibility.md", str(CHANGELOG), str(PYPROJECT), module, "uv.lock"]
    assert (ready / CHANGELOG).read_text() == before.replace(UNRELEASED, f"{UNRELEASED}\n## 7.2.0 - 2027-01-31\n")
    added = [line for line in git(ready, "diff", "-U0").splitlines() if line.startswith("+") and "7.2.0" in line]
    assert [line.replace("|", "").split()[:2] for line in added] == [
        ["+", "`nrl-dump`"],
        ["+##", "7.2.0"],
        ["+version", "="],
        ["+__version__", "="],
        ["+version", "="],
    ]
    assert git(ready, "rev-list", "--count", "HEAD").strip() == "1"  # what to commit is for a person to look at
    assert git(ready, "tag") == ""


def test_the_next_release_needs_something_new(ready: Path) -> None:
    assert release(ready, "nrl-dump", "7.2.0").returncode == 0
    commit(ready)
    refused(
        ready, ["nrl-dump", "7.3.0"], 'packages/nrl-dump/CHANGELOG.md has nothing under "Unreleased" to be released'
    )


def refused(copy: Path, args: list[str], why: str) -> None:
    before = git(copy, "status", "--porcelain")
    done = release(copy, *args)
    assert done.returncode != 0
    assert why in done.stdout + done.stderr
    assert git(copy, "status", "--porcelain") == before


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["nrl-dumb", "0.2.0"], "no package 'nrl-dumb'; there are nrl-dataplane-local, "),
        (["nrl-dump", "0.1.0"], "is not above it"),
        (["nrl-dump", "0.0.9"], "is not above it"),
        (["nrl-dump", "0.2"], "version '0.2' does not have the form X.Y.Z"),
        (["nrl-dump", "7.2.0", "--date", "31.1.2027"], "31.1.2027"),
        (["nrl-dump"], "the following arguments are required: version"),
    ],
)
def test_what_is_no_release_is_refused(ready: Path, args: list[str], why: str) -> None:
    refused(ready, args, why)


def test_a_tree_with_changes_is_refused(ready: Path) -> None:
    (ready / "packages" / "nrl-dump" / "src" / "nrl_dump" / "more.py").write_text("")
    refused(ready, ["nrl-dump", "7.2.0"], "packages/nrl-dump/src/nrl_dump/more.py")
