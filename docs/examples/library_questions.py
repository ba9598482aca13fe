"""Questions and answers that come with Python, and the conversations that they make."""

import importlib
import inspect
import json
from pathlib import Path
from typing import NamedTuple

MODULES = (
    *("bisect", "calendar", "collections", "copy", "csv", "datetime", "fnmatch", "fractions", "functools", "glob"),
    *(
        "heapq",
        "io",
        "itertools",
        "json",
        "keyword",
        "math",
        "numbers",
        "operator",
        "os",
        "os.path",
        "pathlib",
        "pickle",
    ),
    *("platform", "pprint", "random", "re", "shlex", "shutil", "statistics", "string", "struct", "textwrap"),
    *("threading", "time", "timeit", "tokenize", "traceback", "types", "uuid", "weakref", "zipfile"),
)
LONGEST = 256  # bytes of a conversation


class Question(NamedTuple):
    """What a function of the standard library does."""

    function: str
    text: str
    answer: str


def read_questions() -> list[Question]:
    """Every documented public function of `MODULES`, in their order: its docstring's first paragraph is the answer."""
    questions: dict[str, Question] = {}  # by answer: some functions have two names
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name, function in inspect.getmembers(module, callable):
            answer = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
            if not name.startswith("_") and 30 <= len(answer) <= 200 and not answer.startswith(name):
                full_name = f"{module_name}.{name}"
                questions.setdefault(answer, Question(full_name, f"What does {full_name} do?", answer))
    return [each for each in questions.values() if len(b"".join(map(bytes_of, conversation(each)))) <= LONGEST]


def conversation(question: Question) -> list[dict[str, str]]:
    """The messages that a model is taught by."""
    return [{"role": "user", "content": question.text}, {"role": "assistant", "content": question.answer}]


def bytes_of(message: dict[str, str]) -> bytes:
    """A message as the task encoder `utf8_bytes` shows it to a model."""
    return json.dumps(message, sort_keys=True, ensure_ascii=False).encode()


def write_conversations(questions: list[Question], path: Path) -> None:
    """A file with a conversation a line."""
    path.write_text("".join(json.dumps({"messages": conversation(question)}) + "\n" for question in questions))
