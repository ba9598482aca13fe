import json
from dataclasses import replace
from enum import Enum
from types import SimpleNamespace

import pytest
import torch
from nrl_interfaces.fileops import FileOps
from nrl_rollout_ckpt.disk import torch_files
from nrl_rollout_ckpt.disk.json_file import SidecarError
from nrl_rollout_ckpt.disk.manifest import NewerFormatError
from nrl_rollout_ckpt.disk.sidecars import read_sidecars, serialize, write_sidecars
from nrl_rollout_ckpt.disk.torch_files import TorchFileError
from nrl_rollout_ckpt.disk.upstream import UPSTREAM_FILES, UpstreamFormatError

OPS = FileOps()


@pytest.fixture
def captured(capture):
    return capture(7, step=3)


def written(folder, captured):
    """Write the sidecars of a state; give what `read_sidecars` needs of a manifest."""
    names = write_sidecars(folder, serialize(captured), OPS)
    return SimpleNamespace(file_names=frozenset(names))


def test_everything_comes_back_as_it_was(tmp_path, captured):
    sidecars = serialize(captured)
    restored = read_sidecars(tmp_path, written(tmp_path, captured))

    assert restored.replay_groups == captured.replay_groups
    assert restored.ledger_groups == captured.ledger_groups
    assert restored.reserve == captured.reserve
    assert restored.recent_prompts == captured.recent_prompts
    assert restored.environment_episodes == captured.environment_episodes
    assert (restored.saved_capacity, restored.partition_id, restored.next_admission_id) == (8, "rollouts", 4)
    assert (restored.batch_shortfall, restored.dropped, restored.sampler_stamps_target_steps) == ({4: 1}, ("p9",), True)
    assert restored.prompt_source_state["position"] == 7
    assert torch.equal(restored.prompt_source_state["generator"], torch.arange(5, dtype=torch.uint8))
    assert (restored.replay_digest, restored.recovery_sha256) == (sidecars.replay_digest, sidecars.recovery_sha256)
    values = [group.prompt.stored.value() for group in (*restored.replay_groups, *restored.ledger_groups)]
    assert [(value["text"], value["weight"], value["ids"].tolist()) for value in values] == [
        ("p0", 1e-07, [1, 2, 3]),
        ("p1", 1e-07, [1, 2, 3]),
    ]
    sealed = restored.ledger_groups[0].siblings[0].current
    assert sealed.result.value()["tokens"].tolist() == [5, 6]


def test_what_there_is_none_of_has_no_file(tmp_path, captured):
    bare = replace(captured, replay_groups=None, ledger_groups=None, reserve=(), environment_episodes=None)

    manifest = written(tmp_path, bare)
    restored = read_sidecars(tmp_path, manifest)

    assert manifest.file_names == {"train_dataloader.pt"}
    assert (restored.replay_groups, restored.ledger_groups, restored.environment_episodes) == (None, None, None)


def test_the_same_state_is_written_in_the_same_bytes(captured):
    assert serialize(captured).files == serialize(captured).files


class Color(Enum):
    RED = 1


def test_a_prompt_source_state_that_would_not_load_is_refused_by_name(captured):
    state = {"position": 1, "shards": [{"name": "a", "color": Color.RED}], "late": Color.RED}

    with pytest.raises(
        TypeError, match=r"the state of the prompt source can't be saved: \['shards'\]\[0\]\['color'\] is a "
    ):
        serialize(replace(captured, prompt_source_state=state))


@pytest.mark.parametrize("name", UPSTREAM_FILES)
def test_a_folder_of_nemo_rl_itself_is_refused_with_that_said(tmp_path, captured, name):
    manifest = written(tmp_path, captured)
    (tmp_path / name).write_bytes(b"")

    with pytest.raises(UpstreamFormatError, match=f"holds {name}, rollout state in NeMo RL's own format"):
        read_sidecars(tmp_path, manifest)


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("replay_index.json", {"storage": "tq_checkpoint"}, "storage is 'tq_checkpoint'"),
        ("replay_index.json", {"saved_capacity": -1}, "saved_capacity is -1"),
        ("replay_index.json", {"saved_capacity": True}, "saved_capacity is True"),
        ("replay_index.json", {"partition_id": None}, "partition_id is None"),
        ("replay_index.json", {"groups": []}, "manifest_digest is not that of its groups"),
        ("replay_index.json", {"manifest_digest": "0" * 64}, "manifest_digest is not that of its groups"),
        ("replay_index.json", {"extra": 1}, "extra is no field"),
        ("replay_index.json", {"saved_capacity": ...}, "saved_capacity is missing"),
        ("rollout_recovery.json", {"next_admission_id": "4"}, "next_admission_id is '4'"),
        ("rollout_recovery.json", {"batch_shortfall": {"4": -1}}, "batch_shortfall"),
        ("rollout_recovery.json", {"batch_shortfall": {"four": 1}}, "four"),
        ("rollout_recovery.json", {"sampler_stamps_target_steps": 1}, "sampler_stamps_target_steps is 1"),
        ("rollout_recovery.json", {"dropped": [1]}, "dropped"),
        ("rollout_recovery.json", {"recent_prompts": [{}]}, r"recent_prompts\[0\] lacks"),
        ("rollout_recovery.json", {"groups": [{}]}, r"groups\[0\] lacks"),
        ("rollout_recovery.json", {"schema_version": None}, "schema_version is None"),
        ("replacement_reserve.json", {"prompts": [{}]}, r"prompts\[0\] lacks"),
        ("environment.json", {"episodes": [{"instance_id": "a"}]}, "rollout_id"),
        ("environment.json", {"episodes": [{"instance_id": "a", "rollout_id": "b", "attempt": -1}]}, "an int from 0"),
        ("environment.json", {"episodes": ["x"]}, "environment.json can't be restored"),
    ],
)
def test_a_file_that_says_what_it_should_not_is_refused_by_name(tmp_path, captured, name, change, problem):
    manifest = written(tmp_path, captured)
    content = json.loads((tmp_path / name).read_text()) | change
    content = {key: value for key, value in content.items() if value is not ...}
    (tmp_path / name).write_text(json.dumps(content))

    with pytest.raises(SidecarError, match=problem) as caught:
        read_sidecars(tmp_path, manifest)

    assert caught.value.path == tmp_path / name


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b'{"schema_version":1}' * 2])
def test_what_is_no_json_object_is_refused_by_name(tmp_path, captured, data):
    manifest = written(tmp_path, captured)
    (tmp_path / "replay_index.json").write_bytes(data)

    with pytest.raises(SidecarError, match=r"replay_index\.json can't be restored"):
        read_sidecars(tmp_path, manifest)


