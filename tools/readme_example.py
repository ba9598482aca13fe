"""Run the examples of a README, top to bottom, in an empty folder, where nothing but its package is installed.

docs/conftest.py does that for all pages with a test runner and every package at hand; this needs Python alone.
"""

import contextlib
import doctest
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (?P<command>.*)\n(?P<output>(?:(?!\$ ).*\n?)*)", re.MULTILINE)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def run_commands(text: str) -> None:
    """Run a block's commands that the environment has, and compare what they print."""
    for match in COMMAND.finditer(text):
        program, *arguments = shlex.split(match["command"], comments=True)
        command = Path(sys.executable).parent / program
        if not command.exists():
            sys.exit(f"the package does not bring {program!r}, which its README shows")
        done = subprocess.run([command, *arguments], capture_output=True, text=True, timeout=120, check=False)
        if not doctest.OutputChecker().check_output(match["output"], done.stdout, FLAGS):
            sys.exit(f"{match[0]}\nprinted\n{done.stdout}{done.stderr}({done.returncode})")


def run_doctest(text: str, namespace: dict[str, Any], name: str) -> None:
    """Run a block of lines that begin with >>>."""
    test = doctest.DocTestParser().get_doctest(text, namespace, name, None, 0)
    if doctest.DocTestRunner(optionflags=FLAGS).run(test, clear_globs=False).failed:
        sys.exit(1)


def main(readme: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "readme"}
    blocks = BLOCK.findall(readme.read_text())
    if not blocks:
        sys.exit(f"{readme} has no example")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for kind, text in blocks:
            if kind == "console":
                run_commands(text)
            elif text.startswith(">>>"):
                run_doctest(text, namespace, readme.name)
            else:
                exec(compile(text, str(readme), "exec"), namespace)
    print(f"examples of {readme} that ran: {len(blocks)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
