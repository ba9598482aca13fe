"""The names that others call, with their parameters and defaults."""

import inspect
from typing import Any

import nrl_energon_loader
import pytest
from nrl_energon_loader import build, identity, loader, topology

EMPTY = inspect.Parameter.empty
NAMES: dict[str, tuple[Any, dict[str, Any]]] = {
    "compact_sample_error_handler": (
        nrl_energon_loader.compact_sample_error_handler,
        {"exception": EMPTY, "sample": EMPTY, "sources": None},
    ),
    "_identity_fingerprint": (identity._identity_fingerprint, {"identity": EMPTY}),
    "_brief": (identity._brief, {"value": EMPTY}),
    "_identity_differences": (identity._identity_differences, {"saved": EMPTY, "current": EMPTY, "path": ""}),
    "EnergonSFTDataLoader": (nrl_energon_loader.EnergonSFTDataLoader, {"loader": EMPTY, "identity": EMPTY}),
    "_source_config": (build._source_config, {"value": EMPTY, "name": EMPTY}),
    "_loader_config": (build._loader_config, {"value": EMPTY}),
    "_v2_topology": (
        topology._v2_topology,
        dict.fromkeys(("loader_config", "placement_fingerprint", "logical_rank", "logical_world_size"), EMPTY),
    ),
    "_loader_identity": (
        build._loader_identity,
        dict.fromkeys(
            (
                "source",
                "loader_config",
                "adapter_fingerprint",
                "split_role",
                "batch_size",
                "shuffle",
                "topology",
                "packing_algorithm",
                "max_sequences_per_bin",
                "sequence_length_pad_multiple",
                "only_unmask_final",
            ),
            EMPTY,
        ),
    ),
    "_worker_config": (
        build._worker_config,
        dict.fromkeys(("config", "logical_rank", "logical_world_size"), EMPTY),
    ),
    "_task_encoder": (
        build._task_encoder,
        dict.fromkeys(
            (
                "loader_config",
                "adapter",
                "include_source_ids",
                "packing_algorithm",
                "max_sequences_per_bin",
                "max_sequence_length",
                "sequence_length_pad_multiple",
                "tokenizer",
                "only_unmask_final",
            ),
            EMPTY,
        ),
    ),
    "build_energon_sft_loader": (
        nrl_energon_loader.build_energon_sft_loader,
        dict.fromkeys(
            (
                "data_config",
                "source",
                "processor",
                "batch_size",
                "max_sequence_length",
                "split_role",
                "logical_rank",
                "logical_world_size",
                "placement_fingerprint",
                "packing_algorithm",
                "max_sequences_per_bin",
                "sequence_length_pad_multiple",
                "only_unmask_final",
            ),
            EMPTY,
        ),
    ),
}


@pytest.mark.parametrize("name", list(NAMES))
def test_parameters_and_defaults(name: str) -> None:
    function, parameters = NAMES[name]
    signature = inspect.signature(function)
    assert {each.name: each.default for each in signature.parameters.values()} == parameters


def test_the_version_of_the_format() -> None:
    assert loader._V2_STATE_FORMAT_VERSION == 2


def test_values_are_shown_briefly() -> None:
    assert identity._brief({"b": 1, "a": [True, None]}) == '{"a": [true, null], "b": 1}'
    assert len(identity._brief("x" * 1000)) == 160


def test_differences_can_be_put_under_a_path_and_are_never_an_empty_list_for_two_fingerprints() -> None:
    saved, current = {"a": {"b": 1}, "recorded": 1}, {"a": {"b": 2}, "recorded": 2}
    assert identity._identity_differences(saved, current) == ["a.b 1 -> 2"]
    assert identity._identity_differences(saved, current, "identity") == ["identity.a.b 1 -> 2"]
    assert identity._identity_differences([1], [2], "x") == ["x[0] 1 -> 2"]
    assert identity._identity_differences(1, True, "x") == ["x 1 -> true"]
    assert identity._identity_differences({**saved, "recorded": 3}, saved) == []
    assert identity._identity_fingerprint(saved) != identity._identity_fingerprint(current)
    assert identity._identity_fingerprint(saved) == identity._identity_fingerprint({**saved, "recorded": 3})
