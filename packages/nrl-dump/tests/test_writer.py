"""One writer: all of a chunk or none, retries, locks, the life of a part."""

import functools
import gc
import logging
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from nrl_dump import FolderInUseError, StepIncompleteError, TrainDataDump
from nrl_interfaces import ownership
from nrl_interfaces.fileops import FileOps
from nrl_interfaces.testing.faults import run_in_child

PART, COLUMNS = "train_data_step2.jsonl.part-0", "train_data_step2.columns-0.json"


def test_nothing_is_made_before_the_first_row(tmp_path: Path, chunk) -> None:
    folder = tmp_path / "deep" / "log"
    with TrainDataDump(folder) as dump:
        assert dump.flush(1) == 0
        assert not (tmp_path / "deep").exists()
        dump.add_chunk(**chunk())
        assert {path.name for path in folder.iterdir()} == {PART, COLUMNS}


@pytest.mark.parametrize("queue_bytes", [None, 1, 1 << 20])
def test_flush_gives_the_rows_of_the_part(tmp_path: Path, chunk, read_rows, queue_bytes) -> None:
    with TrainDataDump(tmp_path, queue_bytes=queue_bytes) as dump:
        for i in range(5):
            dump.add_chunk(**chunk(3, prefix=f"{i}-"))
        assert dump.flush(1) == 15
        assert len(read_rows(tmp_path / PART)) == 15
        dump.add_chunk(**chunk(2, prefix="more"))  # flushing closed the part: it opens again
        assert dump.flush(1) == dump.flush(1) == 17
        assert [row["sample_id"][0] for row in read_rows(tmp_path / PART)][-3:] == ["4-2", "more0", "more1"]


def test_a_chunk_without_rows_makes_an_empty_part(tmp_path: Path, chunk) -> None:
    with TrainDataDump(tmp_path) as dump:
        dump.add_chunk(**chunk(0))
        assert dump.flush(1) == 0
        assert (tmp_path / PART).read_bytes() == b""
        dump.add_chunk(**chunk(1))
        assert dump.finish_step(1, 1, shard_ids=["0"]).rows == 1


def test_a_new_object_replaces_what_the_part_held(tmp_path: Path, chunk, read_rows) -> None:
    TrainDataDump(tmp_path).add_chunk(**chunk(5, prefix="old", scalars={}))
    TrainDataDump(tmp_path).add_chunk(**chunk(1, prefix="new"))
    assert [row["sample_id"] for row in read_rows(tmp_path / PART)] == [["new0"]]


def test_restart_step_takes_this_shard_s_rows_away(tmp_path: Path, chunk) -> None:
    TrainDataDump(tmp_path, shard_id="1").add_chunk(**chunk(2, prefix="other"))
    dump = TrainDataDump(tmp_path)
    dump.restart_step(1)  # nothing there yet
    dump.add_chunk(**chunk(2))
    dump.restart_step(1)
    assert not (tmp_path / PART).exists()
    assert not (tmp_path / COLUMNS).exists()
    assert dump.flush(1) == 0
    dump.add_chunk(**chunk(3, scalars={}))  # other columns, too: the step began anew
    assert dump.flush(1) == 3
    assert (tmp_path / "train_data_step2.jsonl.part-1").exists()


def test_restart_step_takes_away_what_a_dead_process_left(tmp_path: Path, chunk) -> None:
    TrainDataDump(tmp_path).add_chunk(**chunk(2))
    TrainDataDump(tmp_path).restart_step(1)
    assert not list(tmp_path.iterdir())


