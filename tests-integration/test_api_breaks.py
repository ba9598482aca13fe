"""The comparison of a package's API with that of its last release: a break needs an entry, and an entry a break."""

from pathlib import Path

import pytest
from api_breaks import main

OLD = {
    "__init__.py": 'from nrl_x.reading import read\n\n__all__ = ["read"]\n',
    "reading.py": (
        "class Base: ...\n"
        "class Reader(Base):\n"
        "    def close(self, wait=True): ...\n"
        "def read(path, strict=False): ...\n"
        "def _helper(path): ...\n"
    ),
    "tables.py": "LIMIT = 3\n",
}
BREAKS = [
    (
        "__init__.py",
        'from nrl_x.reading import read\n\n__all__ = ["read"]\n',
        "",
        "nrl_x.read: public object was removed",
    ),
    ("reading.py", "def read(path, strict=False)", "def load(path)", "nrl_x.reading.read: public object was removed"),
    ("reading.py", "path, strict=False", "path", "nrl_x.reading.read(strict): parameter was removed"),
    ("reading.py", "strict=False", "strict=True", "nrl_x.reading.read(strict): parameter default was changed"),
    ("reading.py", "strict=False", "strict", "nrl_x.reading.read(strict): parameter is now required"),
    (
        "reading.py",
        "strict=False)",
        "strict=False, *, size)",
        "nrl_x.reading.read(size): parameter was added as required",
    ),
    ("reading.py", "path, strict", "path, *, strict", "nrl_x.reading.read(strict): parameter kind was changed"),
    ("reading.py", "Reader(Base)", "Reader", "nrl_x.reading.Reader: base class was removed"),
    ("reading.py", "close(self, wait=True)", "shut(self)", "nrl_x.reading.Reader.close: public object was removed"),
    ("tables.py", "LIMIT = 3\n", "", "nrl_x.tables.LIMIT: public object was removed"),
]
KEPT = [
    ("reading.py", "strict=False", "strict=False, size=None"),
    ("reading.py", "def _helper(path): ...\n", ""),
    ("tables.py", "LIMIT = 3\n", "LIMIT = 4\ndef added(): ...\n"),
]


def write(src: Path, sources: dict[str, str]) -> str:
    (src / "nrl_x").mkdir(parents=True)
    for name, text in sources.items():
        (src / "nrl_x" / name).write_text(text)
    return str(src)


def compared(tmp_path: Path, changed: str, before: str, after: str, entries: str = "") -> str | None:
    assert before in OLD[changed]
    (tmp_path / "api-breaks.toml").write_text(entries)
    old = write(tmp_path / "old", OLD)
    new = write(tmp_path / "new", {**OLD, changed: OLD[changed].replace(before, after)})
    return main("nrl-x", old, new, str(tmp_path / "api-breaks.toml"))


def entry(what: str, reason: str = "It had no effect.") -> str:
    return f'[[break]]\nwhat = "{what}"\nreason = "{reason}"\n'


@pytest.mark.parametrize(("changed", "before", "after", "what"), BREAKS, ids=[case[3] for case in BREAKS])
def test_a_break_without_an_entry_is_told(tmp_path: Path, changed: str, before: str, after: str, what: str) -> None:
    wrong = compared(tmp_path, changed, before, after)
    assert wrong is not None
    assert wrong.startswith("break without an entry in ")
    assert what in [line.rpartition("api-breaks.toml: ")[2] for line in wrong.splitlines()]


@pytest.mark.parametrize(("changed", "before", "after", "what"), BREAKS, ids=[case[3] for case in BREAKS])
def test_a_break_with_an_entry_passes(tmp_path: Path, changed: str, before: str, after: str, what: str) -> None:
    assert compared(tmp_path, changed, before, after, entry(what)) is None


@pytest.mark.parametrize(("changed", "before", "after"), KEPT)
def test_what_is_added_or_private_is_no_break(tmp_path: Path, changed: str, before: str, after: str) -> None:
    assert compared(tmp_path, changed, before, after) is None


def test_an_entry_that_is_no_break_is_told(tmp_path: Path) -> None:
    wrong = compared(tmp_path, "tables.py", "3", "4", entry("nrl_x.read: public object was removed"))
    assert wrong is not None
    assert wrong.startswith("entry that is no break, to be removed from ")


@pytest.mark.parametrize(
    "entries",
    [entry("nrl_x.read: public object was removed", reason=""), '[[break]]\nwhat = "nrl_x.read"\n', "breaks = []\n"],
    ids=["empty reason", "no reason", "another table"],
)
def test_an_entry_without_a_reason_is_refused(tmp_path: Path, entries: str) -> None:
    with pytest.raises(ValueError, match=r"api-breaks\.toml: "):
        compared(tmp_path, "tables.py", "3", "4", entries)
