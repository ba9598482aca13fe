"""How nox.py's sessions get their environments: by `uv export` from the lock and `uv pip install`, exact and reused.

Why not by `uv sync`: see CONTRIBUTING.md, "The lock".
"""

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nox.virtualenv import UV  # where nox found it
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

import nox

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml"))
FIND_LINKS = os.environ.get("PIP_FIND_LINKS", "").split()  # uv reads none of pip's settings
INDEX_SETTINGS = ("UV_DEFAULT_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_INDEX", "UV_INDEX_URL", "UV_NO_INDEX")
BUILT: dict[str, Path] = {}  # the wheels built in this run


def project(name: str) -> dict[str, Any]:
    """Read a package's pyproject.toml."""
    return nox.project.load_toml(ROOT / "packages" / name / "pyproject.toml")


def export(session: nox.Session, *flags: str) -> str:
    """Return the locked requirements of a package or of groups."""
    command = (UV, "export", "--frozen", "--quiet", "--no-header", "--no-annotate", *flags)
    return str(session.run(*command, external=True, silent=True, log=False))


def torch_at_hand() -> str | None:
    """Return the version of the newest torch in the folders of PIP_FIND_LINKS that fits this Python."""
    fits = set(sys_tags())
    wheels = [parse_wheel_filename(path.name) for folder in FIND_LINKS for path in Path(folder).glob("torch-*.whl")]
    versions = [version for _, version, _, tags in wheels if tags & fits]
    return str(max(versions)) if versions else None


def pip_install(session: nox.Session, where: Path, *args: str) -> None:
    """Install into the environment `where`; a terminal sees what and how far."""
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    links = [f"--find-links={place}" for place in FIND_LINKS]
    session.run_install(UV, "pip", "install", *quiet, f"--python={where}", *links, *args, external=True)


def clear(session: nox.Session, where: Path) -> None:
    """Make the environment `where` anew, so that nothing from before stays in it."""
    session.run_install(UV, "venv", "--quiet", "--clear", f"--python={sys.executable}", str(where), external=True)


def install(
    session: nox.Session,
    *names: str,
    extras: bool = True,
    groups: bool = True,
    tools: Sequence[str] = (),
    wheels: bool = False,
    where: Path | None = None,
) -> None:
    """Bring an environment to exactly what the lock says.

    Args:
        session: Whose environment, unless `where` names another.
        names: Packages to install with what they depend on, packages of this workspace included.
        extras: With their extras.
        groups: With their dependency groups.
        tools: Dependency groups of the root pyproject.toml.
        wheels: Install the workspace's packages as built wheels instead of editable.
        where: The environment.
    """
    where = where or Path(session.virtualenv.location)
    choices = [[f"--only-group={tool}" for tool in tools]] if tools else []
    for name in names:  # --all-groups would bring the root's
        chosen = [f"--group={group}" for group in project(name).get("dependency-groups", {})] if groups else []
        choices.append([f"--package={name}", "--no-default-groups", *chosen, *["--all-extras"] * extras])
    # torch and what only torch needs go by version, not by hash: the torch at hand may be another build.
    hashed = "".join(export(session, *choice, "--prune=torch") for choice in choices)
    pinned = "".join(export(session, *choice, "--no-hashes") for choice in choices)
    torch = re.search(r"^torch==([^ \n]+)", pinned, re.MULTILINE)
    local = sorted(set(re.findall(r"^-e \./packages/(\S+)", hashed, re.MULTILINE)))
    requirements = re.sub(r"^-e .*\n", "", hashed, flags=re.MULTILINE)
    requirements += f"torch=={torch_at_hand() or torch[1]}\n" if torch else ""
    constraints = re.sub(r"^(-e |torch==).*\n", "", pinned, flags=re.MULTILINE)

    stamp, made_from = where / "made-from", f"{sys.version}\n{requirements}\n{constraints}"
    if not (stamp.exists() and stamp.read_text() == made_from):
        clear(session, where)
        (where / "requirements.txt").write_text(requirements)
        (where / "constraints.txt").write_text(constraints)
        pip_install(session, where, "-r", str(where / "requirements.txt"), "-c", str(where / "constraints.txt"))
        stamp.write_text(made_from)
    if local and wheels:
        pip_install(session, where, "--no-deps", "--reinstall", *(str(build(session, name)) for name in local))
    elif local:
        pip_install(session, where, "--no-deps", *(f"--editable=packages/{name}" for name in local))


def build(session: nox.Session, name: str) -> Path:
    """Build a package, once a run, as its users get it: without workspace sources, the wheel from the sdist."""
    if name not in BUILT:
        folder = ROOT / ".nox" / "dist" / name
        shutil.rmtree(folder, ignore_errors=True)
        flags = ("--quiet", "--no-sources", f"--package={name}", f"--out-dir={folder}")
        session.run_install(UV, "build", *flags, external=True)
        (BUILT[name],) = folder.glob("*.whl")
    return BUILT[name]


def check_lock(session: nox.Session) -> None:
    """Fail when uv.lock does not fit the pyproject.toml files."""
    # uv calls every lock stale while another index is set.
    session.run(UV, "lock", "--check", env=dict.fromkeys(INDEX_SETTINGS), external=True)


def without_addresses(lock: str) -> str:
    """Take the registry's and the files' addresses out of a lock; versions, markers, sizes and hashes stay."""
    lock = re.sub(r'source = \{ registry = "[^"]*" \}', 'source = { registry = "index" }', lock)
    return re.sub(r'\{ url = "[^"]*/([^"/]+)"', r'{ path = "\1"', lock)