def test_discard_step_says_what_it_removed_and_leaves_other_steps(tmp_path: Path, chunk) -> None:
    for shard_id in ("0", "1"):
        TrainDataDump(tmp_path, shard_id=shard_id).add_chunk(**chunk())
        TrainDataDump(tmp_path, shard_id=shard_id).add_chunk(**chunk(step=10))
    (tmp_path / "train_data_step2.jsonl.partial").write_bytes(b"torn")
    (tmp_path / "train_data_step2.jsonl.part-0.txt~").write_bytes(b"somebody's")
    with TrainDataDump(tmp_path, shard_id="0") as dump:
        removed = dump.discard_step(1)
        assert sorted(removed) == [
            "train_data_step2.columns-0.json",
            "train_data_step2.columns-1.json",
            "train_data_step2.jsonl.part-0",
            "train_data_step2.jsonl.part-1",
            "train_data_step2.jsonl.partial",
        ]
        assert dump.discard_step(1) == []
        assert (tmp_path / "train_data_step2.jsonl.part-0.txt~").exists()
        assert len(list(tmp_path.glob("train_data_step11*"))) == 4


def test_a_second_writer_of_a_part_is_told_who_the_first_is(tmp_path: Path, chunk) -> None:
    first = TrainDataDump(tmp_path, now=lambda: 86_400.0)
    first.add_chunk(**chunk())
    second = TrainDataDump(tmp_path)
    with pytest.raises(FolderInUseError, match=f"process {os.getpid()} on .* since 1970-01-02T00:00:00Z") as caught:
        second.add_chunk(**chunk(prefix="x"))
    assert isinstance(caught.value, BlockingIOError)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.owner, copy.path, str(copy)) == (caught.value.owner, tmp_path / PART, str(caught.value))
    with pytest.raises(FolderInUseError):
        second.restart_step(1)
    second.add_chunk(**chunk(step=2))  # another step's part is another file
    assert first.flush(1) == 2  # flushing gives the part up
    second.add_chunk(**chunk(1, prefix="x"))
    assert second.flush(1) == 1


