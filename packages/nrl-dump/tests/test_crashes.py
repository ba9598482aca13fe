"""Kills and failures at every operation on a file, and what they leave.

The invariant: the published file is absent, old in full, or new in full, and a retry succeeds.
"""

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from nrl_dump import InterruptedStepError, StepIncompleteError, TrainDataDump, read_tensors, verify
from nrl_interfaces.fileops import FileOps
from nrl_interfaces.testing.faults import FailingOps, KillingOps, operations, run_in_child

DATA = "train_data_step2.jsonl"
SHARDS = ("0", "1", "2")
KILLED, ENDED = 9, 0


@pytest.fixture(params=["new step", "published before"])
def prepared(request, tmp_path: Path, chunk) -> Callable[[], Path]:
    """Makes folders with parts of three shards, where the step was published before or not."""
    count = 0

    def prepare() -> Path:
        nonlocal count
        count += 1
        folder = tmp_path / str(count)
        if request.param == "published before":
            write_parts(folder, chunk, "old", rows=2)
            TrainDataDump(folder).finish_step(1)
        write_parts(folder, chunk, "new", rows=3)
        return folder

    return prepare


def write_parts(folder: Path, chunk, prefix: str, rows: int) -> None:
    for shard_id in SHARDS:
        with TrainDataDump(folder, shard_id=shard_id) as dump:
            dump.add_chunk(**chunk(rows, prefix=f"{prefix}{shard_id}-"))


def finish(folder: Path, ops: FileOps | None = None) -> None:
    TrainDataDump(folder, file_ops=ops).finish_step(1, 9, shard_ids=SHARDS, visibility_timeout_s=0)


def state(folder: Path, read_rows) -> str:
    """What is published: nothing, "old" or "new"; anything in between is an error here."""
    if not (folder / DATA).exists():
        return "absent"
    ids = [row["sample_id"][0] for row in read_rows(folder / DATA)]
    for prefix, rows in (("old", 2), ("new", 3)):
        if ids == [f"{prefix}{shard_id}-{i}" for shard_id in SHARDS for i in range(rows)]:
            return prefix
    raise AssertionError(f"torn: {ids}")


def check_discard(folder: Path, read_rows, before: str) -> None:
    """Whoever goes on without the step keeps what is published, old or new, and can read it."""
    published = state(folder, read_rows)
    assert published in {before, "new"}
    TrainDataDump(folder).discard_step(1)
    assert state(folder, read_rows) == published
    if published == "absent":
        assert not list(folder.iterdir())
    else:
        assert verify(folder / DATA).rows == (6 if published == "old" else 9)
        assert len(read_tensors(folder / DATA)["r"]) == verify(folder / DATA).rows
        assert sorted(path.name for path in folder.iterdir()) == [DATA, "train_data_step2.manifest.json"]


def check_retry(folder: Path, chunk, read_rows, before: str) -> None:
    """Whatever was left, calling again ends whole, and so does writing the step again."""
    assert state(folder, read_rows) in {before, "new"}
    if list(folder.glob("*.part-*")):
        finish(folder)
        assert state(folder, read_rows) == "new"
    else:  # the crash came when all was done: nothing is left to publish, and that is said
        assert state(folder, read_rows) == "new"
        with pytest.raises(StepIncompleteError, match="is published already"):
            finish(folder)
    assert verify(folder / DATA).rows == 9
    assert sorted(path.name for path in folder.iterdir()) == [DATA, "train_data_step2.manifest.json"]
    write_parts(folder, chunk, "new", rows=3)
    finish(folder)
    assert verify(folder / DATA).rows == 9


@pytest.mark.parametrize("afterwards", ["finish again", "discard"])
def test_finish_step_killed_at_every_operation(prepared, chunk, read_rows, afterwards: str) -> None:
    names = operations(lambda ops: finish(prepared(), ops))
    assert {"open", "write", "fsync", "rename", "fsync_folder", "unlink"} <= set(names)
    moments = [(at, moment) for at in range(len(names)) for moment in ("before", "during", "after")]
    for at, moment in moments:
        if moment == "during" and names[at] != "write":
            continue
        folder = prepared()
        before = state(folder, read_rows)
        assert run_in_child(lambda: finish(folder, KillingOps(at, moment))) == KILLED  # noqa: B023 - runs now
        if afterwards == "discard":
            check_discard(folder, read_rows, before)
        else:
            check_retry(folder, chunk, read_rows, before)


