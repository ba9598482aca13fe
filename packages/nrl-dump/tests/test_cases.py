"""The inputs behind public bug reports, each by its number."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from nrl_dump import StepIncompleteError, TrainDataDump

NAN, INF = math.nan, math.inf


def test_d01_shards_are_merged_by_the_value_of_their_number(tmp_path: Path, read_rows) -> None:
    for k in range(10, -1, -1):
        TrainDataDump(tmp_path, shard_id=str(k)).add_chunk(
            step=1,
            sample_ids=[f"s{k}"],
            tags=None,
            input_lengths=torch.tensor([1]),
            sequences={"t": torch.tensor([[k]])},
            scalars={},
        )
    TrainDataDump(tmp_path).finish_step(1, expected_rows=11)
    rows = read_rows(tmp_path / "train_data_step2.jsonl")
    assert [row["sample_id"] for row in rows] == [[f"s{k}"] for k in range(11)]
    assert [row["idx"] for row in rows] == list(range(11))


def test_d01_ids_that_are_no_numbers_come_after_them_in_text_order(tmp_path: Path, chunk, read_rows) -> None:
    ordered = ["2", "007", "10", "-1", "1e1", "b", "node1.gpu10", "node1.gpu3"]
    for shard_id in reversed(ordered):
        TrainDataDump(tmp_path, shard_id=shard_id).add_chunk(**chunk(1, prefix=shard_id))
    TrainDataDump(tmp_path).finish_step(1)
    rows = read_rows(tmp_path / "train_data_step2.jsonl")
    assert [row["sample_id"][0] for row in rows] == [f"{shard_id}0" for shard_id in ordered]


def test_d03_dtypes_that_numpy_does_not_have(tmp_path: Path, read_rows) -> None:
    dump = TrainDataDump(tmp_path)
    dump.add_chunk(
        step=1,
        sample_ids=["a"],
        tags=None,
        input_lengths=torch.tensor([2]),
        sequences={
            "lp": torch.tensor([[0.5, -1.25, 0.0]], dtype=torch.bfloat16),
            "m": torch.tensor([[True, False, False]]),
            "u": torch.tensor([[65535, 1, 0]], dtype=torch.uint16),
            "i": torch.tensor([[-128, 127, 0]], dtype=torch.int8),
        },
        scalars={"q": torch.tensor([0.1]).to(torch.float8_e4m3fn)},
    )
    dump.finish_step(1, 1)
    line = (tmp_path / "train_data_step2.jsonl").read_text()
    assert '"lp":[[0.5,-1.25]],"m":[[true,false]],"u":[[65535,1]],"i":[[-128,127]],"q":[0.1015625]}' in line


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # torch says it of every strided nested tensor
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_d05_jagged_scalars_keep_empty_and_one_item_rows(tmp_path: Path, read_rows, layout: torch.layout) -> None:
    rows = [torch.tensor([5, 6, 7]), torch.tensor([], dtype=torch.int64), torch.tensor([8])]
    dump = TrainDataDump(tmp_path)
    dump.add_chunk(
        step=1,
        sample_ids=["a", "b", "c"],
        tags=None,
        input_lengths=torch.tensor([2, 0, 1]),
        sequences={"t": torch.tensor([[1, 2], [3, 4], [5, 6]])},
        scalars={"prompt_ids": torch.nested.nested_tensor(rows, layout=layout)},
    )
    dump.finish_step(1, 3)
    written = read_rows(tmp_path / "train_data_step2.jsonl")
    assert [row["prompt_ids"] for row in written] == [[[5, 6, 7]], [[]], [[8]]]
    assert [row["t"] for row in written] == [[[1, 2]], [[]], [[5]]]


def non_finite_chunk() -> dict:
    return {
        "step": 1,
        "sample_ids": list("abcd"),
        "tags": [{"x": NAN}, {"x": INF, "deep": [{"y": -INF}]}, {"x": np.float32("nan")}, {"x": torch.tensor(INF)}],
        "input_lengths": torch.tensor([1, 1, 1, 1]),
        "sequences": {"lp": torch.tensor([[NAN, 0.0], [INF, 0.0], [-INF, 0.0], [0.0, 0.0]])},
        "scalars": {"reward": torch.tensor([NAN, INF, -INF, 1.0])},
    }


def test_d07_non_finite_numbers_come_back_different_from_each_other(tmp_path: Path, read_rows) -> None:
    dump = TrainDataDump(tmp_path)
    dump.add_chunk(**non_finite_chunk())
    dump.finish_step(1, 4)
    rows = read_rows(tmp_path / "train_data_step2.jsonl")
    assert repr([row["reward"][0] for row in rows]) == "[nan, inf, -inf, 1.0]"
    assert repr([row["lp"][0][0] for row in rows]) == "[nan, inf, -inf, 0.0]"
    assert repr([row["metadata"][0]["x"] for row in rows]) == "[nan, inf, nan, inf]"
    assert rows[1]["metadata"][0]["deep"][0]["y"] == -INF


@pytest.mark.parametrize(
    ("inf_nan", "expected"),
    [("strings", ["NaN", "Infinity", "-Infinity", 1.0]), ("null", [None, None, None, 1.0])],
)
def test_d07_the_strict_spellings(tmp_path: Path, inf_nan, expected: list) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    dump = TrainDataDump(tmp_path, inf_nan=inf_nan)
    dump.add_chunk(**non_finite_chunk())
    dump.finish_step(1, 4)
    lines = (tmp_path / "train_data_step2.jsonl").read_text().split("\n")[:-1]
    rows = [json.loads(line, parse_constant=refuse) for line in lines]
    assert [row["reward"][0] for row in rows] == expected
    assert [row["lp"][0][0] for row in rows] == [*expected[:3], 0.0]
    assert [row["metadata"][0]["x"] for row in rows] == [expected[0], expected[1], expected[0], expected[1]]


def test_d09_a_smaller_retry_is_refused_and_names_the_stale_parts(tmp_path: Path, chunk, read_rows) -> None:
    for shard_id in "0123":
        TrainDataDump(tmp_path, shard_id=shard_id).add_chunk(**chunk(2, step=5, prefix=f"old{shard_id}-"))
    for shard_id in "01":
        TrainDataDump(tmp_path, shard_id=shard_id).add_chunk(**chunk(2, step=5, prefix=f"new{shard_id}-"))
    controller = TrainDataDump(tmp_path)
    with pytest.raises(StepIncompleteError, match="4 rows are expected and 8 are there") as caught:
        controller.finish_step(5, expected_rows=4)
    for shard_id in "0123":
        assert f"train_data_step6.jsonl.part-{shard_id} has 2" in str(caught.value)
    assert not list(tmp_path.glob("*.jsonl"))
    assert all(row["sample_id"][0].startswith("new1") for row in read_rows(tmp_path / "train_data_step6.jsonl.part-1"))

    controller.discard_step(5)
    for shard_id in "01":
        TrainDataDump(tmp_path, shard_id=shard_id).add_chunk(**chunk(2, step=5, prefix=f"new{shard_id}-"))
    controller.finish_step(5, expected_rows=4)
    ids = [row["sample_id"][0] for row in read_rows(tmp_path / "train_data_step6.jsonl")]
    assert ids == ["new0-0", "new0-1", "new1-0", "new1-1"]


def test_d09_a_retry_on_the_same_object_needs_restart_step(tmp_path: Path, chunk, read_rows) -> None:
    dump = TrainDataDump(tmp_path)
    dump.add_chunk(**chunk(2, step=5))
    with pytest.raises(ValueError, match=r"'s0' was added to step 5 before: call restart_step\(5\)"):
        dump.add_chunk(**chunk(2, step=5))
    dump.restart_step(5)
    dump.add_chunk(**chunk(2, step=5))
    assert dump.finish_step(5, expected_rows=2).rows == 2
    assert len(read_rows(tmp_path / "train_data_step6.jsonl")) == 2


def test_d11_line_separators_survive_and_lone_surrogates_are_refused(tmp_path: Path, chunk, read_rows) -> None:
    ids = ["a\u2028b", "c\u0085d", "e\rf"]
    tags = [{"n": "x\u2029y"}, {"n": "\x0b\x0c"}, {"n": "z\ud800"}]
    first, second = TrainDataDump(tmp_path, shard_id="0"), TrainDataDump(tmp_path, shard_id="1")
    with pytest.raises(ValueError, match=r"tags\.n of sample 'e\\rf' is 'z\\ud800' .* which UTF-8 can't hold"):
        first.add_chunk(**chunk(3, sample_ids=ids, tags=tags))
    assert not list(tmp_path.iterdir())

    tags[2] = {"n": "z\u2028"}
    first.add_chunk(**chunk(3, sample_ids=ids, tags=tags))
    second.add_chunk(**chunk(3, sample_ids=ids, tags=tags))
    second.finish_step(1, expected_rows=6)
    rows = read_rows(tmp_path / "train_data_step2.jsonl")
    assert [row["sample_id"][0] for row in rows] == ids * 2
    assert [row["metadata"][0] for row in rows] == tags * 2
    assert [row["idx"] for row in rows] == list(range(6))


@pytest.mark.parametrize(
    "shard_id", ["../x", "a/b", "/x", "..", ".", "", "a\x00b", "a\nb", "x" * 300, "a b", "ü", "\u0661", 0, None]
)
def test_d13_shard_ids_that_are_paths_are_refused_before_anything_is_made(tmp_path: Path, shard_id) -> None:
    folder = tmp_path / "log"
    with pytest.raises(ValueError, match=r"shard_id is .* 1 to 128 characters"):
        TrainDataDump(folder, shard_id=shard_id)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("shard_id", ["0", "node1.gpu3", "a-b_c", "x" * 128, "...", "-"])
def test_d13_plain_shard_ids_work(tmp_path: Path, chunk, shard_id: str) -> None:
    dump = TrainDataDump(tmp_path / "log", shard_id=shard_id)
    dump.add_chunk(**chunk())
    assert dump.finish_step(1, 2, shard_ids=[shard_id]).shards[0].shard_id == shard_id


@pytest.mark.parametrize("step", [-1, True, False, "1", 1.0, None])
def test_d13_steps_that_are_no_steps_are_refused(tmp_path: Path, chunk, step) -> None:
    folder = tmp_path / "log"
    dump = TrainDataDump(folder)
    for call in (
        lambda: dump.add_chunk(**chunk(step=step)),
        lambda: dump.finish_step(step),
        lambda: dump.flush(step),
        lambda: dump.restart_step(step),
        lambda: dump.discard_step(step),
    ):
        with pytest.raises(ValueError, match=f"step is {step!r}: a whole number from 0"):
            call()
    assert not folder.exists()
