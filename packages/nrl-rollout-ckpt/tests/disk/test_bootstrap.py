import json
import pickle
from pathlib import PurePosixPath

import pytest
from nrl_interfaces.fileops import FileOps
from nrl_rollout_ckpt.disk.bootstrap import (
    BUILT_IN_EXCLUSIONS,
    BootstrapCompatibilityIdentity,
    BootstrapMismatchError,
    check_bootstrap_anchor,
    ensure_bootstrap_anchor,
    read_bootstrap_anchor,
)
from nrl_rollout_ckpt.disk.manifest import NewerFormatError

OPS = FileOps()
identity_of = BootstrapCompatibilityIdentity.of
CONFIG = {"seed": 1, "policy": {"model": "m", "optimizer": {"lr": 0.1}}, "env": [{"name": "a", "port": 1}]}


def test_the_fingerprint_is_the_same_in_every_process_and_version():
    """Pitfall: a change of the identity's form, or of what is left out, would refuse every run's restart."""
    golden = {
        identity_of({}).fingerprint: "3991a70aafc9fe8631c54e5ff0167f5ea5aa7acf9b056a72b23cfddbaed15bc7",
        identity_of(CONFIG).fingerprint: "ab6994b8d8a308ae8cb96674fc71f7c1a0e5369656813bd7555d31b9139a92f5",
        identity_of(
            CONFIG, ["policy.model"]
        ).fingerprint: "344b07f92fab9ce68cb9dea02514bede02ea4e81c5d3765dda25591354dbfdeb",
    }

    assert all(found == expected for found, expected in golden.items()), golden


def test_an_unknown_key_changes_the_fingerprint():
    """Pitfall: a list of what counts misses the field that nobody thought of."""
    assert identity_of({**CONFIG, "brand_new": 1}).fingerprint != identity_of(CONFIG).fingerprint


@pytest.mark.parametrize(
    ("config", "other"),
    [
        ({"a": 1}, {"a": 1.0}),
        ({"a": True}, {"a": 1}),
        ({"a": None}, {}),
        ({"a": [1, 2]}, {"a": [2, 1]}),
        ({"pad_token": "x"}, {"pad_token": "y"}),
    ],
)
def test_every_other_value_is_another_run(config, other):
    assert identity_of(config).fingerprint != identity_of(other).fingerprint


@pytest.mark.parametrize("path", sorted(path for paths in BUILT_IN_EXCLUSIONS.values() for path in paths))
def test_what_is_left_out_may_differ(path):
    name = path.replace("**.", "deep.down.").replace("*", "any")
    config, other = dict(CONFIG), dict(CONFIG)
    for value, side in enumerate((config, other)):
        for segment in name.split(".")[:-1]:
            side[segment] = dict(side.get(segment, {}))
            side = side[segment]
        side[name.split(".")[-1]] = {"x": value}

    assert identity_of(config).fingerprint == identity_of(other).fingerprint


@pytest.mark.parametrize(
    ("pattern", "excluded", "kept"),
    [
        ("a.b", ["a.b", "a.b.c"], ["a", "a.x", "x.a.b"]),
        ("a.*", ["a.b", "a.b.c"], ["b.a"]),
        ("*.b", ["a.b", "x.b.c"], ["b", "a.x.b"]),
        ("**.b", ["b", "a.b", "a.x.b", "a.b.c"], ["a.bb"]),
        ("a.**", ["a", "a.b", "a.b.c"], ["b"]),
        ("a.**.c", ["a.c", "a.b.c", "a.b.x.c"], ["c", "a.b"]),
        ("a.b*", ["a.b", "a.bc"], ["a.cb"]),
        ("a.*_x", ["a.b_x"], ["a.bx"]),
        ("a.0.b", ["a.0.b"], ["a.1.b"]),
    ],
)
def test_dotpaths(pattern, excluded, kept):
    def with_leaf(dotpath, value):
        for segment in reversed(dotpath.split(".")):
            value = {segment: value}
        return value

    def differs(dotpath):
        pair = [identity_of(with_leaf(dotpath, value), [pattern]) for value in (1, 2)]
        return pair[0].fingerprint != pair[1].fingerprint

    assert [path for path in excluded if differs(path)] == []
    assert [path for path in kept if not differs(path)] == []


def test_the_indices_of_a_list_are_segments():
    one, two = ({"env": [{"name": "a"}, {"name": value}]} for value in ("b", "c"))

    assert identity_of(one, ["env.1.name"]).fingerprint == identity_of(two, ["env.1.name"]).fingerprint
    assert identity_of(one, ["env.0.name"]).fingerprint != identity_of(two, ["env.0.name"]).fingerprint


@pytest.mark.parametrize("path", ["", " a", "a ", "a..b", ".a", "*", "**", 1])
def test_a_path_that_names_nothing_or_everything_is_refused(path):
    with pytest.raises(ValueError, match="extra_fingerprint_excluded_paths"):
        identity_of(CONFIG, [path])


@pytest.mark.parametrize(
    "name", ["api_key", "apikey", "password", "secret", "token", "hf_token", "my_secret", "wandb_api_key"]
)
def test_secrets_are_neither_stored_nor_compared(tmp_path, name):
    """Pitfall: a token in the stored identity."""
    one, two = ({**CONFIG, "judge": {name: value}} for value in ("hunter2", "other"))

    ensure_bootstrap_anchor(tmp_path, identity_of(one), OPS)

    assert "hunter2" not in (tmp_path / "bootstrap" / "manifest.json").read_text()
    assert (
        identity_of(one).fingerprint == identity_of(two).fingerprint == identity_of({**CONFIG, "judge": {}}).fingerprint
    )


