import errno
import json
import os
import threading
from pathlib import Path

import pytest
import torch
import yaml
from nrl_interfaces.fileops import FileOps
from nrl_interfaces.testing.rollout import check_trainer_checkpoints
from nrl_rollout_ckpt.disk.selection import select_resume_source
from nrl_rollout_ckpt.disk.trainer_checkpoints import CheckpointManager


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def save(manager, step, mark=b"w", wait_fn=None):
    folder = manager.init_tmp_checkpoint(step, {"current_step": step}, {"seed": 1})
    (folder / "weights").write_bytes(mark)
    manager.begin_finalization(folder, wait_fn)
    manager.finalize_pending()
    return manager.step_path(step)


@pytest.fixture
def manager(tmp_path):
    return CheckpointManager(tmp_path / "run")


def test_it_is_what_snapshots_ask_of_a_trainer(tmp_path):
    def begin(manager, step, wait_fn=None):
        manager.begin_finalization(manager.init_tmp_checkpoint(step, {"current_step": step}, {}), wait_fn)

    def the_writer_dies():
        raise OSError("the writer died")

    check_trainer_checkpoints(
        lambda: CheckpointManager(tmp_path, keep_latest_k=2),
        save=begin,
        fail=lambda manager, step: begin(manager, step, the_writer_dies),
        retained=2,
    )


def test_a_checkpoint_is_there_whole_or_not_at_all(manager):
    folder = manager.init_tmp_checkpoint(3, {"current_step": 3}, {})
    assert (folder.name, manager.step_path(3).is_dir(), manager.get_latest_checkpoint_path()) == (
        "tmp_step_3",
        False,
        None,
    )

    manager.begin_finalization(folder)
    manager.finalize_pending()

    assert manager.get_latest_checkpoint_path() == manager.step_path(3) == manager.checkpoint_dir / "step_3"
    assert manager.load_training_info(manager.step_path(3)) == {"current_step": 3}
    assert not folder.exists()


def test_the_config_is_written_without_its_secrets(manager, tmp_path):
    """Pitfall: config.yaml is the whole dump, token and all."""
    config = {"seed": 1, "hf_token": "hunter2", "paths": (tmp_path, None), "dtype": torch.float32, 3: {"api_key": "k"}}

    text = (manager.init_tmp_checkpoint(0, {}, config) / "config.yaml").read_text()

    assert "hunter2" not in text
    assert yaml.safe_load(text) == {
        "seed": 1,
        "hf_token": "<redacted>",
        "paths": [str(tmp_path), None],
        "dtype": "torch.float32",
        "3": {"api_key": "<redacted>"},
    }


def test_it_waits_in_the_background_until_the_weights_are_written(manager):
    written, asked = threading.Event(), threading.Event()
    folder = manager.init_tmp_checkpoint(1, {"current_step": 1}, {})

    def wait_fn():
        asked.set()
        written.wait()
        (folder / "weights").write_bytes(b"late")

    manager.begin_finalization(folder, wait_fn)
    asked.wait()
    assert manager.has_pending_finalization
    assert not manager.step_path(1).exists()
    written.set()
    manager.finalize_pending()

    assert not manager.has_pending_finalization
    assert (manager.step_path(1) / "weights").read_bytes() == b"late"


@pytest.mark.parametrize("then", ["finalize_pending", "shutdown", "init_tmp_checkpoint", "begin_finalization"])
def test_a_failure_in_the_background_is_raised_once_at_the_next_call(manager, then):
    """Pitfall: the failure of a background save surfaces much later, or never."""
    folder = manager.init_tmp_checkpoint(1, {}, {})

    def wait_fn():
        raise ValueError("the writer died")

    manager.begin_finalization(folder, wait_fn)
    arguments = {"init_tmp_checkpoint": (2, {}, {}), "begin_finalization": (folder,)}.get(then, ())

    with pytest.raises(RuntimeError, match="a trainer checkpoint was not published: the writer died"):
        getattr(manager, then)(*arguments)

    assert not manager.step_path(1).exists()
    manager.finalize_pending()
    assert save(manager, 1).is_dir()


def test_of_several_threads_that_wait_one_gets_the_error(manager):
    go = threading.Event()
    folder = manager.init_tmp_checkpoint(1, {}, {})

    def wait_fn():
        go.wait()
        raise ValueError("died")

    manager.begin_finalization(folder, wait_fn)
    caught = []

    def wait():
        try:
            manager.finalize_pending()
        except RuntimeError as error:
            caught.append(error)

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    go.set()
    for thread in threads:
        thread.join()

    assert len(caught) == 1


@pytest.mark.parametrize("step", [-1, True, 1.0, "1"])
def test_what_is_no_step_is_refused(manager, step):
    with pytest.raises(ValueError, match="step is"):
        manager.init_tmp_checkpoint(step, {}, {})


@pytest.mark.parametrize("keep", [0, -1, True, 1.5])
def test_a_retention_of_nothing_is_refused(tmp_path, keep):
    with pytest.raises(ValueError, match="keep_latest_k"):
        CheckpointManager(tmp_path, keep_latest_k=keep)


def test_only_its_own_folder_is_published(manager, tmp_path):
    manager.init_tmp_checkpoint(1, {}, {})
    (tmp_path / "tmp_step_1").mkdir()
    for path in (tmp_path / "tmp_step_1", manager.checkpoint_dir, manager.checkpoint_dir / "tmp_step_2"):
        with pytest.raises(ValueError, match="the folder that init_tmp_checkpoint gave"):
            manager.begin_finalization(path)


