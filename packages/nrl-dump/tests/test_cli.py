"""The command: its verbs as functions, as a command line, and as the installed program."""

from __future__ import annotations

import doctest
import errno
import functools
import importlib
import itertools
import json
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from nrl_dump import TrainDataDump, cli
from nrl_dump.commands.checking import judge
from nrl_dump.commands.following import follow
from nrl_dump.commands.parquet import write_parquet
from nrl_dump.commands.select import Condition, select_rows
from nrl_dump.commands.stats import step_stats
from nrl_dump.commands.steps import StepState, find_step, list_steps
from nrl_dump.commands.text import render, size_text
from nrl_dump.names import StepFiles
from nrl_interfaces.fileops import FileOps

NAN, INF = float("nan"), float("inf")
PROGRAM = Path(sys.executable).with_name("nrl-dump")


def add(dump: TrainDataDump, step: int, rewards: tuple[float, ...] = (0.25, NAN, 1.0)) -> None:
    rows = len(rewards)
    dump.add_chunk(
        step=step,
        sample_ids=[f"s{row}" for row in range(rows)],
        tags=[{"task": "math", "big": 2**80, "n": {"turn": row}} if row % 2 == 0 else {} for row in range(rows)],
        input_lengths=(torch.arange(rows, dtype=torch.int32) * 5).clamp(max=20),
        sequences={
            "token_ids": torch.arange(rows * 20).reshape(rows, 20),
            "lp": torch.full((rows, 20), -0.5).bfloat16(),
        },
        scalars={"reward": torch.tensor(rewards), "ok": torch.arange(rows) % 2 == 0},
    )


def publish(folder: Path, step: int = 0, rewards: tuple[float, ...] = (0.25, NAN, 1.0), **options: Any) -> Path:
    with TrainDataDump(folder, **options) as dump:
        add(dump, step, rewards)
        dump.finish_step(step)
    return StepFiles.of_step(folder, step).data


def leave_parts(folder: Path, step: int, shard_id: str = "0") -> None:
    with TrainDataDump(folder, shard_id=shard_id) as dump:
        add(dump, step)


def interrupt(folder: Path, step: int) -> None:
    """Leave what a crash between the renames of manifest and data leaves, the step having been published before."""
    old = publish(folder, step, rewards=(1.0,)).read_bytes()
    leave_parts(folder, step)
    files = StepFiles.of_step(folder, step)
    parts = {path: path.read_bytes() for path in (files.part("0"), files.columns("0"))}
    with TrainDataDump(folder) as dump:
        dump.finish_step(step)
    for path, content in {**parts, files.data: old}.items():
        path.write_bytes(content)


@pytest.fixture
def every_state(tmp_path: Path) -> Path:
    """Steps 1 to 6 (in files' numbers), one in each state, the first one with parts beside it."""
    publish(tmp_path, 0)
    leave_parts(tmp_path, 0)
    leave_parts(tmp_path, 1)
    leave_parts(tmp_path, 1, shard_id="1")
    interrupt(tmp_path, 2)
    damaged = publish(tmp_path, 3)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    StepFiles.of_published(publish(tmp_path, 4)).manifest.unlink()
    changed = publish(tmp_path, 5)
    changed.write_bytes(changed.read_bytes().replace(b"0.25", b"0.26"))
    return tmp_path


