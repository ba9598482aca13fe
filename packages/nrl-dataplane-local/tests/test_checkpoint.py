"""A checkpoint is the old state or the new one at every moment, and nothing that was changed is ever loaded."""

import collections
import enum
import errno
import json
import logging
import os
import pickle
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nrl_dataplane_local import (
    CheckpointDamagedError,
    LocalDataPlaneClient,
    LocalDataPlaneConfig,
    NotSavableError,
    OtherOwnerError,
    local_batch_to_tensordict,
    materialize_local,
)
from nrl_interfaces import PackedTensor
from nrl_interfaces.fileops import FileOps
from nrl_interfaces.testing.faults import FailingOps, KillingOps, operations, run_in_child

FILE = "local_data_plane_state.pkl"
MUTATIONS = 300


class Colour(enum.Enum):
    RED = 1


class Holder:
    """A class of a user's, with something in it."""

    def __init__(self, inside: object) -> None:
        self.inside = inside


def new_plane(ops: FileOps | None = None, **cfg: Any) -> LocalDataPlaneClient:
    return LocalDataPlaneClient(LocalDataPlaneConfig(**cfg), file_ops=ops)


def plane_with(value: Any, rows: int, ops: FileOps | None = None, tags: Any = None, **cfg: Any) -> LocalDataPlaneClient:
    plane = new_plane(ops, **cfg)
    plane.register_partition("p", ["x"], rows, ["train"])
    plane.put_samples(
        [f"s{i}" for i in range(rows)], "p", local_batch_to_tensordict({"x": value}, batch_size=rows), tags
    )
    return plane


def load(folder: Path, **cfg: Any) -> tuple[LocalDataPlaneClient, dict[str, Any]]:
    plane = new_plane(**cfg)
    return plane, plane.load_checkpoint(folder)


def column(plane: LocalDataPlaneClient, name: str = "x") -> Any:
    """All rows, in the order of their ids; nested tensors stay nested."""
    return materialize_local(plane.get_samples(plane.list_sample_ids("p"), "p", [name]), layout="jagged")[name]


# ---- Old or new, whatever happens ----


def save_number(folder: Path, number: int, ops: FileOps | None = None) -> None:
    plane_with(torch.tensor([number]), 1, ops).save_checkpoint(folder, metadata={"number": number})


def check_whole(folder: Path, *allowed: int) -> None:
    """One of the states, with its own metadata; and the next save works."""
    plane, metadata = load(folder)
    assert metadata["number"] in allowed
    assert column(plane).tolist() == [metadata["number"]]
    save_number(folder, 3)
    plane, metadata = load(folder)
    assert (metadata, column(plane).tolist()) == ({"number": 3}, [3])
    assert [path.name for path in folder.iterdir()] == [FILE]


def test_a_save_killed_at_every_operation_leaves_the_old_state_or_the_new_one(tmp_path: Path) -> None:
    def prepare(name: str) -> Path:
        save_number(tmp_path / name, 1)
        return tmp_path / name

    names = operations(lambda ops: save_number(prepare("count"), 2, ops))
    assert names[0] == "open"
    assert names[-3:] == ["fsync", "rename", "fsync_folder"]
    for at, name in enumerate(names):
        for moment in ("before", "during", "after"):
            folder = prepare(f"{at}-{moment}")
            killed = run_in_child(lambda: save_number(folder, 2, KillingOps(at, moment)))  # noqa: B023 - runs now
            assert killed == signal.SIGKILL
            is_renamed = at > names.index("rename") or (name == "rename" and moment == "after")
            check_whole(folder, 2 if is_renamed else 1)


