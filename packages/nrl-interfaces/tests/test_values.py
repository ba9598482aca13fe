"""Copies and sizes of values."""

from collections import OrderedDict, defaultdict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from nrl_interfaces.packed import PackedTensor
from nrl_interfaces.testing.data_plane_clauses.comparing import described
from nrl_interfaces.values import bytes_by_device, copied

Pair = namedtuple("Pair", ["left", "right"])  # noqa: PYI024 - what users have


class Words(list[str]):
    """A list with more to it."""


def jagged() -> torch.Tensor:
    return torch.nested.nested_tensor_from_jagged(torch.arange(3), torch.tensor([0, 1, 3]))


VALUES: dict[str, Any] = {
    "tensor": lambda: torch.tensor([1, 2]),
    "view": lambda: torch.arange(10)[2:5],
    "parameter": lambda: torch.nn.Parameter(torch.ones(2)),
    "jagged": jagged,
    "packed": lambda: PackedTensor([torch.ones(1), None, [torch.ones(2), torch.zeros(1)]], 0),
    "array": lambda: np.array([1, 2]),
    "object array": lambda: np.array([[1], {"k": [2]}], dtype=object),
    "list": lambda: [1, [2]],
    "plain list": lambda: [1, "a", None],
    "tuple": lambda: (1, [2]),
    "named tuple": lambda: Pair([1], 2),
    "dict": lambda: {"k": {"l": [1]}},
    "defaultdict": lambda: defaultdict(list, k=[1]),
    "ordered dict": lambda: OrderedDict(k=[1]),
    "subclass of list": lambda: Words(["a"]),
    "set": lambda: {1, 2},
    "bytearray": lambda: bytearray(b"ab"),
    "tensor in a dict": lambda: {"t": [torch.tensor([1])]},
}


def spoil(value: Any) -> None:
    """Write into all that can be written into."""
    if isinstance(value, torch.Tensor):
        (value.values() if value.is_nested else value.detach()).fill_(99)
    elif isinstance(value, PackedTensor):
        for segment in value.stored_segments:
            segment.fill_(99)
    elif isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            for item in value.tolist():
                spoil(item)
        else:
            value.fill(99)
    elif isinstance(value, dict):
        for item in value.values():
            spoil(item)
        value["spoiled"] = True
    elif isinstance(value, tuple):
        for item in value:
            spoil(item)
    elif isinstance(value, list):
        for item in value:
            spoil(item)
        value.append("spoiled")
    elif isinstance(value, set):
        value.add("spoiled")
    elif isinstance(value, bytearray):
        value.extend(b"spoiled")


@pytest.mark.parametrize("name", VALUES)
def test_a_copy_is_equal_and_of_the_same_class(name: str) -> None:
    value = VALUES[name]()
    made = copied(value)
    assert described(made) == described(value).replace("Parameter containing:\n", "")
    if name != "parameter":
        assert type(made) is type(value)


@pytest.mark.parametrize("name", VALUES)
def test_writing_into_either_leaves_the_other_alone(name: str) -> None:
    value, wanted = VALUES[name](), described(VALUES[name]())
    made = copied(value)
    spoil(value)
    assert described(made) == wanted
    value = VALUES[name]()
    spoil(copied(value))
    assert described(value) == wanted


@pytest.mark.parametrize("value", ["a", b"a", 1, 1.5, True, None, frozenset({1}), 2**100])
def test_what_can_not_be_changed_is_not_copied(value: Any) -> None:
    assert copied(value) is value


def test_any_other_object_is_kept_by_reference() -> None:
    thing = object()
    assert copied([thing, {"k": (thing,)}])[0] is thing
    assert copied({"k": (thing,)})["k"][0] is thing


def test_a_copy_has_no_autograd_history() -> None:
    weight = torch.ones(2, requires_grad=True)
    made = copied({"loss": weight * 2})["loss"]
    assert not made.requires_grad
    assert made.tolist() == [2, 2]


def test_a_copy_of_a_view_leaves_the_storage_behind() -> None:
    assert copied(torch.zeros(1000)[:2]).untyped_storage().nbytes() == 8


def test_rows_that_share_a_segment_share_its_copy() -> None:
    image = torch.ones(2)
    assert len(copied(PackedTensor([image, image], 0)).stored_segments) == 1


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (torch.zeros(2, 3), 24),
        (torch.zeros(100)[:2], 8),
        (torch.nested.nested_tensor_from_jagged(torch.arange(3), torch.tensor([0, 1, 3])), 24),
        (PackedTensor([torch.zeros(2), None, torch.zeros(1)], 0), 12),
        (np.zeros(3, dtype=np.int16), 6),
        ("ab", 2),
        ("\u00e9", 2),
        ("\ud800", 1),
        (b"abc", 3),
        ([torch.zeros(1), ["ab"], (b"c",), {"k": torch.zeros(2)}], 4 + 2 + 1 + 8),
        ({"a", "bc"}, 3),
    ],
)
def test_bytes_are_those_of_the_data(value: Any, size: int) -> None:
    assert bytes_by_device(value) == {"cpu": size}


@pytest.mark.parametrize("value", [1, None, 1.5, [], {}, object()])
def test_other_values_have_no_bytes(value: Any) -> None:
    assert sum(bytes_by_device(value).values()) == 0


def test_bytes_are_counted_for_each_device() -> None:
    assert bytes_by_device([torch.zeros(2), torch.zeros(3, device="meta")]) == {"cpu": 8, "meta": 12}
