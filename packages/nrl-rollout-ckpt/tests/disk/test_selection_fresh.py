"""A start that is to restore nothing, in a folder that is not empty."""

import pickle

import pytest
from nrl_rollout_ckpt.config import RolloutCheckpointConfig
from nrl_rollout_ckpt.disk.bootstrap import BootstrapCompatibilityIdentity, BootstrapMismatchError
from nrl_rollout_ckpt.disk.manifest import MANIFEST
from nrl_rollout_ckpt.disk.selection import NotAFreshFolderError, RolloutStateDamagedError, select_resume_source
from nrl_rollout_ckpt.state.rollout_state import ResumeSource

OTHER = BootstrapCompatibilityIdentity.of({"seed": 2, "policy": {"model": "m"}})


def select(run, identity=None, **config):
    fresh = RolloutCheckpointConfig.from_mapping({"restore_mode": "fresh", **config})
    return select_resume_source(run.folder, fresh, identity)


def test_an_empty_folder_is_a_fresh_run(run, identity):
    assert select(run, identity) == ResumeSource()


@pytest.mark.parametrize("name", ["step_5", "old_step_5"])
def test_a_folder_with_trainer_checkpoints_is_refused_with_the_way_out(run, name):
    """Retention keeps the highest steps: step_1 of the new run would be removed as the oldest one."""
    run.train(2)
    newest = run.train(5)
    newest = newest.rename(newest.with_name(name))

    with pytest.raises(NotAFreshFolderError, match=f"{name} is there.*Name another checkpoint_dir") as caught:
        select(run)

    assert caught.value.path == newest
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.path) == (str(caught.value), newest)


def test_snapshots_from_before_the_first_step_are_left_alone_and_that_is_said(run, identity):
    anchor = run.bootstrap()
    run.snapshot(anchor)

    assert select(run, identity) == ResumeSource(warnings=(f"restore_mode is 'fresh': {anchor} is left alone",))


def test_another_config_is_refused_at_the_start_and_not_at_the_first_snapshot(run):
    run.snapshot(run.bootstrap())

    with pytest.raises(BootstrapMismatchError, match="seed 1 -> 2"):
        select(run, OTHER)


def test_a_damaged_anchor_is_refused_at_the_start_too(run, identity):
    (run.bootstrap() / MANIFEST).write_text("{")

    with pytest.raises(RolloutStateDamagedError, match="Choose another checkpoint_dir"):
        select(run, identity)


def test_with_snapshots_off_the_anchor_does_not_matter(run):
    anchor = run.bootstrap()
    run.snapshot(anchor)

    source = select(run, OTHER, snapshot_attempt_interval_s=None)

    assert source.path is None
    assert "1 snapshots" in source.warnings[0]