def test_the_first_save_killed_at_every_operation_leaves_nothing_or_all(tmp_path: Path) -> None:
    names = operations(lambda ops: save_number(tmp_path / "count" / "deep", 2, ops))
    assert names.count("mkdir") == 2
    for at in range(len(names)):
        folder = tmp_path / str(at) / "deep"
        run_in_child(lambda: save_number(folder, 2, KillingOps(at, "after")))  # noqa: B023 - runs now
        if (folder / FILE).exists():
            check_whole(folder, 2)
        else:
            with pytest.raises(FileNotFoundError):
                load(folder)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_save_failing_at_every_operation_says_so_and_leaves_the_old_state(tmp_path: Path, code: int) -> None:
    names = operations(lambda ops: save_number(tmp_path / "count", 2, ops))
    save_number(tmp_path / "count", 1)
    for at in range(len(operations(lambda ops: save_number(tmp_path / "count", 2, ops)))):
        folder = tmp_path / str(at)
        save_number(folder, 1)
        ops = FailingOps(at, code)
        with pytest.raises(OSError, match=os.strerror(code)):
            save_number(folder, 2, ops)
        assert ops.failed is not None
        assert [path.name for path in folder.iterdir()] == [FILE]
        check_whole(folder, 2 if ops.failed == "fsync_folder" else 1)
    assert "rename" in names


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "optimizer.pt").write_bytes(b"theirs")
    (tmp_path / f"{FILE}.partial").write_bytes(b"left by a crash")
    save_number(tmp_path, 1)
    assert (tmp_path / "optimizer.pt").read_bytes() == b"theirs"
    assert sorted(path.name for path in tmp_path.iterdir()) == [FILE, "optimizer.pt"]


def test_a_folder_that_is_a_symlink_is_refused_with_the_folder_intact(tmp_path: Path) -> None:
    save_number(tmp_path / "real", 1)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(ValueError, match="is a symbolic link"):
        save_number(tmp_path / "link", 2)
    check_whole(tmp_path / "real", 1)


# ---- Nothing that was changed is loaded ----


def changed(content: bytes, rng: random.Random) -> bytes:
    """Bytes flipped, replaced, cut out, doubled, put in, or torn off."""
    at, length = rng.randrange(len(content)), rng.randint(1, 12)
    new = rng.randbytes(length)
    kinds = (
        content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :],
        content[:at] + new + content[at + length :],
        content[:at] + content[at + length :],
        content[: at + length] + content[at:],
        content[:at] + new + content[at:],
        content[:at],
    )
    return rng.choice(kinds)


@pytest.mark.parametrize(
    "value",
    [torch.arange(64, dtype=torch.float32), ["a", {"b": 1}], PackedTensor([torch.ones(2, 3), None], 0)],
    ids=["tensor", "list", "packed"],
)
def test_changed_bytes_are_never_loaded(tmp_path: Path, value: Any) -> None:
    plane_with(value, len(value), tags=[{"n": i} for i in range(len(value))], owner="rank0").save_checkpoint(tmp_path)
    path, rng = tmp_path / FILE, random.Random(0)
    content = path.read_bytes()
    for _ in range(MUTATIONS):
        mutated = changed(content, rng)
        if mutated == content:
            continue
        path.write_bytes(mutated)
        plane = new_plane(owner="rank0")
        with pytest.raises(CheckpointDamagedError) as caught:
            plane.load_checkpoint(tmp_path)
        assert caught.value.path == path
        check_unused(plane)
    path.write_bytes(content)
    assert load(tmp_path, owner="rank0")[1] == {}


def check_unused(plane: LocalDataPlaneClient) -> None:
    stats = plane.stats()
    assert (stats.partitions, stats.rows, stats.bytes_held, stats.peak_bytes) == (0, 0, {}, 0)
    plane.register_partition("p", ["x"], 1, ["train"])


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"PK\x03\x04", pickle.dumps({"partitions": []})], ids=["empty", "json", "zip", "pickle"]
)
def test_foreign_files_are_not_loaded(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(CheckpointDamagedError, match="foreign or truncated"):
        load(tmp_path)


def test_an_archive_of_torch_that_is_none_of_ours_is_not_loaded(tmp_path: Path) -> None:
    torch.save({"model": torch.ones(2)}, tmp_path / FILE)
    with pytest.raises(CheckpointDamagedError, match="foreign or truncated"):
        load(tmp_path)


def test_a_changed_record_is_named(tmp_path: Path) -> None:
    save_number(tmp_path, 1)
    path = tmp_path / FILE
    content = path.read_bytes()
    at = content.index(b"sample_ids")  # in the record with the pickle
    path.write_bytes(content[:at] + b"S" + content[at + 1 :])
    with pytest.raises(CheckpointDamagedError, match="the CRC differs") as caught:
        load(tmp_path)
    assert caught.value.record == "archive/data.pkl"


def test_a_newer_format_is_told_as_that(tmp_path: Path) -> None:
    save_number(tmp_path, 1)
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes().replace(b'"format": 1', b'"format": 2'))
    with pytest.raises(CheckpointDamagedError, match=r"format 2, and this version reads up to 1"):
        load(tmp_path)


