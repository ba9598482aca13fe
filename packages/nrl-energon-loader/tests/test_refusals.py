"""Every field of the identity, changed in turn, gives exactly its line; and what is no usable state is refused."""

import copy
import io
import json
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from data import PLAIN, numbers, plain_dataset, plain_loader, sample_numbers
from nrl_energon_loader import EnergonSFTDataLoader, StateFormatError, StateMismatchError

PACKED = {"packing_algorithm": "first_fit_decreasing"}
OTHER_ENCODER = "class Other(__import__('nrl_energon_loader').encoders.base.BaseSFTTaskEncoder):\n    pass\n"
# What is changed, what the loader before it was made with, and the line.
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "split": ({"split": None}, {}, 'source.split "train" -> null'),
    "virtual_epoch_length": ({"source": {"virtual_epoch_length": 4}}, {}, "source.virtual_epoch_length null -> 4"),
    "limit": ({"source": {"limit": 4}}, {"split_role": "validation"}, "source.limit null -> 4"),
    "split_role": ({"split_role": "validation"}, {}, 'split_role "train" -> "validation"'),
    "batch_size": ({"batch_size": 3}, {}, "batch_size 2 -> 3"),
    "shuffle": ({"shuffle": True}, {}, "shuffle false -> true"),
    "no shuffle said": ({"shuffle": None}, {}, "shuffle false -> null"),
    "num_workers": ({"energon": {"num_workers": 1}}, {}, "loader.num_workers 0 -> 1"),
    "shuffle_buffer_size": ({"energon": {"shuffle_buffer_size": 9}}, {}, "loader.shuffle_buffer_size 1000 -> 9"),
    "max_samples": ({"energon": {"max_samples_per_sequence": 9}}, {}, "loader.max_samples_per_sequence 100 -> 9"),
    "seed_offset": ({"energon": {"seed_offset": 9}}, {}, "loader.seed_offset 0 -> 9"),
    "packing_buffer_size": (
        {**PACKED, "energon": {"packing_buffer_size": 9}},
        PACKED,
        "loader.packing_buffer_size 256 -> 9",
    ),
    "packing_algorithm": (
        {"packing_algorithm": "concatenative"},
        PACKED,
        'packing_algorithm "first_fit_decreasing" -> "concatenative"',
    ),
    "max_sequences_per_bin": ({"max_sequences_per_bin": 3}, {}, "max_sequences_per_bin null -> 3"),
    "pad_multiple": ({"sequence_length_pad_multiple": 4}, {}, "sequence_length_pad_multiple 1 -> 4"),
    "only_unmask_final": ({"only_unmask_final": True}, {}, "only_unmask_final false -> true"),
    "max_sequence_length": ({"max_sequence_length": 32}, {}, "encoder.max_sequence_length 16 -> 32"),
    "rank": ({"logical_rank": 1}, {"logical_world_size": 2}, "topology.logical_rank 0 -> 1"),
    "world size": ({"logical_world_size": 2}, {}, "topology.logical_world_size 1 -> 2"),
    "placement": (
        {"placement_fingerprint": "b"},
        {"placement_fingerprint": "a"},
        'topology.placement_fingerprint "a" -> "b"',
    ),
    "subflavors": (
        {"energon": {"cookers": [{"cooker": "generic_conversation", "has_subflavors": {}}]}},
        {},
        "cookers[0].has_subflavors null -> {}",
    ),
}
NOT_IN_THE_IDENTITY = {
    "prefetch_factor": {"prefetch_factor": 5},
    "watchdog": {"watchdog_timeout_seconds": None},
    "checkpoints": {"checkpoint_every_sec": 1.0},
    "packing buffer without packing": {"packing_buffer_size": 9},
}


@pytest.fixture(scope="module")
def path(datasets: Path) -> Path:
    return plain_dataset(datasets / "refusals", numbers(12))


def saved_after_2(path: Path, **settings: Any) -> dict[str, Any]:
    with plain_loader(path, **settings) as loader:
        batches = iter(loader)
        next(batches)
        next(batches)
        return loader.state_dict()


def is_usable_and_at_its_start(loader: EnergonSFTDataLoader) -> bool:
    return loader.counters["batches"] == 0 and loader.epoch == 0 and 0 in sample_numbers(next(iter(loader)))


@pytest.mark.parametrize("name", list(CHANGES))
def test_a_changed_field_gives_exactly_its_line(path: Path, name: str) -> None:
    change, before, line = CHANGES[name]
    state = saved_after_2(path, **before)
    with plain_loader(path, **{**before, **change}) as loader:
        with pytest.raises(StateMismatchError) as caught:
            loader.load_state_dict(state)
        assert list(caught.value.differences) == [line]
        assert line in str(caught.value)
        assert loader.state_dict()["counters"]["batches"] == 0
        assert next(iter(loader))["source_ids"]


