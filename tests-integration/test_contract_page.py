"""The page "What the contract says" is in step with the docstrings that it is made of."""

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).resolve().parent.parent / "tools" / "contract_page.py"


def test_the_page_has_every_clause_as_the_docstrings_state_it() -> None:
    """If this fails: `.venv/bin/python tools/contract_page.py`, and look at what it changed."""
    ran = subprocess.run([sys.executable, str(TOOL), "--check"], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr


def test_the_page_has_all_31_clauses_in_order() -> None:
    page = (TOOL.parent.parent / "docs" / "interfaces" / "contract.md").read_text(encoding="utf-8")
    numbers = [int(line.removeprefix("### Clause ")) for line in page.splitlines() if line.startswith("### Clause ")]
    assert numbers == list(range(1, 32))