def test_info_that_is_no_json_changes_nothing(manager):
    with pytest.raises(ValueError, match="nan"):
        manager.init_tmp_checkpoint(1, {"loss": float("nan")}, {})

    assert not manager.checkpoint_dir.exists()


@pytest.mark.parametrize("data", [b"", b"[]"])
def test_damaged_training_info_is_told_by_its_path(manager, data):
    path = save(manager, 1)
    (path / "training_info.json").write_bytes(data)

    with pytest.raises(ValueError, match=r"step_1/training_info\.json"):
        manager.load_training_info(path)


def test_a_left_over_of_the_same_step_is_begun_anew(manager):
    (manager.init_tmp_checkpoint(1, {}, {}) / "old").write_text("x")

    assert sorted(path.name for path in manager.init_tmp_checkpoint(1, {}, {}).iterdir()) == [
        "config.yaml",
        "training_info.json",
    ]


# ---- Replacement ----


def test_a_step_is_replaced_by_a_newer_checkpoint_of_it(manager):
    save(manager, 1, b"first")
    save(manager, 1, b"second")

    assert (manager.step_path(1) / "weights").read_bytes() == b"second"
    assert names_in(manager.checkpoint_dir) == ["step_1"]


def test_after_a_crash_between_the_two_renames_the_old_one_counts(manager):
    save(manager, 1, b"first").rename(manager.checkpoint_dir / "old_step_1")

    assert manager.step_path(1).name == manager.get_latest_checkpoint_path().name == "old_step_1"
    assert (save(manager, 1, b"second").name, names_in(manager.checkpoint_dir)) == ("step_1", ["step_1"])


# ---- Retention ----


def test_the_newest_are_kept_by_number(tmp_path):
    manager = CheckpointManager(tmp_path, keep_latest_k=2)
    for step in (1, 2, 9, 10):
        save(manager, step)

    assert names_in(tmp_path) == ["step_10", "step_9"]


def test_a_protected_checkpoint_stays_until_the_next_time(tmp_path):
    """Pitfall: retention removes a checkpoint while a snapshot is written under it."""
    manager = CheckpointManager(tmp_path, keep_latest_k=1)
    save(manager, 1)
    with manager.protect(1), manager.protect(1):
        save(manager, 2)
        assert names_in(tmp_path) == ["step_1", "step_2"]

    save(manager, 3)

    assert names_in(tmp_path) == ["step_3"]


def test_foreign_names_and_links_stay(tmp_path):
    manager = CheckpointManager(tmp_path / "run", keep_latest_k=1)
    manager.checkpoint_dir.mkdir()
    (tmp_path / "elsewhere").mkdir()
    foreign = ["step_01", "step_1.bak", "my_step_1", "bootstrap", "tmp_step_x", "tmp_step_7", "old_old_step_1"]
    for name in foreign:
        (manager.checkpoint_dir / name).mkdir()
    (manager.checkpoint_dir / "step_2").symlink_to(tmp_path / "elsewhere")
    (manager.checkpoint_dir / "tmp_step_3").mkdir()  # of a crash: swept once a later step is there

    save(manager, 5)

    assert set(names_in(manager.checkpoint_dir)) == {*foreign, "step_2", "step_5"}


def test_what_cannot_be_removed_is_a_warning_and_no_failed_checkpoint(tmp_path, caplog):
    class Busy(FileOps):
        def unlink(self, path):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(path))

    save(CheckpointManager(tmp_path), 1)

    save(CheckpointManager(tmp_path, keep_latest_k=1, ops=Busy()), 2)

    assert names_in(tmp_path) == ["step_2", "trash_step_1"]
    assert "trash_step_1 can't be removed" in caplog.text


# ---- Faults ----


def weights_at(folder):
    """The newest checkpoint as a start finds it, checked for being whole."""
    manager = CheckpointManager(folder)
    path = manager.get_latest_checkpoint_path()
    assert json.loads((path / "training_info.json").read_text())["current_step"] == 1
    assert yaml.safe_load((path / "config.yaml").read_text()) == {"seed": 1}
    return (path / "weights").read_bytes()


def test_at_every_fault_of_a_replacement_the_old_or_the_new_checkpoint_is_whole(make_run, copies, each_fault):
    template = make_run()
    save(CheckpointManager(template.folder), 1, b"first")

    def prepare():
        run = copies(template)
        return run, lambda ops: save(CheckpointManager(run.folder, ops=ops), 1, b"second")

    seen = set()
    for fault, run in each_fault(prepare):
        found = weights_at(run.folder)
        seen.add(found)
        assert found in (b"first", b"second"), fault
        assert select_resume_source(run.folder, run.config).train_steps == 1, fault
        save(CheckpointManager(run.folder), 1, b"third")
        assert weights_at(run.folder) == b"third", fault
        assert names_in(run.folder) == ["step_1"], fault
    assert seen == {b"first", b"second"}


def test_at_every_fault_of_a_checkpoint_with_retention_the_newest_whole_one_is_found(make_run, copies, each_fault):
    template = make_run()
    save(CheckpointManager(template.folder), 1, b"first")

    def prepare():
        run = copies(template)
        return run, lambda ops: save(CheckpointManager(run.folder, keep_latest_k=1, ops=ops), 2, b"second")

    for fault, run in each_fault(prepare):
        source = select_resume_source(run.folder, run.config)
        assert (source.anchor / "weights").read_bytes() == {1: b"first", 2: b"second"}[source.train_steps], fault
        save(CheckpointManager(run.folder, keep_latest_k=1), 3)
        assert names_in(run.folder) == ["step_3"], fault
