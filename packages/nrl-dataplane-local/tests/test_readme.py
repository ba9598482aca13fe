"""The script in the README does what it says: register, put, claim in another thread, read, checkpoint, load."""

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parent.parent / "README.md"


def test_the_script_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script, checks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    lines = [line for line in script.splitlines() if line and not line.startswith(("import", "from"))]
    assert len(lines) <= 10
    names: dict[str, object] = {}
    exec(script + checks, names)
    assert names["claim"].result().sample_ids == ["a", "b", "c"]
    assert [path.name for path in (tmp_path / "checkpoint").iterdir()] == ["local_data_plane_state.pkl"]
