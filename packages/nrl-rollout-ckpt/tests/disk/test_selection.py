import hashlib
import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from nrl_rollout_ckpt.config import RolloutCheckpointConfig
from nrl_rollout_ckpt.disk.bootstrap import BootstrapCompatibilityIdentity, BootstrapMismatchError
from nrl_rollout_ckpt.disk.manifest import MANIFEST, TRAINER_MANIFEST, NewerFormatError, read_manifest
from nrl_rollout_ckpt.disk.selection import NoTrainerCheckpointError, RolloutStateDamagedError, select_resume_source
from nrl_rollout_ckpt.disk.upstream import UpstreamFormatError
from nrl_rollout_ckpt.state.rollout_state import CheckpointKind, ResumeSource


def select(run, identity=None, **config):
    """Select, and make sure that nothing on disk changed by it."""
    before = everything_in(run.folder)
    try:
        return select_resume_source(run.folder, RolloutCheckpointConfig.from_mapping(config), identity)
    finally:
        assert everything_in(run.folder) == before


def everything_in(folder: Path):
    return {
        path: (path.lstat().st_mtime_ns, hashlib.sha256(path.read_bytes()).digest() if path.is_file() else None)
        for path in folder.rglob("*")
    }


def damage(snapshot: Path, name="data_plane/rows.bin"):
    path = snapshot / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def reasons(source):
    return {item.path.name: item.reason for item in source.skipped}


def test_an_empty_or_missing_folder_is_a_fresh_run(run):
    assert select(run) == ResumeSource()
    run.folder.mkdir()
    assert select(run) == ResumeSource()


def test_the_newest_snapshot_of_the_newest_trainer_checkpoint_is_chosen(run):
    run.snapshot(run.train(1))
    anchor = run.train(2, rollouts=True)
    run.snapshot(anchor, 1)
    newest = run.snapshot(anchor, 2)

    source = select(run)

    assert source == ResumeSource(
        anchor, newest, CheckpointKind.ROLLOUT_SNAPSHOT, 2, 2, current_epoch=1, sampler_dispatch_index=2, verified=True
    )


def test_a_snapshot_of_an_older_trainer_checkpoint_is_no_candidate(run):
    run.snapshot(run.train(1))
    anchor = run.train(2)

    source = select(run)

    assert (source.anchor, source.path, source.skipped) == (anchor, None, ())


# ---- Damage ----


@pytest.mark.parametrize("name", ["data_plane/rows.bin", "replay_index.json", "train_dataloader.pt", MANIFEST])
def test_a_damaged_snapshot_is_passed_over_by_name_and_the_next_older_one_is_taken(run, name):
    """Pitfall: the manifest is whole, the payload is not, and the start fails though an older snapshot is good."""
    anchor = run.train(1)
    older, newer = run.snapshot(anchor), run.snapshot(anchor)
    damage(newer, name)

    source = select(run)

    assert source.path == older
    assert list(reasons(source)) == [newer.name]
    assert name in reasons(source)[newer.name]


def test_with_all_snapshots_damaged_the_trainer_checkpoint_itself_counts_and_what_is_lost_is_said(run):
    anchor = run.train(1, rollouts=True)
    snapshots = [run.snapshot(anchor), run.snapshot(anchor)]
    for snapshot in snapshots:
        damage(snapshot)

    source = select(run)

    assert (source.path, source.kind, source.verified) == (anchor, CheckpointKind.TRAINER_CHECKPOINT, True)
    assert sorted(reasons(source)) == ["snapshot_000001", "snapshot_000002"]
    (warning,) = source.warnings
    for part in (
        "all 2 snapshots",
        "1 complete groups with 2 rows",
        "1 groups that were not complete",
        "1 prompts in res",
    ):
        assert part in warning


def test_what_is_lost_is_unknown_where_no_manifest_can_be_read(run):
    anchor = run.train(1, rollouts=True)
    (run.snapshot(anchor) / MANIFEST).unlink()

    assert "no manifest of theirs can be read" in select(run).warnings[0]


def test_with_all_snapshots_from_before_the_first_step_damaged_the_error_names_the_way_out(run, identity):
    anchor = run.bootstrap()
    for snapshot in [run.snapshot(anchor), run.snapshot(anchor)]:
        damage(snapshot)

    with pytest.raises(
        RolloutStateDamagedError, match=r"snapshot_000002 .*snapshot_000001 .*restore_mode='fresh'"
    ) as caught:
        select(run, identity)

    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert select(run, identity, restore_mode="fresh").path is None


