"""What has been released of each package, as git alone tells.

A release is the commit of a tag NAME-vX.Y.Z. Without a tag it is the last commit of the branch that has the version,
its section in the changelog and nothing under "Unreleased": what came later, and a user can notice, has a line there.
As long as nothing came later, a version without a tag is what is here, and no release.
"""

import io
import subprocess
import tarfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
UNRELEASED = "## Unreleased\n"


@dataclass(frozen=True)
class Release:
    """A version of a package that users may have.

    Attributes:
        name: The package.
        version: Its version.
        commit: The commit that the version was made from.
    """

    name: str
    version: Version
    commit: str

    def __str__(self) -> str:
        return f"{self.name} {self.version} ({self.commit[:9]})"


def git(root: Path, *args: str) -> str:
    """Return what git prints; an error says what git says."""
    done = subprocess.run(["git", "-C", root, *args], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"git {' '.join(args)}: {done.stderr.strip()}")
    return done.stdout


def unreleased(changelog: str) -> str:
    """Return what stands under "Unreleased" in a changelog."""
    return changelog.partition(UNRELEASED)[2].partition("\n## ")[0].strip()


def version_in(pyproject: str) -> Version:
    """Return the version that the text of a pyproject.toml sets."""
    return Version(tomllib.loads(pyproject)["project"]["version"])


def releases(name: str, root: Path = ROOT) -> list[Release]:
    """Return the released versions of a package up to the one that is here, the oldest first.

    Raises:
        ValueError: There is no history, only a part of it, or a tag is on a commit with another version.
    """
    if git(root, "rev-parse", "--is-shallow-repository").strip() == "true":
        raise ValueError("this clone has not all commits, and releases are among them: git fetch --unshallow --tags")
    folder = root / "packages" / name
    here = version_in((folder / "pyproject.toml").read_text())
    found = untagged(name, root)
    if not unreleased((folder / "CHANGELOG.md").read_text()):
        found.pop(here, None)
    found |= tagged(name, root)
    return [found[version] for version in sorted(found) if version <= here]


def tagged(name: str, root: Path) -> dict[Version, Release]:
    """Return the releases of a package that have a tag, by version."""
    found = {}
    for tag in git(root, "tag", "--list", f"{name}-v*").split():
        commit = git(root, "rev-parse", f"{tag}^{{commit}}").strip()
        version, has = Version(tag.removeprefix(f"{name}-v")), version_at(name, commit, root)
        if version != has:
            raise ValueError(f"tag {tag} is on {commit[:9]}, where {name} has version {has}: move the tag")
        found[version] = Release(name, version, commit)
    return found


def version_at(name: str, commit: str, root: Path) -> Version:
    """Return the version that a package has in a commit."""
    return version_in(git(root, "show", f"{commit}:packages/{name}/pyproject.toml"))


def untagged(name: str, root: Path) -> dict[Version, Release]:
    """Return, for each version of the branch, the last commit that has it and its section, and nothing unreleased."""
    pyproject, changelog = f"packages/{name}/pyproject.toml", f"packages/{name}/CHANGELOG.md"
    found: dict[Version, str] = {}
    last = "HEAD"
    for commit in git(root, "log", "--first-parent", "--format=%H", "--", pyproject, changelog).split():
        present = git(root, "ls-tree", "--name-only", commit, pyproject, changelog).split()
        if len(present) == 2:
            version, text = version_at(name, commit, root), git(root, "show", f"{commit}:{changelog}")
            if f"\n## {version} - " in text and not unreleased(text):
                found.setdefault(version, last)
        last = f"{commit}^"  # the older commits of the log say how the package was from there on, up to this one
    return {
        version: Release(name, version, git(root, "rev-parse", commit).strip()) for version, commit in found.items()
    }


def differs(release: Release, name: str, root: Path = ROOT) -> bool:
    """Tell whether what a package installs here is not what it was at a release, of it or of another package."""
    paths = (f"packages/{name}/src", f"packages/{name}/pyproject.toml")
    command = ["git", "-C", root, "diff", "--quiet", release.commit, "--", *paths]
    return subprocess.run(command, check=False).returncode != 0


def unpack(release: Release, into: Path, root: Path = ROOT) -> Path:
    """Put a release's sources, and the root's settings of that time, into a folder; return the package's there."""
    command = ["git", "-C", root, "archive", release.commit, "pyproject.toml", f"packages/{release.name}"]
    archive = subprocess.run(command, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(into, filter="data")
    return into / "packages" / release.name
