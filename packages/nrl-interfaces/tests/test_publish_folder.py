"""Publication and removal of folders: whole under one of two names, at every operation that fails or kills."""

import errno
import os
from pathlib import Path

import pytest
from nrl_interfaces.fileops import FileOps
from nrl_interfaces.publish import publish_folder, remove_folder
from nrl_interfaces.testing.faults import FailingOps, KillingOps, RecordingOps, operations, run_in_child

CONTENT = {"manifest.json": b"{}", "data/rows.bin": b"rows" * 1000, "data/deep/more.bin": b"", "z.json": b"[]"}


def filled(folder: Path) -> Path:
    for name, data in CONTENT.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def publish(parent: Path, ops: FileOps) -> None:
    publish_folder(parent / "tmp_x", parent / "x", ops)


def test_every_file_and_folder_is_synced_before_the_rename_and_the_parent_after_it(tmp_path: Path) -> None:
    filled(tmp_path / "tmp_x")
    ops = RecordingOps()
    publish(tmp_path, ops)
    assert ops.calls == [
        ("open", "more.bin"),
        ("fsync", "more.bin"),
        ("fsync_folder", "deep"),
        ("open", "rows.bin"),
        ("fsync", "rows.bin"),
        ("fsync_folder", "data"),
        ("open", "manifest.json"),
        ("fsync", "manifest.json"),
        ("open", "z.json"),
        ("fsync", "z.json"),
        ("fsync_folder", "tmp_x"),
        ("rename", "tmp_x"),
        ("fsync_folder", tmp_path.name),
    ]
    assert names(tmp_path) == ["x"]
    assert content(tmp_path / "x") == CONTENT


def published_after(tmp_path: Path) -> list[str]:
    filled(tmp_path / "count" / "tmp_x")
    return operations(lambda ops: publish(tmp_path / "count", ops))


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_kill_leaves_the_whole_folder_under_one_name(tmp_path: Path, moment) -> None:
    steps = published_after(tmp_path)
    for at, name in enumerate(steps):
        parent = filled(tmp_path / str(at) / "tmp_x").parent
        assert run_in_child(lambda: publish(parent, KillingOps(at, moment))) == 9  # noqa: B023 - runs now
        renamed = at > steps.index("rename") or (name == "rename" and moment == "after")
        assert names(parent) == ["x" if renamed else "tmp_x"]
        assert content(parent / names(parent)[0]) == CONTENT


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failure_leaves_the_whole_folder_under_one_name_and_can_be_tried_again(tmp_path: Path, code: int) -> None:
    open_files = len(list(Path("/dev/fd").iterdir()))
    for at in range(len(published_after(tmp_path))):
        parent = filled(tmp_path / str(at) / "tmp_x").parent
        ops = FailingOps(at, code)
        with pytest.raises(OSError, match=os.strerror(code)):
            publish(parent, ops)
        last = ops.calls[-1] == ("fsync_folder", parent.name)
        assert names(parent) == ["x" if last else "tmp_x"]
        assert content(parent / names(parent)[0]) == CONTENT
        if not last:
            publish(parent, FileOps())
            assert content(parent / "x") == CONTENT
    assert len(list(Path("/dev/fd").iterdir())) == open_files


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    filled(tmp_path / "tmp_x")
    for occupied in ("empty folder", "dangling link"):
        final = tmp_path / occupied
        if occupied == "empty folder":
            final.mkdir()
        else:
            final.symlink_to(tmp_path / "nowhere")
        with pytest.raises(FileExistsError, match="is there already"):
            publish_folder(tmp_path / "tmp_x", final, FileOps())
        assert content(tmp_path / "tmp_x") == CONTENT


def test_what_is_no_file_is_refused_before_the_rename(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    filled(elsewhere)
    for number, target in enumerate([elsewhere, elsewhere / "z.json", tmp_path / "nowhere"]):
        parent = filled(tmp_path / str(number) / "tmp_x").parent
        (parent / "tmp_x" / "data" / "link").symlink_to(target)
        with pytest.raises(ValueError, match="link is neither a regular file nor a folder"):
            publish(parent, FileOps())
        assert names(parent) == ["tmp_x"]
    (tmp_path / "tmp_x").symlink_to(elsewhere)
    with pytest.raises(NotADirectoryError, match="tmp_x is a symlink"):
        publish(tmp_path, FileOps())
    parent = filled(tmp_path / "pipe" / "tmp_x").parent
    os.mkfifo(parent / "tmp_x" / "pipe")
    with pytest.raises(ValueError, match="pipe is neither"):
        publish(parent, FileOps())


def test_removal_goes_from_the_bottom_up(tmp_path: Path) -> None:
    ops = RecordingOps()
    remove_folder(filled(tmp_path / "x"), ops)
    assert ops.calls == [
        ("unlink", "more.bin"),
        ("rmdir", "deep"),
        ("unlink", "rows.bin"),
        ("rmdir", "data"),
        ("unlink", "manifest.json"),
        ("unlink", "z.json"),
        ("rmdir", "x"),
    ]
    assert names(tmp_path) == []
    remove_folder(tmp_path / "x", FileOps())  # nothing is left to do


def test_removal_that_failed_or_was_killed_goes_on_at_the_next_call(tmp_path: Path) -> None:
    steps = operations(lambda ops: remove_folder(filled(tmp_path / "count"), ops))
    for at in range(len(steps)):
        folder = filled(tmp_path / "x")
        with pytest.raises(OSError, match="Input/output error"):
            remove_folder(folder, FailingOps(at, errno.EIO))
        remove_folder(folder, FileOps())
        filled(folder)
        assert run_in_child(lambda: remove_folder(folder, KillingOps(at, "after"))) == 9  # noqa: B023 - runs now
        remove_folder(folder, FileOps())
        assert not folder.exists()


def test_removal_does_not_mind_somebody_faster(tmp_path: Path) -> None:
    class Raced(FileOps):
        def unlink(self, path: Path) -> None:
            path.unlink()
            super().unlink(path)

        def rmdir(self, path: Path) -> None:
            path.rmdir()
            super().rmdir(path)

    remove_folder(filled(tmp_path / "x"), Raced())
    assert names(tmp_path) == []


def test_removal_follows_no_link(tmp_path: Path) -> None:
    elsewhere = filled(tmp_path / "elsewhere")
    folder = filled(tmp_path / "x")
    (folder / "data" / "link").symlink_to(elsewhere)
    remove_folder(folder, FileOps())
    assert content(elsewhere) == CONTENT
    folder.symlink_to(elsewhere)
    with pytest.raises(NotADirectoryError, match="x is a symlink"):
        remove_folder(folder, FileOps())
    with pytest.raises(NotADirectoryError):
        remove_folder(elsewhere / "z.json", FileOps())
    assert content(elsewhere) == CONTENT