def test_one_path_in_place_of_a_list_is_refused():
    with pytest.raises(ValueError, match="extra_fingerprint_excluded_paths is 'logger'"):
        identity_of(CONFIG, "logger")


@pytest.mark.parametrize(
    ("config", "where"),
    [({"a": {"b": PurePosixPath("x")}}, "a.b"), ({1: 2}, "key 1"), ({"a": float("nan")}, "a is nan")],
)
def test_what_is_no_plain_data_is_refused_at_once(config, where):
    with pytest.raises(ValueError, match=where):
        identity_of(config)


# ---- The anchor ----


def test_the_anchor_is_written_once_and_found_again(tmp_path):
    anchor, fingerprint = ensure_bootstrap_anchor(tmp_path / "run", identity_of(CONFIG), OPS)
    data = (anchor / "manifest.json").read_bytes()

    assert ensure_bootstrap_anchor(tmp_path / "run", identity_of(CONFIG), OPS) == (anchor, fingerprint)
    assert (anchor / "manifest.json").read_bytes() == data
    assert read_bootstrap_anchor(tmp_path / "run").identity == identity_of(CONFIG).identity
    assert json.loads(data)["bootstrap_identity"]["excluded_paths"] == identity_of(CONFIG).identity["excluded_paths"]


def test_there_is_none_in_a_new_folder(tmp_path):
    assert read_bootstrap_anchor(tmp_path) is None
    assert check_bootstrap_anchor(tmp_path, identity_of(CONFIG)) is None


def test_another_run_is_told_what_changed_and_what_to_do(tmp_path):
    """Pitfall: two digests, and nobody knows which key it was."""
    ensure_bootstrap_anchor(tmp_path, identity_of({**CONFIG, "long": "x" * 500}), OPS)
    before = (tmp_path / "bootstrap" / "manifest.json").read_bytes()
    other = {**CONFIG, "seed": 2, "new": {"x.y": 1}, "long": "y" * 500}

    with pytest.raises(BootstrapMismatchError) as caught:
        ensure_bootstrap_anchor(tmp_path, identity_of(other, ["logger.x"]), OPS)

    error = caught.value
    assert error.changes[0].startswith('long "xxx') and len(error.changes[0]) < 400
    assert error.changes[1:] == (
        'new["x.y"] <missing> -> 1',
        "seed 1 -> 2",
        'excluded_paths["logger.x"] <missing> -> "excluded"',
    )
    text = str(error)
    for part in (
        "bootstrap/manifest.json",
        "extra_fingerprint_excluded_paths",
        "another checkpoint_dir",
        "Nothing was",
    ):
        assert part in text
    assert str(pickle.loads(pickle.dumps(error))) == text
    assert (tmp_path / "bootstrap" / "manifest.json").read_bytes() == before


def test_at_most_twenty_changes_are_shown_and_the_rest_is_counted(tmp_path):
    ensure_bootstrap_anchor(tmp_path, identity_of({f"k{at}": 0 for at in range(33)}), OPS)

    with pytest.raises(BootstrapMismatchError, match="and 13 more") as caught:
        ensure_bootstrap_anchor(tmp_path, identity_of({f"k{at}": 1 for at in range(33)}), OPS)

    assert str(caught.value).count("0 -> 1") == 20


def test_an_anchor_that_does_not_fit_itself_is_told_so(tmp_path):
    ensure_bootstrap_anchor(tmp_path, identity_of(CONFIG), OPS)
    path = tmp_path / "bootstrap" / "manifest.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"bootstrap_fingerprint": "0" * 64}))

    with pytest.raises(BootstrapMismatchError, match="the stored fingerprint does not match the stored identity"):
        ensure_bootstrap_anchor(tmp_path, identity_of(CONFIG), OPS)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"schema_version": 1}', b'{"schema_version": true}', b"\xff", b"[" * 100_000]
)
def test_a_damaged_anchor_is_refused_by_its_path(tmp_path, data):
    ensure_bootstrap_anchor(tmp_path, identity_of(CONFIG), OPS)
    (tmp_path / "bootstrap" / "manifest.json").write_bytes(data)

    with pytest.raises(ValueError, match=r"bootstrap/manifest\.json"):
        ensure_bootstrap_anchor(tmp_path, identity_of(CONFIG), OPS)


def test_a_later_format_is_told(tmp_path):
    ensure_bootstrap_anchor(tmp_path, identity_of(CONFIG), OPS)
    (tmp_path / "bootstrap" / "manifest.json").write_text('{"schema_version": 2}')

    with pytest.raises(NewerFormatError, match="format version 2"):
        read_bootstrap_anchor(tmp_path)


def test_every_fault_leaves_no_anchor_or_a_whole_one(tmp_path, each_fault):
    folders = iter(tmp_path / str(number) for number in range(1000))

    def prepare():
        folder = next(folders)
        return folder, lambda ops: ensure_bootstrap_anchor(folder, identity_of(CONFIG), ops)

    for fault, folder in each_fault(prepare):
        read_bootstrap_anchor(folder)
        assert ensure_bootstrap_anchor(folder, identity_of(CONFIG), OPS)[1] == identity_of(CONFIG).fingerprint, fault
        assert [path.name for path in (folder / "bootstrap").iterdir()] == ["manifest.json"], fault