@pytest.mark.parametrize("mode", ["latest", "trainer_checkpoint"])
@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("training_info.json", None),
        ("training_info.json", b"{"),
        ("training_info.json", b"[]"),
        ("training_info.json", b'{"current_step": 1}'),
        ("training_info.json", b'{"current_step": true}'),
        ("training_info.json", b'{"current_step": 2, "trainer_version": -1}'),
        ("training_info.json", b'{"current_step": 2, "sampler_dispatch_index": -2}'),
        ("rollout_manifest.json", None),
        ("rollout_manifest.json", b"{}"),
        ("replay_index.json", b"{}"),
        ("data_plane/rows.bin", b""),
    ],
)
def test_a_damaged_newest_trainer_checkpoint_is_an_error_and_never_an_older_one_in_silence(run, mode, name, data):
    run.train(1, rollouts=True)
    newest = run.train(2, rollouts=True)
    (newest / name).unlink()
    if data is not None:
        (newest / name).write_bytes(data)

    with pytest.raises(RolloutStateDamagedError, match=name.partition("/")[0]) as caught:
        select(run, restore_mode=mode)

    assert caught.value.path == newest
    assert "another checkpoint_dir" in str(caught.value)


def test_the_damaged_rollout_state_of_a_trainer_checkpoint_does_not_matter_under_a_whole_snapshot(run):
    anchor = run.train(1, rollouts=True)
    snapshot = run.snapshot(anchor)
    damage(anchor)

    assert select(run).path == snapshot


# ---- Versions and anchors ----


def test_a_later_format_stops_with_the_versions_that_can_be_read(run):
    anchor = run.train(1)
    run.snapshot(anchor)
    newest = run.snapshot(anchor)
    content = json.loads((newest / MANIFEST).read_text())
    (newest / MANIFEST).write_text(json.dumps(content | {"schema_version": 9}))

    with pytest.raises(
        NewerFormatError, match=r"snapshot_000002/manifest\.json has format version 9.* reads 1"
    ) as caught:
        select(run)

    assert caught.value.supported == (1,)


def test_snapshots_of_another_anchor_or_run_are_no_candidates(run, make_run):
    """Pitfall: a folder of another lineage is fatal, or is taken."""
    anchor = run.train(2)
    good = run.snapshot(anchor)
    for number, other in enumerate([run.snapshot(run.train(1)), make_run().snapshot(make_run().bootstrap())]):
        shutil.copytree(other, good.parent / f"snapshot_00000{number + 5}")

    source = select(run)

    assert source.path == good
    assert reasons(source) == {
        "snapshot_000006": "belongs elsewhere: its base_train_step is 0, that of step_2 is 2",
        "snapshot_000005": "belongs elsewhere: its base_train_step is 1, that of step_2 is 2",
    }


@pytest.mark.parametrize("rollouts", [True, False])
def test_a_snapshot_of_another_runs_checkpoint_of_the_same_step_is_no_candidate(run, make_run, rollouts):
    """Pitfall: step and version agree, and the rollouts are of other weights."""
    anchor, other = run.train(2, rollouts=rollouts), make_run().train(2, rollouts=rollouts)
    good = run.snapshot(anchor)
    if rollouts:  # as with every run, made at another moment
        manifest = replace(read_manifest(other / TRAINER_MANIFEST), created=1.0)
        (other / TRAINER_MANIFEST).write_bytes(manifest.to_json())
    else:
        (other / "training_info.json").write_text('{"current_step": 2, "loss": 0.25}')
    shutil.copytree(make_run().snapshot(other), good.parent / "snapshot_000002")

    source = select(run)

    assert source.path == good
    assert reasons(source)["snapshot_000002"].startswith("belongs elsewhere: its anchor_digest is sha256:")


def test_a_trainer_checkpoints_own_state_is_no_snapshot(run):
    anchor = run.train(1, rollouts=True)
    copied = anchor / "rollout_snapshots" / "snapshot_000001"
    shutil.copytree(anchor, copied, ignore=shutil.ignore_patterns("rollout_snapshots"))
    (copied / "rollout_manifest.json").rename(copied / MANIFEST)

    source = select(run)

    assert source.path == anchor
    assert "its kind is trainer_checkpoint" in reasons(source)["snapshot_000001"]


def test_only_foreign_snapshots_from_before_the_first_step_are_a_fresh_run(run, identity):
    foreign = run.snapshot(run.train(1))
    anchor = run.bootstrap()
    shutil.copytree(foreign, anchor / "rollout_snapshots" / "snapshot_000001")
    shutil.rmtree(run.folder / "step_1")

    source = select(run, identity)

    assert (source.path, source.anchor, list(reasons(source))) == (None, None, ["snapshot_000001"])


def test_an_old_step_is_read_where_the_step_is_missing(run):
    anchor = run.train(1, rollouts=True)
    run.snapshot(anchor)
    old = anchor.rename(anchor.with_name("old_step_1"))

    source = select(run)

    assert (source.anchor, source.train_steps, source.path) == (old, 1, old / "rollout_snapshots" / "snapshot_000001")