class Command:
    """Runs the command in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *args: object, code: int = 0) -> str:
        """Run it; returns what stood on stdout, or on stderr where an error was expected there."""
        found = cli.run([str(arg) for arg in args])
        out, err = self._capsys.readouterr()
        assert found == code, err
        assert not (out and err)  # no progress bar either: this is no terminal
        return out or err

    def lines(self, *args: object, code: int = 0) -> list[Any]:
        """What it said with --json, strictly read, a value a line."""
        return [json.loads(line, parse_constant=pytest.fail) for line in self(*args, "--json", code=code).splitlines()]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


def test_ls_tells_every_state(every_state: Path, command: Command) -> None:
    steps = list_steps(every_state)
    assert [step.state for step in steps] == [
        StepState.PUBLISHED,
        StepState.UNPUBLISHED,
        StepState.INTERRUPTED,
        StepState.DAMAGED,
        StepState.NO_MANIFEST,
        StepState.PUBLISHED,  # its size fits: only verify reads the bytes
    ]
    assert [step.rows for step in steps] == [3, None, None, None, None, 3]
    assert [step.parts for step in steps] == [1, 2, 1, 0, 0, 0]
    assert steps[1].shards == ("0", "1")
    assert steps[1].columns == ("token_ids", "lp", "reward", "ok")
    assert steps[1].bytes == sum(StepFiles(every_state, 2).part(shard).stat().st_size for shard in "01")
    assert [step["state"] for step in command.lines("ls", every_state)] == [str(step.state) for step in steps]
    text = command("ls", every_state).splitlines()
    assert text[0].split() == ["step", "rows", "size", "shards", "state", "columns"]
    assert "published, 1 part beside it" in text[1]
    assert text[2].split()[:3] == ["2", "-", size_text(steps[1].bytes).split()[0]]


def test_ls_of_an_empty_folder_says_nothing_but_the_header(tmp_path: Path, command: Command) -> None:
    assert command("ls", tmp_path).split() == ["step", "rows", "size", "shards", "state", "columns"]
    assert command.lines("ls", tmp_path) == []


def test_verify_tells_whole_interrupted_and_damaged(every_state: Path, command: Command) -> None:
    verdicts = command.lines("verify", every_state, code=1)
    assert [verdict["state"] for verdict in verdicts] == [
        *("whole", "unpublished", "interrupted", "damaged", "damaged", "damaged")
    ]
    assert [verdict["ok"] for verdict in verdicts] == [True, True, False, False, False, False]
    text = command("verify", every_state, code=1)
    assert "call finish_step(2) again" in text
    assert "restore it from a copy, or write the step again" in text
    with TrainDataDump(every_state) as dump:
        dump.finish_step(2)  # as it said
    assert "whole: 3 rows" in command("verify", every_state / "train_data_step3.jsonl")


def test_verify_of_whole_steps_exits_0_and_of_named_missing_ones_1(tmp_path: Path, command: Command) -> None:
    first, second = publish(tmp_path, 0), publish(tmp_path, 1)
    leave_parts(tmp_path, 2)
    assert len(command.lines("verify", first, second)) == 2
    assert len(command.lines("verify", tmp_path)) == 3
    assert command.lines("verify", tmp_path / "train_data_step3.jsonl", code=1)[0]["state"] == "unpublished"
    assert command.lines("verify", first, tmp_path / "train_data_step9.jsonl", code=1)[1]["state"] == "missing"
    assert not judge(StepFiles(tmp_path, 9), named=True).ok
    (tmp_path / "empty").mkdir()
    assert "there is no step in" in command("verify", tmp_path / "empty", code=1)
    assert "is not a published step" in command("verify", tmp_path / "x.jsonl", code=1)


def test_show_finds_rows_by_number_and_sample(tmp_path: Path, command: Command) -> None:
    path = publish(tmp_path, rewards=tuple(float(row) for row in range(10)))
    assert [row["idx"] for row in command.lines("show", path)] == list(range(10))
    assert [row["idx"] for row in command.lines("show", path, "--idx", 7, "--idx", 3)] == [3, 7]
    assert [row["idx"] for row in command.lines("show", path, "--sample-id", "s4")] == [4]
    assert [row["idx"] for row in command.lines("show", path, "--limit", 2)] == [0, 1]
    assert command.lines("show", path, "--limit", 0) == []
    assert command.lines("show", path, "--idx", 99) == []


def test_show_for_machines_gives_the_rows_of_the_file(tmp_path: Path, command: Command) -> None:
    path = publish(tmp_path)
    text = command("show", path, "--json")
    assert repr([json.loads(line) for line in text.splitlines()]) == repr(
        [json.loads(line) for line in path.read_text().splitlines()]
    )
    assert "1208925819614629174706176" in text
    assert "NaN" in text


def test_show_for_people_is_short_unless_full(tmp_path: Path, command: Command) -> None:
    path = publish(tmp_path)
    text = command("show", path, "--idx", 2)
    assert text.splitlines()[0] == "idx 2  step 1"
    assert "  token_ids      [40, 41, 42, 43, 44, 45, ... 10 in all]\n" in text
    assert "  reward         1.0\n" in text
    assert "[40, 41, 42, 43, 44, 45, 46, 47, 48, 49]" in command("show", path, "--idx", 2, "--full")


def test_show_takes_a_folders_newest_step_or_the_one_named(tmp_path: Path, command: Command) -> None:
    for step in (0, 1, 9):
        publish(tmp_path, step)
    leave_parts(tmp_path, 10)
    assert command.lines("show", tmp_path, "--limit", 1, "--idx", 0)[0]["step"] == 10
    assert command.lines("show", tmp_path, "--step", 2, "--idx", 0)[0]["step"] == 2
    assert "is not published" in command("show", tmp_path, "--step", 11, code=1)
    assert "--step 1 goes with a folder" in command("show", find_step(tmp_path, 1), "--step", 1, code=1)
    with pytest.raises(FileNotFoundError, match="no published step"):
        find_step(Path(__file__).parent, None)


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("reward<0.5", [0, 4]),
        ("reward <= 0.25", [0, 4]),
        ("reward>0.25", [2, 3]),
        ("reward>=0.25", [0, 2, 3]),
        ("reward==0.25", [0]),
        ("reward!=0.25", [1, 2, 3, 4]),
        ("reward==NaN", [1]),
        ("reward!=NaN", [0, 2, 3, 4]),
        ("reward==Infinity", [3]),
        ("reward==-Infinity", [4]),
        ("reward<x", []),
        ("reward==x", []),
        ("ok==true", [0, 2, 4]),
        ("idx>=3", [3, 4]),
        ("step==1", [0, 1, 2, 3, 4]),
        ("input_lengths == 10", [2]),
        ("sample_id==s3", [3]),
        ('sample_id=="s3"', [3]),
        ("sample_id>s3", [4]),
        ("metadata.task==math", [0, 2, 4]),
        ("metadata.task!=math", []),
        ("metadata.n.turn>1", [2, 4]),
        ("metadata.big==1208925819614629174706176", [0, 2, 4]),
        ("metadata.task.deeper==1", []),
    ],
)
@pytest.mark.parametrize("inf_nan", ["constants", "strings"])
def test_conditions(tmp_path: Path, condition: str, rows: list[int], inf_nan: str) -> None:
    path = publish(tmp_path, rewards=(0.25, NAN, 1.0, INF, -INF), inf_nan=inf_nan)
    found = select_rows(path, conditions=[Condition.parse(condition)])
    assert [row["idx"] for row in found] == rows


def test_all_conditions_are_to_be_met_and_null_stands_for_nan(tmp_path: Path, command: Command) -> None:
    path = publish(tmp_path, rewards=(0.25, INF, 1.0), inf_nan="null")
    found = command.lines("show", path, "--where", "reward==NaN", "--where", "idx>0")
    assert [row["idx"] for row in found] == [1]


@pytest.mark.parametrize("text", ["reward", "<1", "reward=1", "reward==[1]", 'reward=={"a":1}', ""])
def test_what_is_no_condition_is_a_usage_error(tmp_path: Path, command: Command, text: str) -> None:
    assert "condition" in command("show", publish(tmp_path), "--where", text, code=2)


def test_conditions_on_columns_that_have_none_say_which_there_are(tmp_path: Path, command: Command) -> None:
    path = publish(tmp_path)
    assert "no column 'rewart': they have idx, step" in command("show", path, "--where", "rewart<1", code=1)
    assert "more than one value a row" in command("show", path, "--where", "token_ids==1", code=1)


def test_stats_count_in_one_pass(tmp_path: Path, command: Command) -> None:
    path = publish(tmp_path, rewards=(0.25, NAN, 1.0, INF, -INF))
    columns = {column["name"]: column for column in command.lines("stats", path)[0]["columns"]}
    assert list(columns) == ["input_lengths", "token_ids", "lp", "reward", "ok"]
    reward = columns["reward"]
    assert [reward[key] for key in ("count", "mean", "min", "max", "nan", "inf")] == [5, 0.625, 0.25, 1.0, 1, 2]
    lengths = columns["input_lengths"]
    assert [lengths[key] for key in ("count", "mean", "min", "max", "dtype")] == [5, 10.0, 0, 20, "int32"]
    tokens = columns["token_ids"]
    assert [tokens[key] for key in ("count", "shortest", "longest", "max")] == [50, 0, 20, 99]
    assert [columns["ok"][key] for key in ("mean", "min", "max")] == [0.6, False, True]
    assert "reward" in command("stats", tmp_path)


def test_stats_of_nothing_finite_and_of_large_integers(tmp_path: Path, command: Command) -> None:
    with TrainDataDump(tmp_path) as dump:
        dump.add_chunk(
            step=0,
            sample_ids=["a"],
            tags=None,
            input_lengths=torch.tensor([0]),
            sequences={"empty": torch.ones(1, 0)},
            scalars={
                "nan": torch.tensor([NAN]),
                "u": torch.tensor([2**64 - 1], dtype=torch.uint64),
                "huge": torch.full((1, 2), 1.7e308, dtype=torch.float64),
            },
        )
        dump.finish_step(0)
    found = {column["name"]: column for column in command.lines("stats", tmp_path)[0]["columns"]}
    assert [found["nan"][key] for key in ("mean", "min", "max", "nan")] == [None, None, None, 1]
    assert [found["empty"][key] for key in ("count", "mean", "longest")] == [0, None, 0]
    assert found["u"]["max"] == 2**64 - 1
    assert [found["huge"][key] for key in ("mean", "max")] == [None, 1.7e308]
    assert step_stats(tmp_path / "train_data_step1.jsonl").rows == 1


def test_tail_shows_the_last_steps(tmp_path: Path, command: Command) -> None:
    for step in range(3):
        publish(tmp_path, step)
    leave_parts(tmp_path, 3)
    assert [step["step"] for step in command.lines("tail", tmp_path, "-n", 2)] == [2, 3]
    assert command.lines("tail", tmp_path, "-n", 0) == []
    assert command("tail", tmp_path).splitlines()[0].split("  ")[:2] == ["train_data_step1.jsonl", "3 rows"]


def test_following_gives_each_publication_once(tmp_path: Path) -> None:
    publish(tmp_path, 0)
    publish(tmp_path, 1)

    def replace_with_more() -> None:
        publish(tmp_path, 1, rewards=(1.0,) * 4)

    def between_renames() -> None:
        interrupt(tmp_path, 3)

    def end_it() -> None:
        with TrainDataDump(tmp_path) as dump:
            dump.finish_step(3)

    def prune() -> None:
        (tmp_path / "train_data_step1.jsonl").unlink()

    happenings = iter([lambda: None, lambda: publish(tmp_path, 2), replace_with_more, between_renames, end_it, prune])
    waits: list[float] = []

    class Over(Exception):  # noqa: N818
        pass

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        next(happenings, lambda: (_ for _ in ()).throw(Over))()

    def until_over() -> Iterator[tuple[int, int | None, int]]:
        try:
            for step in follow(tmp_path, last=1, sleep=sleep, interval_s=0.5):
                yield step.number, step.rows, len(waits)
        except Over:
            return

    assert list(until_over()) == [(2, 3, 0), (3, 3, 2), (2, 4, 3), (4, 3, 5)]
    assert set(waits) == {0.5}


def test_prune_keeps_the_last_steps_and_what_is_unpublished(tmp_path: Path, command: Command) -> None:
    for step in (0, 1, 2, 9, 10):
        publish(tmp_path, step)
    leave_parts(tmp_path, 0)
    before = sorted(tmp_path.iterdir())
    dry = command.lines("prune", tmp_path, "--keep-last", 2, "--dry-run")[0]
    assert (dry["dry_run"], sorted(tmp_path.iterdir())) == (True, before)
    assert "would remove" in command("prune", tmp_path, "--keep-last", 2, "--dry-run")
    done = command.lines("prune", tmp_path, "--keep-last", 2)[0]
    assert done["removed"] == dry["removed"] == [str(tmp_path / f"train_data_step{n}.jsonl") for n in (1, 2, 3)]
    assert [step.number for step in list_steps(tmp_path)] == [1, 10, 11]
    assert not (tmp_path / "train_data_step1.manifest.json").exists()
    assert command.lines("prune", tmp_path, "--keep-last", 5)[0]["removed"] == []
    assert "keep-last" in command("prune", tmp_path, "--keep-last", 0, code=2)


def typed_step(folder: Path) -> Path:
    """One column of every kind, and types that Parquet has and has not."""
    with TrainDataDump(folder) as dump:
        dump.add_chunk(
            step=0,
            sample_ids=["a", "b"],
            tags=[{"n": 2**80, "u": "ü"}, {"x": NAN}],
            input_lengths=torch.tensor([2, 0], dtype=torch.int16),
            sequences={"t": torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8), "h": torch.full((2, 2, 3), 0.1).half()},
            scalars={
                "bf": torch.tensor([0.1, INF]).bfloat16(),
                "u": torch.tensor([2**64 - 1, 0], dtype=torch.uint64),
                "k": torch.arange(8, dtype=torch.float64).reshape(2, 2, 2),
                "none": torch.ones(2, 2, 0),
                "ok": torch.tensor([True, False]),
                "j": torch.nested.nested_tensor_from_jagged(torch.tensor([7, 8]), torch.tensor([0, 0, 2])),
            },
        )
        dump.finish_step(0)
    return folder / "train_data_step1.jsonl"


def test_convert_gives_plain_columns_of_the_types_written(tmp_path: Path, command: Command) -> None:
    parquet = importlib.import_module("pyarrow.parquet")
    done = command.lines("convert", typed_step(tmp_path), "--to", "parquet", "-o", tmp_path / "out.parquet")[0]
    assert (done["rows"], done["bytes"]) == (2, (tmp_path / "out.parquet").stat().st_size)
    table = parquet.read_table(tmp_path / "out.parquet")
    assert {field.name: str(field.type).replace("element: ", "").replace("item: ", "") for field in table.schema} == {
        "idx": "int64",
        "step": "int64",
        "sample_id": "string",
        "input_lengths": "int16",
        "metadata": "string",
        "t": "list<uint8>",
        "h": "list<list<halffloat>>",
        "bf": "float",
        "u": "uint64",
        "k": "list<list<double>>",
        "none": "list<list<float>>",
        "ok": "bool",
        "j": "list<int64>",
    }
    assert table.schema.field("bf").metadata[b"nrl_dump.dtype"] == b"bfloat16"
    first, second = table.to_pylist()
    assert json.loads(first.pop("metadata")) == {"n": 2**80, "u": "ü"}
    assert first.pop("bf") == float(torch.tensor(0.1).bfloat16())
    half = float(torch.tensor(0.1).half())
    assert first == {
        "idx": 0,
        "step": 1,
        "sample_id": "a",
        "input_lengths": 2,
        "t": [1, 2],
        "h": [[half] * 3] * 2,
        "u": 2**64 - 1,
        "k": [[0, 1], [2, 3]],
        "none": [[], []],
        "ok": True,
        "j": [],
    }
    assert second == {
        "idx": 1,
        "step": 1,
        "sample_id": "b",
        "input_lengths": 0,
        "metadata": '{"x": NaN}',
        "t": [],
        "h": [],
        "bf": INF,
        "u": 0,
        "k": [[4, 5], [6, 7]],
        "none": [[], []],
        "ok": False,
        "j": [7, 8],
    }


def test_convert_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path, target = typed_step(tmp_path), tmp_path / "out.parquet"
    target.write_bytes(b"before")

    class Full(FileOps):
        def fsync(self, fd: int) -> None:
            raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OSError, match="full"):
        write_parquet(path, target, Full())
    damaged = path.read_bytes()
    path.write_bytes(damaged.replace(b'"t":[[1,2]]', b'"t":[[1,x]]'))
    with pytest.raises(ValueError, match="line 1 is not JSON"):
        write_parquet(path, target, FileOps())
    assert target.read_bytes() == b"before"
    assert not list(tmp_path.glob("*.partial"))
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match="is the step itself"):
        write_parquet(path, path, FileOps())
    assert path.read_bytes() == damaged


def test_convert_in_many_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = importlib.import_module("pyarrow.parquet")
    monkeypatch.setattr("nrl_dump.commands.parquet._GROUP_BYTES", 100)
    path = publish(tmp_path, rewards=tuple(float(row) for row in range(10)))
    write_parquet(path, tmp_path / "out.parquet", FileOps())
    file = parquet.ParquetFile(tmp_path / "out.parquet")
    assert file.num_row_groups > 1
    assert file.read()["reward"].to_pylist() == list(range(10))
    assert [len(row) for row in file.read()["token_ids"].to_pylist()] == [min(5 * row, 20) for row in range(10)]


def test_without_pyarrow_convert_says_what_to_install(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    error = command("convert", publish(tmp_path), "-o", tmp_path / "out.parquet", code=1)
    assert "pip install nrl-dump[parquet]" in error
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["ls", "nowhere"], 1, "nowhere"),
        (["show", "nowhere.jsonl"], 1, "nowhere.jsonl"),
        (["show", "train_data_step7.jsonl"], 1, "nor any part of that step"),
        (["stats", "nowhere"], 1, "is not a published step"),
        (["tail", "nowhere"], 1, "nowhere"),
        (["tail", "-f", "nowhere"], 1, "nowhere"),
        (["prune", "nowhere", "--keep-last", "1"], 1, "nowhere"),
        (["convert", "train_data_step7.jsonl", "-o", "x"], 1, "nor any part of that step"),
        (["prune", "."], 2, "--keep-last"),
        (["verify"], 2, "PATH..."),
        (["dance"], 2, "dance"),
        (["show", "x", "--idx", "-1"], 2, "--idx"),
    ],
)
def test_errors_are_a_line_and_an_exit_code(command: Command, args: list[str], code: int, message: str) -> None:
    text = command(*args, code=code)
    assert message in text
    assert code == 2 or (text.startswith("nrl-dump: ") and text.count("\n") == 1)


@pytest.mark.parametrize("verb", ["ls", "show", "tail", "stats", "verify", "convert", "prune"])
def test_every_verb_has_help_and_json(command: Command, verb: str) -> None:
    assert "--json" in command(verb, "-h")
    assert verb in command("-h")


def test_what_would_harm_a_terminal_is_escaped(tmp_path: Path, command: Command) -> None:
    with TrainDataDump(tmp_path) as dump:
        dump.add_chunk(
            step=0,
            sample_ids=["\x1b[31m\u202e\u2028\x9b ü 漢"],
            tags=[{"\x07": "\x7f"}],
            input_lengths=torch.tensor([0]),
            sequences={},
            scalars={"c\x1b": torch.tensor([1.0])},
        )
        dump.finish_step(0)
    for verb in ("show", "ls", "stats"):
        assert command(verb, tmp_path).replace("\n", "").isprintable()
    assert "ü 漢" in command("show", tmp_path)


def test_rendering_keeps_what_is_short() -> None:
    assert render([1, None, True, NAN, "a"], full=False) == '[1, null, true, NaN, "a"]'
    assert render(list(range(8)), full=False) == "[0, 1, 2, 3, 4, 5, 6, 7]"
    assert render([list(range(9))], full=False) == "[[0, 1, 2, 3, 4, 5, ... 9 in all]]"
    assert render("x" * 201, full=False) == f'"{"x" * 200}"... 201 characters in all'
    assert render({"k": "x" * 201}, full=True) == f'{{"k": "{"x" * 201}"}}'
    assert [size_text(size) for size in (0, 999, 1000, 5 * 10**9, 10**15)] == [
        *("0 B", "999 B", "1.0 kB", "5.0 GB", "1000.0 TB")
    ]


def test_the_installed_program_works_in_any_encoding_and_fails_politely(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"idx":0,"step":1,"sample_id":["ü漢"]}\n', encoding="utf-8")
    latin = {**os.environ, "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"}
    shown = subprocess.run([PROGRAM, "show", path], capture_output=True, env=latin, check=True)
    assert shown.stdout == b'idx 0  step 1\n  sample_id  "\xfc\\u6f22"\n'
    failed = subprocess.run([PROGRAM, "show", tmp_path / "train_data_step1.jsonl"], capture_output=True, text=True)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.splitlines()[-1].startswith("nrl-dump: ")
    assert "Traceback" not in failed.stderr


def test_the_installed_program_follows_until_ctrl_c(tmp_path: Path) -> None:
    publish(tmp_path, 0)
    with subprocess.Popen(
        [PROGRAM, "tail", "-f", tmp_path, "--interval", "0.05", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background jobs ignore Ctrl-C, and hand that on to what they start.
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["step"] == 1
            publish(tmp_path, 1)
            assert json.loads(process.stdout.readline())["step"] == 2
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err


def test_a_progress_bar_is_on_a_terminal_and_on_stderr_only(tmp_path: Path) -> None:
    publish(tmp_path)
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    done = subprocess.run([PROGRAM, "stats", tmp_path, "--json"], stdout=subprocess.PIPE, stderr=theirs, check=True)
    os.close(theirs)
    seen = b"".join(itertools.takewhile(bool, iter(lambda: _read(ours), b"")))
    os.close(ours)
    assert b"3/3" in seen or b"0/3" in seen
    json.loads(done.stdout)  # and nothing but that


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 4096)
    except OSError:  # the other side is closed
        return b""


def test_the_command_imports_no_extra() -> None:
    code = (
        "import sys, nrl_dump.cli; print([n for n in ('pyarrow', 'ray', 'tensordict', 'pandas') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_examples_in_docstrings_run() -> None:
    assert doctest.testmod(importlib.import_module("nrl_dump.commands.select")).failed == 0