def test_a_later_format_of_one_file_is_told(tmp_path, captured):
    manifest = written(tmp_path, captured)
    path = tmp_path / "rollout_recovery.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": 2}))

    with pytest.raises(NewerFormatError, match=r"rollout_recovery\.json has format version 2"):
        read_sidecars(tmp_path, manifest)


@pytest.mark.parametrize("name", ["prompts.pt", "results.pt"])
def test_tensors_that_are_packed_otherwise_are_refused(tmp_path, captured, name):
    manifest = written(tmp_path, captured)
    (tmp_path / name).unlink()
    torch_files.write(tmp_path / name, {"index": [("p", ["float32"])], "bytes": {}, "shapes": {}}, OPS)

    with pytest.raises(SidecarError, match=f"{name} can't be restored"):
        read_sidecars(tmp_path, manifest)


# ---- Torch files ----

DTYPES = ["float32", "bfloat16", "float8_e4m3fn", "float16", "float64", "int64", "uint16", "uint8", "bool", "complex64"]


def test_tensors_of_every_dtype_and_shape_are_packed_and_unpacked():
    tensors = {
        f"{dtype} {number}": (torch.ones(shape).to(getattr(torch, dtype)), torch.zeros(shape).to(getattr(torch, dtype)))
        for dtype in DTYPES
        for number, shape in enumerate([(), (0,), (3,), (2, 0, 3), (1, 3)])
    } | {"none": ()}

    unpacked = torch_files.unpack(torch_files.pack(tensors))

    assert list(unpacked) == list(tensors)
    for key, values in tensors.items():
        for saved, restored in zip(values, unpacked[key], strict=True):
            assert (saved.dtype, saved.shape) == (restored.dtype, restored.shape)
            assert saved.view(torch.uint8).tolist() == restored.view(torch.uint8).tolist() if saved.dim() else True


def test_a_view_of_a_large_tensor_is_packed_alone():
    row = torch.arange(1000).reshape(10, 100)[3, ::2]

    packed = torch_files.pack({"row": (row,)})

    assert packed["bytes"]["int64"].nbytes == 50 * 8
    assert torch_files.unpack(packed)["row"][0].tolist() == row.tolist()


def test_a_full_disk_is_an_os_error_and_not_hidden_by_torch(tmp_path):
    class Full(FileOps):
        def write(self, fd, data):
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        torch_files.write(tmp_path / "a.pt", {"x": torch.ones(3)}, Full())


def test_every_changed_byte_of_a_record_is_found_before_torch_reads_it(tmp_path):
    path = tmp_path / "a.pt"
    torch_files.write(path, {"x": torch.arange(64, dtype=torch.float32)}, OPS)
    data = bytearray(path.read_bytes())
    data[data.index(torch.arange(64, dtype=torch.float32).numpy().tobytes()) + 9] ^= 1
    path.write_bytes(data)

    with pytest.raises(TorchFileError, match=r"the CRC of its record .*data/0 differs"):
        torch_files.read(path)


def test_code_in_a_file_is_not_run(tmp_path):
    torch.save({"color": Color.RED}, tmp_path / "a.pt")

    with pytest.raises(TorchFileError, match="torch refuses it"):
        torch_files.read(tmp_path / "a.pt")


@pytest.mark.parametrize("data", [b"", b"PK", b"\0" * 1000])
def test_what_is_no_torch_file_is_refused_by_name(tmp_path, data):
    (tmp_path / "a.pt").write_bytes(data)

    with pytest.raises(TorchFileError, match=r"a\.pt is damaged or foreign"):
        torch_files.read(tmp_path / "a.pt")
