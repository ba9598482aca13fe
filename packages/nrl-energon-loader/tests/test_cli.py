"""The command: what it prints, its exit codes, and that it needs no prompt."""

import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from data import numbers, plain_dataset, plain_loader, write_jsonl
from nrl_energon_loader.cli import run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    records = [
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": str(n)}]} for n in range(30)
    ]
    write_jsonl(tmp_path / "chat.jsonl", records)
    return tmp_path


def state_file(path: Path, dataset: Path, batches: int = 2, **settings: Any) -> Path:
    with plain_loader(dataset, **settings) as loader:
        iterator = iter(loader)
        for _ in range(batches):
            next(iterator)
        torch.save(loader.state_dict(), path)
    return path


@pytest.mark.slow
def test_prepare_then_check_resume_says_exact(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prepare", "chat.jsonl", "chat", "--split", "train=0.8", "--split", "val=0.2"]) == 0
    assert capsys.readouterr().out == "chat: train 24, val 6 conversations, 2 shards\n"
    for options in (
        ["--num-workers", "0"],
        ["--num-workers", "2"],
        ["--num-workers", "0", "--validation", "--packing", "first_fit_decreasing", "--max-sequence-length", "512"],
        ["--num-workers", "0", "--virtual-epoch-length", "5", "--no-shuffle", "--stop-after", "5"],
    ):
        gc.freeze()  # workers start faster
        assert run(["check-resume", "chat", *options, "--compare", "9"]) == 0
        assert "exact: 9 batches behind batch " in capsys.readouterr().out


@pytest.mark.slow
def test_check_resume_in_two_processes_says_where_it_differs_when_the_data_was_changed_in_between(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-c", "from nrl_energon_loader.cli import main; main()"]
    assert run(["prepare", "chat.jsonl", "chat"]) == 0
    options = ["check-resume", "chat", "--num-workers", "0", "--no-shuffle"]
    subprocess.run([*command, *options, "--save", "position.pt"], check=True, stdin=subprocess.DEVNULL, timeout=60)
    assert run([*options, "--resume", "position.pt"]) == 0
    # The shard is edited in place and keeps its size: only the batches can tell.
    shard = here / "chat" / "train-000000.tar"
    shard.write_bytes(shard.read_bytes().replace(b'"29"', b'"28"'))
    capsys.readouterr()
    assert run([*options, "--resume", "position.pt"]) == 1
    assert capsys.readouterr().out.startswith("batch 16 differs in message_log\n")
    # Prepared anew, its digest is another.
    run(["prepare", "chat.jsonl", "again"])
    (here / "chat.jsonl").write_text((here / "chat.jsonl").read_text().replace('"29"', '"28"'))
    run(["prepare", "chat.jsonl", "changed"])
    capsys.readouterr()
    assert run([*options[:1], "again", *options[2:], "--resume", "position.pt"]) == 0
    assert run([*options[:1], "changed", *options[2:], "--resume", "position.pt"]) == 1
    assert "source.content" in capsys.readouterr().err


def test_check_resume_as_json(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["prepare", "chat.jsonl", "chat", "--json"])
    assert json.loads(capsys.readouterr().out) == {"path": "chat", "conversations": {"train": 30}, "shards": 1}
    assert run(["check-resume", "chat", "--num-workers", "0", "--json", "--compare", "2"]) == 0
    assert json.loads(capsys.readouterr().out) == {"stopped_after": 8, "compared": 2, "differences": [], "exact": True}


def test_info_and_diff(here: Path, datasets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = plain_dataset(datasets / "for states", numbers(12, bad=[1]))
    first = state_file(here / "first.pt", dataset)
    second = state_file(here / "second.pt", dataset, batches=3)
    third = state_file(here / "third.pt", dataset, batch_size=3)
    capsys.readouterr()  # Energon prints what a sample raised
    assert run(["info", str(first)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{first}: epoch 0, behind batch 2 of it"
    assert lines[1] == "delivered  2 batches, 4 samples, 1 skipped"
    assert lines[2] == f"  {dataset}: 4 samples, 1 skipped"
    assert "  batch_size 2" in lines
    assert run(["info", str(first), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["counters"]["samples"] == 4
    assert run(["diff", str(first), str(first)]) == 0
    assert capsys.readouterr().out == "equal\n"
    assert run(["diff", str(first), str(second)]) == 1
    assert "counters.batches 2 -> 3" in capsys.readouterr().out
    assert run(["diff", str(first), str(third), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["identity"] == ["batch_size 2 -> 3"]


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["info", "chat.jsonl"], 1, "can't be read; allowed: what torch.save wrote"),
        (["info", "none.pt"], 1, "none.pt"),
        (["info", "list.pt"], 1, "list.pt: the state is not usable"),
        (["check-resume", "."], 1, "is not a prepared dataset"),
        (["check-resume", "none"], 2, "does not exist"),
        (["check-resume", ".", "--resume", "list.pt"], 1, "is not what --save wrote"),
        (["check-resume", ".", "--resume", "a", "--save", "b"], 2, "allowed: one of them"),
        (["prepare", "chat.jsonl", "out", "--split", "train"], 2, "allowed: NAME=VALUE"),
        (["prepare", "chat.jsonl", "out", "--split", "train=much"], 2, "allowed: a number"),
        (["prepare", "chat.jsonl", "."], 1, "is there already"),
        (["frobnicate"], 2, "No such command"),
    ],
)
def test_errors_are_one_line_with_an_exit_code(
    here: Path, capsys: pytest.CaptureFixture[str], args: list[str], code: int, message: str
) -> None:
    torch.save([1], here / "list.pt")
    assert run(args) == code
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
    assert not (here / "out").exists()
