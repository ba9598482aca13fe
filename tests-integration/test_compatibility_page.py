"""The page "Which versions go together" agrees with every pyproject.toml, and installers hold people to it."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOOL = ROOT / "tools" / "compatibility_page.py"
PAGE = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
PROJECTS = {
    path.parent.name: tomllib.loads(path.read_text())["project"] for path in ROOT.glob("packages/*/pyproject.toml")
}
PIECES = sorted(set(PROJECTS) - {"nrl-interfaces"})


def test_the_table_is_what_the_tool_writes() -> None:
    """If this fails: `.venv/bin/python tools/compatibility_page.py`, and look at what it changed."""
    ran = subprocess.run([sys.executable, str(TOOL), "--check"], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("name", sorted(PROJECTS))
def test_the_page_has_each_package_with_all_that_it_declares(name: str) -> None:
    """Looked at without the tool: what is declared is in the package's rows, and what is there is declared."""
    rows = [line for line in PAGE.splitlines() if re.match(rf"\| `{name}(\[\w+\])?` ", line)]
    project = PROJECTS[name]
    extras = project.get("optional-dependencies", {})
    shown = sorted(need for row in rows for cell in re.findall("`([^`]*)`", row) for need in cell.split(", "))
    needs = sum(extras.values(), project["dependencies"])
    declared = [need.removeprefix("nrl-interfaces") for need in needs]
    named = [name, *(f"{name}[{extra}]" for extra in extras)]
    assert shown == sorted([*declared, *named, project["version"], project["requires-python"]])


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with wheels of all packages, and of nrl-interfaces in versions below and above what the pieces allow."""
    wheels, sources = tmp_path_factory.mktemp("shelf"), [ROOT / "packages" / name for name in PROJECTS]
    for version in ("0.0.9", "0.2.0", "1.0.0"):
        other = tmp_path_factory.mktemp("sources") / "nrl-interfaces"
        shutil.copytree(ROOT / "packages" / "nrl-interfaces", other)
        text = (other / "pyproject.toml").read_text()
        here = PROJECTS["nrl-interfaces"]["version"]
        (other / "pyproject.toml").write_text(text.replace(f'version = "{here}"', f'version = "{version}"'))
        sources.append(other)
    for source in sources:
        subprocess.run(["uv", "build", "--quiet", "--wheel", "--no-sources", f"--out-dir={wheels}", source], check=True)
    return wheels


def install(shelf: Path, *requirements: str) -> subprocess.CompletedProcess[str]:
    """Let uv say what it would install from the shelf, beside what is installed here."""
    command = ["uv", "pip", "install", "--dry-run", "--no-index", f"--find-links={shelf}", f"--python={sys.executable}"]
    return subprocess.run([*command, *requirements], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("name", PIECES)
@pytest.mark.parametrize("version", ["0.0.9", "1.0.0"])
def test_uv_refuses_ranges_that_do_not_meet(shelf: Path, name: str, version: str) -> None:
    """By what the packages declare alone: nothing of ours looks at versions."""
    done = install(shelf, f"nrl-interfaces=={version}", name)
    said = " ".join(done.stderr.split())
    assert done.returncode == 1, said
    assert re.search(rf"{name} depend on nrl-interfaces\S+ and you require nrl-interfaces=={version}", said), said
    assert said.endswith("your requirements are unsatisfiable.")


@pytest.mark.parametrize("name", PIECES)
def test_uv_takes_ranges_that_meet(shelf: Path, name: str) -> None:
    done = install(shelf, f"nrl-interfaces=={PROJECTS['nrl-interfaces']['version']}", name)
    assert done.returncode == 0, done.stderr


def test_the_page_shows_what_uv_says(shelf: Path) -> None:
    done = install(shelf, "nrl-interfaces==0.2.0", "nrl-rollout-ckpt")
    said = done.stderr[done.stderr.index("error:") :]
    assert "".join(said.split()) in "".join(PAGE.split())  # uv wraps at hyphens, too
