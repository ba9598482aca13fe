"""A Ray pool of dump writers, one of which has another folder than the controller: refused until that is mended."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from nrl_dump import StepIncompleteError, read_step, verify
from nrl_dump.pool import DumpPool
from nrl_dump.pool_actors import WriterHandle


class PoolOnTwoFolders(DumpPool):
    """A pool whose writer of shard "1" runs where the folder's path leads elsewhere, as on a node without the mount."""

    def __init__(self, log_dir: Path, elsewhere: Path) -> None:
        self._elsewhere = elsewhere
        super().__init__(log_dir, 2)

    def _new_writer(self, shard: str) -> WriterHandle:
        folder = self._elsewhere if shard == "1" else self._folder
        return WriterHandle(folder, shard, self._settings, self._options)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """What the controller and shard "0" see."""
    return tmp_path / "shared" / "dump"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """What the writer of shard "1" sees."""
    return tmp_path / "not shared" / "dump"


@pytest.fixture
def pool(shared: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DumpPool]:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # else Ray writes a token under the home folder
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100 * 2**20,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _node_ip_address="127.0.0.2",  # loopback; Ray takes 127.0.0.1 for the address of the machine
    )
    try:
        with PoolOnTwoFolders(shared, elsewhere) as pool:
            yield pool
    finally:
        ray.shutdown()


def rows(*sample_ids: str) -> dict[str, Any]:
    count = len(sample_ids)
    return {
        "sample_ids": list(sample_ids),
        "tags": None,
        "input_lengths": torch.full((count,), 2),
        "sequences": {"token_ids": torch.arange(3).repeat(count, 1)},
        "scalars": {"reward": torch.ones(count)},
    }


def test_a_step_is_refused_for_a_writer_with_another_folder_and_published_after_the_mend(
    pool: DumpPool, shared: Path, elsewhere: Path
) -> None:
    for step in (0, 1):
        pool.add_chunk("0", step=step, **rows("a", "b"))
        pool.add_chunk("1", step=step, **rows("c", "d", "e"))
        with pytest.raises(StepIncompleteError) as raised:
            pool.finish_step(step, visibility_timeout_s=0.2)
        assert f"shards ['1'] are not in {shared}" in str(raised.value)
        assert "another file system" in str(raised.value)
        assert not (shared / f"train_data_step{step + 1}.jsonl").exists()
    assert sorted(path.name for path in elsewhere.glob("*.part-*")) == [
        "train_data_step1.jsonl.part-1",
        "train_data_step2.jsonl.part-1",
    ]

    for path in elsewhere.glob("train_data_step1.*"):  # the first step: somebody brings the files
        path.rename(shared / path.name)
    assert pool.finish_step(0).rows == 5

    elsewhere.rename(elsewhere.with_name("lost"))  # the second one: the mount is mended, the writer is started anew
    elsewhere.symlink_to(shared)
    lost = pool.restart_shard("1")
    assert lost == {1: ["c", "d", "e"]}
    pool.add_chunk("1", step=1, **rows(*lost[1]))
    assert pool.finish_step(1).rows == 5

    for number in (1, 2):
        published = shared / f"train_data_step{number}.jsonl"
        assert [row["sample_id"] for row in read_step(published)] == [["a"], ["b"], ["c"], ["d"], ["e"]]
        assert verify(published).rows == 5
    assert {path.name for path in shared.iterdir()} == {
        f"train_data_step{number}.{what}" for number in (1, 2) for what in ("jsonl", "manifest.json")
    }
