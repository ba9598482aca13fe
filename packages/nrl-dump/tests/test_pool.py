"""`DumpPool` on real Ray actors: whole steps, and whole only."""

import logging
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from nrl_dump import StepIncompleteError, TrainDataDump, verify
from nrl_dump.pool import DumpPool, ShardDiedError
from nrl_dump.pool_actors import WriterHandle
from nrl_interfaces.ownership import FolderInUseError
from ray.exceptions import RayActorError

# Ray 2.40, the floor, leaves log files and processes of its own to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

Chunk = dict[str, Any]
MakeChunk = Callable[..., Chunk]
ReadRows = Callable[[Path], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")  # else Ray writes a token under the home folder
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=100 * 2**20,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _node_ip_address="127.0.0.2",  # loopback; Ray takes 127.0.0.1 for the address of the machine
        )
        yield
        ray.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared") / "dump"


@pytest.fixture(scope="module")
def pool(cluster: None, folder: Path) -> Iterator[DumpPool]:
    """The pool of all tests that leave it with writers that live, since these take seconds to start; a step each."""
    with DumpPool(folder, 2) as pool:
        yield pool


@pytest.fixture
def own_folder(tmp_path: Path) -> Path:
    return tmp_path / "dump"


@pytest.fixture
def own_pool(cluster: None, own_folder: Path) -> Iterator[DumpPool]:
    with DumpPool(own_folder, 2) as pool:
        yield pool


def data(folder: Path, step: int) -> Path:
    return folder / f"train_data_step{step + 1}.jsonl"


def kill(pool: DumpPool, shard: str) -> None:
    os.kill(pool.owners[shard].pid, signal.SIGKILL)


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return [row["sample_id"][0] for row in rows]


# ---- Whole steps ----


def test_steps_come_out_whole_and_in_order(pool: DumpPool, folder: Path, chunk: MakeChunk, read_rows: ReadRows) -> None:
    for step in (0, 1):
        for number in range(4):
            pool.add_chunk("01"[number % 2], **chunk(3, step=step, prefix=f"{step}.{number}."))
        assert pool.flush(step) == {"0": 6, "1": 6}
        manifest = pool.finish_step(step)
        assert [(shard.shard_id, shard.rows) for shard in manifest.shards] == [("0", 6), ("1", 6)]
        assert verify(data(folder, step)) == manifest
        rows = read_rows(data(folder, step))
        assert ids(rows) == [f"{step}.{number}.{row}" for number in (0, 2, 1, 3) for row in range(3)]
        assert [row["idx"] for row in rows] == list(range(12))
        assert rows[5] == {
            "idx": 5,
            "step": step + 1,
            "sample_id": [f"{step}.2.2"],
            "input_lengths": [3],
            "metadata": [{"prefix": f"{step}.2.", "row": 2}],
            "t": [[6, 7, 8]],
            "r": [0.5],
        }
    assert not list(folder.glob("*part*"))


def test_a_shard_without_rows_is_no_part_of_the_step(
    pool: DumpPool, folder: Path, chunk: MakeChunk, read_rows: ReadRows
) -> None:
    pool.add_chunk("1", **chunk(2, step=2))
    assert [shard.shard_id for shard in pool.finish_step(2).shards] == ["1"]
    assert ids(read_rows(data(folder, 2))) == ["s0", "s1"]


def test_a_step_is_published_while_the_next_one_is_written(pool: DumpPool, folder: Path, chunk: MakeChunk) -> None:
    pool.add_chunk("0", **chunk(2, step=3))
    future = pool.publish_in_background(3)
    pool.add_chunk("1", **chunk(3, step=4))
    assert future.result(timeout=30).rows == 2
    assert pool.finish_step(4).rows == 3
    pool.add_chunk("1", **chunk(1, step=3, prefix="again"))  # a step that was published may be written anew
    assert pool.finish_step(3).rows == 1


@pytest.mark.slow
def test_queues_in_the_actors(cluster: None, own_folder: Path, chunk: MakeChunk, read_rows: ReadRows) -> None:
    with DumpPool(own_folder, 2, queue_bytes=1 << 20, keep_last=1) as pool:
        for step in (0, 1):
            for number in range(6):
                pool.add_chunk("01"[number % 2], **chunk(5, step=step, prefix=f"{number}."))
            assert pool.finish_step(step).rows == 30
    wanted = [f"{number}.{row}" for number in (0, 2, 4, 1, 3, 5) for row in range(5)]
    assert ids(read_rows(data(own_folder, 1))) == wanted
    assert not data(own_folder, 0).exists()


