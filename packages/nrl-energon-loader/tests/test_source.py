"""What the content of a source is, and what it is not."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from data import numbers, plain_dataset, plain_loader, write_jsonl
from megatron.energon.epathlib import EPath
from megatron.energon.flavors.jsonl.jsonl_prepare import JsonlPreparator
from nrl_energon_loader.config import EnergonSourceConfig
from nrl_energon_loader.source import PREPARED, content


@pytest.fixture
def path(datasets: Path, tmp_path: Path) -> Path:
    """A dataset as Energon's own prepare leaves it, without our digests."""
    ours = plain_dataset(datasets / "content", numbers(12), splits={"train": 0.5, "val": 0.5}, shard_size=3)
    copied = tmp_path / "energon's"
    shutil.copytree(ours, copied)
    (copied / ".nv-meta" / PREPARED).unlink()
    return copied


def of(path: Path, split: str | None = None) -> str:
    return content(EnergonSourceConfig(path=str(path), split=split), "train")


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def append(path: Path, text: str) -> None:
    path.write_bytes(path.read_bytes() + text.encode())


SAME: dict[str, Callable[[Path], object]] = {
    "indexed anew": lambda path: (path / ".nv-meta" / "index.uuid").write_text("another"),
    "prepared by another version": lambda path: edit(path / ".nv-meta" / ".info.json", '"7.', '"8.'),
    "a file beside it": lambda path: (path / "notes.txt").write_text("mine"),
}
OTHER: dict[str, Callable[[Path], object]] = {
    "a shard grew": lambda path: append(path / "val-000001.tar", "x"),
    "another count": lambda path: edit(
        path / ".nv-meta" / ".info.json", '"train-000000.tar": 3', '"train-000000.tar": 2'
    ),
    "another cooker's data": lambda path: append(path / ".nv-meta" / "dataset.yaml", "subflavors: {a: b}\n"),
    "another split": lambda path: append(path / ".nv-meta" / "split.yaml", "# changed\n"),
    "our digests": lambda path: (path / ".nv-meta" / PREPARED).write_text("{}"),
}


@pytest.mark.parametrize("change", list(SAME))
def test_these_do_not_change_it(path: Path, change: str) -> None:
    before = of(path)
    SAME[change](path)
    assert of(path) == before


@pytest.mark.parametrize("change", list(OTHER))
def test_these_change_it(path: Path, change: str) -> None:
    before = of(path)
    OTHER[change](path)
    assert of(path) != before


def test_it_is_the_same_wherever_the_dataset_lies_and_for_each_split(path: Path, tmp_path: Path) -> None:
    shutil.copytree(path, tmp_path / "deeper" / "copy")
    assert of(tmp_path / "deeper" / "copy") == of(path) == of(path, split="val")


def test_of_a_metadataset_it_is_what_it_says_of_each_dataset(path: Path, tmp_path: Path) -> None:
    shutil.copytree(path, tmp_path / "other")

    def blend(name: str, first: str, weight: float) -> Path:
        parts = [{"path": first, "weight": weight}, {"path": "other", "weight": 1}]
        described = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
        file = tmp_path / name
        file.write_text(json.dumps({**described, "splits": {"train": {"blend": parts}}}))
        return file

    one = of(blend("one.yaml", "energon's", 2))
    assert of(blend("absolute.yaml", str(path), 2)) == one
    assert of(blend("weight.yaml", "energon's", 3)) != one
    append(tmp_path / "other" / "train-000000.tar", "x")
    assert of(tmp_path / "one.yaml") != one


def test_a_jsonl_file_without_an_index_is_refused(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "chat.jsonl", [{"messages": []}])
    with pytest.raises(ValueError, match="can't be read"):
        plain_loader(file)


def test_an_indexed_jsonl_file_is_read_and_resumed(tmp_path: Path) -> None:
    question = {"role": "user", "content": "q"}
    records = [{"messages": [question, {"role": "assistant", "content": str(n)}]} for n in range(9)]
    file = write_jsonl(tmp_path / "chat.jsonl", records)
    JsonlPreparator.prepare_dataset(EPath(str(file)))
    with plain_loader(file) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        rest = [batch["message_log"][0][-1]["content"] for batch in batches]
    with plain_loader(file) as loader:
        loader.load_state_dict(state)
        assert [batch["message_log"][0][-1]["content"] for batch in loader] == rest == ["2", "4", "6", "8"]
    before = of(file)
    write_jsonl(file, records[:8])
    JsonlPreparator.prepare_dataset(EPath(str(file)))
    assert of(file) != before
