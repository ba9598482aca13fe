"""Files that earlier versions wrote are read as they were: one folder a version, see golden/make_golden.py."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).resolve().parent / "golden"
VERSIONS = sorted(path.parent.name for path in GOLDEN.glob("*/contents.json"))
FORMATS = ["dump", "plane", "loader", "rollouts"]


def as_json(text: str) -> Any:
    return json.loads(text, parse_constant=str)  # a NaN would not even be equal to itself


@pytest.mark.parametrize("what", FORMATS)
@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_version_wrote_is_read(version: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(GOLDEN)
    from golden_contents import CONTENTS

    shutil.copytree(GOLDEN / version / what, tmp_path / what)
    found = CONTENTS[what](tmp_path / what)
    assert as_json(json.dumps(found)) == as_json((GOLDEN / version / "contents.json").read_text())[what]


@pytest.mark.parametrize("version", VERSIONS)
def test_no_file_is_left_out(version: str) -> None:
    assert {path.name for path in (GOLDEN / version).iterdir()} == {*FORMATS, "contents.json"}


def test_the_first_version_is_there() -> None:
    assert "0.1.0" in VERSIONS
