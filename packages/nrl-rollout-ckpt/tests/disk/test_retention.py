import errno
import logging
import os
import shutil
from pathlib import Path

import pytest
from nrl_interfaces.fileops import FileOps
from nrl_interfaces.testing.faults import RecordingOps
from nrl_rollout_ckpt.config import RolloutCheckpointConfig
from nrl_rollout_ckpt.disk.layout import list_snapshots
from nrl_rollout_ckpt.disk.manifest import MANIFEST
from nrl_rollout_ckpt.disk.retention import (
    fit_disk_budget,
    folder_bytes,
    is_complete,
    prune_bootstrap_snapshots,
    prune_older_anchors,
    prune_snapshots,
    require_free_space,
)
from nrl_rollout_ckpt.disk.selection import select_resume_source

OPS = FileOps()


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def anchor(run):
    return run.train(1)


@pytest.fixture
def five(make_run):
    """An anchor with five complete snapshots."""
    run = make_run(keep_latest_k=5)
    anchor = run.train(1)
    for mark in range(5):
        run.snapshot(anchor, mark)
    return anchor


def names(anchor):
    return names_in(anchor / "rollout_snapshots")


def numbers(anchor):
    return [int(path.name[-6:]) for path in list_snapshots(anchor)]


def break_it(anchor, number):
    path = anchor / "rollout_snapshots" / f"snapshot_{number:06d}" / "replay_index.json"
    path.unlink()


def test_the_newest_are_kept(five):
    gone = prune_snapshots(five, 2, OPS)

    assert names(five) == ["snapshot_000004", "snapshot_000005"]
    assert [path.name for path in gone] == ["snapshot_000003", "snapshot_000002", "snapshot_000001"]


def test_only_complete_ones_count_and_damaged_ones_older_than_the_oldest_kept_go(five):
    break_it(five, 5)
    break_it(five, 3)
    break_it(five, 1)

    prune_snapshots(five, 2, OPS)

    assert numbers(five) == [5, 4, 3, 2]


def test_one_of_another_run_does_not_count_as_the_one_that_is_kept(five, run):
    other = run.train(1)
    (other / "training_info.json").write_text('{"current_step": 1, "loss": 0.25}')
    shutil.copytree(run.snapshot(other), five / "rollout_snapshots" / "snapshot_000006")

    prune_snapshots(five, 1, OPS)

    assert numbers(five) == [6, 5]


def test_with_no_complete_one_nothing_goes(five):
    for number in range(1, 6):
        break_it(five, number)

    assert prune_snapshots(five, 1, OPS) == []
    assert numbers(five) == [5, 4, 3, 2, 1]


@pytest.mark.parametrize("keep", [0, -1, True, 1.0, None])
def test_r05_a_retention_of_nothing_is_refused(five, keep):
    with pytest.raises(ValueError, match="keep_latest_k"):
        prune_snapshots(five, keep, OPS)
    with pytest.raises(ValueError, match="keep_latest_k"):
        RolloutCheckpointConfig(keep_latest_k=keep)


def test_only_exact_names_go_and_links_are_not_followed(five, tmp_path):
    folder = five / "rollout_snapshots"
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "kept").write_text("x")
    foreign = ["snapshot_1", "snapshot_000001.bak", "old_snapshot_000001", "notes", "trash_mine", "Snapshot_000001"]
    for name in foreign:
        (folder / name).mkdir()
    (folder / "file").write_text("x")
    (folder / "snapshot_000000").symlink_to(mine)
    (folder / "snapshot_000001" / "link").symlink_to(mine)

    prune_snapshots(five, 1, OPS)

    assert set(names(five)) == {*foreign, "file", "snapshot_000000", "snapshot_000005"}
    assert (mine / "kept").read_text() == "x"


def test_one_of_a_later_format_is_not_judged(five):
    path = five / "rollout_snapshots" / "snapshot_000002" / MANIFEST
    path.write_text('{"schema_version": 2}')

    prune_snapshots(five, 1, OPS)

    assert numbers(five) == [5, 2]


class Busy(FileOps):
    """A disk on which one file of one snapshot can't be removed."""

    def unlink(self, path):
        if path.name == "rows.bin":
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(path))
        super().unlink(path)


def test_a_busy_file_is_a_warning_and_its_snapshot_is_no_candidate_any_more(five, caplog):
    with caplog.at_level(logging.WARNING):
        prune_snapshots(five, 4, Busy())

    assert names(five) == [*(f"snapshot_00000{number}" for number in (2, 3, 4, 5)), "trash_snapshot_000001"]
    assert "trash_snapshot_000001 can't be removed" in caplog.text

    prune_snapshots(five, 4, OPS)

    assert "trash_snapshot_000001" not in names(five)


def test_a_name_goes_durably_before_anything_in_the_folder_does(five):
    """Pitfall: the manifest goes first, and the folder is invisible to start and retention alike."""
    ops = RecordingOps()

    prune_snapshots(five, 4, ops)

    begun = [name for name, _ in ops.calls]
    assert ops.calls[:2] == [("rename", "snapshot_000001"), ("fsync_folder", "rollout_snapshots")]
    assert begun.index("unlink") > 1


def test_a_snapshot_that_cannot_be_renamed_stays_whole(five, caplog):
    class NoRename(FileOps):
        def rename(self, source, target):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(source))

    assert prune_snapshots(five, 1, NoRename()) == []
    assert all(is_complete(path) for path in list_snapshots(five))
    assert len(list_snapshots(five)) == 5


