"""Writes the clauses of `DataPlaneClient`'s docstrings into docs/interfaces/contract.md.

`.venv/bin/python tools/contract_page.py` renews the page; with `--check` it only says whether the page is in step.
"""

import inspect
import re
import sys
import textwrap
from pathlib import Path

from nrl_interfaces.data_plane import DataPlaneClient

PAGE = Path(__file__).resolve().parent.parent / "docs" / "interfaces" / "contract.md"
BEGIN, END = "<!-- Clauses: written by tools/contract_page.py -->\n", "<!-- End of the clauses -->\n"
GROUPS = {
    1: "Registering",
    5: "Writing",
    11: "Reading",
    17: "Claiming",
    24: "Clearing and ending",
    26: "Checkpoints",
    29: "Seeing",
}
RENEW = "renew it with: .venv/bin/python tools/contract_page.py"


def clauses() -> dict[int, list[tuple[str, str]]]:
    """By number, each paragraph that states a clause, with the method that it stands at ("" for the class)."""
    found: dict[int, list[tuple[str, str]]] = {}
    methods = [(name, member) for name, member in vars(DataPlaneClient).items() if inspect.isfunction(member)]
    for name, documented in [("", DataPlaneClient), *methods]:
        for paragraph in re.split(r"\n\s*\n", inspect.getdoc(documented) or ""):
            if stated := re.match(r"Clause (\d+)\. (?:\(\w+\) )?(.*)", paragraph, re.DOTALL):
                found.setdefault(int(stated[1]), []).append((name, as_markdown(stated[2])))
    return dict(sorted(found.items()))


def as_markdown(text: str) -> str:
    return " ".join(text.split()).replace("``", "`")


def rendered() -> str:
    lines: list[str] = []
    for number, statements in clauses().items():
        if number in GROUPS:
            lines += [f"## {GROUPS[number]}", ""]
        lines += [f"### Clause {number}", ""]
        for method, text in statements:
            text = f"`{method}`: {text}" if method else text
            lines += [textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False), ""]
    return "\n".join(lines)


def main(args: list[str]) -> str | None:
    """Renew the page, or check it; give what is wrong with it."""
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    renewed = before + BEGIN + "\n" + rendered() + "\n" + END + rest.split(END)[1]
    if "--check" not in args:
        PAGE.write_text(renewed, encoding="utf-8")
    elif renewed != page:
        return f"{PAGE.name} is not in step with the docstrings of DataPlaneClient; {RENEW}"
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
