"""The command, on folders that real runs have written."""

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nrl_interfaces.fileops import FileOps
from nrl_rollout_ckpt.cli import run
from nrl_rollout_ckpt.commands.entries import look_at
from nrl_rollout_ckpt.disk.layout import FolderOwner
from nrl_rollout_ckpt.disk.manifest import verify_files

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def folder(new_world: Callable[..., Any], tmp_path: Path) -> Path:
    """A run with one snapshot under the bootstrap anchor, one under step_1, two under step_2, and things left over."""

    async def story() -> Path:
        world = await new_world(folder=tmp_path / "ckpt", settings={"keep_latest_k": 9}).populate()
        await world.save()
        shutil.copytree(world.folder / "bootstrap", tmp_path / "bootstrap")
        await world.claim_step()
        await world.commit_step()
        await world.save_trainer_checkpoint()
        await world.save()
        shutil.copytree(world.folder / "step_1", tmp_path / "step_1")
        world.parts.progress.advance()  # a step without rollouts
        await world.save_trainer_checkpoint()
        await world.save()
        await world.save()
        world.close()
        for name in ("bootstrap", "step_1"):  # what a crash before retention leaves
            shutil.rmtree(world.folder / name)
            shutil.move(tmp_path / name, world.folder / name)
        newest = world.folder / "step_2" / "rollout_snapshots"
        shutil.copytree(newest / "snapshot_000002", newest / "tmp_snapshot_000003")
        (world.folder / "tmp_step_1").mkdir()
        (world.folder / "tmp_step_3").mkdir()
        return world.folder

    return asyncio.run(story())


def said(capsys: Captured, *args: object, code: int = 0) -> str:
    assert run(list(map(str, args))) == code
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def said_json(capsys: Captured, *args: object, code: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said(capsys, *args, "--json", code=code).splitlines()]


def everything(folder: Path) -> dict[str, Any]:
    """Every name with its content and time."""
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in [folder, *folder.rglob("*")]
    }


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


NAMES = [
    "bootstrap",
    "bootstrap/rollout_snapshots/snapshot_000001",
    "step_1",
    "step_1/rollout_snapshots/snapshot_000001",
    "step_2",
    "step_2/rollout_snapshots/snapshot_000001",
    "step_2/rollout_snapshots/snapshot_000002",
    "step_2/rollout_snapshots/tmp_snapshot_000003",
]

# ---- ls ----


def test_ls_lists_anchors_and_snapshots(folder: Path, capsys: Captured) -> None:
    (folder / "step_2" / "rollout_snapshots" / "snapshot_000001" / "replay_index.json").unlink()
    found = said_json(capsys, "ls", folder)
    assert [os.path.relpath(entry["path"], folder) for entry in found] == NAMES
    assert [entry["state"] for entry in found] == ["complete"] * 5 + ["damaged", "complete", "unpublished"]
    assert found[5]["problems"] == ["replay_index.json is missing"]
    assert found[1]["counts"] == {
        "environment_episodes": 2, "ledger_groups": 4, "replay_groups": 2, "reserve": 1, "rows": 4,
    }  # fmt: skip
    assert [entry["anchor"] for entry in found[4:]] == ["step_2"] * 4
    assert found[1]["created"] == 1_700_000_000
    assert found[1]["age_s"] > 0
    snapshot = folder / NAMES[1]
    assert found[1]["bytes"] == sum(path.stat().st_size for path in snapshot.rglob("*") if path.is_file())
    table = said(capsys, "ls", folder).splitlines()
    assert table[0].split() == ["path", "size", "age", "groups", "rows", "reserve", "episodes", "state"]
    assert [line.split()[0] for line in table[1:]] == NAMES
    assert " 2 + 4 " in table[2]
    assert table[6].endswith("damaged: replay_index.json is missing")


def test_ls_of_an_empty_folder_is_no_error(tmp_path: Path, capsys: Captured) -> None:
    assert said_json(capsys, "ls", tmp_path) == []
    assert said(capsys, "ls", tmp_path).splitlines() == [
        "path  size  age  groups  rows  reserve  episodes  state",
    ]  # fmt: skip


# ---- show ----


@pytest.mark.parametrize("which", [NAMES[1], "run"])
def test_show_says_what_a_snapshot_holds(folder: Path, capsys: Captured, which: str) -> None:
    path = folder if which == "run" else folder / which
    [shown] = said_json(capsys, "show", path)
    assert shown["path"] == str(folder / (NAMES[6] if which == "run" else which))
    assert shown["manifest"]["base_train_step"] == (2 if which == "run" else 0)
    if which != "run":
        assert [(group["prompt"], group["state"]) for group in shown["groups"]] == [
            ("p0", "complete"),
            ("p1", "complete"),
            ("p2", "admitted, generating"),
            ("p3", "admitted, generating"),
            ("p4", "reserved, generating"),
            ("p5", "reserved, generating"),
            ("p6", "reserve"),
        ]
        assert shown["groups"][2]["siblings"] == {"dispatched": 1, "sealed": 1}
    assert shown["manifest"]["created"] == 1_700_000_000
    text = said(capsys, "show", path)
    assert "2023-11-14T22:13:20Z" in text
    assert "sampler_dispatch_index" in text
    assert "1 dispatched, 1 sealed" in text
    assert "replay_index.json" in text


