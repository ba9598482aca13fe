"""Publishing: what is found, checked, refused, waited for, replaced and dropped."""

import json
import pickle
import shutil
import threading
from concurrent.futures import wait
from pathlib import Path

import pytest
import torch
import xxhash
from nrl_dump import (
    DamagedStepError,
    FolderInUseError,
    InterruptedStepError,
    Manifest,
    NotPublishedError,
    StepIncompleteError,
    TornPartError,
    TrainDataDump,
    verify,
)
from nrl_dump import merge as merging
from nrl_interfaces.fileops import FileOps

DATA, MANIFEST = "train_data_step2.jsonl", "train_data_step2.manifest.json"


def write(folder: Path, shard_id: str, chunk: dict, **settings) -> None:
    with TrainDataDump(folder, shard_id=shard_id, **settings) as dump:
        dump.add_chunk(**chunk)


class FakeTime:
    """A clock that only sleeping moves; `then` happens when it has reached its moment."""

    def __init__(self, at: float = 1e9, then=lambda: None) -> None:
        self.now, self.slept = 100.0, 0.0
        self.at, self.then = at, then

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds
        self.slept += seconds
        if self.slept >= self.at:
            self.at = 1e9
            self.then()

    def dump(self, folder: Path, **settings) -> TrainDataDump:
        return TrainDataDump(folder, shard_id="controller", clock=self.clock, sleep=self.sleep, **settings)


def test_the_manifest_says_what_the_file_holds(tmp_path: Path, chunk, read_rows) -> None:
    write(tmp_path, "0", chunk(3, prefix="a"))
    write(tmp_path, "1", chunk(2, prefix="b"))
    manifest = TrainDataDump(tmp_path).finish_step(1, 5, shard_ids=["1", "0"])
    content = (tmp_path / DATA).read_bytes()
    assert (manifest.number, manifest.rows, manifest.bytes) == (2, 5, len(content))
    assert manifest.xxh3_128 == xxhash.xxh3_128_hexdigest(content)
    assert [(shard.shard_id, shard.rows) for shard in manifest.shards] == [("0", 3), ("1", 2)]
    assert sum(shard.bytes for shard in manifest.shards) == len(content)
    assert {path.name for path in tmp_path.iterdir()} == {DATA, MANIFEST}
    assert Manifest.from_bytes((tmp_path / MANIFEST).read_bytes()) == verify(tmp_path / DATA) == manifest
    written = json.loads((tmp_path / MANIFEST).read_bytes())
    assert written["format_version"] == 1
    assert written["columns"] == [
        {"name": "t", "kind": "sequence", "dtype": "int64", "item_shape": []},
        {"name": "r", "kind": "scalar", "dtype": "float32", "item_shape": []},
    ]


@pytest.mark.parametrize("block_bytes", [1, 2, 3, 7, 64, 1 << 20])
def test_where_blocks_end_changes_nothing(tmp_path: Path, chunk, read_rows, monkeypatch, block_bytes: int) -> None:
    monkeypatch.setattr(merging, "_BLOCK_BYTES", block_bytes)
    write(tmp_path, "0", chunk(3, prefix="a"))
    write(tmp_path, "1", chunk(2, prefix="b"))
    parts = b"".join((tmp_path / f"{DATA}.part-{i}").read_bytes() for i in range(2)).splitlines()
    TrainDataDump(tmp_path).finish_step(1, 5)
    assert (tmp_path / DATA).read_bytes().splitlines() == [b'{"idx":%d,' % i + row[1:] for i, row in enumerate(parts)]
    assert verify(tmp_path / DATA).rows == 5


def test_a_step_is_no_prefix_of_another(tmp_path: Path, chunk) -> None:
    for step in (0, 1, 9, 10, 19, 109):
        write(tmp_path, "0", chunk(1, step=step))
    controller = TrainDataDump(tmp_path)
    for step in (0, 1, 9, 10, 19, 109):
        assert controller.finish_step(step, 1).rows == 1


def test_no_part_and_no_row_are_refused(tmp_path: Path, chunk) -> None:
    dump = TrainDataDump(tmp_path / "nowhere")
    with pytest.raises(RuntimeError, match="step 1 is not published: there is no part of it in"):
        dump.finish_step(1)
    write(tmp_path, "0", chunk(0))
    with pytest.raises(StepIncompleteError, match=r"its parts have no row: \['0'\]"):
        TrainDataDump(tmp_path).finish_step(1)
    assert not (tmp_path / DATA).exists()