@pytest.mark.parametrize("name", list(NOT_IN_THE_IDENTITY))
def test_what_does_not_change_the_batches_may_change(path: Path, name: str) -> None:
    state = saved_after_2(path)
    with plain_loader(path, energon=NOT_IN_THE_IDENTITY[name]) as loader:
        loader.load_state_dict(state)
        assert sample_numbers(next(iter(loader))) == [4, 5]


def test_every_leaf_of_the_identity_is_changed_above_or_below(path: Path) -> None:
    def leaves(value: Any, where: str = "") -> list[str]:
        if isinstance(value, dict) and value:
            return [leaf for key, item in value.items() for leaf in leaves(item, f"{where}.{key}".strip("."))]
        if isinstance(value, list):
            return [leaf for n, item in enumerate(value) for leaf in leaves(item, f"{where}[{n}]")]
        return [where]

    with plain_loader(path) as loader:
        all_leaves = {leaf for leaf in leaves(loader.identity) if not leaf.startswith("recorded")}
    changed = {line.split(" ")[0] for _, _, line in CHANGES.values()}
    elsewhere = {
        "source.content",  # test_cases.py, L07; test_source.py
        "adapter",  # test_hf_processor.py: the fingerprint
        "processor_adapter",  # without a processor there is none; the next but one test
        "task_encoder.object",  # the next test, with the file's digest
        "task_encoder.sha256",
        "cookers[0].key",
        "cookers[0].version",
        "topology.mapper.key",  # test_topology.py
        "topology.mapper.version",
        "loader.batch_grouping",  # has one value
        "encoder.include_source_ids",  # build has one value
        "energon_major_version",
    }
    assert all_leaves - changed - elsewhere == set()


def test_another_task_encoder_is_told_by_its_name_and_its_file(path: Path, tmp_path: Path) -> None:
    state = saved_after_2(path)
    file = tmp_path / "encoder.py"
    file.write_text(Path(PLAIN.rpartition(":")[0]).read_text() + "\n# changed\n")
    with plain_loader(path, energon={"task_encoder": f"{file}:PlainEncoder"}) as loader:
        with pytest.raises(StateMismatchError) as caught:
            loader.load_state_dict(state)
        (line,) = caught.value.differences
        assert line.startswith("task_encoder.sha256 ")
        assert is_usable_and_at_its_start(loader)


def test_a_changed_file_of_a_processor_adapter_is_told(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "adapter.py"
    text = """
class Adapter:
    fingerprint, tokenizer, media_columns = "the same", None, {}

    def __init__(self, processor, **settings): ...
"""
    settings: dict[str, Any] = {"processor": object(), "energon": {"processor_adapter": f"{file}:Adapter"}}
    file.write_text(text)
    state = saved_after_2(path, **settings)
    file.write_text(text + "# changed\n")
    with plain_loader(path, **settings) as loader:
        with pytest.raises(StateMismatchError) as caught:
            loader.load_state_dict(state)
        (line,) = caught.value.differences
        assert line.startswith("processor_adapter.sha256 ")


def test_another_number_of_workers_says_what_energon_keeps_and_the_way_out(path: Path) -> None:
    state = saved_after_2(path)
    message = r"world size x workers .* start_at_epoch\(n\) allows a change"
    with plain_loader(path, energon={"num_workers": 2}) as loader, pytest.raises(StateMismatchError, match=message):
        loader.load_state_dict(state)


def test_the_errors_survive_pickling(path: Path) -> None:
    for error in (StateMismatchError(["a 1 -> 2"], "do this"), StateFormatError("a.b", "wrong")):
        again = pickle.loads(pickle.dumps(error))
        assert str(again) == str(error)
        assert vars(again) == vars(error)
        assert isinstance(error, ValueError)


DAMAGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no dict": lambda state: [state],
    "empty": lambda state: {},
    "no backend": lambda state: {k: v for k, v in state.items() if k != "backend"},
    "another backend": lambda state: {**state, "backend": "torchdata"},
    "another version": lambda state: {**state, "format_version": 1},
    "a version that is True": lambda state: {**state, "format_version": True},
    "no digest": lambda state: {k: v for k, v in state.items() if k != "digest"},
    "no loader_state": lambda state: {k: v for k, v in state.items() if k != "loader_state"},
    "loader_state of nothing": lambda state: {**state, "loader_state": None},
    "counters changed": lambda state: {**state, "counters": {**state["counters"], "epoch": 1}},
    "fingerprint changed": lambda state: {**state, "fingerprint": "0" * 64},
    "identity changed": lambda state: {**state, "identity": {**state["identity"], "batch_size": 3}},
    "a number in the payload changed": lambda state: _with_another_number(state),
}


