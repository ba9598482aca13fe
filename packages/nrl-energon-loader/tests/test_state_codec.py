"""Energon's state objects as plain data and back."""

import io
import json
import random
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from megatron.energon.flavors.webdataset.sample_loader import SliceState
from megatron.energon.rng import SystemRng
from megatron.energon.savable_loader import SavableDataLoaderState, SavableDatasetCheckpoint, SavableDatasetState
from megatron.energon.state import FlexState
from nrl_energon_loader import StateFormatError
from nrl_energon_loader.state_codec import decode, digest, encode

keys = st.text(max_size=4) | st.integers() | st.tuples(st.integers(), st.text(max_size=2))
leaves = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8) | st.binary(max_size=8)
)
values = st.recursive(
    leaves | st.builds(SliceState, index=st.integers(), current=st.integers()),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=3)
        | st.dictionaries(st.text(max_size=4), inner, max_size=3).map(FlexState)
    ),
    max_leaves=12,
)


@given(values)
def test_whatever_is_written_comes_back_as_it_was(value: Any) -> None:
    file = io.BytesIO()
    torch.save(encode(value), file)
    file.seek(0)
    again = decode(torch.load(file, weights_only=True))
    assert again == value
    assert type(again) is type(value)
    assert digest(encode(again)) == digest(encode(value))


def a_state() -> SavableDataLoaderState:
    rng = SystemRng.save_state()
    state = SavableDatasetState(
        rng=rng, dataset_state=FlexState(a=(1, b"x"), s=SliceState(index=1, current=2)), sample_index=3
    )
    checkpoints = [SavableDatasetCheckpoint(state=state, offset=1), SavableDatasetCheckpoint(state=None, offset=0)]
    return SavableDataLoaderState(worker_states=checkpoints, next_worker_id=1, micro_batch_size=None)


def test_energons_classes_come_back_with_working_random_states() -> None:
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    state = decode(encode(a_state()))
    drawn = torch.rand(2).tolist(), np.random.rand(2).tolist(), random.random()
    SystemRng.restore_state(state.worker_states[0].state.rng)
    assert (torch.rand(2).tolist(), np.random.rand(2).tolist(), random.random()) == drawn
    assert type(state.worker_states[0].state.dataset_state) is FlexState
    assert state.worker_states[0].state.dataset_state["s"] == SliceState(index=1, current=2)


def test_what_is_written_shares_nothing_with_the_live_objects() -> None:
    live = a_state()
    written = encode(live)
    before = digest(written)
    live.worker_states[0].state.dataset_state["s"].current = 99
    live.worker_states[0].state.rng.torch.zero_()
    live.worker_states[0].state.rng.numpy[1][:] = 0
    assert digest(written) == before
    read = decode(written)
    read.worker_states[0].state.rng.torch.zero_()
    assert digest(written) == before


class Mine(FlexState):
    pass


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ({1, 2}, "builtins.set"),
        (Mine(), "Mine"),
        (OrderedDict(), "collections.OrderedDict"),
        (np.float64(1.0), "float64"),
        (np.zeros(2, dtype=complex), "a ndarray of complex128"),
        (torch.zeros(2, dtype=torch.float16), "a Tensor of float16"),
        (torch.nn.Parameter(torch.zeros(1)), "Parameter"),
        (print, "builtin_function_or_method"),
        (1j, "builtins.complex"),
    ],
)
def test_an_unknown_class_is_an_error_when_saving_with_its_name_and_place(value: Any, name: str) -> None:
    with pytest.raises(StateFormatError, match=name) as caught:
        encode(FlexState(a=[0, value]))
    assert caught.value.path == "loader_state.a[1]"


@pytest.mark.parametrize(
    "damaged",
    [
        {},
        {"__class__": "FlexState"},
        {"__class__": "FlexState", "items": {}},
        {"__class__": "FlexState", "items": [[1]]},
        {"__class__": "FlexState", "items": [[{"__class__": "dict", "items": []}, 1]]},
        {"__class__": "FlexState", "items": [], "more": 1},
        {"__class__": "SliceState", "fields": {"index": 1}},
        {"__class__": "SliceState", "fields": {"index": 1, "current": 1, "more": 1}},
        {"__class__": "SliceState", "fields": {"index": 1, 2: 1}},
        {"__class__": "os.system", "fields": {}},
        {"__class__": ["SliceState"], "fields": {}},
        {"__class__": "ndarray", "fields": {"dtype": "object", "shape": [1], "latin1": ""}},
        {"__class__": "ndarray", "fields": {"dtype": "uint32", "shape": [2], "latin1": "1234"}},
        {"__class__": "ndarray", "fields": {"dtype": "uint32", "shape": [1]}},
        {"__class__": "ndarray", "fields": {"dtype": "uint32", "shape": [1], "latin1": b"1234"}},
        {"__class__": "bytes", "latin1": "\u20ac"},
        {"__class__": "bytes", "latin1": 1},
        b"1",
        {1},
    ],
    ids=repr,
)
def test_whatever_encode_does_not_write_is_refused(damaged: Any) -> None:
    with pytest.raises(StateFormatError):
        decode([damaged])


@given(values, values)
def test_the_digest_tells_values_apart(one: Any, other: Any) -> None:
    texts = [json.dumps(encode(value), sort_keys=True) for value in (one, other)]
    assert (digest(encode(one)) == digest(encode(other))) == (texts[0] == texts[1])


@pytest.mark.parametrize("value", [{1}, {"a": object()}, {1: 2, "a": 3}, torch.zeros(1)])
def test_only_plain_data_has_a_digest(value: Any) -> None:
    with pytest.raises(StateFormatError, match="no plain data"):
        digest(value)