def test_a_wrong_count_names_both_causes_and_keeps_the_parts(tmp_path: Path, chunk) -> None:
    write(tmp_path, "0", chunk(3, prefix="a"))
    write(tmp_path, "7", chunk(2, prefix="b"))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(StepIncompleteError) as caught:
        TrainDataDump(tmp_path).finish_step(1, expected_rows=9)
    error = caught.value
    assert (error.step, error.expected_rows, error.rows) == (1, 9, {"0": 3, "7": 2})
    for words in (
        "9 rows are expected and 5 are there",
        f"{DATA}.part-0 has 3",
        f"{DATA}.part-7 has 2",
        "another file system",
        "shows new files late",
    ):
        assert words in str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.rows) == (type(error), str(error), error.rows)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert TrainDataDump(tmp_path).finish_step(1, expected_rows=5).rows == 5


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (b'{"step":2,"sample_id":["x', f"line 4 of {DATA}.part-1 is torn: the part ends in the middle"),
        (b'{"step":2,"sample_id":["x\n', f"line 4 of {DATA}.part-1 is torn: it does not end with a brace"),
        (b"\0\0\0\0", f"line 4 of {DATA}.part-1 is not a row"),
        (b"\n", f"line 4 of {DATA}.part-1 is not a row"),
    ],
)
@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
def test_a_torn_line_is_refused_by_part_and_line(
    tmp_path: Path, chunk, monkeypatch, end: bytes, message: str, block_bytes: int
) -> None:
    monkeypatch.setattr(merging, "_BLOCK_BYTES", block_bytes)
    write(tmp_path, "0", chunk(2, prefix="a"))
    write(tmp_path, "1", chunk(3, prefix="b"))
    with (tmp_path / f"{DATA}.part-1").open("ab") as part:
        part.write(end)
    with pytest.raises(TornPartError, match=message):
        TrainDataDump(tmp_path).finish_step(1)
    assert not (tmp_path / DATA).exists()
    assert not (tmp_path / f"{DATA}.partial").exists()


def test_shards_with_other_columns_are_refused_by_name(tmp_path: Path, chunk) -> None:
    write(tmp_path, "0", chunk(1, prefix="a"))
    write(tmp_path, "1", chunk(1, prefix="b", scalars={"r": torch.ones(1, dtype=torch.float64)}))
    with pytest.raises(
        RuntimeError, match=r"shards '0' \(there\) and '1' \(here\) .* column 'r' is scalar float32 there"
    ):
        TrainDataDump(tmp_path).finish_step(1)
    write(tmp_path, "1", chunk(1, prefix="b", scalars={"r": torch.ones(1)}), inf_nan="null")
    with pytest.raises(RuntimeError, match="inf_nan is 'constants' there and 'null' here"):
        TrainDataDump(tmp_path).finish_step(1)
    scalars, sequences = {"b": torch.ones(1), "r": torch.ones(1)}, {"t": torch.ones(1, 3, dtype=torch.int64)}
    write(tmp_path, "0", chunk(1, prefix="a", scalars=scalars, sequences=sequences))
    write(tmp_path, "1", chunk(1, prefix="b", scalars=dict(reversed(scalars.items())), sequences=sequences))
    with pytest.raises(RuntimeError, match="columns stand in the order"):
        TrainDataDump(tmp_path).finish_step(1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "can't be read"),
        (b"[]", "can't be read"),
        (b'{"format": "other", "format_version": 1}', "format is 'other'"),
        (b'{"format": "nrl-dump columns", "format_version": 2}', "format version is 2: this nrl-dump reads 1 to 1"),
    ],
)
def test_a_column_file_that_is_none_is_refused(tmp_path: Path, chunk, content: bytes, message: str) -> None:
    write(tmp_path, "0", chunk(1))
    (tmp_path / "train_data_step2.columns-0.json").write_bytes(content)
    with pytest.raises(RuntimeError, match=message):
        TrainDataDump(tmp_path).finish_step(1)


def test_a_part_without_a_column_file_of_a_new_step_is_refused(tmp_path: Path, chunk) -> None:
    write(tmp_path, "0", chunk(1))
    (tmp_path / "train_data_step2.columns-0.json").unlink()
    with pytest.raises(StepIncompleteError, match=r"columns-0.json of shard '0' is not there"):
        TrainDataDump(tmp_path).finish_step(1)


def test_a_part_without_a_column_file_of_a_published_step_is_a_left_over(tmp_path: Path, chunk) -> None:
    write(tmp_path, "0", chunk(2))
    controller = TrainDataDump(tmp_path)
    controller.finish_step(1)
    published = (tmp_path / DATA).read_bytes()
    (tmp_path / f"{DATA}.part-3").write_bytes(b'{"step":2,"sample_id":["x"]}\n')
    with pytest.raises(RuntimeError, match=rf"{DATA}.part-3 without a column file are left-overs"):
        controller.finish_step(1)
    assert (tmp_path / DATA).read_bytes() == published
    assert controller.discard_step(1) == [f"{DATA}.part-3"]
    assert verify(tmp_path / DATA).rows == 2