# ---- Modes ----


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"snapshot_attempt_interval_s": None}, "snapshot_attempt_interval_s is None"),
        ({"restore_mode": "trainer_checkpoint"}, "restore_mode is 'trainer_checkpoint'"),
    ],
)
def test_snapshots_that_are_not_wanted_are_not_considered_and_that_is_said(run, config, why):
    anchor = run.train(1, rollouts=True)
    run.snapshot(anchor)

    source = select(run, **config)

    assert (source.path, source.kind) == (anchor, CheckpointKind.TRAINER_CHECKPOINT)
    assert source.warnings == (f"{why}: 1 snapshots of {anchor} are not considered",)


def test_a_trainer_checkpoint_without_rollout_state_gives_its_weights_only_and_says_so(run):
    anchor = run.train(3)

    source = select(run)

    assert (source.anchor, source.path, source.train_steps, source.sampler_dispatch_index) == (anchor, None, 3, 2)
    assert "has no rollout state" in source.warnings[0]


def test_older_checkpoints_without_all_counters_get_their_defaults(run):
    anchor = run.train(3)
    (anchor / "training_info.json").write_text('{"current_step": 3}')

    source = select(run)

    assert (source.trainer_version, source.current_epoch, source.sampler_dispatch_index) == (3, 0, None)


def test_bootstrap_snapshots_are_restored_before_the_first_step(run, identity):
    anchor = run.bootstrap()
    newest = run.snapshot(anchor)

    source = select(run, identity)

    assert (source.anchor, source.path, source.train_steps, source.trainer_version) == (anchor, newest, 0, 0)
    assert select(run).path == newest  # without an identity to compare


def test_another_config_before_the_first_step_is_an_error(run):
    run.snapshot(run.bootstrap())
    other = BootstrapCompatibilityIdentity.of({"seed": 2, "policy": {"model": "m"}})

    with pytest.raises(BootstrapMismatchError, match="seed 1 -> 2"):
        select(run, other)


def test_a_trainer_checkpoint_is_asked_for_where_only_bootstrap_is(run, identity):
    run.snapshot(run.bootstrap())

    with pytest.raises(NoTrainerCheckpointError, match="has no trainer checkpoint") as caught:
        select(run, identity, restore_mode="trainer_checkpoint")

    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_bootstrap_snapshots_are_not_considered_with_snapshots_off(run):
    run.snapshot(run.bootstrap())

    source = select(run, snapshot_attempt_interval_s=None)

    assert source.path is None
    assert "1 snapshots" in source.warnings[0]


def test_a_bootstrap_anchor_without_a_snapshot_is_a_fresh_run(run, identity):
    run.bootstrap()

    assert select(run, identity) == ResumeSource()


def test_bootstrap_snapshots_without_their_anchor_are_damaged(run, identity):
    anchor = run.bootstrap()
    run.snapshot(anchor)
    (anchor / MANIFEST).unlink()

    with pytest.raises(RolloutStateDamagedError, match=r"manifest\.json is missing"):
        select(run, identity)


def test_bootstrap_snapshots_do_not_count_beside_a_trainer_checkpoint(run, identity):
    run.snapshot(run.bootstrap())
    anchor = run.train(1)

    source = select(run, identity)

    assert (source.anchor, source.path) == (anchor, None)


@pytest.mark.parametrize("where", ["step", "snapshot"])
def test_rollout_state_of_nemo_rl_itself_is_refused_with_that_said(run, where):
    anchor = run.train(1)
    folder = anchor if where == "step" else run.snapshot(anchor)
    (folder / "rollout_recovery.pt").write_bytes(b"")

    with pytest.raises(UpstreamFormatError, match="NeMo RL's own format"):
        select(run)


# ---- The given cases ----


def test_r07_left_overs_that_look_newer_than_the_last_complete_snapshot(run):
    anchor = run.train(1)
    for _ in range(4):
        run.snapshot(anchor)
    five = run.snapshot(anchor, 5)
    folder = five.parent
    for number in (6, 7):
        shutil.copytree(five, folder / f"snapshot_00000{number}")
    (folder / "snapshot_000006" / MANIFEST).unlink()
    (folder / "snapshot_000007" / "replay_index.json").unlink()
    shutil.copytree(five, folder / "tmp_snapshot_000008")
    (folder / "snapshot_000009").mkdir()

    source = select(run)

    assert source.path == five
    assert reasons(source) == {
        "snapshot_000009": "has no manifest.json: it is not complete",
        "tmp_snapshot_000008": "was never published: it is being written, or its process ended before",
        "snapshot_000007": "replay_index.json is missing",
        "snapshot_000006": "has no manifest.json: it is not complete",
    }

    for mark in (10, 11, 12):
        saved = run.snapshot(anchor, mark)
        own = {path.relative_to(saved).as_posix() for path in saved.rglob("*") if path.is_file()}
        recorded = {item["path"] for item in json.loads((saved / MANIFEST).read_text())["files"]}
        assert own == recorded | {MANIFEST}
        assert select(run).path == saved
    assert not (folder / "tmp_snapshot_000008").exists()
