"""The config, and the client found by its name."""

import inspect
import threading

import nrl_dataplane_local as local
import pytest
from nrl_dataplane_local import LocalDataPlaneClient, LocalDataPlaneConfig
from nrl_interfaces import DataPlaneClient, build_data_plane_client


def test_defaults() -> None:
    cfg = LocalDataPlaneConfig()
    assert (cfg.max_partitions, cfg.partition_mode, cfg.zero_copy, cfg.owner, cfg.safe_globals) == (
        2,
        "batch",
        False,
        None,
        (),
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_partitions", 0),
        ("max_partitions", True),
        ("max_partitions", 1.5),
        ("partition_mode", "rows"),
        ("zero_copy", 1),
        ("owner", 3),
        ("safe_globals", ("threading.Lock",)),
        ("safe_globals", [int]),
    ],
)
def test_bad_values_are_named(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{name} is .*; allowed: "):
        LocalDataPlaneConfig(**{name: value})


def test_the_client_is_found_by_its_name() -> None:
    plane = build_data_plane_client({"impl": "local", "max_partitions": 1, "safe_globals": [threading.Thread]})
    assert isinstance(plane, LocalDataPlaneClient)
    plane.register_partition("p", ["x"], 1, ["train"])
    with pytest.raises(RuntimeError, match=r"\['p'\]; allowed: 1"):
        plane.register_partition("q", ["x"], 1, ["train"])


def test_an_unknown_key_is_named_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="'partition_mod'; did you mean 'partition_mode'"):
        build_data_plane_client({"impl": "local", "partition_mod": "stream"})


def test_the_error_lists_what_is_installed() -> None:
    with pytest.raises(ValueError, match=r"impl 'redis'.*allowed: .*'local'"):
        build_data_plane_client({"impl": "redis"})


# Names, parameters and defaults that users of NeMo-RL's local adapter rely on.
SIGNATURES = {
    "register_partition": "partition_id, fields, num_samples, consumer_tasks, grpo_group_size=None, enums=None",
    "claim_meta": "partition_id, task_name, required_fields, batch_size, dp_rank=None, blocking=True, timeout_s=60.0",
    "get_data": "meta, select_fields=None",
    "check_consumption_status": "partition_id, task_names",
    "put_samples": "sample_ids, partition_id, fields=None, tags=None, *, replace=False",
    "get_samples": "sample_ids, partition_id, select_fields",
    "list_sample_ids": "partition_id",
    "clear_samples": "sample_ids, partition_id",
    "save_checkpoint": "checkpoint_dir, *, metadata=None",
    "load_checkpoint": "checkpoint_dir",
    "close": "",
    "_require_open": "",
    "_partition": "partition_id",
    "_validate_meta": "meta",
    "_sequence_lengths": "partition, indices",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_methods_have_the_signatures_that_users_have(name: str) -> None:
    signature = inspect.signature(getattr(LocalDataPlaneClient(LocalDataPlaneConfig()), name))
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    assert str(inspect.Signature(bare)) == f"({SIGNATURES[name]})"
    assert name.startswith("_") or hasattr(DataPlaneClient, name)


FUNCTIONS = {
    "is_local_batch_meta": ["meta"],
    "_value_batch_size": ["value"],
    "_is_identity_indices": ["indices", "batch_size"],
    "_select_batch_value": ["value", "indices"],
    "_unwrap_local_value": ["value"],
    "local_batch_to_tensordict": ["fields", "batch_size"],
    "materialize_local": ["td", "layout", "pad_value_dict", "pad_to_seqlen"],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_have_the_parameters_that_users_have(name: str) -> None:
    parameters = inspect.signature(getattr(local, name)).parameters.values()
    required = [parameter.name for parameter in parameters]
    assert required[: len(FUNCTIONS[name])] == FUNCTIONS[name]
    extra = list(parameters)[len(FUNCTIONS[name]) :]
    assert all(parameter.default is not inspect.Parameter.empty for parameter in extra)


def test_the_other_names_that_users_have() -> None:
    assert local._LOCAL_GENERATION_KEY == "local_partition_generation"
    assert local._CHECKPOINT_FILENAME == "local_data_plane_state.pkl"
    plane = LocalDataPlaneClient(LocalDataPlaneConfig())
    plane.register_partition("p", ["x", "y"], 2, ["train"], 2, {"k": ["u"]})
    meta = plane.put_samples(["a", "b"], "p", {"x": ["A", "B"]}, [{"n": 1}, {}])
    assert local.is_local_batch_meta(meta)
    plane.claim_meta("p", "train", ["x"], 2)
    partition = plane._partition("p")
    assert isinstance(partition, local._LocalPartition)
    assert (partition.fields, partition.num_samples, partition.consumer_tasks) == (("x", "y"), 2, ("train",))
    assert (partition.grpo_group_size, partition.enums, partition.generation) == (2, {"k": ("u",)}, 1)
    assert (partition.sample_ids, partition.batch) == (["a", "b"], {"x": ["A", "B"]})
    assert (partition.tags, partition.consumed) == ([{"n": 1}, {}], {"train": {"a", "b"}})