@pytest.mark.parametrize(
    "kept", [["part-0", "part-1"], ["part-1"], ["part-0", "part-1", "columns"], ["part-1", "columns"]]
)
def test_the_parts_of_a_finished_publication_are_cleaned_up_and_not_published_again(
    tmp_path: Path, chunk, kept: list[str]
) -> None:
    """A crash while parts and column files are taken away, at each kind of place."""
    write(tmp_path, "0", chunk(2, prefix="a"))
    write(tmp_path, "1", chunk(1, prefix="b"))
    copies = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    controller = TrainDataDump(tmp_path)
    manifest = controller.finish_step(1, 3)
    published = (tmp_path / DATA).read_bytes()
    for name, content in copies.items():
        if name == "train_data_step2.columns-1.json" and "columns" in kept:
            (tmp_path / name).write_bytes(content)
        if any(name.endswith(ending) for ending in kept):
            (tmp_path / name).write_bytes(content)
    assert controller.finish_step(1, 3, shard_ids=["0", "1"]) == manifest
    assert (tmp_path / DATA).read_bytes() == published
    assert {path.name for path in tmp_path.iterdir()} == {DATA, MANIFEST}
    with pytest.raises(StepIncompleteError, match=f"no part of it .*{DATA} is published already"):
        controller.finish_step(1, 3)


def test_a_published_step_written_again_with_the_same_rows_is_not_taken_for_a_left_over(tmp_path: Path, chunk) -> None:
    for shards in (["0", "1"], ["0"]):  # the second attempt is a smaller pool: shard 1's rows must go
        for shard_id in shards:
            write(tmp_path, shard_id, chunk(2, prefix=shard_id))
        manifest = TrainDataDump(tmp_path).finish_step(1)
        assert [shard.shard_id for shard in manifest.shards] == shards
        assert verify(tmp_path / DATA).rows == 2 * len(shards)


def test_a_step_published_before_is_replaced(tmp_path: Path, chunk, read_rows) -> None:
    for prefix in ("old", "new"):
        write(tmp_path, "0", chunk(2, prefix=prefix))
        TrainDataDump(tmp_path).finish_step(1)
        assert verify(tmp_path / DATA).rows == 2
    assert [row["sample_id"][0] for row in read_rows(tmp_path / DATA)] == ["new0", "new1"]


def test_named_shards_are_waited_for(tmp_path: Path, chunk) -> None:
    write(tmp_path, "0", chunk(2, prefix="a"))
    fake = FakeTime(at=5, then=lambda: write(tmp_path, "1", chunk(1, prefix="b")))
    assert fake.dump(tmp_path).finish_step(1, 3, shard_ids=["0", "1"]).rows == 3
    assert 5 <= fake.slept < 7


@pytest.mark.parametrize("late", ["rows", "columns", "end of a line"])
def test_a_short_part_is_looked_at_again(tmp_path: Path, chunk, late: str) -> None:
    write(tmp_path, "0", chunk(3))
    part, columns = tmp_path / f"{DATA}.part-0", tmp_path / "train_data_step2.columns-0.json"
    whole, path = (part.read_bytes(), part) if late != "columns" else (columns.read_bytes(), columns)
    if late == "rows":
        part.write_bytes(b"".join(whole.splitlines(keepends=True)[:2]))
    elif late == "columns":
        columns.unlink()
    else:
        part.write_bytes(whole[:-5])
    fake = FakeTime(at=1, then=lambda: path.write_bytes(whole))
    assert fake.dump(tmp_path).finish_step(1, 3, shard_ids=["0"]).rows == 3


def test_waiting_ends_at_the_time_limit(tmp_path: Path, chunk) -> None:
    write(tmp_path, "0", chunk(2))
    for limit in (0, 3.5):
        fake = FakeTime()
        with pytest.raises(
            StepIncompleteError, match=r"the parts of shards \['1', '2'\] are not in .*another file system"
        ):
            fake.dump(tmp_path).finish_step(1, 5, shard_ids=["0", "2", "1"], visibility_timeout_s=limit)
        assert fake.slept == pytest.approx(limit)