def test_r05_snapshot_retention_never_removes_a_trainer_checkpoint(five, run):
    prune_snapshots(five, 1, OPS)
    prune_older_anchors(five.parent, 1, OPS)
    fit_disk_budget(five.parent, 1, OPS)

    assert (five / "weights.bin").is_file()
    assert numbers(five) == [5]


# ---- Over anchors ----


def test_snapshots_of_older_trainer_checkpoints_go_once_a_newer_one_is_durable(run):
    """Pitfall: with a trainer checkpoint each step nobody ever prunes the snapshots of the older ones."""
    old, older = run.train(2), run.train(1)
    for anchor in (old, older):
        run.snapshot(anchor)
    (older / "rollout_snapshots" / "notes").write_text("mine")

    assert prune_older_anchors(run.folder, 3, OPS) == []
    newest = run.train(3)
    run.snapshot(newest)

    assert len(prune_older_anchors(run.folder, 3, OPS)) == 2
    assert names_in(old) == ["config.yaml", "training_info.json", "weights.bin"]
    assert names(older) == ["notes"]
    assert numbers(newest) == [1]


def test_an_anchor_over_a_link_is_not_touched(run, tmp_path):
    elsewhere = run.train(1)
    run.snapshot(elsewhere)
    moved = elsewhere.rename(tmp_path / "moved")
    elsewhere.symlink_to(moved)
    run.train(2)

    assert prune_older_anchors(run.folder, 2, OPS) == []
    assert numbers(moved) == [1]


def test_bootstrap_snapshots_go_once_a_trainer_checkpoint_is_there_and_their_anchor_stays(run):
    anchor = run.bootstrap()
    run.snapshot(anchor)
    with pytest.raises(NotADirectoryError, match="step_1 is no folder"):
        prune_bootstrap_snapshots(run.folder, run.folder / "step_1", OPS)
    assert numbers(anchor) == [1]
    durable = run.train(1)

    assert prune_bootstrap_snapshots(run.folder, durable, OPS) is True
    assert prune_bootstrap_snapshots(run.folder, durable, OPS) is False
    assert names_in(anchor) == [MANIFEST]


def test_bootstrap_snapshots_that_cannot_go_are_a_warning(run, caplog):
    anchor = run.bootstrap()
    run.snapshot(anchor)

    with caplog.at_level(logging.WARNING):
        prune_bootstrap_snapshots(run.folder, run.train(1), Busy())

    assert "can't be removed" in caplog.text


# ---- Room on the disk ----


def test_a_budget_removes_damaged_ones_then_the_oldest(five, make_run):
    break_it(five, 4)
    size = folder_bytes(five / "rollout_snapshots" / "snapshot_000005")

    gone = fit_disk_budget(five.parent, 2 * size, OPS)

    assert [path.name[-1] for path in gone] == ["4", "1", "2"]
    assert numbers(five) == [5, 3]


def test_a_budget_never_removes_the_newest_complete_one(five, caplog):
    break_it(five, 5)

    with caplog.at_level(logging.WARNING):
        fit_disk_budget(five.parent, 1, OPS)

    assert numbers(five) == [4]
    assert "max_disk_bytes is 1" in caplog.text


def test_room_for_the_next_snapshot_is_made_before_it_is_written_without_a_warning(five, caplog):
    size = folder_bytes(five / "rollout_snapshots" / "snapshot_000005")

    fit_disk_budget(five.parent, 3 * size + 100, OPS, reserve_bytes=size)
    assert numbers(five) == [5, 4]

    fit_disk_budget(five.parent, size, OPS, reserve_bytes=size)
    assert numbers(five) == [5]
    assert caplog.text == ""


def test_a_budget_counts_all_anchors_and_begins_with_the_oldest(run):
    bootstrap, first, second = run.bootstrap(), run.train(1), run.train(2)
    for anchor in (bootstrap, second, first):
        run.snapshot(anchor)
    size = folder_bytes(second / "rollout_snapshots")

    gone = fit_disk_budget(run.folder, size * 2 + 100, OPS)

    assert [path.parent.parent.name for path in gone] == ["bootstrap"]


def test_what_would_not_fit_is_refused_before_it_begins(tmp_path):
    require_free_space(tmp_path, 10, lambda _: 10)
    with pytest.raises(OSError, match="needs about 11 bytes and 10 are left") as caught:
        require_free_space(tmp_path, 11, lambda _: 10)
    assert caught.value.errno == errno.ENOSPC
    require_free_space(tmp_path, 1)


def test_the_size_of_a_folder(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"123")
    (tmp_path / "c").write_bytes(b"4567")
    (tmp_path / "link").symlink_to(tmp_path / "c")

    assert folder_bytes(tmp_path) == 7


def test_faults_of_a_removal_leave_the_newest_snapshots(make_run, copies, each_fault):
    """Pitfall: a removal that was interrupted leaves a folder that neither start nor retention sees, for ever."""
    template = make_run(keep_latest_k=3)
    template.snapshot(template.train(1))
    anchor = template.train(2)
    kept = [template.snapshot(anchor, mark).name for mark in range(2)][-1]

    def prepare():
        run = copies(template)

        def prune(ops):
            prune_snapshots(run.folder / "step_2", 1, ops)
            prune_older_anchors(run.folder, 2, ops)

        return (run, run.folder / "step_2"), prune

    for fault, (run, anchor) in each_fault(prepare):
        assert select_resume_source(run.folder, run.config).path.name == kept, fault
        prune_snapshots(anchor, 1, OPS)
        prune_older_anchors(run.folder, 2, OPS)
        assert names(anchor) == [kept], fault
        assert not (run.folder / "step_1" / "rollout_snapshots").exists(), fault
