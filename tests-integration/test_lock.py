"""uv.lock fits the packages and names no registry."""

import os
import subprocess
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROJECTS = sorted(ROOT.glob("packages/*/pyproject.toml"))


def read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())


def test_lock_holds_no_address() -> None:
    """A registry's address would send everyone to it, whatever index they have set. `nox.py -s lock` takes them out."""
    assert "://" not in (ROOT / "uv.lock").read_text()


def test_lock_is_up_to_date() -> None:
    # uv calls every lock stale while an index is set.
    env = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    done = subprocess.run(["uv", "lock", "--check"], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stderr}\nRun: python3 nox.py -s lock"


def test_every_package_folder_is_in_the_lock_under_its_name() -> None:
    members = set(read(ROOT / "uv.lock")["manifest"]["members"]) - {"nrl-workspace"}
    assert members == {path.parent.name for path in PROJECTS}


def test_no_group_of_a_package_has_the_name_of_a_group_of_the_root() -> None:
    """For `uv export --package NAME --group GROUP` they are one, so a package would get more than it declares."""
    tools = set(read(ROOT / "pyproject.toml")["dependency-groups"])
    for path in PROJECTS:
        assert not tools & set(read(path).get("dependency-groups", {})), path
