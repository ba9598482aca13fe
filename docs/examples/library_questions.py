"""Questions and answers that come with Python, and a tokenizer trained on them."""

import importlib
import inspect
from typing import NamedTuple

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

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
END = "<end>"


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
    return list(questions.values())


def train_tokenizer(questions: list[Question], vocab_size: int) -> Tokenizer:
    """A byte-level BPE tokenizer whose token 0 is `END`, which also pads."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([f"{q.text} {q.answer}" for q in questions], trainer)
    return tokenizer