def test_a_symlink_in_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    save_number(tmp_path / "real", 1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / FILE).symlink_to(tmp_path / "real" / FILE)
    with pytest.raises(CheckpointDamagedError, match="symbolic link"):
        load(tmp_path / "other")


def test_a_pickle_that_would_run_code_is_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    save_number(tmp_path, 1)
    from nrl_dataplane_local import archive

    archive.write(tmp_path / FILE, {"partitions": [Evil()]}, None, FileOps())  # whole, with right CRCs
    with pytest.raises(CheckpointDamagedError, match="torch refuses it"):
        load(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_content_that_does_not_fit_together_is_not_loaded(tmp_path: Path) -> None:
    from nrl_dataplane_local import archive

    for content in ({}, {"partitions": [{}], "next_generation": 1, "metadata": {}}, [], {"partitions": 3}):
        archive.write(tmp_path / FILE, content, None, FileOps())
        with pytest.raises(CheckpointDamagedError, match="does not fit together"):
            load(tmp_path)


def test_a_damaged_file_is_saved_over_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FILE).write_bytes(b"torn")
    with caplog.at_level(logging.WARNING):
        save_number(tmp_path, 1)
    assert "saving over a file that could not be loaded" in caplog.text
    check_whole(tmp_path, 1)


# ---- Owners ----


def test_another_owner_can_neither_load_nor_save_over(tmp_path: Path) -> None:
    plane_with(torch.tensor([1]), 1, owner="rank0").save_checkpoint(tmp_path)
    other = new_plane(owner="rank1")
    with pytest.raises(OtherOwnerError, match=r"of owner 'rank0', and this is 'rank1'") as caught:
        other.load_checkpoint(tmp_path)
    assert (caught.value.saved, caught.value.current) == ("rank0", "rank1")
    assert isinstance(caught.value, ValueError)
    check_unused(other)
    before = (tmp_path / FILE).read_bytes()
    for owner in ("rank1", None):
        with pytest.raises(OtherOwnerError):
            plane_with(torch.tensor([2]), 1, owner=owner).save_checkpoint(tmp_path)
    assert (tmp_path / FILE).read_bytes() == before
    assert column(load(tmp_path, owner="rank0")[0]).tolist() == [1]


