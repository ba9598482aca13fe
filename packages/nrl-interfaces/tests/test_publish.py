"""Publication: absent, old in full or new in full, at every operation that fails or kills."""

import errno
import io
import os
import pickle
from pathlib import Path

import pytest
import torch
from nrl_interfaces import ownership
from nrl_interfaces.fileops import APPEND, WRITE_NEW, FileOps, OutputFile
from nrl_interfaces.ownership import FolderInUseError, Owner
from nrl_interfaces.publish import make_folder, partial_path, publish, refuse_windows, remove, stage
from nrl_interfaces.testing.faults import FailingOps, KillingOps, RecordingOps, operations, run_in_child

OLD, NEW = b"old" * 1000, b"new" * 2000


@pytest.fixture(params=[None, OLD], ids=["new target", "target there"])
def old(request) -> bytes | None:
    return request.param


def target_in(folder: Path, old: bytes | None) -> Path:
    folder.mkdir()
    target = folder / "target.json"
    if old is not None:
        target.write_bytes(old)
    return target


def content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def test_publish_writes_beside_syncs_renames_and_syncs_the_folder(tmp_path: Path) -> None:
    ops = RecordingOps()
    publish(tmp_path / "x", NEW, ops)
    assert (tmp_path / "x").read_bytes() == NEW
    assert ops.calls == [
        ("open", "x.partial"),
        ("truncate", "x.partial"),
        ("write", "x.partial"),
        ("fsync", "x.partial"),
        ("rename", "x.partial"),
        ("fsync_folder", tmp_path.name),
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_a_kill_leaves_old_or_new_and_a_retry_succeeds(tmp_path: Path, old: bytes | None, moment) -> None:
    names = operations(lambda ops: publish(target_in(tmp_path / "count", old), NEW, ops))
    for at, name in enumerate(names):
        target = target_in(tmp_path / str(at), old)
        assert run_in_child(lambda: publish(target, NEW, KillingOps(at, moment))) == 9  # noqa: B023 - runs now
        renamed = at > names.index("rename") or (name == "rename" and moment == "after")
        assert content(target) == (NEW if renamed else old)
        publish(target, NEW, FileOps())
        assert content(target) == NEW
        assert not partial_path(target).exists()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failure_leaves_old_or_new_and_no_partial(tmp_path: Path, old: bytes | None, code: int) -> None:
    names = operations(lambda ops: publish(target_in(tmp_path / "count", old), NEW, ops))
    for at, name in enumerate(names):
        target = target_in(tmp_path / str(at), old)
        ops = FailingOps(at, code)
        with pytest.raises(OSError, match=os.strerror(code)) as caught:
            publish(target, NEW, ops)
        assert caught.value.errno == code
        assert ops.failed == name
        assert content(target) == (NEW if name == "fsync_folder" else old)
        assert not partial_path(target).exists()
        publish(target, NEW, FileOps())
        assert content(target) == NEW


def test_what_is_not_committed_is_removed(tmp_path: Path) -> None:
    target = target_in(tmp_path / "a", OLD)
    with stage(target, FileOps()) as file:
        file.write(NEW)
        file.seal()
    assert content(target) == OLD
    with pytest.raises(KeyboardInterrupt), stage(target, FileOps()) as file:
        raise KeyboardInterrupt
    assert [path.name for path in target.parent.iterdir()] == ["target.json"]


def test_a_left_over_partial_is_overwritten_whole(tmp_path: Path) -> None:
    target = tmp_path / "x"
    partial_path(target).write_bytes(b"longer than what comes" * 1000)
    publish(target, b"short", FileOps())
    assert target.read_bytes() == b"short"


def test_two_stagings_of_one_target_do_not_mix(tmp_path: Path) -> None:
    target = tmp_path / "x"
    with stage(target, FileOps()) as first:
        first.write(NEW)
        with (
            pytest.raises(FolderInUseError, match=r"x\.partial is in use by another process"),
            stage(target, FileOps()),
        ):
            pass
        first.commit()
    assert target.read_bytes() == NEW


def test_a_file_renamed_between_open_and_lock_is_not_written_to(tmp_path: Path) -> None:
    """The loser of a race has opened the winner's `.partial`, which is the published file by the time it locks."""
    target = tmp_path / "x"

    class Slow(FileOps):
        def open(self, path: Path, flags: int) -> int:
            fd = super().open(path, flags)
            publish(target, NEW, FileOps())
            return fd

    with pytest.raises(FolderInUseError), stage(target, Slow()):
        pass
    assert target.read_bytes() == NEW


def test_torch_saves_into_a_staged_file(tmp_path: Path) -> None:
    state = {"x": torch.arange(10), "y": torch.randn(3, 4)}
    with stage(tmp_path / "state.pt", FileOps()) as file:
        torch.save(state, file)
        file.commit()
    loaded = torch.load(tmp_path / "state.pt")
    assert all(torch.equal(loaded[key], state[key]) for key in state)


def test_remove_leaves_out_what_is_gone(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    assert remove([tmp_path / "a", tmp_path / "b"], FileOps()) == [tmp_path / "a"]


def test_make_folder_makes_parents_durable_and_refuses_files(tmp_path: Path) -> None:
    ops = RecordingOps()
    make_folder(tmp_path / "a" / "b", ops)
    make_folder(tmp_path / "a" / "b", ops)
    assert ops.calls == [("mkdir", "a"), ("fsync_folder", tmp_path.name), ("mkdir", "b"), ("fsync_folder", "a")]
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="file is a file: a folder is needed there"):
        make_folder(tmp_path / "file", ops)


def test_make_folder_does_not_mind_somebody_faster(tmp_path: Path) -> None:
    class Raced(FileOps):
        def mkdir(self, path: Path) -> None:
            path.mkdir()
            super().mkdir(path)

    make_folder(tmp_path / "a" / "b", Raced())
    assert (tmp_path / "a" / "b").is_dir()


def test_windows_is_refused_with_what_works() -> None:
    refuse_windows("linux")
    refuse_windows("darwin")
    with pytest.raises(RuntimeError, match="works on Linux and macOS, not on win32"):
        refuse_windows("win32")


def test_output_file_writes_all_in_short_writes_and_counts_bytes(tmp_path: Path) -> None:
    class Short(FileOps):
        def write(self, fd: int, data) -> int:
            return super().write(fd, memoryview(data)[:3])

    with OutputFile(tmp_path / "x", WRITE_NEW, Short()) as file:
        assert file.write(torch.arange(4, dtype=torch.int64).numpy()) == 32
        assert file.write(b"") == 0
        assert file.size == 32
        assert file.truncate() == 32
        assert file.truncate(8) == 8
        assert isinstance(file, io.RawIOBase)
    assert (tmp_path / "x").read_bytes() == bytes(8)
    file.close()
    with pytest.raises(ValueError, match="x is closed"):
        file.fileno()
    with OutputFile(tmp_path / "x", APPEND, FileOps()) as file:
        file.write(b"more")
    assert (tmp_path / "x").read_bytes() == bytes(8) + b"more"


def test_fsync_folder_leaves_only_einval_aside(tmp_path: Path, monkeypatch) -> None:
    def fail(code: int):
        def fsync(fd: int) -> None:
            raise OSError(code, os.strerror(code))

        return fsync

    monkeypatch.setattr(os, "fsync", fail(errno.EINVAL))
    FileOps().fsync_folder(tmp_path)
    monkeypatch.setattr(os, "fsync", fail(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        FileOps().fsync_folder(tmp_path)


def test_a_lock_is_held_until_it_is_given_up(tmp_path: Path) -> None:
    owner = Owner.this_process(lambda: 0.0)
    assert owner == Owner.from_json(owner.to_json())
    assert owner.started == "1970-01-01T00:00:00Z"
    with (
        OutputFile(tmp_path / "x", WRITE_NEW, FileOps()) as first,
        OutputFile(tmp_path / "x", WRITE_NEW, FileOps()) as second,
    ):
        ownership.lock(first)
        with pytest.raises(FolderInUseError, match=f"process {os.getpid()} on {owner.host} since 1970") as caught:
            ownership.lock(second, lambda: owner)
        copy = pickle.loads(pickle.dumps(caught.value))
        assert (copy.path, copy.owner, copy.errno) == (tmp_path / "x", owner, errno.EWOULDBLOCK)
        ownership.unlock(first)
        ownership.lock(second)


def test_an_unknown_trouble_with_locks_is_raised(tmp_path: Path, monkeypatch) -> None:
    def broken(fd: int, operation: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(ownership.fcntl, "flock", broken)
    with OutputFile(tmp_path / "x", WRITE_NEW, FileOps()) as file, pytest.raises(OSError, match="Input/output"):
        ownership.lock(file)
