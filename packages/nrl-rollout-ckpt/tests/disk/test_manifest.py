import hashlib
import json
import os
import pickle
from dataclasses import replace

import pytest
from nrl_interfaces.identity import canonical_json
from nrl_rollout_ckpt.disk.manifest import (
    FileRecord,
    NewerFormatError,
    RolloutSnapshotManifest,
    SnapshotCounts,
    describe_files,
    read_manifest,
    verify_files,
)
from nrl_rollout_ckpt.state.rollout_state import CheckpointKind

MANIFEST = RolloutSnapshotManifest(
    kind=CheckpointKind.ROLLOUT_SNAPSHOT,
    created=1_700_000_000.5,
    base_train_step=3,
    trainer_version=3,
    current_epoch=1,
    sampler_name="in_order",
    sampler_dispatch_index=-1,
    mutation_version=17,
    rolled_back_train_group_count=2,
    anchor_digest="sha256:" + "2" * 64,
    counts=SnapshotCounts(replay_groups=4, rows=8),
    files=(FileRecord("data_plane/rows.bin", 3, "xxh3_128:" + "0" * 32), FileRecord("a.json", 2, "sha256:" + "1" * 64)),
)
GOLDEN = """{
  "anchor_digest": "sha256:2222222222222222222222222222222222222222222222222222222222222222",
  "base_train_step": 3,
  "bootstrap_fingerprint": null,
  "counts": {
    "environment_episodes": 0,
    "ledger_groups": 0,
    "replay_groups": 4,
    "reserve": 0,
    "rows": 8
  },
  "created": 1700000000.5,
  "current_epoch": 1,
  "digest": "sha256:3145ecf94eb2b19e48111695fd1587f174740dc3c1f17e0070433ff67698b244",
  "files": [
    {
      "digest": "sha256:1111111111111111111111111111111111111111111111111111111111111111",
      "path": "a.json",
      "size": 2
    },
    {
      "digest": "xxh3_128:00000000000000000000000000000000",
      "path": "data_plane/rows.bin",
      "size": 3
    }
  ],
  "kind": "rollout_snapshot",
  "mutation_version": 17,
  "rolled_back_train_group_count": 2,
  "sampler_dispatch_index": -1,
  "sampler_name": "in_order",
  "schema_version": 1,
  "trainer_version": 3
}
"""


def test_what_is_written_is_read_again_and_the_format_stays(tmp_path):
    (tmp_path / "manifest.json").write_bytes(MANIFEST.to_json())

    assert MANIFEST.to_json().decode() == GOLDEN
    assert read_manifest(tmp_path / "manifest.json") == MANIFEST


def with_digest(content):
    """Give a manifest's mapping the digest that it should have."""
    rest = {name: value for name, value in content.items() if name != "digest"}
    return {**rest, "digest": "sha256:" + hashlib.sha256(canonical_json(rest)).hexdigest()}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kind", "snapshot"),
        ("created", -1.0),
        ("created", True),
        ("anchor_digest", "1" * 64),
        ("base_train_step", -1),
        ("base_train_step", True),
        ("trainer_version", 1.0),
        ("current_epoch", None),
        ("sampler_dispatch_index", -2),
        ("sampler_dispatch_index", False),
        ("mutation_version", "1"),
        ("rolled_back_train_group_count", -1),
        ("sampler_name", None),
        ("bootstrap_fingerprint", 1),
        ("counts", {"rows": 1}),
        ("counts", []),
        ("files", {}),
        ("files", [{"path": "a.json", "size": 1}]),
        ("files", [{"path": "a.json", "size": True, "digest": "sha256:" + "0" * 64}]),
        ("files", [{"path": "a.json", "size": 1, "digest": "md5:00"}]),
        ("files", [{"path": "../a.json", "size": 1, "digest": "sha256:" + "0" * 64}]),
        ("files", [{"path": "/a.json", "size": 1, "digest": "sha256:" + "0" * 64}]),
        ("files", [{"path": "a//b", "size": 1, "digest": "sha256:" + "0" * 64}]),
        ("files", [{"path": "a.json", "size": 1, "digest": "sha256:" + "0" * 64}] * 2),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_by_the_name_of_its_field(name, value):
    with pytest.raises(ValueError, match=rf"^{name}"):
        RolloutSnapshotManifest.from_mapping(with_digest({**json.loads(MANIFEST.to_json()), name: value}))


@pytest.mark.parametrize("name", sorted(json.loads(MANIFEST.to_json())))
def test_a_missing_field_is_refused_by_its_name(name):
    content = json.loads(MANIFEST.to_json())
    del content[name]

    with pytest.raises(ValueError, match=name):
        RolloutSnapshotManifest.from_mapping(content)


def test_an_unknown_field_is_refused_by_its_name():
    with pytest.raises(ValueError, match="extra is no field"):
        RolloutSnapshotManifest.from_mapping({**json.loads(MANIFEST.to_json()), "extra": 1})