def test_errors_survive_pickling(tmp_path: Path) -> None:
    for error in (
        OtherOwnerError(tmp_path, "a", None),
        NotSavableError("column 'x'", "lock"),
        CheckpointDamagedError(tmp_path, None, "torn"),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert (str(copy), vars(copy)) == (str(error), vars(error))


# ---- What comes back ----

VALUES = {
    "float32": torch.tensor([[1.5, float("nan")], [float("inf"), -0.0]]),
    "bfloat16": torch.tensor([1.5, 2.5]).bfloat16(),
    "float8": torch.tensor([0.1, 448.0]).to(torch.float8_e4m3fn),
    "uint16": torch.tensor([0, 65535], dtype=torch.uint16),
    "bool": torch.tensor([True, False]),
    "complex": torch.tensor([1 + 2j, 3j]),
    "jagged": torch.nested.nested_tensor_from_jagged(torch.arange(3.0), torch.tensor([0, 3, 3])),
    "strings": ["", "\u2028\ud800"],
    "bytes": [b"", {b"": (b"\xff",)}],
    "numbers": [10**400, -(2**63)],
    "floats": (0.1, float("-inf")),
    "nested lists": [[1, [2, (3, None)]], []],
    "dicts": [{"a": {1: b"\x00"}, ("k", 1): {1, 2}}, {"__nrl__": "mine"}],
    "frozen": [frozenset({(1, 2)}), {frozenset({1}): "by a frozenset"}],
    "more builtins": [bytearray(b"x"), bytearray()],
    "torch's": [torch.float32, torch.device("cpu")],
    "dict of columns": {"ids": torch.arange(2), "__nrl__": ["a", {"b": 1}]},
}


@pytest.mark.parametrize("name", VALUES)
def test_values_come_back_as_they_were(tmp_path: Path, name: str) -> None:
    value = VALUES[name]
    plane_with(value, 2).save_checkpoint(tmp_path)
    assert_same(column(load(tmp_path)[0]), value)


ARRAYS = {
    "int": np.arange(4).reshape(2, 2)[:, ::-1],
    "big-endian": np.array([1, 2], dtype=">i4"),
    "float16": np.array([1, np.nan], dtype=np.float16),
    "strings": np.array(["a", "bcd"]),
    "bytes": np.array([b"a", b"bcd"]),
    "dates": np.array(["2026-01-01", "NaT"], dtype="datetime64[D]"),
    "objects": np.array([{"a": np.float32(0.1)}, None], dtype=object),
    "none": np.zeros((2, 0), dtype=np.int8),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_come_back_as_they_were(tmp_path: Path, name: str) -> None:
    array = ARRAYS[name]
    plane_with(array, 2).save_checkpoint(tmp_path)
    found = column(load(tmp_path)[0])
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(found, array)
    assert found.flags.writeable


def test_numpy_scalars_come_back_with_their_dtype(tmp_path: Path) -> None:
    items = [np.float32(0.1), np.int8(-1), np.bool_(1), np.str_("x"), np.datetime64("2026-01-01")]
    plane_with(items, 5).save_checkpoint(tmp_path)
    found = column(load(tmp_path)[0])
    assert found == items
    assert [type(item) for item in found] == [type(item) for item in items]


@pytest.mark.parametrize(
    "packed",
    [
        PackedTensor([torch.ones(2, 3), None, [torch.zeros(1, 3), torch.full((4, 3), 2.0)]], 0),
        PackedTensor([torch.ones(2, 3, dtype=torch.bfloat16)] * 3, 1),
        PackedTensor([None] * 3, 0, dtype=torch.int64, trailing_shape=(2,)),
        PackedTensor([None] * 3, 1),
    ],
    ids=["mixed", "shared", "declared", "unknown"],
)
def test_packed_tensors_come_back_as_they_were(tmp_path: Path, packed: PackedTensor) -> None:
    plane_with(packed, 3).save_checkpoint(tmp_path)
    found = column(load(tmp_path)[0])
    assert (found.dim_to_pack, found.dtype, found.trailing_shape) == (
        packed.dim_to_pack,
        packed.dtype,
        packed.trailing_shape,
    )
    assert len(found.stored_segments) == len(packed.stored_segments)
    assert_same([list(row) for row in found], [list(row) for row in packed])


def assert_same(found: Any, wanted: Any) -> None:
    """Equal in type, and tensors bit for bit."""
    assert type(found) is type(wanted)
    if isinstance(wanted, torch.Tensor) and wanted.is_nested:
        assert_same(list(found.unbind()), list(wanted.unbind()))
    elif isinstance(wanted, torch.Tensor):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert torch.equal(found.contiguous().view(torch.uint8), wanted.contiguous().view(torch.uint8))
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for pair in zip(found, wanted, strict=True):
            assert_same(*pair)
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key in wanted:
            assert_same(found[key], wanted[key])
    else:
        assert found == wanted


def test_a_view_is_saved_as_its_rows(tmp_path: Path) -> None:
    base = torch.zeros(1 << 20)
    plane_with([base[:2], base[2:4]], 2, tags=[{"t": base[4:6]}, {}], zero_copy=True).save_checkpoint(tmp_path)
    assert (tmp_path / FILE).stat().st_size < 20_000


def test_a_dense_batch_is_saved_as_a_column(tmp_path: Path) -> None:
    rows = torch.zeros(64, 512)
    plane_with(rows, 64).save_checkpoint(tmp_path)
    assert (tmp_path / FILE).stat().st_size < 1.2 * rows.nbytes


def test_claims_groups_and_holes_come_back(tmp_path: Path) -> None:
    plane = new_plane(partition_mode="stream")
    plane.register_partition("p", ["x", "late"], 12, ["train", "eval"], grpo_group_size=2)
    plane.put_samples(list("abcdef"), "p", {"x": torch.arange(6)}, [{"n": i} for i in range(6)])
    plane.put_samples(["f", "c"], "p", {"late": torch.tensor([5.0, 2.0])})
    plane.clear_samples(["a", "d"], "p")
    assert plane.claim_meta("p", "train", ["x"], 2).sample_ids == ["b", "c"]
    plane.save_checkpoint(tmp_path)
    loaded, _ = load(tmp_path, partition_mode="batch")  # the partition stays the stream that it was
    assert loaded.claim_meta("p", "train", ["x"], 4, blocking=False).sample_ids == ["e", "f"]
    assert loaded.claim_meta("p", "eval", ["late"], 2, blocking=False).sample_ids == ["c"]
    assert loaded.get_samples(["f", "c"], "p", ["late"])["late"].tolist() == [5.0, 2.0]
    assert loaded.put_samples(["g", "h"], "p", {"x": torch.tensor([7, 8])}, [{}, {}]).tags == [{}, {}]
    with pytest.raises(KeyError, match="'late' is not put yet for sample id 'e'"):
        loaded.get_samples(["e"], "p", ["late"])


def test_generations_go_on_above_those_of_the_save(tmp_path: Path) -> None:
    plane = new_plane()
    for _ in range(3):
        plane.register_partition("p", ["x"], 1, ["train"])
        meta = plane.put_samples(["a"], "p", {"x": torch.ones(1)})
        plane.clear_samples(None, "p")
    plane.save_checkpoint(tmp_path)
    loaded, _ = load(tmp_path)
    loaded.register_partition("p", ["x"], 1, ["train"])
    assert loaded.put_samples(["a"], "p", {"x": torch.ones(1)}).generation > meta.generation


# ---- What is not saved ----


@pytest.mark.parametrize(
    ("value", "class_name"),
    [
        (lambda: 1, "function"),
        (Colour.RED, "Colour"),
        (collections.OrderedDict(a=1), "OrderedDict"),
        (range(3), "range"),
        (np.zeros(2, dtype=[("a", "i4"), ("b", "f4")]), "numpy array"),
        (torch.ones(2, device="meta"), "Tensor"),
    ],
    ids=["function", "enum", "subclass", "range", "structured", "meta"],
)
@pytest.mark.parametrize("where", ["column", "tag", "metadata"])
def test_what_no_load_would_take_is_refused_before_anything_is_written(
    tmp_path: Path, value: Any, class_name: str, where: str
) -> None:
    save_number(tmp_path, 1)
    before = (tmp_path / FILE).read_bytes()
    items = [[0], [{"deep": [value]}]] if where == "column" else [0, 1]
    plane = plane_with(items, 2, tags=[{}, {"k": value}] if where == "tag" else None)
    with pytest.raises(NotSavableError, match=class_name) as caught:
        plane.save_checkpoint(tmp_path, metadata={"m": value} if where == "metadata" else None)
    assert isinstance(caught.value, TypeError)
    assert where in caught.value.place
    assert where == "metadata" or "'s1'" in caught.value.place
    assert (tmp_path / FILE).read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_what_is_nested_too_deep_for_the_unpickler_is_refused(tmp_path: Path) -> None:
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]
    with pytest.raises(NotSavableError, match="nested more than 200 deep"):
        plane_with([deep], 1).save_checkpoint(tmp_path)


def test_a_class_named_in_the_config_is_saved_and_loaded(tmp_path: Path) -> None:
    cfg = {"safe_globals": (Colour, Holder, collections.OrderedDict)}
    items = [Colour.RED, collections.OrderedDict(a=1), Holder([1, {"b": torch.ones(1)}])]
    plane_with(items, 3, **cfg).save_checkpoint(tmp_path)
    found = column(load(tmp_path, **cfg)[0])
    assert found[:2] == items[:2]
    assert found[2].inside[1]["b"].tolist() == [1.0]
    with pytest.raises(CheckpointDamagedError, match="torch refuses it"):
        load(tmp_path)  # this config does not name them


def test_a_named_class_that_holds_an_unnamed_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotSavableError, match="Holder"):
        plane_with([Holder(Colour.RED)], 1, safe_globals=(Holder,)).save_checkpoint(tmp_path)
    assert not (tmp_path / FILE).exists()


