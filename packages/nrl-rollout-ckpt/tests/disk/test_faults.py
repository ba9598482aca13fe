"""Faults of a whole save: whatever moment they come at, a start finds the old snapshot or the new one, whole."""

import random
import shutil
from pathlib import Path

import pytest
from nrl_interfaces.fileops import FileOps
from nrl_rollout_ckpt.disk.layout import list_snapshots
from nrl_rollout_ckpt.disk.manifest import MANIFEST, read_manifest
from nrl_rollout_ckpt.disk.selection import select_resume_source
from nrl_rollout_ckpt.disk.sidecars import read_sidecars


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def restored_mark(run, identity):
    """What a start would restore, read to its end; None for nothing."""
    source = select_resume_source(run.folder, run.config, identity)
    if source.path is None:
        return None
    manifest = read_manifest(source.path / MANIFEST)
    sidecars = read_sidecars(source.path, manifest)
    assert sidecars.prompt_source_state["position"] == manifest.mutation_version
    return manifest.mutation_version


@pytest.mark.slow
@pytest.mark.parametrize("anchor", ["step_1", "bootstrap"])
def test_r05_with_one_kept_every_fault_of_a_save_leaves_the_old_or_the_new_snapshot(
    make_run, copies, each_fault, identity, anchor
):
    template = make_run(keep_latest_k=1)
    template.snapshot(template.train(1) if anchor == "step_1" else template.bootstrap(), 1)

    def prepare():
        run = copies(template)
        return run, lambda ops: run.snapshot(run.folder / anchor, 2, ops)

    seen = []
    for fault, run in each_fault(prepare):
        mark = restored_mark(run, identity)
        assert mark in (1, 2), fault
        seen.append(mark)
        run.snapshot(run.folder / anchor, 3)
        assert restored_mark(run, identity) == 3, fault
        complete = list_snapshots(run.folder / anchor)
        assert len(complete) == 1, fault
        assert names_in(complete[0].parent) == [complete[0].name], fault
    assert set(seen) == {1, 2}


@pytest.mark.slow
def test_every_fault_of_the_first_snapshot_leaves_nothing_or_it(make_run, copies, each_fault, identity):
    template = make_run()
    template.bootstrap()

    def prepare():
        run = copies(template)
        return run, lambda ops: run.snapshot(run.bootstrap(ops), 1, ops)

    assert {restored_mark(run, identity) for _, run in each_fault(prepare)} == {None, 1}


@pytest.mark.parametrize("name", ["replay_index.json", MANIFEST])
def test_r05_without_what_failed_the_next_save_leaves_exactly_one(run, name):
    """The shape of R05: A is there, B fails while `name` is written, C is saved."""

    class Fails(FileOps):
        def open(self, path, flags):
            if path.name == name and "tmp_" in path.parent.name:
                raise OSError(28, "No space left on device", str(path))
            return super().open(path, flags)

    run.config = type(run.config)(keep_latest_k=1)
    anchor = run.train(1)
    first = run.snapshot(anchor, 1)

    with pytest.raises(OSError, match="No space left"):
        run.snapshot(anchor, 2, Fails())
    assert select_resume_source(run.folder, run.config).path == first

    last = run.snapshot(anchor, 3)
    assert names_in(last.parent) == [last.name]


# ---- Mutations ----


def flip(data: bytearray, rng: random.Random) -> bytearray:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def cut(data: bytearray, rng: random.Random) -> bytearray:
    return data[: rng.randrange(len(data))]


def grow(data: bytearray, rng: random.Random) -> bytearray:
    return data + bytes([rng.randrange(256)])


def swap_digits(data: bytearray, rng: random.Random) -> bytearray:
    """Edit a number in JSON, as a person would."""
    digits = [at for at, byte in enumerate(data) if byte in b"0123456789"]
    at = rng.choice(digits)
    data[at] = ord("0") + (data[at] - ord("0") + rng.randrange(1, 10)) % 10
    return data


def mutate(snapshot, rng: random.Random) -> str:
    files = sorted(path for path in snapshot.rglob("*") if path.is_file())
    path = rng.choice(files)
    how = rng.choice(["flip", "cut", "grow", "edit", "remove", "swap", "link"])
    if how == "edit":
        path = rng.choice([file for file in files if file.suffix == ".json"])
    if how == "remove":
        path.unlink()
    elif how == "swap":
        other = rng.choice([file for file in files if file != path])
        aside = path.with_name("aside")
        path.rename(aside)
        other.rename(path)
        aside.rename(other)
    elif how == "link":
        aside = path.with_name("aside")
        path.rename(aside)
        path.symlink_to(aside)
    else:
        change = {"flip": flip, "cut": cut, "grow": grow, "edit": swap_digits}[how]
        path.write_bytes(change(bytearray(path.read_bytes()), rng))
    return f"{how} {path.name}"


def test_three_hundred_random_mutations_of_a_snapshot_are_refused_or_passed_over_by_name(run):
    anchor = run.train(1)
    older, newer = run.snapshot(anchor, 1), run.snapshot(anchor, 2)
    kept = newer.with_name("kept")
    shutil.copytree(newer, kept, symlinks=True)
    passed_over = 0
    for seed in range(300):
        done = mutate(newer, random.Random(seed))
        try:
            source = select_resume_source(run.folder, run.config)
        except ValueError as error:
            assert newer.name in str(error), (seed, done)
        else:
            assert source.path == older, (seed, done)
            assert [item.path for item in source.skipped] == [newer], (seed, done)
            assert source.skipped[0].reason, (seed, done)
            passed_over += 1
        shutil.rmtree(newer)
        shutil.copytree(kept, newer, symlinks=True)
    assert passed_over > 290
    assert select_resume_source(run.folder, run.config).path == newer