def _with_another_number(state: dict[str, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(state)
    fields = changed["loader_state"]["fields"]
    fields["next_worker_id"] += 1
    return changed


@pytest.mark.parametrize("damage", list(DAMAGES))
def test_a_damaged_or_foreign_state_is_refused_and_the_loader_at_its_start(path: Path, damage: str) -> None:
    state = DAMAGES[damage](saved_after_2(path))
    with plain_loader(path) as loader:
        with pytest.raises(StateFormatError):
            loader.load_state_dict(state)
        assert is_usable_and_at_its_start(loader)


def test_300_random_changes_of_a_state_are_all_refused(path: Path) -> None:
    state = saved_after_2(path, shuffle=True)
    rng = random.Random(0)
    with plain_loader(path, shuffle=True) as loader:
        for _ in range(300):
            changed = copy.deepcopy(state)
            what = change_a_leaf(changed, rng)
            with pytest.raises((StateFormatError, StateMismatchError)):
                loader.load_state_dict(changed)
                pytest.fail(f"{what} was taken")
        assert loader.counters["batches"] == 0
        loader.load_state_dict(state)
        assert loader.counters["batches"] == 2


def change_a_leaf(value: Any, rng: random.Random) -> str:
    """Give a random place in dicts and lists another value, or take it out; says what was done."""
    where = ""
    while True:
        key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
        where += f"[{key!r}]"
        if not isinstance(value[key], dict | list) or not value[key] or rng.random() < 0.02:
            break
        value = value[key]
    if rng.random() < 0.2:
        del value[key]
        return f"without {where}"
    others = [None, True, False, 0, 1, -1, 2**70, 0.5, "", "x", [], {}, (), [1], {"a": 1}, b"", float("nan")]
    value[key] = rng.choice([other for other in others if repr(other) != repr(value[key])])
    return f"{where} = {value[key]!r}"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_payload_that_energon_does_not_take_is_refused_before_any_worker_starts(path: Path, workers: int) -> None:
    """As of another version of Energon: well-formed, and for datasets that are wrapped in another way."""
    from nrl_energon_loader.state_codec import digest

    energon = {"num_workers": workers}
    state = saved_after_2(path, energon=energon)

    def rename(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: rename(item) for key, item in value.items()}
        if isinstance(value, list):
            return [rename(item) for item in value]
        return "OtherDataset" if value == "BatchDataset" else value

    changed = {key: rename(value) for key, value in state.items() if key != "digest"}
    with plain_loader(path, energon=energon) as loader:
        with pytest.raises(StateFormatError, match="Class name mismatch"):
            loader.load_state_dict({**changed, "digest": digest(changed)})
        assert is_usable_and_at_its_start(loader)


def test_a_state_loads_before_the_first_iteration_only(path: Path) -> None:
    state = saved_after_2(path)
    with plain_loader(path) as loader:
        iter(loader)
        with pytest.raises(RuntimeError, match="before the first iteration"):
            loader.load_state_dict(state)
        assert is_usable_and_at_its_start(loader)


def test_loading_twice_is_as_good_as_once_and_leaves_the_state_alone(path: Path) -> None:
    state = saved_after_2(path)
    before = copy.deepcopy(state)
    for workers in (0,):
        with plain_loader(path, energon={"num_workers": workers}) as loader:
            loader.load_state_dict(state)
            loader.load_state_dict(state)
            assert [sample_numbers(batch) for batch in loader] == [[4, 5], [6, 7], [8, 9], [10, 11]]
    assert state == before


def test_torch_load_reads_a_state_with_its_weights_only_default(path: Path) -> None:
    for energon in ({"num_workers": 0}, {"num_workers": 2}):
        for settings in ({}, PACKED, {"shuffle": True}):
            state = saved_after_2(path, energon=energon, **settings)
            file = io.BytesIO()
            torch.save(state, file)
            file.seek(0)
            with plain_loader(path, energon=energon, **settings) as loader:
                loader.load_state_dict(torch.load(file, weights_only=True))


@pytest.mark.slow
def test_the_fingerprint_is_the_same_in_every_process_and_hash_seed(path: Path) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); from data import plain_loader;"
        f"loader = plain_loader({str(path)!r}); state = loader.state_dict(); loader.close();"
        "import json; print(json.dumps([state['fingerprint'], state['digest']]))"
    )
    run = [sys.executable, "-W", "error", "-c", program]
    outputs = {
        subprocess.run(
            run, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True, text=True
        ).stdout
        for seed in ("1", "2")
    }
    with plain_loader(path) as loader:
        state = loader.state_dict()
    assert [json.loads(output) for output in outputs] == [[state["fingerprint"], state["digest"]]]