def test_show_of_a_trainer_checkpoint(folder: Path, capsys: Captured) -> None:
    [shown] = said_json(capsys, "show", folder / "step_1")
    assert shown["manifest"]["kind"] == "trainer_checkpoint"


def test_show_of_a_damaged_snapshot_is_one_line(folder: Path, capsys: Captured) -> None:
    (folder / NAMES[1] / "manifest.json").write_text("{")
    assert run(["show", str(folder / NAMES[1])]) == 1
    error = capsys.readouterr().err
    assert error.startswith("nrl-rollout-ckpt: ")
    assert "manifest.json" in error
    assert error.count("\n") == 1


# ---- verify ----


def test_verify_reads_every_byte(folder: Path, capsys: Captured) -> None:
    assert {entry["state"] for entry in said_json(capsys, "verify", folder)} == {"complete", "unpublished"}
    damage(folder / NAMES[1] / "replay_index.json")
    (folder / NAMES[3] / "environment.json").unlink()
    (folder / "bootstrap" / "manifest.json").write_text("{}")
    damage(folder / "step_2" / "rollout_recovery.json")
    assert {os.path.relpath(entry["path"], folder) for entry in said_json(capsys, "ls", folder)
            if entry["state"] == "damaged"} == {NAMES[0], NAMES[3]}, "ls reads no payload"  # fmt: skip
    found = said_json(capsys, "verify", folder, code=1)
    problems = {os.path.relpath(entry["path"], folder): entry["problems"] for entry in found
                if entry["state"] == "damaged"}  # fmt: skip
    assert set(problems) == {NAMES[0], NAMES[1], NAMES[3], NAMES[4]}
    assert problems[NAMES[1]] == ["replay_index.json has other bytes than the manifest says"]
    text = said(capsys, "verify", folder / NAMES[1], folder / NAMES[6], code=1)
    assert text == (
        f"{folder / NAMES[1]}: damaged: replay_index.json has other bytes than the manifest says\n"
        f"{folder / NAMES[6]}: complete\n"
    )


def test_verify_shortens_a_long_list_for_people_only(folder: Path, capsys: Captured) -> None:
    shutil.rmtree(folder / NAMES[1] / "data_plane")
    for name in ("replay_index.json", "rollout_recovery.json", "environment.json"):
        (folder / NAMES[1] / name).unlink()
    [entry] = said_json(capsys, "verify", folder / NAMES[1], code=1)
    assert f"; and {len(entry['problems']) - 3} more" in said(capsys, "verify", folder / NAMES[1], code=1)


def test_a_snapshot_that_goes_while_it_is_read_is_no_damage(folder: Path) -> None:
    def verify_late(snapshot: Path, manifest: Any, *, digests: bool) -> list[str]:
        shutil.rmtree(snapshot)
        return verify_files(snapshot, manifest, digests=digests)

    assert look_at(folder / NAMES[1], digests=True, verify=verify_late).state == "being removed"


# ---- explain ----


def test_explain_says_what_a_start_restores_and_why_nothing_newer(folder: Path, capsys: Captured) -> None:
    damage(folder / NAMES[6] / "rollout_recovery.json")
    [found] = said_json(capsys, "explain", folder)
    assert found["path"] == str(folder / NAMES[5])
    assert (found["kind"], found["train_steps"], found["trainer_version"]) == ("rollout_snapshot", 2, 2)
    skipped = {os.path.relpath(item["path"], folder): item["reason"] for item in found["skipped"]}
    assert list(skipped) == ["tmp_step_3", NAMES[7], NAMES[6]]
    assert skipped[NAMES[6]] == "rollout_recovery.json has other bytes than the manifest says"
    lines = said(capsys, "explain", folder).splitlines()
    assert lines[:2] == ["weights     step_2", f"rollouts    {NAMES[5]}"]
    assert f"passed over: {NAMES[6]}: {skipped[NAMES[6]]}" in lines
    assert lines[-3].startswith("passed over: tmp_step_3: was never published")


def test_explain_takes_the_restore_mode(folder: Path, capsys: Captured) -> None:
    [found] = said_json(capsys, "explain", folder, "--restore-mode", "trainer_checkpoint")
    assert found["path"] == str(folder / "step_2")
    [found] = said_json(capsys, "explain", folder, "--restore-mode", "fresh", code=1)
    assert "Name another checkpoint_dir" in found["error"]
    for step in ("step_1", "step_2"):
        shutil.rmtree(folder / step)
    [found] = said_json(capsys, "explain", folder, "--restore-mode", "fresh")
    assert found["path"] is None
    assert "warning: restore_mode is 'fresh'" in said(capsys, "explain", folder, "--restore-mode", "fresh")


