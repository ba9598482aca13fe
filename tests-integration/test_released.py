"""Released versions are found from git alone, with tags and without."""

import importlib
import os
import subprocess
from pathlib import Path

import pytest
from released import ROOT, Release, differs, releases, unpack, version_in


class Repository:
    """A repository with one package, whose commits a test makes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.seconds = 1_800_000_000  # git sorts by the time, and would see ties
        self.folder = root / "packages" / "nrl-x"
        (self.folder / "src").mkdir(parents=True)
        (root / "pyproject.toml").write_text("")
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *args: str) -> str:
        command = ["git", "-C", self.root, "-c", "user.name=x", "-c", "user.email=x@localhost", *args]
        self.seconds += 1
        env = {**os.environ, "GIT_COMMITTER_DATE": f"{self.seconds} +0000"}
        return subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout.strip()

    def write(self, version: str, *, unreleased: str = "", section: bool = True) -> None:
        (self.folder / "pyproject.toml").write_text(f'[project]\nname = "nrl-x"\nversion = "{version}"\n')
        dated = f"\n## {version} - 2026-12-01\n\nAll of it.\n" if section else ""
        (self.folder / "CHANGELOG.md").write_text(f"# Changelog\n\n## Unreleased\n\n{unreleased}{dated}")

    def commit(self, code: str) -> str:
        (self.folder / "src" / "x.py").write_text(code)
        self.git("add", ".")
        self.git("commit", "--quiet", "--allow-empty", "-m", code)
        return self.git("rev-parse", "HEAD")

    def found(self) -> dict[str, str]:
        return {str(release.version): release.commit for release in releases("nrl-x", self.root)}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


def test_a_version_that_nothing_came_after_is_no_release(repository: Repository) -> None:
    repository.write("0.1.0")
    repository.commit("a")
    repository.commit("b")
    assert repository.found() == {}


def test_without_a_tag_the_release_is_the_last_commit_before_something_unreleased(repository: Repository) -> None:
    repository.write("0.1.0")
    repository.commit("a")
    repaired = repository.commit("b")  # nothing that a user can notice
    repository.write("0.1.0", unreleased="- More.\n")
    assert repository.found() == {"0.1.0": repaired}  # what is not committed yet counts
    repository.commit("c")
    repository.commit("d")
    assert repository.found() == {"0.1.0": repaired}


def test_without_a_tag_the_release_is_the_last_commit_before_the_next_version(repository: Repository) -> None:
    repository.write("0.1.0")
    first = repository.commit("a")
    repository.write("0.2.0")
    second = repository.commit("b")
    repository.write("0.10.0")
    repository.commit("c")
    assert list(repository.found().items()) == [("0.1.0", first), ("0.2.0", second)]


def test_a_version_without_a_section_of_its_own_is_no_release(repository: Repository) -> None:
    repository.write("0.1.0", section=False)
    repository.commit("a")
    repository.write("0.1.0", section=False, unreleased="- More.\n")
    repository.commit("b")
    assert repository.found() == {}


def test_a_tag_decides(repository: Repository) -> None:
    repository.write("0.1.0")
    tagged = repository.commit("a")
    repository.git("tag", "-m", "annotated", "nrl-x-v0.1.0")
    repository.git("tag", "nrl-xy-v0.3.0")  # of another package
    repository.commit("b")
    assert repository.found() == {"0.1.0": tagged}


def test_versions_above_the_one_that_is_here_do_not_count(repository: Repository) -> None:
    repository.write("0.1.0")
    first = repository.commit("a")
    repository.write("0.2.0")
    repository.commit("b")
    repository.git("tag", "nrl-x-v0.2.0")
    repository.git("checkout", "--quiet", "-b", "repairs", first)
    repository.write("0.1.1")
    repository.commit("c")
    assert repository.found() == {"0.1.0": first}


def test_a_merge_counts_as_what_it_made_of_the_branch(repository: Repository) -> None:
    repository.write("0.1.0")
    first = repository.commit("a")
    repository.write("0.1.0", unreleased="- More.\n")
    repository.commit("b")
    repository.git("checkout", "--quiet", "-b", "work", first)
    with (repository.folder / "pyproject.toml").open("a") as file:
        file.write("# Later than b, and without what is unreleased there.\n")
    repository.git("commit", "--quiet", "--all", "-m", "c")
    repository.git("checkout", "--quiet", "main")
    repository.git("merge", "--quiet", "work", "-m", "merge")
    assert repository.found() == {"0.1.0": first}


def test_a_tag_on_another_version_is_refused(repository: Repository) -> None:
    repository.write("0.1.0")
    repository.commit("a")
    repository.git("tag", "nrl-x-v0.2.0")
    with pytest.raises(ValueError, match=r"tag nrl-x-v0.2.0 is on \w+, where nrl-x has version 0.1.0: move the tag"):
        repository.found()


def test_a_shallow_clone_is_refused_with_the_way_out(repository: Repository, tmp_path: Path) -> None:
    repository.write("0.1.0")
    repository.commit("a")
    repository.commit("b")
    repository.git("clone", "--quiet", "--depth=1", f"file://{repository.root}", str(tmp_path / "shallow"))
    with pytest.raises(ValueError, match="git fetch --unshallow --tags"):
        releases("nrl-x", tmp_path / "shallow")


def test_a_folder_without_history_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a git repository"):
        releases("nrl-x", tmp_path)


def test_a_release_is_unpacked_beside_the_tree_and_compared_with_it(repository: Repository, tmp_path: Path) -> None:
    repository.write("0.1.0")
    repository.commit("old")
    repository.git("tag", "nrl-x-v0.1.0")
    (release,) = releases("nrl-x", repository.root)
    assert isinstance(release, Release)
    assert not differs(release, "nrl-x", repository.root)
    (repository.folder / "src" / "x.py").write_text("new")  # not committed
    assert differs(release, "nrl-x", repository.root)
    sources = unpack(release, tmp_path / "unpacked", repository.root)
    assert (sources / "src" / "x.py").read_text() == "old"
    assert (tmp_path / "unpacked" / "pyproject.toml").exists()
    assert (repository.folder / "src" / "x.py").read_text() == "new"


@pytest.mark.parametrize("pyproject", sorted(ROOT.glob("packages/*/pyproject.toml")), ids=lambda path: path.parent.name)
def test_a_package_says_the_version_that_its_pyproject_sets(pyproject: Path) -> None:
    module = importlib.import_module(pyproject.parent.name.replace("-", "_"))
    assert module.__version__ == str(version_in(pyproject.read_text()))
