"""Writes a new version of a package where it stands: pyproject.toml, `__version__`, changelog and lock."""

import datetime as dt
import re
from pathlib import Path

from packaging.version import Version
from released import ROOT, UNRELEASED, git, unreleased, version_in


def bump(name: str, version: str, date: str, root: Path = ROOT) -> str:
    """Give a package a new version, dated in its changelog, and return the tag to make.

    Args:
        name: The package.
        version: The new version, X.Y.Z.
        date: The day of the release, YYYY-MM-DD.
        root: The repository.

    Raises:
        ValueError: There is no such package, the version or the date is not one, the version is not above the present
            one, nothing stands under "Unreleased", or git has changes that are not committed. No file has changed then.
    """
    folder = root / "packages" / name
    pyproject, changelog, lock = folder / "pyproject.toml", folder / "CHANGELOG.md", root / "uv.lock"
    packages = sorted(path.parent.name for path in root.glob("packages/*/pyproject.toml"))
    if name not in packages:
        raise ValueError(f"no package {name!r}; there are {', '.join(packages)}")
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ValueError(f"version {version!r} does not have the form X.Y.Z")
    day = dt.date.fromisoformat(date)  # its own error says what is wrong
    here = version_in(pyproject.read_text())
    if Version(version) <= here:
        raise ValueError(f"{name} has version {here}; {version} is not above it. To tag {here}: git tag {name}-v{here}")
    if not unreleased(changelog.read_text()):
        raise ValueError(f'{changelog.relative_to(root)} has nothing under "Unreleased" to be released')
    if changes := git(root, "status", "--porcelain"):
        raise ValueError(f"commit or stash what has changed first:\n{changes.rstrip()}")

    module, in_lock = folder / "src" / name.replace("-", "_") / "__init__.py", f'name = "{name}"\nversion = '
    texts = {
        pyproject: replaced(pyproject, f'version = "{here}"\n', f'version = "{version}"\n'),
        module: replaced(module, f'__version__ = "{here}"\n', f'__version__ = "{version}"\n'),
        lock: replaced(lock, f'{in_lock}"{here}"\n', f'{in_lock}"{version}"\n'),
        changelog: replaced(changelog, UNRELEASED, f"{UNRELEASED}\n## {version} - {day}\n"),
    }
    for path, text in texts.items():
        path.write_text(text)
    return f"{name}-v{version}"


def replaced(path: Path, old: str, new: str) -> str:
    """Return the text of a file with the one place of it replaced."""
    text = path.read_text()
    if text.count(old) != 1:
        raise ValueError(f"{path.name} has {text.count(old)} times {old!r}, and should have it once")
    return text.replace(old, new)
