"""Conversations in files become a dataset that Energon reads; it is there whole or not at all."""

import contextlib
import errno
import json
from pathlib import Path
from typing import Any

import hf
import pytest
from data import plain_loader, write_jsonl
from nrl_energon_loader import build_energon_sft_loader
from nrl_energon_loader.config import EnergonSourceConfig
from nrl_energon_loader.prepare import prepare_dataset
from nrl_energon_loader.source import content
from nrl_interfaces import FolderInUseError
from nrl_interfaces.fileops import WRITE_NEW, FileOps, OutputFile
from nrl_interfaces.ownership import lock
from nrl_interfaces.testing.faults import FailingOps, KillingOps, operations, run_in_child


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": text}], **more}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "chat.jsonl", [chat(str(number)) for number in range(10)])


def texts(path: Path, **settings: Any) -> list[str]:
    with plain_loader(path, batch_size=1, **settings) as loader:
        return [batch["message_log"][0][-1]["content"] for batch in loader]


def test_a_jsonl_file_becomes_a_dataset_in_its_order(source: Path, tmp_path: Path) -> None:
    prepared = prepare_dataset(source, tmp_path / "out", shard_size=4)
    assert prepared.conversations == {"train": 10}
    assert prepared.shards == 3
    assert texts(tmp_path / "out") == [str(number) for number in range(10)]


def test_splits_are_dealt_out_by_their_shares(source: Path, tmp_path: Path) -> None:
    prepared = prepare_dataset(source, tmp_path / "out", splits={"train": 8, "val": 1, "test": 1}, shard_size=3)
    assert prepared.conversations == {"train": 8, "val": 1, "test": 1}
    given = {split: texts(tmp_path / "out", split=split) for split in prepared.conversations}
    assert sorted(int(text) for split in given.values() for text in split) == list(range(10))
    assert [len(each) for each in given.values()] == [8, 1, 1]


def test_a_folder_with_media(tmp_path: Path) -> None:
    folder = tmp_path / "chats"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "pictures").mkdir()
    for number in (1, 2):
        (folder / "deep" / "pictures" / f"{number}.PNG").write_bytes(hf.image_bytes(number))
    pictures = chat("see", media=["pictures/1.PNG", "pictures/2.PNG"])
    pictures["messages"][0]["content"] = [{"type": "image"}, {"type": "image"}, {"type": "text", "text": "which"}]
    (folder / "deep" / "one.json").write_text(json.dumps(pictures, indent=1))
    write_jsonl(folder / "a.jsonl", [chat("first"), chat("second")])
    (folder / "notes.txt").write_text("not read")
    prepare_dataset(folder, tmp_path / "out")
    with build_energon_sft_loader(
        data_config={"energon": {"num_workers": 0}},
        source={"path": str(tmp_path / "out")},
        processor=hf.make_processor(),
        batch_size=3,
        max_sequence_length=512,
        split_role="train",
        logical_rank=0,
        logical_world_size=1,
        placement_fingerprint="",
        packing_algorithm=None,
        max_sequences_per_bin=None,
        sequence_length_pad_multiple=1,
        only_unmask_final=False,
    ) as loader:
        (batch,) = list(loader)
        assert loader.counters["skipped"] == 0
    assert batch["source_ids"] == [f"train-000000.tar/0000000{number}" for number in range(3)]
    images = next(
        value for name, value in batch.items() if name not in ("message_log", "loss_multiplier", "source_ids")
    )
    assert [len(row) for row in images] in ([0, 0, 2], [0, 0, 1])