def test_a_part_that_does_not_change_is_not_merged_again(tmp_path: Path, chunk) -> None:
    class Count(FileOps):
        writes = 0

        def write(self, fd: int, data) -> int:
            self.writes += 1
            return super().write(fd, data)

    write(tmp_path, "0", chunk(2))
    ops, fake = Count(), FakeTime()
    with pytest.raises(StepIncompleteError, match="3 rows are expected and 2 are there"):
        fake.dump(tmp_path, file_ops=ops).finish_step(1, 3, shard_ids=["0"])
    assert fake.slept == pytest.approx(30)
    assert ops.writes == 1


def test_what_waiting_can_not_mend_is_refused_at_once(tmp_path: Path, chunk) -> None:
    write(tmp_path, "0", chunk(2))
    write(tmp_path, "1", chunk(2, prefix="b"))
    fake = FakeTime()
    dump = fake.dump(tmp_path)
    with pytest.raises(StepIncompleteError, match=f"beside the shards .*'0'.* there are {DATA}.part-1"):
        dump.finish_step(1, 2, shard_ids=["0"])
    with pytest.raises(StepIncompleteError, match="3 rows are expected and 4 are there"):
        dump.finish_step(1, 3, shard_ids=["0", "1"])
    with pytest.raises(StepIncompleteError, match="5 rows are expected and 4 are there"):
        dump.finish_step(1, 5)  # no shards named: what is there counts
    assert fake.slept == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"expected_rows": -1}, "expected_rows is -1"),
        ({"expected_rows": True}, "expected_rows is True"),
        ({"expected_rows": 2.0}, "expected_rows is 2.0"),
        ({"shard_ids": []}, "shard_ids is empty"),
        ({"shard_ids": "01"}, "shard_ids is '01'"),
        ({"shard_ids": ["../x"]}, "shard_id is '../x'"),
        ({"visibility_timeout_s": -1}, "visibility_timeout_s is -1"),
        ({"visibility_timeout_s": float("nan")}, "visibility_timeout_s is nan"),
        ({"visibility_timeout_s": float("inf")}, "visibility_timeout_s is inf"),
    ],
)
def test_arguments_are_checked_first(tmp_path: Path, chunk, arguments: dict, message: str) -> None:
    dump = TrainDataDump(tmp_path)
    dump.add_chunk(**chunk())
    for call in (dump.finish_step, dump.publish_in_background):
        with pytest.raises(ValueError, match=message):
            call(1, **arguments)
    assert not (tmp_path / DATA).exists()


def test_a_part_that_grows_while_it_is_merged_is_not_published(tmp_path: Path, chunk) -> None:
    writer = TrainDataDump(tmp_path, shard_id="1")
    writer.add_chunk(**chunk(2, prefix="a"))

    class Meanwhile(FileOps):
        def fsync(self, fd: int) -> None:
            writer.add_chunk(**chunk(1, prefix="late"))
            super().fsync(fd)

    with pytest.raises(StepIncompleteError, match="a part was written to while it was merged"):
        TrainDataDump(tmp_path, file_ops=Meanwhile()).finish_step(1)
    assert not (tmp_path / DATA).exists()
    assert TrainDataDump(tmp_path).finish_step(1, 3).rows == 3


def test_two_controllers_do_not_publish_one_step_at_once(tmp_path: Path, chunk) -> None:
    write(tmp_path, "0", chunk(2))
    other = TrainDataDump(tmp_path)

    class Meanwhile(FileOps):
        def write(self, fd: int, data) -> int:
            with pytest.raises(FolderInUseError, match=f"{DATA}.partial is in use"):
                other.finish_step(1)
            return super().write(fd, data)

    assert TrainDataDump(tmp_path, file_ops=Meanwhile()).finish_step(1, 2).rows == 2


def test_publishing_in_the_background_while_the_next_step_is_written(tmp_path: Path, chunk) -> None:
    began, go_on = threading.Event(), threading.Event()

    class Slow(FileOps):
        def rename(self, source: Path, target: Path) -> None:
            if target.name == MANIFEST:
                began.set()
                assert go_on.wait(20)
            super().rename(source, target)

    with TrainDataDump(tmp_path, file_ops=Slow()) as dump:
        dump.add_chunk(**chunk(2))
        future = dump.publish_in_background(1, 2)
        assert began.wait(20)
        dump.add_chunk(**chunk(3, step=2))
        assert dump.flush(2) == 3
        assert not future.done()
        go_on.set()
        assert future.result(20).rows == 2
        assert dump.finish_step(2, 3).rows == 3


