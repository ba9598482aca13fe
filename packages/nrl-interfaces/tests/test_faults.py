"""The harness itself: it fails and kills where it says, and sees every operation."""

import errno
import os
from pathlib import Path

import pytest
from nrl_interfaces.fileops import WRITE_NEW, FileOps, OutputFile
from nrl_interfaces.testing.faults import FailingOps, KillingOps, RecordingOps, operations, run_in_child


def every_operation(folder: Path, ops: FileOps) -> None:
    ops.mkdir(folder / "d")
    with OutputFile(folder / "a", WRITE_NEW, ops) as file:
        file.write(b"12345678")
        file.truncate(6)
        file.fsync()
    ops.rename(folder / "a", folder / "b")
    ops.unlink(folder / "b")
    ops.rmdir(folder / "d")
    ops.fsync_folder(folder)


NAMES = ["mkdir", "open", "write", "truncate", "fsync", "rename", "unlink", "rmdir", "fsync_folder"]


def test_every_operation_of_fileops_is_recorded(tmp_path: Path) -> None:
    assert operations(lambda ops: every_operation(tmp_path, ops)) == NAMES
    assert sorted(NAMES) == sorted(name for name in vars(FileOps) if not name.startswith("_"))
    assert {name for name in vars(RecordingOps) if not name.startswith("_")} == set(NAMES)


def test_a_failure_comes_at_its_place_and_a_write_is_half_done(tmp_path: Path) -> None:
    for at, name in enumerate(NAMES):
        folder = tmp_path / str(at)
        folder.mkdir()
        ops = FailingOps(at, errno.EDQUOT)
        with pytest.raises(OSError, match=os.strerror(errno.EDQUOT)):
            every_operation(folder, ops)
        assert (ops.failed, len(ops.calls)) == (name, at + 1)
        if name == "write":
            assert (folder / "a").read_bytes() == b"1234"


@pytest.mark.parametrize(("moment", "left"), [("before", b""), ("during", b"1234"), ("after", b"12345678")])
def test_a_kill_comes_at_its_moment(tmp_path: Path, moment, left: bytes) -> None:
    ops = KillingOps(NAMES.index("write"), moment)
    assert run_in_child(lambda: every_operation(tmp_path, ops)) == 9
    assert (tmp_path / "a").read_bytes() == left


def test_a_child_that_ends_or_raises_is_told_apart(capfd) -> None:
    assert run_in_child(lambda: None) == 0
    with pytest.raises(RuntimeError, match="the child raised"):
        run_in_child(lambda: 1 // 0)
    assert "ZeroDivisionError" in capfd.readouterr().err
