"""Files of checkpoints: old or new at every moment, whatever fails, whoever dies, and nobody removes what is read."""

import contextlib
import errno
import fcntl
import json
import pickle
import shutil
import signal
from pathlib import Path

import pytest
from nrl_dataplane_tq import CheckpointDamagedError, OtherOwnerError, StorageUnitsError
from nrl_dataplane_tq.checkpoint import SWITCH_FILENAME, _locked, current_state, new_state
from nrl_interfaces.fileops import FileOps
from nrl_interfaces.testing.faults import FailingOps, KillingOps, operations, run_in_child


def save(folder: Path, number: int, ops: FileOps | None = None, owner: str | None = None) -> None:
    """Save as the registry does; TransferQueue's files are bytes like any other."""
    with new_state(folder, owner, ops or FileOps()) as state:
        (state.path / "controller_state.pkl").write_bytes(b"cursors" * number)
        (state.path / "simple_storage").mkdir()
        (state.path / "simple_storage" / "su_0.pkl").write_bytes(b"rows" * number)
        state.publish({"number": number}, storage_units=1)


def saved(folder: Path, owner: str | None = None) -> int:
    with current_state(folder, owner, 1) as state:
        number: int = state.contract()["number"]
        assert (state.path / "simple_storage" / "su_0.pkl").read_bytes() == b"rows" * number
        return number


def states(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("tq_state_"))


def test_a_save_replaces_the_one_before_and_removes_it(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "tq_state_mine").mkdir()
    for number in (1, 2, 3):
        save(tmp_path, number)
        assert saved(tmp_path) == number
    assert states(tmp_path) == ["tq_state_000003", "tq_state_mine"]
    assert (tmp_path / "notes.txt").read_text() == "mine"


def steps(tmp_path: Path) -> list[str]:
    save(tmp_path / "one", 1)
    shutil.copytree(tmp_path / "one", tmp_path / "steps")
    return operations(lambda ops: save(tmp_path / "steps", 2, ops))


def test_whatever_operation_fails_the_old_state_or_the_new_one_is_there(tmp_path: Path) -> None:
    names, outcomes = steps(tmp_path), set[int]()
    for at in range(len(names)):
        folder = shutil.copytree(tmp_path / "one", tmp_path / str(at))
        with contextlib.suppress(OSError):
            save(folder, 2, FailingOps(at, errno.ENOSPC))
        outcomes.add(saved(folder))
        save(folder, 3)
        assert saved(folder) == 3, names[at]
        assert states(folder) == [states(folder)[-1]], f"left-overs after {names[at]} failed"
    assert outcomes == {1, 2}


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_whenever_a_saver_dies_the_old_state_or_the_new_one_is_there(tmp_path: Path, moment: str) -> None:
    names, outcomes = steps(tmp_path), set[int]()
    for at in range(len(names)):
        folder = shutil.copytree(tmp_path / "one", tmp_path / str(at))
        died = run_in_child(lambda at=at, folder=folder: save(folder, 2, KillingOps(at, moment)))  # type: ignore[misc]
        assert died == signal.SIGKILL
        outcomes.add(saved(folder))
        save(folder, 3)
        assert saved(folder) == 3, names[at]
        assert states(folder) == [states(folder)[-1]], f"left-overs after death at {names[at]}"
    assert outcomes == {1, 2}


def test_what_is_being_read_is_not_removed(tmp_path: Path) -> None:
    save(tmp_path, 1)
    with current_state(tmp_path, None, 1) as held:
        save(tmp_path, 2)
        save(tmp_path, 3)
        assert held.contract() == {"number": 1}
        assert states(tmp_path) == ["tq_state_000001", "tq_state_000003"]
    save(tmp_path, 4)
    assert states(tmp_path) == ["tq_state_000004"]


def test_what_is_being_written_is_not_removed(tmp_path: Path) -> None:
    save(tmp_path, 1)
    with new_state(tmp_path, None, FileOps()) as slow:
        save(tmp_path, 2)
        assert slow.path.is_dir()
        slow.publish({"number": 9}, 1)
    with current_state(tmp_path, None, 1) as state:
        assert state.contract() == {"number": 9}  # the last to publish


class Overtaken(type(Path())):  # type: ignore[misc]
    """A checkpoint folder in which something happens once its switch file was read."""

    def __truediv__(self, name: str) -> Path:
        if name == "tq_state_000001":
            self.then()
        return Path(self, name)