def test_an_edited_value_is_noticed_by_the_digest():
    content = json.loads(MANIFEST.to_json()) | {"mutation_version": 18}

    with pytest.raises(ValueError, match="digest is not that of the other fields"):
        RolloutSnapshotManifest.from_mapping(content)


@pytest.mark.parametrize(
    "data", [MANIFEST.to_json() + b" ", MANIFEST.to_json().replace(b"  ", b"\t", 1), b"[]", b"", b"\xff"]
)
def test_another_form_of_a_file_is_refused_by_its_path(tmp_path, data):
    (tmp_path / "manifest.json").write_bytes(data)

    with pytest.raises(ValueError, match=r"manifest\.json: "):
        read_manifest(tmp_path / "manifest.json")


def test_a_manifest_over_a_link_is_refused(tmp_path):
    (tmp_path / "elsewhere").write_bytes(MANIFEST.to_json())
    (tmp_path / "manifest.json").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(ValueError, match=r"manifest\.json: it is a symbolic link"):
        read_manifest(tmp_path / "manifest.json")


def test_a_later_format_is_told_with_the_versions_that_can_be_read(tmp_path):
    content = json.loads(MANIFEST.to_json()) | {"schema_version": 2, "new_field": 1}
    (tmp_path / "manifest.json").write_text(json.dumps(content))

    with pytest.raises(NewerFormatError, match=r"manifest\.json has format version 2; .* reads 1: update it") as caught:
        read_manifest(tmp_path / "manifest.json")

    assert (caught.value.version, caught.value.supported) == (2, (1,))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("version", [0, -1, True, "1", None, 1.0])
def test_what_is_no_version_is_refused(version):
    with pytest.raises(ValueError, match="schema_version"):
        RolloutSnapshotManifest.from_mapping(json.loads(MANIFEST.to_json()) | {"schema_version": version})


# ---- Files ----


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data_plane").mkdir()
    (tmp_path / "data_plane" / "rows.bin").write_bytes(b"rows")
    (tmp_path / "index.json").write_bytes(b"{}")
    (tmp_path / "weights").write_bytes(b"w")
    return tmp_path


def test_files_are_described_by_kind_and_a_manifest_is_left_out(folder):
    (folder / "manifest.json").write_bytes(b"")

    described = {record.path: record.digest.partition(":")[0] for record in describe_files(folder)}

    assert described == {"data_plane/rows.bin": "xxh3_128", "index.json": "sha256", "weights": "xxh3_128"}


def test_names_choose_files_and_whole_folders(folder):
    assert [record.path for record in describe_files(folder, ["index.json", "data_plane"])] == [
        "data_plane/rows.bin",
        "index.json",
    ]


def test_a_link_is_not_described(folder):
    (folder / "link").symlink_to(folder / "index.json")

    with pytest.raises(ValueError, match="link is neither"):
        describe_files(folder)


def test_a_name_that_is_missing_is_an_error(folder):
    with pytest.raises(FileNotFoundError):
        describe_files(folder, ["gone.json"])


def damage(folder, how):
    path = folder / "data_plane" / "rows.bin"
    if how == "missing":
        path.unlink()
    elif how == "size":
        path.write_bytes(b"rowss")
    elif how == "bytes":
        path.write_bytes(b"ruws")
    elif how == "folder":
        path.unlink()
        path.mkdir()
    elif how == "link":
        path.rename(folder / "elsewhere")
        path.symlink_to(folder / "elsewhere")
    elif how == "link above":
        (folder / "data_plane").rename(folder / "elsewhere")
        (folder / "data_plane").symlink_to(folder / "elsewhere")


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ("missing", "is missing"),
        ("size", "has 5 bytes; the manifest says 4"),
        ("bytes", "has other bytes than the manifest says"),
        ("folder", "is no file"),
        ("link", "is reached over a symbolic link"),
        ("link above", "is reached over a symbolic link"),
    ],
)
def test_damage_of_a_file_is_told(folder, how, problem):
    manifest = replace(MANIFEST, files=describe_files(folder))
    assert verify_files(folder, manifest) == []

    damage(folder, how)

    assert verify_files(folder, manifest) == [f"data_plane/rows.bin {problem}"]
    cheap = [] if how == "bytes" else [f"data_plane/rows.bin {problem}"]
    assert verify_files(folder, manifest, digests=False) == cheap


def test_other_files_do_not_matter(folder):
    manifest = replace(MANIFEST, files=describe_files(folder))
    (folder / "note.txt").write_text("mine")

    assert verify_files(folder, manifest) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_that_cannot_be_read_is_a_problem_and_no_error(folder):
    manifest = replace(MANIFEST, files=describe_files(folder))
    (folder / "index.json").chmod(0)

    assert verify_files(folder, manifest) == ["index.json can't be read: Permission denied"]
