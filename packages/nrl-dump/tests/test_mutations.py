"""Files with changed bytes, 300 of each format: told as what they are, and never an error that nobody expects."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from nrl_dump import (
    DamagedStepError,
    StepIncompleteError,
    TrainDataDump,
    read_step,
    read_tensors,
    verify,
)

DATA, MANIFEST, COLUMNS, PART = (
    "train_data_step1.jsonl",
    "train_data_step1.manifest.json",
    "train_data_step1.columns-0.json",
    "train_data_step1.jsonl.part-0",
)
MUTATIONS = 300


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "dump"


@pytest.fixture
def write(folder: Path) -> Callable[[], TrainDataDump]:
    def write() -> TrainDataDump:
        dump = TrainDataDump(folder)
        dump.add_chunk(
            step=0,
            sample_ids=["a", "b\u2028", "c"],
            tags=[{"k": [1, 0.5, None, "x"]}, {}, {"n": float("nan")}],
            input_lengths=torch.tensor([2, 0, 3]),
            sequences={"t": torch.arange(9).reshape(3, 3), "lp": torch.randn(3, 3, 2).bfloat16()},
            scalars={"r": torch.tensor([1.5, float("-inf"), 0.0]), "l": torch.zeros(3, 2, dtype=torch.uint8)},
        )
        dump.flush(0)
        return dump

    return write


def mutations(content: bytes) -> Iterator[bytes]:
    """Bytes flipped, replaced by ones that mean something in JSON, cut out, doubled, torn off, and other files."""
    rng = random.Random(0)
    yield from (b"", b"\n", b"{}", b"[]", b"null", b"7", content[:-1], content + content, content.replace(b"1", b"-1"))
    for _ in range(MUTATIONS):
        at, length = rng.randrange(len(content)), rng.randint(1, 12)
        new = bytes(rng.choice(b'0123456789abcxyz{}[]:,." \n\\-eN\0\xff') for _ in range(rng.randint(1, 3)))
        kind = rng.randrange(6)
        if kind == 0:
            yield content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :]
        elif kind == 1:
            yield content[:at] + new + content[at + len(new) :]
        elif kind == 2:
            yield content[:at] + content[at + length :]
        elif kind == 3:
            yield content[: at + length] + content[at:]
        elif kind == 4:
            yield content[:at]
        else:
            yield content[:at] + new + content[at:]


def test_every_change_of_a_published_file_is_damage(folder: Path, write) -> None:
    write().finish_step(0, 3)
    path = folder / DATA
    whole = path.read_bytes()
    for content in mutations(whole):
        if content == whole:
            continue
        path.write_bytes(content)
        with pytest.raises(DamagedStepError):
            verify(path)
        for read in (lambda: list(read_step(path)), lambda: read_tensors(path)):
            try:
                read()
            except DamagedStepError:
                continue
            assert len(content) == len(whole)  # only the digest, which readers leave to verify, tells


def test_a_changed_manifest_is_damage_or_says_the_same(folder: Path, write) -> None:
    whole = write().finish_step(0, 3)
    path = folder / MANIFEST
    refused = 0
    for content in mutations(path.read_bytes()):
        path.write_bytes(content)
        try:
            assert verify(folder / DATA) == whole  # the change is of white space alone
            read_tensors(folder / DATA)
        except DamagedStepError:
            refused += 1
            with pytest.raises(DamagedStepError):
                read_tensors(folder / DATA)
    assert refused > MUTATIONS / 2
    write().finish_step(0, 3)  # and the step can be published over it
    assert verify(folder / DATA).rows == 3


def test_a_changed_column_file_is_refused_or_says_the_same(folder: Path, write) -> None:
    write()
    path = folder / COLUMNS
    text = path.read_bytes()
    refused = 0
    for content in mutations(text):
        write().close()
        path.write_bytes(content)
        try:
            TrainDataDump(folder, shard_id="controller").finish_step(0, 3)
        except RuntimeError as error:
            refused += 1
            assert "step 0" in str(error) or "discard_step(0)" in str(error)
            continue
        assert verify(folder / DATA).rows == 3
    assert refused > MUTATIONS / 2


def test_a_changed_part_is_refused_or_published_as_whole_lines(folder: Path, write) -> None:
    write()
    part = folder / PART
    whole = part.read_bytes()
    refused = 0
    for content in mutations(whole):
        write().close()
        part.write_bytes(content)
        try:
            TrainDataDump(folder, shard_id="controller").finish_step(0, 3)
        except StepIncompleteError:
            refused += 1
            continue
        lines = (folder / DATA).read_bytes().split(b"\n")
        assert lines.pop() == b""
        assert [line[: line.index(b",")] for line in lines] == [b'{"idx":%d' % i for i in range(3)]
        assert all(line.endswith(b"}") for line in lines)
        assert verify(folder / DATA).rows == 3
    assert refused > MUTATIONS / 5


@pytest.mark.parametrize("name", ["step", "rows", "bytes", "xxh3_128", "inf_nan", "input_lengths", "columns", "shards"])
@pytest.mark.parametrize("value", [None, "x", -1, 1.5, [], {}, True, [None], [{}]])
def test_a_manifest_s_values_are_checked(folder: Path, write, name: str, value) -> None:
    write().finish_step(0, 3)
    path = folder / MANIFEST
    data = json.loads(path.read_bytes())
    path.write_text(json.dumps(data | {name: value}))
    for read in (verify, read_tensors):
        with pytest.raises(DamagedStepError):
            read(folder / DATA)