def test_another_process_holds_the_part_until_it_dies(tmp_path: Path, chunk) -> None:
    code = (
        "import sys, torch; from nrl_dump import TrainDataDump; d = TrainDataDump(sys.argv[1]);"
        "d.add_chunk(step=1, sample_ids=['a'], tags=None, input_lengths=torch.tensor([1]), sequences={}, scalars={});"
        "print('ready', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        dump = TrainDataDump(tmp_path)
        with pytest.raises(FolderInUseError, match=f"process {other.pid} on"):
            dump.add_chunk(**chunk())
        other.kill()
        other.wait()
        dump.add_chunk(**chunk())
    assert dump.flush(1) == 2


@pytest.mark.parametrize("queue_bytes", [None, 1 << 20])
def test_a_forked_child_neither_keeps_nor_ends_its_parent_s_lock(tmp_path: Path, chunk, queue_bytes) -> None:
    dump = TrainDataDump(tmp_path, queue_bytes=queue_bytes)
    dump.add_chunk(**chunk(prefix="a"))

    def in_child() -> None:
        for call in (lambda: dump.add_chunk(**chunk(prefix="b")), lambda: dump.flush(1), lambda: dump.finish_step(1)):
            with pytest.raises(RuntimeError, match="make a new TrainDataDump after a fork"):
                call()
        dump.close()
        dump._steps[1].part.release()
        with pytest.raises(FolderInUseError):
            TrainDataDump(tmp_path).add_chunk(**chunk())

    if queue_bytes:
        dump._queue.drain()  # so that the part is open
    assert run_in_child(in_child) == 0
    with pytest.raises(FolderInUseError):
        TrainDataDump(tmp_path).add_chunk(**chunk())
    reader, writer = os.pipe()  # a child that lives on with a copy of the descriptor
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    try:
        assert dump.flush(1) == 2
        TrainDataDump(tmp_path).add_chunk(**chunk())
    finally:
        os.close(writer)
        os.waitpid(child, 0)


def test_a_forked_child_that_ends_by_itself_does_not_wait_for_its_parent_s_thread(tmp_path: Path) -> None:
    code = (
        "import os, sys, torch; from nrl_dump import TrainDataDump; torch.set_num_threads(1)\n"
        "dump = TrainDataDump(sys.argv[1], queue_bytes=1 << 30); x = torch.rand(1, 2_000_000)\n"
        "dump.add_chunk(step=1, sample_ids=['a'], tags=None, input_lengths=torch.tensor([2_000_000]),"
        " sequences={'x': x}, scalars={})\n"
        "child = os.fork()\n"
        "if child == 0: sys.exit()\n"
        "assert os.waitpid(child, 0)[1] == 0 and dump.flush(1) == 1\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, str(tmp_path)], check=True, timeout=60)


def test_a_file_system_without_locks_is_warned_of_once(tmp_path: Path, chunk, monkeypatch, caplog) -> None:
    def no_locks(fd: int, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(ownership.fcntl, "flock", no_locks)
    ownership._warn_no_locks.cache_clear()
    with caplog.at_level(logging.WARNING), TrainDataDump(tmp_path) as dump:
        dump.add_chunk(**chunk())
        dump.add_chunk(**chunk(step=2))
        dump.finish_step(1, 2)
        dump.finish_step(2, 2)
    assert [record.message for record in caplog.records] == [
        f"{tmp_path} is on a file system without locks: a second writer would not be noticed"
    ]


def test_a_part_taken_away_by_the_controller_begins_anew(tmp_path: Path, chunk, read_rows) -> None:
    writer = TrainDataDump(tmp_path)
    writer.add_chunk(**chunk(2, prefix="a"))
    TrainDataDump(tmp_path, shard_id="controller").finish_step(1, 2)
    assert writer.flush(1) == 0
    writer.add_chunk(**chunk(1, prefix="a", scalars={}))  # the same ids, other columns
    assert writer.flush(1) == 1
    TrainDataDump(tmp_path).finish_step(1, 1)
    assert [row["sample_id"] for row in read_rows(tmp_path / "train_data_step2.jsonl")] == [["a0"]]
    writer.close()


def test_a_part_written_anew_by_another_object_is_not_added_to(tmp_path: Path, chunk, read_rows) -> None:
    first = TrainDataDump(tmp_path)
    first.add_chunk(**chunk(2, prefix="a"))
    first.flush(1)
    with TrainDataDump(tmp_path) as second:  # truncates the same file
        second.add_chunk(**chunk(1, prefix="b"))
    with pytest.raises(RuntimeError, match=r"part-0 was written anew by another TrainDataDump: restart_step begins"):
        first.add_chunk(**chunk(1, prefix="c"))
    assert [row["sample_id"] for row in read_rows(tmp_path / PART)] == [["b0"]]
    first.restart_step(1)
    first.add_chunk(**chunk(1, prefix="c"))
    assert first.flush(1) == 1


def test_a_writer_forgets_the_steps_that_its_controller_has_published(tmp_path: Path, chunk) -> None:
    writer, controller = TrainDataDump(tmp_path), TrainDataDump(tmp_path, shard_id="controller")
    for step in range(5):
        writer.add_chunk(**chunk(step=step))
        assert writer.flush(step) == 2
        controller.finish_step(step, 2)
    assert len(writer._steps) == 1


def test_after_finish_and_discard_the_step_starts_anew(tmp_path: Path, chunk) -> None:
    dump = TrainDataDump(tmp_path)
    for end in (dump.finish_step, dump.discard_step, dump.restart_step, dump.finish_step):
        dump.add_chunk(**chunk())
        end(1)


def test_a_closed_dump_says_so_and_closing_twice_is_fine(tmp_path: Path, chunk) -> None:
    with TrainDataDump(tmp_path) as dump:
        dump.add_chunk(**chunk())
    dump.close()
    calls = (dump.finish_step, dump.flush, dump.restart_step, dump.discard_step, dump.publish_in_background)
    for call in (lambda: dump.add_chunk(**chunk()), *(functools.partial(call, 1) for call in calls)):
        with pytest.raises(RuntimeError, match=r"the dump of shard '0' in .* is closed"):
            call()
    TrainDataDump(tmp_path).finish_step(1, 2)


def test_close_flushes_every_step_and_raises_the_first_trouble_at_the_end(tmp_path: Path, chunk) -> None:
    class NoFsync(FileOps):
        on = False
        seen = 0

        def fsync(self, fd: int) -> None:
            if self.on:
                self.seen += 1
                raise OSError(5, "Input/output error")
            super().fsync(fd)

    ops = NoFsync()
    dump = TrainDataDump(tmp_path, file_ops=ops)
    for step in (1, 2, 3):
        dump.add_chunk(**chunk(step=step))
    ops.on = True
    with pytest.raises(OSError, match="Input/output error"):
        dump.close()
    assert ops.seen == 3
    TrainDataDump(tmp_path).add_chunk(**chunk())  # no lock is left


def test_an_error_in_the_block_is_not_hidden_by_one_of_closing(tmp_path: Path, chunk) -> None:
    dump = TrainDataDump(tmp_path)
    with pytest.raises(ZeroDivisionError) as caught, dump:
        dump.publish_in_background(7)
        1 // 0  # noqa: B018 - for its error
    [note] = caught.value.__notes__
    assert note.startswith("and when the dump was closed: StepNotThereError(")
    with pytest.raises(StepIncompleteError), TrainDataDump(tmp_path) as dump:
        dump.publish_in_background(7)


def test_a_dropped_dump_lets_its_part_go(tmp_path: Path, chunk) -> None:
    dump = TrainDataDump(tmp_path, queue_bytes=1 << 20)
    dump.add_chunk(**chunk())
    threads = threading.active_count()
    del dump
    gc.collect()
    assert threading.active_count() == threads - 1
    with TrainDataDump(tmp_path) as other:
        other.add_chunk(**chunk())


@pytest.mark.parametrize("name", ["chunk_rows", "queue_bytes", "keep_last"])
@pytest.mark.parametrize("value", [0, -1, True, 1.5, "3"])
def test_settings_that_are_no_counts_are_refused(tmp_path: Path, name: str, value) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value!r}: a whole number from 1"):
        TrainDataDump(tmp_path, **{name: value})


def test_another_spelling_of_nan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="inf_nan is 'nan': 'constants', 'strings', 'null' are allowed"):
        TrainDataDump(tmp_path, inf_nan="nan")


def test_the_column_file_is_whole_before_the_first_row(tmp_path: Path, chunk) -> None:
    class Look(FileOps):
        def write(self, fd: int, data) -> int:
            if bytes(data).startswith(b'{"step":2'):
                assert (tmp_path / COLUMNS).read_bytes().endswith(b"}\n")
            return super().write(fd, data)

    with TrainDataDump(tmp_path, file_ops=Look()) as dump:
        dump.add_chunk(**chunk())


def test_metrics_tell_chunks_and_publications(tmp_path: Path, chunk) -> None:
    events: list = []
    with TrainDataDump(tmp_path, metrics=events.append) as dump:
        dump.add_chunk(**chunk(3))
        dump.finish_step(1)
    assert [(event["op"], event["step"], event["rows"]) for event in events] == [
        ("add_chunk", 1, 3),
        ("finish_step", 1, 3),
    ]
    assert events[1]["n_bytes"] == (tmp_path / "train_data_step2.jsonl").stat().st_size


def test_part_path_is_where_the_rows_go(tmp_path: Path) -> None:
    assert TrainDataDump(str(tmp_path))._part_path(41, "7") == tmp_path / "train_data_step42.jsonl.part-7"


def test_folders_and_ids_with_odd_characters_find_their_parts(tmp_path: Path, chunk) -> None:
    folder = tmp_path / "run [1] *.? {x} %d"
    for shard_id in ("0", "0.1", "part-0"):
        TrainDataDump(folder, shard_id=shard_id).add_chunk(**chunk(1, prefix=shard_id))
        TrainDataDump(folder, shard_id=shard_id).add_chunk(**chunk(1, step=10, prefix=shard_id))
    manifest = TrainDataDump(folder).finish_step(1, 3)
    assert [shard.shard_id for shard in manifest.shards] == ["0", "0.1", "part-0"]


def test_torch_no_grad_is_not_needed(tmp_path: Path, chunk) -> None:
    weights = torch.nn.Parameter(torch.ones(2))
    with TrainDataDump(tmp_path) as dump:
        dump.add_chunk(**chunk(2, scalars={"p": weights}))