@pytest.mark.slow
def test_closing_keeps_what_is_not_published(cluster: None, own_folder: Path, chunk: MakeChunk) -> None:
    with DumpPool(own_folder, 1) as pool:
        pool.add_chunk("0", **chunk(2, step=0))
    pool.close()
    with pytest.raises(RuntimeError, match="is closed: make a new one"):
        pool.flush(0)
    assert TrainDataDump(own_folder).finish_step(0, 2, shard_ids=["0"]).rows == 2


# ---- Dead writers ----


@pytest.mark.slow
@pytest.mark.parametrize(("queue_bytes", "end"), [(None, "SIGKILL"), (1 << 20, "ray.kill")])
def test_a_killed_shard_is_retried_and_the_step_is_exact(
    cluster: None,
    own_folder: Path,
    chunk: MakeChunk,
    read_rows: ReadRows,
    queue_bytes: int | None,
    end: str,
) -> None:
    with DumpPool(own_folder, 2, queue_bytes=queue_bytes) as pool:
        chunks = {name: chunk(2, step=0, prefix=name) for name in "abcd"}
        for shard, name in ("0", "a"), ("1", "b"):
            pool.add_chunk(shard, **chunks[name])
        assert pool.flush(0) == {"0": 2, "1": 2}  # b's rows are on disk, in a part that must not stay
        pool.add_chunk("1", **chunks["c"])
        if end == "SIGKILL":
            kill(pool, "1")
        else:
            pool._writers["1"].kill()
        with pytest.raises(ShardDiedError, match=r"the writer of shard '1' died: call restart_shard\('1'\)") as raised:
            pool.finish_step(0)
        assert isinstance(raised.value, RayActorError)
        assert isinstance(raised.value.__cause__, RayActorError)
        with pytest.raises(ShardDiedError):  # a handled error does not make the pool forget
            pool.add_chunk("1", **chunks["d"])
            pool.finish_step(0)

        lost = pool.restart_shard("1")[0]
        assert lost[:4] == ["b0", "b1", "c0", "c1"]
        with pytest.raises(StepIncompleteError, match=r"rows, 'b0' of shard '1' the first of them, were lost"):
            pool.finish_step(0)
        for shard, name in ("1", "b"), ("1", "c"), ("0", "d"):  # any shard may take them
            pool.add_chunk(shard, **chunks[name])
        assert pool.finish_step(0).rows == 8
    assert ids(read_rows(data(own_folder, 0))) == ["a0", "a1", "d0", "d1", "b0", "b1", "c0", "c1"]
    assert verify(data(own_folder, 0)).rows == 8


def test_a_writer_that_dies_after_its_flush_is_not_missed(
    pool: DumpPool, folder: Path, chunk: MakeChunk, read_rows: ReadRows
) -> None:
    pool.add_chunk("0", **chunk(2, step=9, prefix="a"))
    pool.add_chunk("1", **chunk(2, step=9, prefix="b"))
    pool.flush(9)
    kill(pool, "1")
    assert pool.finish_step(9).rows == 4
    assert ids(read_rows(data(folder, 9))) == ["a0", "a1", "b0", "b1"]
    assert pool.restart_shard("1") == {}
    pool.add_chunk("1", **chunk(1, step=10))
    assert pool.finish_step(10).rows == 1


def test_a_restarted_shard_without_new_rows_leaves_none_of_the_dead_one(
    pool: DumpPool, folder: Path, chunk: MakeChunk, read_rows: ReadRows
) -> None:
    pool.add_chunk("0", **chunk(2, step=11, prefix="a"))
    pool.add_chunk("1", **chunk(2, step=11, prefix="b"))
    pool.flush(11)
    kill(pool, "1")
    assert pool.restart_shard("1", drop_rows=True) == {11: ["b0", "b1"]}
    assert pool.finish_step(11).rows == 2
    assert ids(read_rows(data(folder, 11))) == ["a0", "a1"]


