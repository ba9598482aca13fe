"""Compares the API of a package with an older one by griffe: `python tools/api_breaks.py NAME OLD_SRC NEW_SRC WAIVERS`.

Every break needs an entry in the package's api-breaks.toml, and every entry a break:

    [[break]]
    what = "nrl_dump.reader.read_step(strict): parameter was removed"  # as this prints it
    reason = "It never had an effect."
"""

import sys
import tomllib
from pathlib import Path

import griffe


def load(module: str, src: str) -> griffe.Module:
    """Read a module's API out of its sources; nothing is imported."""
    loaded = griffe.load(module, search_paths=[src], allow_inspection=False)
    assert isinstance(loaded, griffe.Module)
    return loaded


def described(breakage: griffe.Breakage) -> str:
    """Say what broke, without lines and values, so that the entry stays true when they move."""
    parameter = breakage.old_value or breakage.new_value
    inside = f"({parameter.name})" if isinstance(parameter, griffe.Parameter) else ""
    kind = breakage.kind.value
    return f"{breakage.obj.path}{inside}: {kind[0].lower()}{kind[1:]}"


def breaks(name: str, old_src: str, new_src: str) -> set[str]:
    """Return what of the old API the new one does not keep."""
    old, new = (load(name.replace("-", "_"), src) for src in (old_src, new_src))
    return {described(breakage) for breakage in griffe.find_breaking_changes(old, new)}


def accepted(path: Path) -> set[str]:
    """Return the breaks that have an entry.

    Raises:
        ValueError: An entry is not of `what` and `reason`, both with text.
    """
    if not path.exists():
        return set()
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    entries = table.get("break", [])
    for entry in entries:
        if set(entry) != {"what", "reason"} or not all(isinstance(text, str) and text for text in entry.values()):
            raise ValueError(f"{path.name}: an entry needs `what` and `reason`, each with text, and has {entry}")
    if set(table) - {"break"}:
        raise ValueError(f"{path.name}: only [[break]] entries are known, and it has {sorted(table)}")
    return {entry["what"] for entry in entries}


def main(name: str, old_src: str, new_src: str, waivers: str) -> str | None:
    """Give what is wrong: a break without an entry, or an entry without a break."""
    found, listed = breaks(name, old_src, new_src), accepted(Path(waivers))
    wrong = [f"break without an entry in {waivers}: {what}" for what in sorted(found - listed)]
    wrong += [f"entry that is no break, to be removed from {waivers}: {what}" for what in sorted(listed - found)]
    return "\n".join(wrong) or None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
