"""Stored values: what goes in comes out, nothing is shared, and what can't be saved is named."""

import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nrl_interfaces.rollout import PromptRef
from nrl_rollout_ckpt.state.payloads import PayloadTypeError, StoredValue, prompt_digest, saved_prompt
from nrl_rollout_ckpt.state.records import Prompt

TENSORS = st.sampled_from(
    [
        torch.tensor([1, 2]),
        torch.tensor(0.5),
        torch.ones(2, 3, dtype=torch.bfloat16),
        torch.empty(0, 2),
        torch.tensor([True]),
    ]
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXTS)
VALUES = st.recursive(
    st.one_of(LEAVES, TENSORS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@settings(deadline=None, max_examples=200)
@given(value=VALUES)
def test_what_goes_in_comes_out(value: Any) -> None:
    stored = StoredValue.of(value, "it")
    assert same(value, stored.value())
    assert StoredValue.of(stored.value(), "it") == stored
    assert StoredValue.restored(stored.json, stored.tensors, stored.digest) == stored


def test_ints_of_any_size_stay_ints() -> None:
    for number in (2**63, 2**70, -(2**64)):
        assert StoredValue.of(number, "it").value() == number
        assert isinstance(StoredValue.of(number, "it").value(), int)


def test_nothing_is_shared() -> None:
    payload = {"ids": torch.tensor([1, 2]), "words": ["a"]}
    stored = StoredValue.of(payload, "it")
    payload["ids"].zero_()
    payload["words"].append("b")
    first = stored.value()
    assert (first["ids"].tolist(), first["words"]) == ([1, 2], ["a"])
    first["ids"].zero_()
    assert stored.value()["ids"].tolist() == [1, 2]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(10, 10)[:, 1],
        torch.ones(1).expand(5),
        torch.tensor([1 + 2j]).conj(),
        torch.tensor([1 + 2j]).conj().imag,
        torch.nn.Parameter(torch.ones(2)),
    ],
)
def test_tensors_that_are_views_are_copied_alone(tensor: torch.Tensor) -> None:
    stored = StoredValue.of(tensor, "it")
    assert torch.equal(stored.value(), tensor.detach().resolve_conj().resolve_neg())
    assert stored.tensors[0].untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    assert not stored.tensors[0].requires_grad


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.tensor([1, 2]), torch.tensor([2, 1])),
        (torch.tensor([1, 2]), torch.tensor([[1, 2]])),
        (torch.zeros(2, dtype=torch.int32), torch.zeros(2, dtype=torch.float32)),
        ({"a": 1}, {"a": True}),
        ({"a": 1}, {"a": 1.0}),
        ([1, 2], [2, 1]),
        ([torch.zeros(2), torch.zeros(0)], [torch.zeros(0), torch.zeros(2)]),
    ],
)
def test_different_values_have_different_digests(one: Any, other: Any) -> None:
    assert prompt_digest(one, "it") != prompt_digest(other, "it")


def test_the_order_of_keys_is_no_difference() -> None:
    a, b = torch.zeros(2), torch.ones(3)
    assert prompt_digest({"a": 1, "b": 2}, "it") == prompt_digest({"b": 2, "a": 1}, "it")
    assert prompt_digest({"a": a, "b": b}, "it") == prompt_digest({"b": b, "a": a}, "it")


class Custom:
    pass


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"a": [1, {"b": Custom()}]}, r"a\[1\].b is a Custom"),
        ({"a": {1: 2}}, "a is a dict with the key 1"),
        ({"a": [float("nan")]}, r"a\[0\] is nan"),
        ({"a": {"b": torch.eye(2).to_sparse()}}, r"a.b is a Tensor of torch.float32, torch.sparse_coo, on cpu"),
        ([torch.empty(2, device="meta")], r"\[0\] is a Tensor of torch.float32, torch.strided, on meta"),
        ({"a": {"__tensor__": 0}}, "a has the key '__tensor__'"),
        (nested(3_000), "is nested more than 200 deep"),
        (b"bytes", "<root> is a bytes"),
        ({1, 2}, "<root> is a set"),
    ],
)
def test_what_can_not_be_saved_is_named_with_its_place(value: Any, problem: str) -> None:
    with pytest.raises(PayloadTypeError, match=problem) as caught:
        StoredValue.of(value, "prompt 'p7'")
    assert isinstance(caught.value, TypeError)
    assert str(caught.value).startswith("prompt 'p7' can't be saved: ")
    assert "resolve(ref)" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_value_that_was_changed_on_disk_is_refused() -> None:
    stored = StoredValue.of({"ids": torch.tensor([1, 2])}, "it")
    with pytest.raises(ValueError, match=f"and was {stored.digest} when it was saved"):
        StoredValue.restored(stored.json.replace(b"ids", b"idz"), stored.tensors, stored.digest)
    with pytest.raises(ValueError, match="the digest of the value is"):
        StoredValue.restored(stored.json, [torch.tensor([1, 3])], stored.digest)
    with pytest.raises(ValueError, match="the digest of the value is"):
        StoredValue.restored(stored.json, [], stored.digest)


def test_a_prompt_is_kept_whole_only_where_its_source_can_not_find_it() -> None:
    prompt = Prompt(PromptRef("p0", "math"), {"text": "1+1"}, "easy")
    whole, reference = saved_prompt(prompt, whole=True), saved_prompt(prompt, whole=False)
    assert whole.stored is not None
    assert whole.stored.value() == {"text": "1+1"}
    assert reference.stored is None
    assert whole.digest == reference.digest == whole.stored.digest == prompt_digest({"text": "1+1"}, "it")
    assert (reference.ref, reference.task_source) == (prompt.ref, "easy")