def test_explain_of_a_folder_that_a_start_refuses(folder: Path, capsys: Captured) -> None:
    (folder / "step_2" / "training_info.json").write_text("{")
    [found] = said_json(capsys, "explain", folder, code=1)
    assert "is damaged" in found["error"]
    assert run(["explain", str(folder)]) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"nrl-rollout-ckpt: {found['error']}\n")


def test_explain_of_an_empty_folder_is_a_fresh_run(tmp_path: Path, capsys: Captured) -> None:
    assert said_json(capsys, "explain", tmp_path)[0]["path"] is None
    assert "none: a fresh run" in said(capsys, "explain", tmp_path)


# ---- prune ----


def test_prune_removes_what_a_run_would_and_a_dry_run_nothing(folder: Path, capsys: Captured) -> None:
    empty = folder / "step_2" / "rollout_snapshots" / "trash_snapshot_000009"
    empty.mkdir()
    before = everything(folder)
    goes = {str(folder / NAMES[at]) for at in (1, 3, 5, 7)} | {str(empty)}
    [would] = said_json(capsys, "prune", folder, "--keep-latest-k", 1, "--dry-run")
    assert set(would["removed"]) == goes
    assert would["dry_run"] is True
    assert everything(folder) == before
    [gone] = said_json(capsys, "prune", folder, "--keep-latest-k", 1)
    assert gone == {"removed": would["removed"], "dry_run": False}
    left = [os.path.relpath(entry["path"], folder) for entry in said_json(capsys, "ls", folder)]
    assert left == [NAMES[at] for at in (0, 2, 4, 6)]
    assert said(capsys, "prune", folder, "--keep-latest-k", 1) == ""
    [found] = said_json(capsys, "explain", folder)
    assert found["path"] == str(folder / NAMES[6])


def test_prune_says_what_it_does(folder: Path, capsys: Captured) -> None:
    lines = said(capsys, "prune", folder, "--keep-latest-k", 9, "--dry-run").splitlines()
    assert f"would remove {folder / NAMES[3]}" in lines
    assert said(capsys, "prune", folder, "--keep-latest-k", 9).splitlines() == [
        line.replace("would remove", "removed") for line in lines
    ]


def test_prune_before_the_first_trainer_checkpoint(folder: Path, capsys: Captured) -> None:
    for name in ("step_1", "step_2"):
        shutil.rmtree(folder / name)
    assert said(capsys, "prune", folder, "--keep-latest-k", 1) == ""
    assert (folder / NAMES[1]).is_dir()


def test_prune_refuses_a_folder_that_a_run_holds(folder: Path, capsys: Captured) -> None:
    with FolderOwner(folder, FileOps()):
        before = everything(folder)
        assert run(["prune", str(folder), "--keep-latest-k", "1"]) == 1
        captured = capsys.readouterr()
        assert f"in use by process {os.getpid()}" in captured.err
        assert captured.err.count("\n") == 1
        assert len(said_json(capsys, "prune", folder, "--keep-latest-k", 1, "--dry-run")[0]["removed"]) == 4
        assert everything(folder) == before


# ---- All ----


@pytest.mark.parametrize("args", [["ls"], ["show"], ["verify"], ["explain"], ["explain", "--json"]])
def test_readers_change_nothing_and_need_no_lock(folder: Path, capsys: Captured, args: list[str]) -> None:
    (folder / ".owner.lock").unlink()
    with FolderOwner(folder, FileOps()):
        before = everything(folder)
        said(capsys, *args, folder)
        assert everything(folder) == before


@pytest.mark.parametrize(
    "args",
    [
        ["ls"],
        ["ls", "not there"],
        ["ls", "file"],
        ["ls", ".", "--wrong"],
        ["show", "."],
        ["verify"],
        ["verify", "."],
        ["explain", "not there"],
        ["explain", ".", "--restore-mode", "newest"],
        ["prune", ".", "--keep-latest-k", "1"],
        ["prune", ".", "--keep-latest-k", "0"],
        ["prune", "other/step_1", "--keep-latest-k", "1"],
        ["prune", "."],
        ["wrong"],
    ],
)
def test_a_wrong_call_is_code_2_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured, args: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "other" / "step_1").mkdir(parents=True)
    before = everything(tmp_path)
    assert run(args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("nrl-rollout-ckpt: ")
    assert captured.err.count("\n") == 1
    assert everything(tmp_path) == before


def test_help_and_version(capsys: Captured) -> None:
    assert said(capsys, "--version").startswith("nrl-rollout-ckpt, version 0.")
    assert said(capsys) == said(capsys, "--help")
    for verb in ("ls", "show", "verify", "explain", "prune"):
        assert "--json" in said(capsys, verb, "--help")


def test_names_that_move_a_cursor_are_escaped(tmp_path: Path, capsys: Captured) -> None:
    odd = tmp_path / "a\x1b[2Jb"
    (odd / "step_1").mkdir(parents=True)
    assert "\x1b" not in said(capsys, "verify", odd)