def test_equal_input_gives_equal_shards_and_equal_content(source: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        prepare_dataset(source, tmp_path / name, shard_size=4)
    one, two = (sorted((tmp_path / name).glob("*.tar")) for name in ("one", "two"))
    assert [shard.read_bytes() for shard in one] == [shard.read_bytes() for shard in two]
    contents = {content(EnergonSourceConfig(path=str(tmp_path / name)), "train") for name in ("one", "two")}
    assert len(contents) == 1


def test_one_changed_letter_is_another_content_though_every_size_is_the_same(source: Path, tmp_path: Path) -> None:
    prepare_dataset(source, tmp_path / "one")
    source.write_text(source.read_text().replace('"9"', '"8"'))
    prepare_dataset(source, tmp_path / "two")
    sizes = {(tmp_path / name / "train-000000.tar").stat().st_size for name in ("one", "two")}
    assert len(sizes) == 1
    contents = {content(EnergonSourceConfig(path=str(tmp_path / name)), "train") for name in ("one", "two")}
    assert len(contents) == 2


def test_subflavors_reach_the_cookers(source: Path, tmp_path: Path) -> None:
    prepare_dataset(source, tmp_path / "out", subflavors={"kind": "a: b"})
    cookers = [{"cooker": "generic_conversation", "has_subflavors": {"kind": "a: b"}}]
    assert len(texts(tmp_path / "out", energon={"cookers": cookers})) == 10


BAD: dict[str, tuple[str, str]] = {
    "no JSON": ("{", "chat.jsonl:1: no JSON"),
    "a list": ("[]", "chat.jsonl:1: its JSON is a list"),
    "no messages": ("{}", "chat.jsonl:1': "),
    "unknown role": (json.dumps({"messages": [{"role": "robot", "content": "a"}]}), "robot"),
    "medium is missing": (json.dumps(chat("a", media=["none.png"])), "media[0] 'none.png' can't be read"),
    "a medium nobody refers to": (json.dumps(chat("a", media=["chat.jsonl"])), "chat.jsonl:1"),
    "nothing": ("", "there is no conversation"),
}


@pytest.mark.parametrize("name", list(BAD))
def test_bad_conversations_are_refused_by_file_and_line_and_leave_nothing(tmp_path: Path, name: str) -> None:
    text, message = BAD[name]
    source = tmp_path / "chat.jsonl"
    source.write_text(text + "\n")
    with pytest.raises(ValueError) as caught:
        prepare_dataset(source, tmp_path / "out")
    assert message in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chat.jsonl"]


def test_bad_settings(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for settings, message in (
        ({"splits": {"a-b": 1}}, "the split's name 'a-b'"),
        ({"splits": {"a": 0}}, "the share of split 'a' is 0"),
        ({"splits": {}}, "splits is empty"),
        ({"splits": {"a": 1, "b": 1e-9}}, "split 'b' gets none of 10 conversations"),
        ({"shard_size": 0}, "shard_size is 0"),
    ):
        with pytest.raises(ValueError, match=message):
            prepare_dataset(source, out, **settings)
    assert not out.exists()
    with pytest.raises(FileNotFoundError, match="is not there"):
        prepare_dataset(tmp_path / "none.jsonl", out)
    out.mkdir()
    with pytest.raises(FileExistsError, match="allowed: a new folder"):
        prepare_dataset(source, out)


def test_two_at_a_time_are_refused(source: Path, tmp_path: Path) -> None:
    with OutputFile(tmp_path / "out.lock", WRITE_NEW, FileOps()) as file:
        lock(file)
        with pytest.raises(FolderInUseError):
            prepare_dataset(source, tmp_path / "out")


@pytest.mark.slow
def test_whatever_operation_fails_or_kills_the_dataset_is_whole_or_absent(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "chat.jsonl", [chat("1"), chat("2")])
    numbered = (tmp_path / f"run {number}" for number in range(10_000))

    def prepare(ops: FileOps, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        prepare_dataset(source, folder / "out", shard_size=1, ops=ops)

    def is_whole(folder: Path) -> bool:
        if not (folder / "out").exists():
            return False
        assert texts(folder / "out") == ["1", "2"]
        return True

    names = operations(lambda ops: prepare(ops, next(numbered)))
    assert {"open", "write", "fsync", "fsync_folder", "mkdir", "rename", "unlink"} <= set(names)
    outcomes: set[bool] = set()
    for at in range(len(names)):
        folder = next(numbered)
        with contextlib.suppress(OSError):
            prepare(FailingOps(at, errno.ENOSPC), folder)
        outcomes.add(is_whole(folder))
        folder = next(numbered)
        run_in_child(lambda at=at, folder=folder: prepare(KillingOps(at, "before"), folder))
        if not is_whole(folder):
            prepare(FileOps(), folder)  # nothing that was left behind is in the way
            assert is_whole(folder)
            assert sorted(path.name for path in folder.iterdir()) == ["out"]
    assert outcomes == {False, True}
