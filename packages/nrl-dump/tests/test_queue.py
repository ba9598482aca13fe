"""The background thread: bounded, in order, and no error is lost."""

import errno
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from nrl_dump import TrainDataDump
from nrl_dump.queue import ChunkQueue
from nrl_interfaces.fileops import FileOps


class Gate(FileOps):
    """Holds writes of rows back until it is opened; may fail them."""

    def __init__(self) -> None:
        self.open_now = threading.Event()
        self.fail = False

    def write(self, fd: int, data) -> int:
        if bytes(data).startswith(b'{"step"'):
            assert self.open_now.wait(20)
            if self.fail:
                raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(fd, data)


def test_add_chunk_returns_before_the_rows_are_written(tmp_path: Path, chunk, read_rows) -> None:
    gate = Gate()
    with TrainDataDump(tmp_path, queue_bytes=1 << 20, file_ops=gate) as dump:
        given = chunk(2)
        dump.add_chunk(**given)
        given["sequences"]["t"].fill_(99)  # the caller's tensors and tags are the caller's again
        given["tags"][0]["prefix"] = "changed"
        gate.open_now.set()
        assert dump.flush(1) == 2
        [first, second] = read_rows(tmp_path / "train_data_step2.jsonl.part-0")
        assert (first["t"], second["t"]) == ([[0]], [[3, 4]])
        assert first["metadata"][0]["prefix"] == "s"


def test_a_full_queue_blocks(tmp_path: Path, chunk) -> None:
    gate = Gate()
    with TrainDataDump(tmp_path, queue_bytes=100, file_ops=gate) as dump:
        dump.add_chunk(**chunk(2, prefix="larger than the queue, which is empty", tags=None))
        second = threading.Thread(target=lambda: dump.add_chunk(**chunk(2, prefix="b")))
        second.start()
        second.join(0.2)
        assert second.is_alive()
        gate.open_now.set()
        second.join(20)
        assert not second.is_alive()
        assert dump.flush(1) == 4


def test_an_error_in_the_thread_reaches_the_next_call_and_the_ids_may_come_again(tmp_path: Path, chunk) -> None:
    gate = Gate()
    gate.open_now.set()
    dump = TrainDataDump(tmp_path, queue_bytes=1 << 20, file_ops=gate)
    dump.add_chunk(**chunk(2, prefix="a"))
    assert dump.flush(1) == 2
    gate.fail = True
    dump.add_chunk(**chunk(2, prefix="b"))
    with pytest.raises(OSError, match="No space left") as caught:
        dump.flush(1)
    assert caught.value.__notes__ == ["of step 1 the chunk of samples ['b0']... was not written"]
    gate.fail = False
    assert dump.flush(1) == 2
    dump.add_chunk(**chunk(2, prefix="b"))
    assert dump.finish_step(1, 4).rows == 4
    dump.close()


def test_a_step_discarded_under_a_queued_chunk_is_told(tmp_path: Path, chunk) -> None:
    gate = Gate()
    gate.open_now.set()
    with TrainDataDump(tmp_path, queue_bytes=1 << 20, file_ops=gate) as dump:
        dump.add_chunk(**chunk(1, prefix="a"))
        dump._queue.drain()
        gate.open_now.clear()
        dump.add_chunk(**chunk(1, prefix="b"))  # waits at the gate
        dump.add_chunk(**chunk(1, prefix="c"))
        TrainDataDump(tmp_path, shard_id="controller").discard_step(1)
        gate.open_now.set()
        with pytest.raises(RuntimeError, match="was published or discarded while chunks of it were on their way"):
            dump.flush(1)
        assert dump.flush(1) == 0


@pytest.mark.parametrize("call", ["add_chunk", "finish_step", "restart_step", "publish_in_background", "close"])
def test_every_call_raises_what_the_thread_met(tmp_path: Path, chunk, call: str) -> None:
    gate = Gate()
    gate.open_now.set()
    gate.fail = True
    dump = TrainDataDump(tmp_path, queue_bytes=1 << 20, file_ops=gate)
    dump.add_chunk(**chunk(2, prefix="a"))
    while not dump._queue._errors:
        time.sleep(0.001)
    arguments = chunk(2, prefix="b") if call == "add_chunk" else {} if call == "close" else {"step": 1}
    with pytest.raises(OSError, match="No space left"):
        getattr(dump, call)(**arguments)
    dump.close()


def test_several_errors_are_told_together() -> None:
    queue = ChunkQueue(100)
    for name in ("first", "second", "third"):
        queue.put(10, lambda name=name: 1 // 0 if name == "first" else {}[name])
    with pytest.raises(ZeroDivisionError) as caught:
        queue.drain()
    assert caught.value.__notes__ == ["and after it: KeyError('second')", "and after it: KeyError('third')"]
    queue.drain()
    queue.close()


def test_what_was_handed_over_is_written_when_the_interpreter_ends(tmp_path: Path, read_rows) -> None:
    code = (
        "import sys, torch; from nrl_dump import TrainDataDump; d = TrainDataDump(sys.argv[1], queue_bytes=10**9)\n"
        "for i in range(200): d.add_chunk(step=1, sample_ids=[str(i)], tags=None, input_lengths=torch.tensor([500]),"
        " sequences={'x': torch.rand(1, 500)}, scalars={})\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60)
    assert len(read_rows(tmp_path / "train_data_step2.jsonl.part-0")) == 200


def test_many_chunks_keep_their_order(tmp_path: Path, read_rows) -> None:
    with TrainDataDump(tmp_path, queue_bytes=2_000) as dump:
        for i in range(300):
            dump.add_chunk(
                step=1,
                sample_ids=[str(i)],
                tags=None,
                input_lengths=torch.tensor([1]),
                sequences={},
                scalars={"x": torch.tensor([i])},
            )
        assert dump.finish_step(1, 300).rows == 300
    assert [row["x"][0] for row in read_rows(tmp_path / "train_data_step2.jsonl")] == list(range(300))