@pytest.mark.parametrize("afterwards", ["finish again", "discard"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_finish_step_failing_at_every_operation(prepared, chunk, read_rows, code: int, afterwards: str) -> None:
    names = operations(lambda ops: finish(prepared(), ops))
    for at in range(len(names)):
        folder = prepared()
        before = state(folder, read_rows)
        ops = FailingOps(at, code)
        with pytest.raises(OSError, match=os.strerror(code)):
            finish(folder, ops)
        assert ops.failed == names[at]
        assert not list(folder.glob("*.partial"))
        if afterwards == "discard":
            check_discard(folder, read_rows, before)
        else:
            check_retry(folder, chunk, read_rows, before)


def add_chunks(folder: Path, chunk, ops: FileOps | None = None) -> TrainDataDump:
    dump = TrainDataDump(folder, file_ops=ops)
    dump.add_chunk(**chunk(2, prefix="a"))
    dump.add_chunk(**chunk(3, prefix="b"))
    dump.flush(1)
    return dump


@pytest.mark.parametrize("left_over", [False, True])
def test_add_chunk_and_flush_killed_at_every_operation(tmp_path: Path, chunk, read_rows, left_over: bool) -> None:
    def prepare(name: str) -> Path:
        folder = tmp_path / name
        if left_over:
            TrainDataDump(folder).add_chunk(**chunk(7, prefix="stale", scalars={}))
        return folder

    names = operations(lambda ops: add_chunks(prepare("count"), chunk, ops))
    assert {"open", "write", "fsync", "rename", "fsync_folder"} <= set(names)
    whole: list[tuple[str, str]] = []
    for at in range(len(names)):
        for moment in ("before", "during", "after"):
            if moment == "during" and names[at] != "write":
                continue
            folder = prepare(f"{at}-{moment}")
            assert run_in_child(lambda: add_chunks(folder, chunk, KillingOps(at, moment))) == KILLED  # noqa: B023
            columns, part = folder / "train_data_step2.columns-0.json", folder / f"{DATA}.part-0"
            if columns.exists() and b'"t"' in columns.read_bytes() and b'"r"' in columns.read_bytes():
                assert b"stale" not in part.read_bytes()  # rows never stand under another attempt's column file
            controller = TrainDataDump(folder, shard_id="controller")
            try:
                controller.finish_step(1, expected_rows=5)
                whole.append((names[at], moment))
            except StepIncompleteError:
                assert not (folder / DATA).exists()
                add_chunks(folder, chunk)
                controller.finish_step(1, expected_rows=5)
            ids = [row["sample_id"][0] for row in read_rows(folder / DATA)]
            assert ids == ["a0", "a1", "b0", "b1", "b2"]
    assert whole == [("write", "after"), ("fsync", "before"), ("fsync", "after")]  # all rows were in the part


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("retry", ["same chunk", "restart_step", "new object"])
def test_add_chunk_failing_at_every_operation(tmp_path: Path, chunk, read_rows, code: int, retry: str) -> None:
    names = operations(lambda ops: add_chunks(tmp_path / "count", chunk, ops).close())
    for at in range(len(names)):
        folder = tmp_path / str(at)
        ops = FailingOps(at, code)
        dump = TrainDataDump(folder, file_ops=ops)
        steps = [
            lambda: dump.add_chunk(**chunk(2, prefix="a")),  # noqa: B023 - runs in this turn
            lambda: dump.add_chunk(**chunk(3, prefix="b")),  # noqa: B023
            lambda: dump.flush(1),  # noqa: B023
        ]
        part = folder / f"{DATA}.part-0"
        for number, step in enumerate(steps):
            before = part.read_bytes() if part.exists() else b""
            try:
                step()
            except OSError as error:
                assert error.errno == code
                assert (part.read_bytes() if part.exists() else b"") == before
                if retry == "same chunk":
                    step()
                    continue
                if retry == "new object":
                    dump = TrainDataDump(folder)
                dump.restart_step(1)
                for again in steps[: number + 1]:
                    again()
        assert ops.failed == names[at]
        assert dump.finish_step(1, expected_rows=5).rows == 5
        ids = [row["sample_id"][0] for row in read_rows(folder / DATA)]
        assert ids == ["a0", "a1", "b0", "b1", "b2"]


def test_a_part_whose_cut_failed_is_cut_before_the_next_row(tmp_path: Path, chunk, read_rows) -> None:
    class Sick(FileOps):
        sick = False

        def write(self, fd: int, data) -> int:
            if self.sick:
                super().write(fd, bytes(data)[:10])
                raise OSError(errno.EIO, "Input/output error")
            return super().write(fd, data)

        def truncate(self, fd: int, size: int) -> None:
            if self.sick:
                raise OSError(errno.EIO, "Input/output error")
            super().truncate(fd, size)

    ops = Sick()
    dump = TrainDataDump(tmp_path, file_ops=ops)
    dump.add_chunk(**chunk(2, prefix="a"))
    ops.sick = True
    for call in (lambda: dump.add_chunk(**chunk(2, prefix="b")), lambda: dump.flush(1)):
        with pytest.raises(OSError, match="Input/output error"):
            call()
    ops.sick = False
    dump.add_chunk(**chunk(2, prefix="b"))
    dump.finish_step(1, 4)
    assert [row["sample_id"][0] for row in read_rows(tmp_path / DATA)] == ["a0", "a1", "b0", "b1"]


def test_an_interrupt_in_the_middle_of_a_chunk_leaves_none_of_it(tmp_path: Path, chunk, read_rows) -> None:
    class Interrupted(FileOps):
        now = False

        def write(self, fd: int, data) -> int:
            written = super().write(fd, bytes(data)[:10])
            if self.now:
                self.now = False
                raise KeyboardInterrupt
            return written

    ops = Interrupted()
    dump = TrainDataDump(tmp_path, file_ops=ops)
    dump.add_chunk(**chunk(2, prefix="a"))
    ops.now = True
    with pytest.raises(KeyboardInterrupt):
        dump.add_chunk(**chunk(2, prefix="b"))
    assert len(read_rows(tmp_path / f"{DATA}.part-0")) == 2
    dump.add_chunk(**chunk(2, prefix="b"))
    assert dump.finish_step(1, 4).rows == 4


def test_keep_last_killed_at_every_operation(tmp_path: Path, chunk) -> None:
    def prepare(name: str) -> Path:
        with TrainDataDump(tmp_path / name) as dump:
            for step in range(3):
                dump.add_chunk(**chunk(step=step))
                dump.finish_step(step)
            dump.add_chunk(**chunk(step=3))
        return tmp_path / name

    def keep_one(folder: Path, ops: FileOps | None = None) -> None:
        TrainDataDump(folder, keep_last=1, file_ops=ops).finish_step(3, 2)

    for at in range(len(operations(lambda ops: keep_one(prepare("count"), ops)))):
        folder = prepare(str(at))
        assert run_in_child(lambda: keep_one(folder, KillingOps(at, "after"))) == KILLED  # noqa: B023 - runs now
        assert all(verify(path) for path in folder.glob("*.jsonl"))
        TrainDataDump(folder).add_chunk(**chunk(step=3))
        keep_one(folder)
        assert sorted(path.name for path in folder.iterdir()) == [
            "train_data_step4.jsonl",
            "train_data_step4.manifest.json",
        ]


@pytest.mark.parametrize("same_size", [True, False])
def test_a_manifest_ahead_of_its_file_is_seen_and_withdrawn(tmp_path: Path, chunk, read_rows, same_size: bool) -> None:
    with TrainDataDump(tmp_path) as dump:
        dump.add_chunk(**chunk(2, prefix="old"))
        old = dump.finish_step(1)
        dump.add_chunk(**chunk(2, prefix="new" if same_size else "another"))
        second_rename = [
            i for i, name in enumerate(operations(lambda ops: publish_copy(tmp_path, ops))) if name == "rename"
        ][1]
    assert (
        run_in_child(lambda: TrainDataDump(tmp_path, file_ops=KillingOps(second_rename, "before")).finish_step(1))
        == KILLED
    )
    for read in (verify, read_tensors):
        with pytest.raises(InterruptedStepError, match=r"call finish_step\(1\) again"):
            read(tmp_path / DATA)
    TrainDataDump(tmp_path).discard_step(1)
    assert verify(tmp_path / DATA) == old
    assert [row["sample_id"][0] for row in read_rows(tmp_path / DATA)] == ["old0", "old1"]


def publish_copy(folder: Path, ops: FileOps) -> None:
    """What `finish_step` does in a copy of the folder, for its operations."""
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        TrainDataDump(copy, file_ops=ops).finish_step(1)