def test_a_writer_that_lives_may_be_replaced(
    pool: DumpPool, folder: Path, chunk: MakeChunk, read_rows: ReadRows
) -> None:
    pool.add_chunk("0", **chunk(2, step=12))
    before = pool.owners["0"].pid
    assert pool.restart_shard("0") == {12: ["s0", "s1"]}
    assert pool.owners["0"].pid != before
    pool.add_chunk("0", **chunk(2, step=12))
    assert pool.finish_step(12).rows == 2
    assert ids(read_rows(data(folder, 12))) == ["s0", "s1"]


@pytest.mark.slow
def test_closing_says_when_a_dead_writer_had_rows(cluster: None, own_folder: Path, chunk: MakeChunk) -> None:
    with DumpPool(own_folder, 2) as pool:
        kill(pool, "1")  # had none
    pool = DumpPool(own_folder, 2)
    pool.add_chunk("1", **chunk(2, step=0))
    kill(pool, "1")
    with pytest.raises(ShardDiedError):
        pool.close()
    pool.close()
    with pytest.raises(KeyError) as raised, DumpPool(own_folder, 1) as pool:
        pool.add_chunk("0", **chunk(2, step=0))
        kill(pool, "0")
        raise KeyError
    assert "and when the pool was closed: ShardDiedError" in raised.value.__notes__[0]


# ---- Left-overs, other folders, errors in writers ----


def test_a_retried_step_has_no_rows_of_an_earlier_run(
    pool: DumpPool, folder: Path, chunk: MakeChunk, read_rows: ReadRows
) -> None:
    for shard in "12":
        with TrainDataDump(folder, shard_id=shard) as earlier:
            earlier.add_chunk(**chunk(2, step=5, prefix="old"))
    pool.add_chunk("0", **chunk(2, step=5))
    with pytest.raises(StepIncompleteError, match=r"train_data_step6\.jsonl\.part-2, perhaps of an earlier attempt"):
        pool.finish_step(5)  # a shard that this pool has not
    (folder / "train_data_step6.jsonl.part-2").unlink()
    assert pool.finish_step(5).rows == 2
    assert ids(read_rows(data(folder, 5))) == ["s0", "s1"]


@pytest.mark.slow
def test_a_pool_with_another_folder_is_refused_until_that_is_mended(
    own_pool: DumpPool, own_folder: Path, tmp_path: Path, chunk: MakeChunk, read_rows: ReadRows
) -> None:
    elsewhere = tmp_path / "not shared"
    own_pool._writers["1"].kill()
    own_pool._writers["1"] = WriterHandle(elsewhere, "1", own_pool._settings, {"num_cpus": 0})
    own_pool.add_chunk("0", **chunk(2, step=0, prefix="a"))
    own_pool.add_chunk("1", **chunk(3, step=0, prefix="b"))
    both_causes = r"shards \['1'\] are not in .*another file system.*or this one shows new files late"
    with pytest.raises(StepIncompleteError, match=both_causes):
        own_pool.finish_step(0, visibility_timeout_s=0.2)
    future = own_pool.publish_in_background(0, visibility_timeout_s=0.2)
    assert isinstance(future.exception(timeout=30), StepIncompleteError)
    with pytest.raises(StepIncompleteError, match=both_causes):
        own_pool.flush(0)
    assert not data(own_folder, 0).exists()
    for path in elsewhere.iterdir():
        path.rename(own_folder / path.name)
    assert own_pool.finish_step(0).rows == 5
    assert ids(read_rows(data(own_folder, 0))) == ["a0", "a1", "b0", "b1", "b2"]


def test_an_error_in_a_writer_reaches_the_caller_and_its_rows_are_owed(
    pool: DumpPool, folder: Path, chunk: MakeChunk, read_rows: ReadRows
) -> None:
    pool.add_chunk("0", **chunk(2, step=6, prefix="a"))
    pool.flush(6)
    with TrainDataDump(folder, shard_id="1") as other:
        other.add_chunk(**chunk(1, step=6))
        pool.add_chunk("1", **chunk(2, step=6, prefix="b"))
        with pytest.raises(FolderInUseError) as raised:
            pool.flush(6)
        assert raised.value.owner is not None
        assert raised.value.owner.pid == os.getpid()
        assert raised.value.__notes__ == ["in the writer of shard '1'"]
        with pytest.raises(StepIncompleteError, match="2 rows, 'b0' of shard '1' the first of them, were lost"):
            pool.finish_step(6)
        other.restart_step(6)
    pool.add_chunk("1", **chunk(2, step=6, prefix="b"))
    assert pool.finish_step(6).rows == 4
    assert ids(read_rows(data(folder, 6))) == ["a0", "a1", "b0", "b1"]


