"""The script in the README does what it says: reserve, complete, snapshot, restore, and an account of each prompt."""

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parent.parent / "README.md"


def test_the_script_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script, checks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    lines = [line for line in script.splitlines() if line and not line.startswith(("import", "from"))]
    assert len(lines) <= 27
    names: dict[str, object] = {}
    exec(script + checks, names)
    (snapshot,) = (tmp_path / "checkpoints" / "bootstrap" / "rollout_snapshots").iterdir()
    assert snapshot.name == "snapshot_000001"
    assert names["report"].path.name == snapshot.name
