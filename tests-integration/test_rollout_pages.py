"""The pages about rollout checkpoints are in step with the code."""

import ast
import subprocess
import sys
from pathlib import Path

import nrl_rollout_ckpt
import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "rollout-ckpt"


@pytest.mark.parametrize("tool", ["state_diagrams.py", "lost_work_plot.py"])
def test_drawings_and_tables_are_those_of_the_code(tool: str) -> None:
    """If this fails: `.venv/bin/python tools/` and the tool's name, and look at what it changed."""
    ran = subprocess.run(
        [sys.executable, ROOT / "tools" / tool, "--check"], capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr


def test_every_error_stands_in_the_table() -> None:
    page = (PAGES / "errors.md").read_text(encoding="utf-8")
    source = Path(nrl_rollout_ckpt.__file__).parent
    errors = {
        node.name
        for path in source.rglob("*.py")
        if "testing" not in path.parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and node.name.endswith("Error")
    }
    assert len(errors) > 20
    assert [name for name in sorted(errors) if f"`{name}`" not in page] == []


def test_every_name_of_the_package_stands_in_the_api() -> None:
    page = (PAGES / "api.md").read_text(encoding="utf-8")
    missing = [name for name in nrl_rollout_ckpt.__all__ if f"nrl_rollout_ckpt.{name}\n" not in page]
    assert missing == ["FolderInUseError"]  # of nrl-interfaces, and described there
