"""Columns come back from the queue as they were put, also those that the wire has no form for."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from nrl_interfaces.layout import jagged_rows
from nrl_interfaces.packed import PackedTensor
from nrl_interfaces.testing.data_plane_clauses.comparing import described


class Thing:
    def __init__(self, value: object) -> None:
        self.value = value


def put_and_read(queue: Any, *puts: Any, ids: list[str] | None = None) -> Any:
    """Put columns of two rows each, and read all rows in another order."""
    plane = queue.client(partition_mode="stream")
    plane.register_partition("p", ["x"], 16, ["train"])
    every_id = [f"s{at}" for at in range(2 * len(puts))]
    for at, column in enumerate(puts):
        plane.put_samples(every_id[2 * at : 2 * at + 2], "p", {"x": column})
    return plane.get_samples(ids or every_id[::-1], "p", ["x"])["x"]


def test_dense_columns_of_two_widths_come_back_jagged(queue: Any) -> None:
    read = put_and_read(queue, torch.ones(2, 3, 2), torch.zeros(2, 1, 2))
    assert [list(row.shape) for row in jagged_rows(read)] == [[1, 2], [1, 2], [3, 2], [3, 2]]
    dense = put_and_read(queue, torch.ones(2, 3, 2), torch.zeros(2, 1, 2), ids=["s1", "s0"])
    assert dense.shape == (2, 3, 2)


def test_jagged_columns_with_holes_ragged_elsewhere_and_strided(queue: Any) -> None:
    padded = torch.arange(8).reshape(2, 4)
    holes = torch.nested.narrow(padded, 1, torch.tensor([0, 1]), torch.tensor([2, 3]), layout=torch.jagged)
    assert [row.tolist() for row in jagged_rows(put_and_read(queue, holes))] == [[5, 6, 7], [0, 1]]
    wide = torch.nested.nested_tensor_from_jagged(torch.arange(6).reshape(2, 3), torch.tensor([0, 1, 3]), jagged_dim=2)
    assert [row.tolist() for row in jagged_rows(put_and_read(queue, wide))] == [[[1, 2], [4, 5]], [[0], [3]]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, once a process
        strided = torch.nested.as_nested_tensor([torch.ones(1, 2), torch.zeros(2, 1)])
    assert [list(row.shape) for row in put_and_read(queue, strided).unbind()] == [[2, 1], [1, 2]]


def test_views_and_gradients_are_left_behind(queue: Any) -> None:
    base = torch.arange(24.0, requires_grad=True).reshape(4, 6)
    read = put_and_read(queue, base[1:3, ::2])
    assert read.tolist() == [[12.0, 14.0, 16.0], [6.0, 8.0, 10.0]]
    assert not read.requires_grad
    assert put_and_read(queue, base[:2].T[:2].T).tolist() == [[6.0, 7.0], [0.0, 1.0]]


@pytest.mark.parametrize("dtype", [np.uint16, np.int8, np.float64, np.complex128, np.longdouble, ">i4", "M8[s]", "U3"])
def test_arrays_of_every_dtype(queue: Any, dtype: Any) -> None:
    column = np.array([[1, 2], [3, 4]]).astype(dtype)
    read = put_and_read(queue, column, column)
    assert (read.dtype, read.tolist()) == (column.dtype, np.concatenate([column, column])[::-1].tolist())


def test_strings_of_arrays_may_become_longer(queue: Any) -> None:
    read = put_and_read(queue, np.array(["a", "b"]), np.array(["long", "longer"]))
    assert read.tolist() == ["longer", "long", "b", "a"]


def test_items_of_every_class(queue: Any) -> None:
    items = ["text", b"bytes", (1, (2,)), [{3}], {"k": (None, 2**70)}, torch.float16, torch.ones(2, dtype=torch.uint16)]
    for item in items:
        read = put_and_read(queue, [item, Thing(item)])
        assert type(read[1]) is type(item)
        if not isinstance(item, torch.Tensor):
            assert (read[1], read[0].value) == (item, item)
    assert put_and_read(queue, ("a", b"b")) == (b"b", "a")
    fp8 = torch.ones(1, 2).to(torch.float8_e4m3fn)
    packed = put_and_read(queue, PackedTensor([fp8, None], 0))
    assert described(packed) == described(PackedTensor([None, fp8], 0))


def test_an_item_of_a_view_travels_without_its_base() -> None:
    from nrl_dataplane_tq.columns import kind_of, to_wire

    column = [torch.zeros(1_000_000)[:2]]
    assert len(to_wire("x", column, kind_of(column), ["a"]).tolist()[0]) < 1000


def test_what_can_t_cross_processes_is_named_and_nothing_is_put(queue: Any) -> None:
    plane = queue.client()
    plane.register_partition("p", ["x"], 2, ["train"])
    with pytest.raises(TypeError, match=r"field 'x' of sample id 'b' is a (function|lambda|generator)"):
        plane.put_samples(["a", "b"], "p", {"x": [1, (n for n in ())]})
    with pytest.raises(TypeError, match=r"the tag .* can't be pickled"):
        plane.put_samples(["a", "b"], "p", {"x": [1, 2]}, [{}, {"t": (n for n in ())}])
    assert plane.list_sample_ids("p") == []


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (torch.ones(1, 3), "has tensors of torch.float32, rows \\['\\*'\\]; allowed: tensors of torch.int64"),
        (torch.ones(1, 3, 2, dtype=torch.int64), "rows \\['\\*', 2\\]; allowed"),
        (torch.tensor([1]), "rows \\[\\]; allowed"),
        ([1], "has items in a list; allowed"),
    ],
)
def test_a_field_stays_of_one_kind(queue: Any, other: Any, says: str) -> None:
    plane = queue.client(partition_mode="stream")
    plane.register_partition("p", ["x"], 2, ["train"])
    plane.put_samples(["a"], "p", {"x": torch.ones(1, 3, dtype=torch.int64)})
    with pytest.raises(ValueError, match=says):
        plane.put_samples(["b"], "p", {"x": other})
    plane.clear_samples(["a"], "p")
    plane.put_samples(["b"], "p", {"x": other})  # none is left that it must be like
