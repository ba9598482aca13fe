"""Writes what every package declares into the table of docs/compatibility.md.

`.venv/bin/python tools/compatibility_page.py` renews the page; with `--check` it only says whether the page is in step.
"""

import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- Ranges: written by tools/compatibility_page.py -->\n", "<!-- End of the ranges -->\n"
SHARED = "nrl-interfaces"
RENEW = "renew it with: .venv/bin/python tools/compatibility_page.py"


def rows(project: dict[str, Any]) -> list[tuple[str, str, str, str, str]]:
    """Return a package's row, and one for each of its extras."""
    name, version, python = project["name"], project["version"], project["requires-python"]
    extras = project.get("optional-dependencies", {})
    first = (name, version, python, *split(project["dependencies"]))
    return [first, *((f"{name}[{extra}]", "", "", *split(needs)) for extra, needs in extras.items())]


def split(needs: list[str]) -> tuple[str, str]:
    """Return the range of nrl-interfaces, and all others."""
    shared = [need.removeprefix(SHARED) for need in needs if need.startswith(SHARED)]
    return "".join(shared), ", ".join(sorted(need for need in needs if not need.startswith(SHARED)))


def rendered(root: Path = ROOT) -> str:
    table = [("package", "version", "Python", SHARED, "others"), ("---",) * 5]
    for path in sorted(root.glob("packages/*/pyproject.toml")):
        table += rows(tomllib.loads(path.read_text(encoding="utf-8"))["project"])
    coded = [*table[:2], *(tuple(f"`{cell}`" if cell else "" for cell in row) for row in table[2:])]
    return "".join(f"| {' | '.join(row)} |\n" for row in coded)


def main(args: list[str], root: Path = ROOT) -> str | None:
    """Renew the page, or check it; give what is wrong with it."""
    path = root / "docs" / "compatibility.md"
    page = path.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    renewed = before + BEGIN + "\n" + rendered(root) + "\n" + END + rest.split(END)[1]
    if "--check" not in args:
        path.write_text(renewed, encoding="utf-8")
    elif renewed != page:
        return f"{path.name} is not in step with the pyproject.toml files; {RENEW}"
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
