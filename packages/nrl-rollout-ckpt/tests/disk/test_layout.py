import json
import logging
import os
import pickle
import signal
from pathlib import Path

import pytest
from nrl_interfaces.fileops import FileOps
from nrl_interfaces.testing.faults import run_in_child
from nrl_rollout_ckpt.disk.layout import (
    OWNER_LOCK,
    FolderInUseError,
    FolderOwner,
    commit_snapshot,
    list_snapshots,
    prepare_snapshot_paths,
    snapshot_number,
    step_folders,
    step_of,
)

OPS = FileOps()


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    "name",
    ["step_", "step_01", "step_-1", "step_1 ", "step_\uff11", "step_1.old", "Step_1", "tmp_step_1", "step_²", "x"],
)
def test_look_alike_names_are_no_steps(name):
    assert step_of(name) is None


@pytest.mark.parametrize(
    "name",
    ["snapshot_1", "snapshot_0000001", "snapshot_000001x", "snapshot_00000\uff11", "my_snapshot_000001", "snapshot_"],
)
def test_look_alike_names_are_no_snapshots(name):
    assert snapshot_number(name) is None


def test_numbers_above_six_digits_are_names_too():
    assert (step_of("step_0"), snapshot_number("snapshot_000000"), snapshot_number("snapshot_1234567")) == (
        0,
        0,
        1234567,
    )


def test_steps_are_ordered_by_number_and_an_old_one_stands_in_for_a_missing_one(tmp_path):
    for name in ("step_2", "step_10", "old_step_10", "old_step_12", "tmp_step_30", "trash_step_31", "step_009"):
        (tmp_path / name).mkdir()
    (tmp_path / "step_40").write_text("a file")

    assert [path.name for path in step_folders(tmp_path).values()] == ["old_step_12", "step_10", "step_2"]
    assert step_folders(tmp_path / "missing") == {}


def test_the_next_number_is_above_every_folder_that_is_there(tmp_path):
    folder = tmp_path / "rollout_snapshots"
    for name in ("snapshot_000003", "snapshot_000012", "snapshot_2", "tmp_snapshot_000040", "trash_snapshot_000041"):
        (folder / name).mkdir(parents=True)
    (folder / "snapshot_20").mkdir()  # looks alike: never touched, its number is avoided all the same

    paths = prepare_snapshot_paths(tmp_path, OPS)

    assert (paths.sequence, paths.temporary.name, paths.final.name) == (21, "tmp_snapshot_000021", "snapshot_000021")
    assert names_in(folder) == [
        "snapshot_000003",
        "snapshot_000012",
        "snapshot_2",
        "snapshot_20",
        "tmp_snapshot_000021",
    ]


def test_a_left_over_that_cannot_be_removed_is_a_warning_and_its_number_is_avoided(tmp_path, caplog):
    class Busy(FileOps):
        def unlink(self, path):
            raise OSError(16, "Device or resource busy", str(path))

    stuck = tmp_path / "rollout_snapshots" / "tmp_snapshot_000005"
    stuck.mkdir(parents=True)
    (stuck / "open_file").write_text("x")

    with caplog.at_level(logging.WARNING):
        paths = prepare_snapshot_paths(tmp_path, Busy())

    assert paths.sequence == 6
    assert "tmp_snapshot_000005 can't be removed" in caplog.text
    assert stuck.is_dir()


def test_foreign_left_overs_stay(tmp_path):
    folder = tmp_path / "rollout_snapshots"
    (tmp_path / "elsewhere").mkdir()
    folder.mkdir()
    (folder / "tmp_snapshot_7").mkdir()
    (folder / "tmp_mine").mkdir()
    (folder / "trash_snapshot_000002").symlink_to(tmp_path / "elsewhere")

    prepare_snapshot_paths(tmp_path, OPS)

    assert {"tmp_snapshot_7", "tmp_mine", "trash_snapshot_000002"} < set(names_in(folder))
    assert (tmp_path / "elsewhere").is_dir()


def test_a_snapshot_is_never_published_over_another(tmp_path):
    paths = prepare_snapshot_paths(tmp_path, OPS)
    paths.final.mkdir()

    with pytest.raises(FileExistsError):
        commit_snapshot(paths.temporary, paths.final, OPS)

    assert paths.temporary.is_dir()


def test_snapshots_are_listed_newest_first_without_links_and_left_overs(run):
    anchor = run.train(1)
    first, second = run.snapshot(anchor), run.snapshot(anchor)
    (first.parent / "snapshot_000009").symlink_to(second)

    assert list_snapshots(anchor) == [second, first]


# ---- The owner ----


def test_a_second_owner_is_refused_with_the_folder_and_the_first_one(tmp_path):
    first = FolderOwner(tmp_path / "run", OPS, now=lambda: 0.0)
    with pytest.raises(BlockingIOError, match=rf"run/.owner.lock is in use by process {os.getpid()} on ") as caught:
        FolderOwner(tmp_path / "run", OPS)
    first.close()

    assert caught.value.owner.started == "1970-01-01T00:00:00Z"
    assert isinstance(caught.value, FolderInUseError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_the_folder_is_free_after_the_block_and_says_who_had_it(tmp_path):
    with FolderOwner(tmp_path, OPS, now=lambda: 0.0):
        pass

    with FolderOwner(tmp_path, OPS, now=lambda: 1.0) as owner:
        assert json.loads((tmp_path / OWNER_LOCK).read_text())["started"] == "1970-01-01T00:00:01Z"
        owner.close()
        owner.close()


def test_the_lock_of_a_killed_process_is_free(tmp_path):
    def own_and_die():
        FolderOwner(tmp_path, OPS)
        os.kill(os.getpid(), signal.SIGKILL)

    assert run_in_child(own_and_die) == signal.SIGKILL

    FolderOwner(tmp_path, OPS).close()


def test_an_owner_that_could_not_write_holds_nothing(tmp_path):
    class Full(FileOps):
        def write(self, fd, data):
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        FolderOwner(tmp_path, Full())

    FolderOwner(tmp_path, OPS).close()
