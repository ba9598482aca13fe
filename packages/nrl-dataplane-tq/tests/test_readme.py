"""The script in the README does what it says, on the queue that transfer_queue.init starts."""

import re
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).resolve().parent.parent / "README.md"


def test_the_script_runs(queues: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script, checks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names: dict[str, Any] = {"__name__": "__main__"}  # so that Ray takes its functions along
    exec(script + checks, names)
    assert len(names["meta"].sample_ids) == 8
    assert (tmp_path / "checkpoint" / "tq_data_plane.json").is_file()