@pytest.mark.parametrize("ended", [True, False])
def test_a_background_error_is_raised_by_the_next_call_and_once(tmp_path: Path, chunk, ended: bool) -> None:
    dump = TrainDataDump(tmp_path)
    dump.add_chunk(**chunk(2))
    future = dump.publish_in_background(1, 7)
    with pytest.raises(StepIncompleteError):
        future.result(20)
    with pytest.raises(StepIncompleteError, match="7 rows are expected and 2 are there"):
        dump.add_chunk(**chunk(2, step=2))
    dump.add_chunk(**chunk(2, step=2))
    go_on = threading.Event()
    dump._pool.submit(lambda: go_on.wait(20))  # holds both back, or the second call would meet the first
    both = dump.publish_in_background(1, 7), dump.publish_in_background(3)
    go_on.set()
    if ended:
        wait(both, 20)
    with pytest.raises(StepIncompleteError, match="step 1 is not published") as caught:  # closing waits for both
        dump.close()
    assert "step 3 is not published" in caught.value.__notes__[0]
    dump.close()


def test_keep_last_drops_older_steps_after_a_publication(tmp_path: Path, chunk) -> None:
    with TrainDataDump(tmp_path, keep_last=2) as dump:
        for step in (1, 8, 9, 10, 3):  # at last a run that was taken back to step 3
            dump.add_chunk(**chunk(step=step))
            dump.finish_step(step)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"train_data_step{n}.{ending}" for n in (4, 10, 11) for ending in ("jsonl", "manifest.json")
    )


def test_verify_tells_whole_from_interrupted_from_damaged(tmp_path: Path, chunk) -> None:
    path = tmp_path / DATA
    with pytest.raises(ValueError, match=r"'other.jsonl' is not a published step"):
        verify(tmp_path / "other.jsonl")
    with pytest.raises(FileNotFoundError, match="is not there, nor any part"):
        verify(path)
    write(tmp_path, "0", chunk(2))
    with pytest.raises(
        NotPublishedError, match=r"parts of the shards \['0'\] are there; finish_step\(1\) publishes"
    ) as parts:
        verify(path)
    assert str(pickle.loads(pickle.dumps(parts.value))) == str(parts.value)
    (tmp_path / f"{DATA}.partial").touch()
    with pytest.raises(InterruptedStepError, match=r"call finish_step\(1\) again"):
        verify(path)
    (tmp_path / f"{DATA}.partial").unlink()
    parts = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    TrainDataDump(tmp_path).finish_step(1)
    whole = path.read_bytes()

    path.write_bytes(whole[:-1])
    with pytest.raises(
        DamagedStepError, match=f"{len(whole) - 1} bytes are not the {len(whole)} of its manifest"
    ) as caught:
        verify(path)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    path.write_bytes(whole.replace(b"s0", b"sX"))
    with pytest.raises(DamagedStepError, match="digest"):
        verify(str(path))
    for name, content in parts.items():  # the same disagreement, but the step can be published again
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InterruptedStepError, match="digest") as interrupted:
        verify(path)
    assert str(pickle.loads(pickle.dumps(interrupted.value))) == str(interrupted.value)
    TrainDataDump(tmp_path).finish_step(1)
    assert verify(path).rows == 2

    shutil.copy(tmp_path / MANIFEST, tmp_path / "kept")
    for content, message in ((b"{", "can't be read"), (b"{}", "can't be read")):
        (tmp_path / MANIFEST).write_bytes(content)
        with pytest.raises(DamagedStepError, match=message):
            verify(path)
    (tmp_path / MANIFEST).unlink()
    with pytest.raises(DamagedStepError, match=r"manifest.json is not there"):
        verify(path)
    shutil.copy(tmp_path / "kept", tmp_path / MANIFEST)
    path.unlink()
    with pytest.raises(DamagedStepError, match="the file is not there"):
        verify(path)


def test_a_file_without_a_manifest_is_mended_by_its_parts(tmp_path: Path, chunk) -> None:
    """As an older logger left it, or a power cut that lost one of two renames."""
    (tmp_path / DATA).write_text('{"idx": 0}\n')
    write(tmp_path, "0", chunk(2))
    with pytest.raises(InterruptedStepError, match=r"manifest.json is not there"):
        verify(tmp_path / DATA)
    TrainDataDump(tmp_path).finish_step(1)
    assert verify(tmp_path / DATA).rows == 2


def test_a_damaged_manifest_does_not_stop_the_step_from_being_published_again(tmp_path: Path, chunk) -> None:
    for prefix in "ab":
        write(tmp_path, "0", chunk(2, prefix=prefix))
        TrainDataDump(tmp_path).finish_step(1)
        assert verify(tmp_path / DATA).rows == 2
        (tmp_path / MANIFEST).write_bytes(b"torn")