def test_metadata_comes_back_and_a_used_client_does_not_load(tmp_path: Path) -> None:
    metadata = {"step": 7, "tensor": torch.arange(2), "array": np.arange(2), "path": ("a", None)}
    plane_with(torch.ones(1), 1).save_checkpoint(tmp_path, metadata=metadata)
    plane, found = load(tmp_path)
    assert found["path"] == ("a", None)
    assert (found["tensor"].tolist(), found["array"].tolist()) == ([0, 1], [0, 1])
    plane.clear_samples(None, "p")
    with pytest.raises(RuntimeError, match="used already"):
        plane.load_checkpoint(tmp_path)


def test_more_partitions_than_the_client_takes_are_refused_whole(tmp_path: Path) -> None:
    plane = new_plane(max_partitions=3)
    for name in "abc":
        plane.register_partition(name, ["x"], 1, ["train"])
    plane.save_checkpoint(tmp_path)
    small = new_plane(max_partitions=2)
    with pytest.raises(RuntimeError, match=r"3 partitions: \['a', 'b', 'c'\]; allowed: 2"):
        small.load_checkpoint(tmp_path)
    check_unused(small)


# ---- Views ----


def test_a_view_holds_the_moment_whatever_happens_afterwards(tmp_path: Path) -> None:
    plane = plane_with(torch.arange(4), 4, tags=[{"n": i} for i in range(4)])
    plane.claim_meta("p", "train", ["x"], 2)
    view = plane.freeze()
    plane.put_samples(["s0"], "p", {"x": torch.tensor([9])}, [{"n": 9}], replace=True)
    plane.claim_meta("p", "train", ["x"], 2)
    plane.clear_samples(["s1", "s2"], "p")
    plane.close()
    view.save(tmp_path, metadata={"late": True})
    loaded, metadata = load(tmp_path)
    assert metadata == {"late": True}
    assert column(loaded).tolist() == [0, 1, 2, 3]
    meta = loaded.claim_meta("p", "train", ["x"], 4, blocking=False)
    assert (meta.sample_ids, meta.tags) == (["s2", "s3"], [{"n": 2}, {"n": 3}])


def test_a_view_is_that_of_its_moment_in_a_file_too(tmp_path: Path) -> None:
    plane = plane_with(torch.arange(2), 2)
    plane.save_checkpoint(tmp_path / "at once")
    view = plane.freeze()
    plane.clear_samples(["s0"], "p")
    view.save(tmp_path / "later")
    assert (tmp_path / "at once" / FILE).read_bytes() == (tmp_path / "later" / FILE).read_bytes()


def test_a_footer_says_what_the_file_is(tmp_path: Path) -> None:
    plane_with(torch.ones(1), 1, owner="rank0").save_checkpoint(tmp_path)
    content = (tmp_path / FILE).read_bytes()
    length = int.from_bytes(content[-16:-8], "little")
    footer = json.loads(content[-16 - length : -16])
    assert (footer["format"], footer["owner"]) == (1, "rank0")
    assert torch.load(tmp_path / FILE, weights_only=True)["partitions"][0]["sample_ids"] == ["s0"]