def test_a_reader_that_was_overtaken_reads_the_new_state(tmp_path: Path) -> None:
    save(tmp_path, 1)
    folder = Overtaken(tmp_path)
    folder.then = lambda: save(tmp_path, 2)
    assert saved(folder) == 2


def test_a_reader_whose_state_is_being_removed_reads_the_new_one(tmp_path: Path) -> None:
    save(tmp_path, 1)
    old = tmp_path / "tq_state_000001"
    with contextlib.ExitStack() as removing:

        def overtake() -> None:
            with _locked(old, fcntl.LOCK_SH):
                save(tmp_path, 2)
            removing.enter_context(_locked(old, fcntl.LOCK_EX))

        folder = Overtaken(tmp_path)
        folder.then = overtake
        assert saved(folder) == 2


def test_a_state_that_is_not_there_is_named(tmp_path: Path) -> None:
    save(tmp_path, 1)
    switch = (tmp_path / SWITCH_FILENAME).read_bytes()
    save(tmp_path, 2)
    (tmp_path / SWITCH_FILENAME).write_bytes(switch)
    with pytest.raises(CheckpointDamagedError, match="tq_state_000001: the folder is missing"):
        saved(tmp_path)


def test_a_state_that_somebody_holds_for_good_is_an_error(tmp_path: Path) -> None:
    save(tmp_path, 1)
    with _locked(tmp_path / "tq_state_000001", fcntl.LOCK_EX), pytest.raises(BlockingIOError):
        saved(tmp_path)


@pytest.mark.parametrize("name", ["controller_state.pkl", "simple_storage/su_0.pkl", "contract_state.pkl"])
def test_a_file_that_was_changed_is_named(tmp_path: Path, name: str) -> None:
    save(tmp_path, 3)
    file = next(tmp_path.glob("tq_state_*")) / name
    whole = file.read_bytes()
    for bytes_, problem in ((whole[:-1], "bytes, and"), (whole[:-1] + b"?", "not those"), (None, "is missing")):
        if bytes_ is None:
            file.unlink()
        else:
            file.write_bytes(bytes_)
        with pytest.raises(CheckpointDamagedError, match=problem) as caught:
            saved(tmp_path)
        assert caught.value.path == file


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format": 2}, "format 2; this version of nrl-dataplane-tq reads format 1"),
        ({"folder": "../elsewhere"}, "names the folder"),
        ({"folder": None}, "names the folder"),
        ({"files": {"x": "y"}}, "can't be read"),
        ({"files": {}}, "the file is not listed"),
        ({"more": 1}, "can't be read"),
    ],
)
def test_a_switch_file_that_says_something_else_is_refused(
    tmp_path: Path, change: dict[str, object], problem: str
) -> None:
    save(tmp_path, 1)
    file = tmp_path / SWITCH_FILENAME
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(CheckpointDamagedError, match=problem):
        saved(tmp_path)
    save(tmp_path, 2)
    assert saved(tmp_path) == 2


def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    save(tmp_path, 1, owner="rank0")
    with pytest.raises(OtherOwnerError, match=r"owner 'rank0', and this is None"):
        save(tmp_path, 2)
    with pytest.raises(OtherOwnerError, match=r"owner 'rank0', and this is 'rank1'"):
        saved(tmp_path, owner="rank1")
    assert saved(tmp_path, owner="rank0") == 1


def test_the_number_of_storage_units_is_checked(tmp_path: Path) -> None:
    save(tmp_path, 1)
    error = StorageUnitsError(tmp_path / SWITCH_FILENAME, 1, 4)
    with pytest.raises(StorageUnitsError, match=str(error)), current_state(tmp_path, None, 4):
        pass
    assert pickle.loads(pickle.dumps(error)).saved == 1


def test_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no checkpoint: tq_data_plane\.json is missing"):
        saved(tmp_path)


def test_a_symlink_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "real", 1)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(ValueError, match="is a symbolic link; allowed: a folder, so name"):
        save(tmp_path / "link", 2)
    assert saved(tmp_path / "real") == 1


def test_a_lock_is_let_go(tmp_path: Path) -> None:
    save(tmp_path, 1)
    saved(tmp_path)
    with _locked(next(tmp_path.glob("tq_state_*")), fcntl.LOCK_EX):
        pass