def test_rows_that_vanish_in_a_writer_are_noticed(pool: DumpPool, chunk: MakeChunk) -> None:
    pool.add_chunk("0", **chunk(2, step=7))
    pool._writers["0"].result(pool._writers["0"].call("begin_step", 7, 0.0))
    with pytest.raises(StepIncompleteError, match=r"shard '0' was given 2 rows and has 0: call restart_shard\('0'\)"):
        pool.finish_step(7)
    assert pool.restart_shard("0") == {7: ["s0", "s1"]}


def test_a_discarded_step_is_gone_and_may_be_written_anew(
    pool: DumpPool, folder: Path, chunk: MakeChunk, read_rows: ReadRows
) -> None:
    for shard in "01":
        pool.add_chunk(shard, **chunk(2, step=13, prefix=shard))
    pool.add_chunk("0", **chunk(1, step=14))
    kill(pool, "1")
    removed = pool.discard_step(13)
    assert set(removed) >= {"train_data_step14.columns-0.json", "train_data_step14.jsonl.part-0"}
    assert pool.restart_shard("1") == {}
    with pytest.raises(StepIncompleteError, match="no row of it was written through this pool"):
        pool.finish_step(13)
    pool.add_chunk("1", **chunk(1, step=13))
    assert pool.finish_step(13).rows == 1
    assert ids(read_rows(data(folder, 13))) == ["s0"]
    assert pool.finish_step(14).rows == 1


# ---- Bad input ----


def test_bad_chunks_are_refused_before_anything_is_sent(pool: DumpPool, folder: Path, chunk: MakeChunk) -> None:
    with pytest.raises(ValueError, match="shard is '2': '0', '1' are there"):
        pool.add_chunk("2", **chunk(step=8))
    with pytest.raises(ValueError, match="step is True"):
        pool.add_chunk("0", **chunk(step=True))
    with pytest.raises(ValueError, match="1 tags for 2 sample ids"):
        pool.add_chunk("0", **chunk(step=8, tags=[{}]))
    assert not list(folder.glob("train_data_step9.*"))
    pool.add_chunk("0", **chunk(step=8))
    with pytest.raises(ValueError, match=r"sample id 's0' was given to shard '0' in step 8 before: call discard_step"):
        pool.add_chunk("1", **chunk(step=8))
    assert pool.finish_step(8).rows == 2


def test_bad_arguments_start_nothing(cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments, message in [
        ({"num_shards": 0}, "num_shards is 0: a whole number from 1"),
        ({"num_shards": 1, "max_in_flight": True}, "max_in_flight is True"),
        ({"num_shards": 1, "inf_nan": "none"}, "inf_nan is 'none'"),
        ({"num_shards": 1, "queue_bytes": 0}, "queue_bytes is 0"),
        ({"num_shards": 1, "actor_options": {"max_restarts": -1}}, "max_restarts=-1: only 0 is allowed"),
        ({"num_shards": 1, "actor_options": {"max_concurrency": 2}}, "max_concurrency=2: only 1 is allowed"),
    ]:
        with pytest.raises(ValueError, match=message):
            DumpPool(tmp_path, **arguments)
    with pytest.raises(TimeoutError, match=r"the writer of shard '0' did not start in 0\.2 s: `ray status`"):
        DumpPool(tmp_path, 1, actor_options={"num_cpus": 64}, start_timeout_s=0.2)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(RuntimeError, match=r"call ray\.init\(\) before making a pool"):
        DumpPool(tmp_path, 1)


def test_without_ray_the_import_says_what_to_install() -> None:
    code = "import sys; sys.modules['ray'] = None; import nrl_dump; import nrl_dump.pool"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: ")
    assert "pip install nrl-dump[ray]" in done.stderr.splitlines()[-1]


def test_the_error_of_a_dead_writer_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(ShardDiedError("7")))
    assert (error.shard_id, str(error)) == ("7", str(ShardDiedError("7")))
