"""What importing the package costs and brings."""

import ast
import subprocess
import sys
from pathlib import Path

import nrl_interfaces
import pytest

HEAVY = ("tensordict", "ray", "transformers", "megatron", "pytest", "hypothesis")


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120).stdout


@pytest.mark.parametrize(
    "module",
    [
        "nrl_interfaces",
        *(f"nrl_interfaces.{m}" for m in ("publish", "identity", "batch", "packed", "layout", "metrics")),
        *(f"nrl_interfaces.{m}" for m in ("data_plane", "batch_meta", "values", "plugins", "metrics_client")),
        "nrl_interfaces.rollout",
        "nrl_interfaces.testing.awaits",
        "nrl_interfaces.testing.rollout",
        "nrl_interfaces.testing.data_plane",  # its tests import what they need, so that they run without pytest
        "nrl_interfaces.testing.model_data_plane",
    ],
)
def test_no_heavy_package_comes_along(module: str) -> None:
    loaded = run(f"import sys, {module}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))").split()
    assert not set(HEAVY) & set(loaded)


def test_beyond_torch_the_package_is_small() -> None:
    """A count of modules, not of seconds: those stand in the benchmarks."""
    code = (
        "import sys, torch; before = set(sys.modules); import nrl_interfaces.batch, nrl_interfaces.publish,"
        "nrl_interfaces.identity, nrl_interfaces.metrics; print(*(set(sys.modules) - before))"
    )
    others = [name for name in run(code).split() if not name.startswith("nrl_interfaces")]
    assert len(others) < 15, others


def test_without_testing_it_stays_below_1500_lines_of_code() -> None:
    """Docstrings, comments and blank lines are not counted."""
    lines = sum(map(code_lines, Path(nrl_interfaces.__file__).parent.glob("*.py")))
    assert 1000 < lines < 1500


def code_lines(path: Path) -> int:
    text = path.read_text()
    expressions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr)]
    docs = [node for node in expressions if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)]
    in_docs = {number for node in docs for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    lines = [line.strip() for number, line in enumerate(text.splitlines(), 1) if number not in in_docs]
    return sum(bool(line) and not line.startswith("#") for line in lines)
