"""Runs the examples in the pages and in the READMEs; `python3 nox.py -s docs` loads this file as a plugin.

A page is run from top to bottom, in one namespace, in an empty folder of its own.

- ```python blocks are run. One that begins with >>> is a doctest: what it prints is compared.
- ```console blocks: commands of these packages (`$ nrl-dump ...`) are run in this process, by `run` of the module that
  the command starts, and what they print is compared; `...` stands for anything. Other commands are only shown.
- <!-- skip: next "why" --> before a block leaves it out, and the report says why.
"""

import contextlib
import doctest
import importlib
import io
import os
import re
import shlex
import shutil
import tempfile
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch
from sybil import Example, Sybil
from sybil.parsers.myst import CodeBlockParser, PythonCodeBlockParser, SkipParser

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
OURS = {entry.name: entry.module for entry in entry_points(group="console_scripts") if entry.name.startswith("nrl-")}
COMMAND = re.compile(r"^\$ (?P<command>.*)\n(?P<output>(?:(?!\$ ).*\n?)*)", re.MULTILINE)


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # else Ray writes a token into the home folder
    torch.set_num_threads(1)  # pages fork, and a forked child would hang in its first parallel operation
    # Python 3.12 warns of a fork wherever any library has a thread.
    config.addinivalue_line("filterwarnings", "ignore:This process .* is multi-threaded:DeprecationWarning")


def enter_folder(namespace: dict[str, Any]) -> None:
    namespace["_came_from"] = Path.cwd()
    namespace["_folder"] = tempfile.mkdtemp(prefix="nrl-docs-")
    os.chdir(namespace["_folder"])


def leave_folder(namespace: dict[str, Any]) -> None:
    os.chdir(namespace["_came_from"])
    shutil.rmtree(namespace["_folder"])  # the one made above, wherever the page has gone: it may be anybody's


def run_commands(example: Example) -> str | None:
    """Run a block's commands of ours and return what is wrong with what they print, None if nothing is."""
    for match in COMMAND.finditer(example.parsed):
        program, *args = shlex.split(match["command"], comments=True)
        if program not in OURS:
            continue
        run = importlib.import_module(OURS[program]).run
        with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(printed):
            code = run(args)
        if not doctest.OutputChecker().check_output(match["output"], printed.getvalue(), FLAGS):
            return f"{match['command']}\nshould print\n{match['output']}\nand printed\n{printed.getvalue()}({code=})"
    return None


pytest_collect_file = Sybil(
    parsers=[
        PythonCodeBlockParser(doctest_optionflags=FLAGS),
        CodeBlockParser(language="console", evaluator=run_commands),
        SkipParser(),
    ],
    path=str(Path(__file__).resolve().parent.parent),
    patterns=["*.md"],
    setup=enter_folder,
    teardown=leave_folder,
).pytest()
