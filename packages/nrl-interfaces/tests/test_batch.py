import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from nrl_interfaces.batch import BatchedDataDict
from nrl_interfaces.layout import jagged_rows
from nrl_interfaces.packed import PackedTensor
from torch.nested import nested_tensor_from_jagged


def strided(rows):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls the strided layout a prototype, once a process
        return torch.nested.as_nested_tensor(rows)


def every_kind():
    """Four rows of every kind of column; row i holds i somewhere."""
    return BatchedDataDict(
        reward=torch.arange(4.0),
        ids=torch.arange(8).reshape(4, 2),
        fp8=torch.arange(4.0).to(torch.float8_e4m3fn).reshape(4, 1),
        jagged=nested_tensor_from_jagged(torch.tensor([0, 1, 3, 3]), torch.tensor([0, 1, 2, 2, 4])),
        strided=strided([torch.full((n,), float(n)) for n in range(4)]),
        images=PackedTensor([torch.zeros(1, 2), None, torch.full((2, 2), 2.0), torch.full((1, 2), 3.0)], 0),
        texts=["0", "1", "2", "3"],
        pairs=((0, 0), (1, 1), (2, 2), (3, 3)),
        array=np.arange(4),
        objects=np.array([{}, {1}, None, "x"], dtype=object),
    )


def plain(column):
    if isinstance(column, PackedTensor):
        return [[segment.tolist() for segment in row] for row in column]
    if isinstance(column, torch.Tensor):
        if column.is_nested:
            return [row.tolist() for row in jagged_rows(column)]
        return column.float().tolist() if column.dtype.itemsize == 1 else column.tolist()
    return list(column)


def same_form(one, other):
    assert list(one) == list(other)
    for name, column in one.items():
        assert type(column) is type(other[name])
        assert getattr(column, "dtype", None) == getattr(other[name], "dtype", None), name
        assert getattr(column, "layout", None) == getattr(other[name], "layout", None), name


def test_size_and_dict_behaviour():
    batch = every_kind()
    assert batch.size == 4
    assert BatchedDataDict().size == 0
    assert isinstance(batch, dict)
    assert next(iter(batch)) == "reward"
    assert BatchedDataDict[Any]({"a": [1]}).size == 1
    assert pickle.loads(pickle.dumps(BatchedDataDict(a=[1, 2]))).size == 2


def test_columns_of_two_sizes():
    batch = BatchedDataDict(a=torch.zeros(2), b=[1, 2], c=(1, 2, 3))
    message = "column 'c' has 3 rows and column 'a' has 2"
    for act in (
        lambda: batch.size,
        lambda: batch.select_indices([0]),
        lambda: batch.slice(0, 1),
        lambda: batch.rows(),
    ):
        with pytest.raises(ValueError, match=message):
            act()
    with pytest.raises(ValueError, match=f"batch 1: {message}"):
        BatchedDataDict.from_batches([{"a": torch.zeros(1), "b": [1], "c": (1,)}, batch])


@pytest.mark.parametrize("column", ["text", 3, {"a": 1}, None, {1, 2}])
def test_values_that_are_no_columns(column):
    with pytest.raises(TypeError, match=f"column 'x' is a {type(column).__name__}; allowed: a tensor"):
        _ = BatchedDataDict(x=column).size
    with pytest.raises(TypeError, match="batch 0: column 'x'"):
        BatchedDataDict.from_batches([{"x": column}])


@pytest.mark.parametrize("column", [torch.tensor(1), np.array(1)])
def test_columns_without_a_batch_dimension(column):
    with pytest.raises(ValueError, match="column 'x' has 0 dimensions"):
        _ = BatchedDataDict(x=column).size


@pytest.mark.parametrize(
    ("indices", "expected"),
    [([2, 0, 2], [2, 0, 2]), ([-1], [3]), (torch.tensor([1, 3]), [1, 3]), (slice(2, 9), [2, 3]), (np.array([0]), [0])],
)
def test_select_indices_keeps_columns_in_step(indices, expected):
    batch = every_kind()
    before = {name: plain(column) for name, column in batch.items()}
    chosen = batch.select_indices(indices)
    same_form(chosen, batch)
    assert isinstance(chosen, BatchedDataDict)
    assert chosen.size == len(expected)
    for name, column in chosen.items():
        assert plain(column) == [before[name][index] for index in expected], name
    assert {name: plain(column) for name, column in batch.items()} == before


def test_no_rows_keep_dtype_and_trailing_shape():
    batch = every_kind()
    for empty in (batch.select_indices([]), batch.slice(2, 2), batch.select_indices([]).select_indices([])):
        same_form(empty, batch)
        assert empty.size == 0
        assert empty["ids"].shape == (0, 2)
        assert empty["images"].as_tensor().shape == (0, 2)
        assert list(empty.rows()) == []
    jagged = BatchedDataDict(x=nested_tensor_from_jagged(torch.zeros(2, 3).bfloat16(), torch.tensor([0, 2])))
    assert jagged.slice(0, 0)["x"].values().shape == (0, 3)


def test_select_indices_out_of_range():
    with pytest.raises(IndexError, match="index 4 is out of range for 4 rows"):
        every_kind().select_indices([0, 4])
    with pytest.raises(IndexError, match="index 0 is out of range for 0 rows"):
        BatchedDataDict().select_indices([0])


@pytest.mark.parametrize(("start", "end"), [(1, 3), (0, 4), (2, 99), (-2, 4), (3, 1), (99, 100), (-99, 2)])
def test_slice_has_the_bounds_of_a_list(start, end):
    batch = every_kind()
    cut = batch.slice(start, end)
    same_form(cut, batch)
    for name, column in cut.items():
        assert plain(column) == plain(batch[name])[start:end], name


def test_slice_of_a_dense_tensor_is_a_view_and_a_selection_is_not():
    batch = BatchedDataDict(x=torch.zeros(3))
    batch.slice(1, 2)["x"][0] = 5
    batch.select_indices([0])["x"][0] = 7
    assert batch["x"].tolist() == [0, 5, 0]


def test_splitting_and_joining_gives_the_batch_back():
    batch = every_kind()
    joined = BatchedDataDict.from_batches([batch.slice(0, 1), batch.slice(1, 1), batch.slice(1, 4)])
    same_form(joined, batch)
    assert {n: plain(c) for n, c in joined.items()} == {n: plain(c) for n, c in batch.items()}


def test_joining_pads_on_the_right_along_dimension_one():
    short = {"ids": torch.tensor([[1, 2]]), "mask": torch.tensor([[True, True]]), "h": torch.ones(1, 2, 3).bfloat16()}
    long = {"ids": torch.tensor([[3, 4, 5]]), "mask": torch.tensor([[True] * 3]), "h": torch.ones(1, 3, 3).bfloat16()}
    joined = BatchedDataDict.from_batches([short, long, short], pad_value_dict={"ids": 99, "absent": -1})
    assert joined["ids"].tolist() == [[1, 2, 99], [3, 4, 5], [1, 2, 99]]
    assert joined["mask"].tolist() == [[True, True, False], [True] * 3, [True, True, False]]
    assert joined["mask"].dtype == torch.bool
    assert (joined["h"].shape, joined["h"].dtype) == ((3, 3, 3), torch.bfloat16)
    assert joined["h"][:, :, 0].tolist() == [[1, 1, 0], [1, 1, 1], [1, 1, 0]]


@pytest.mark.parametrize("dtype", [torch.float8_e5m2, torch.uint16, torch.uint64, torch.int64])
def test_padding_is_exact_in_every_dtype(dtype):
    largest = (
        torch.tensor([[1]]).to(dtype)
        if dtype.is_floating_point
        else torch.tensor([[torch.iinfo(dtype).max]], dtype=dtype)
    )
    wide = torch.zeros(1, 2).to(dtype)
    joined = BatchedDataDict.from_batches([{"x": largest}, {"x": wide}], {"x": 3})["x"]
    assert joined.dtype == dtype
    assert joined[0, :1].view(torch.uint8).tolist() == largest[0].view(torch.uint8).tolist()
    assert joined[0, 1].to(torch.float64) == 3


@pytest.mark.parametrize(
    ("column", "pad"),
    [
        (torch.zeros(1, 2).bool(), 2),
        (torch.zeros(1, 2).long(), 0.5),
        (torch.zeros(1, 2).half(), 1e9),
        (torch.zeros(1, 2), "0"),
    ],
)
def test_pad_values_that_the_dtype_cannot_hold(column, pad):
    with pytest.raises(ValueError, match=r"the pad value of column 'x' is .*; allowed"):
        BatchedDataDict.from_batches([{"x": column}, {"x": column[:, :1]}], {"x": pad})


@pytest.mark.skipif(not hasattr(torch, "float8_e8m0fnu"), reason="torch before 2.7 has no float8_e8m0fnu")
def test_a_default_of_zero_is_refused_only_where_it_would_be_written():
    scale = torch.ones(1, 2).to(torch.float8_e8m0fnu)
    assert BatchedDataDict.from_batches([{"x": scale}, {"x": scale}])["x"].shape == (2, 2)
    with pytest.raises(ValueError, match="the pad value of column 'x' is 0; allowed"):
        BatchedDataDict.from_batches([{"x": scale}, {"x": scale[:, :1]}])
    assert BatchedDataDict.from_batches([{"x": scale}, {"x": scale[:, :1]}], {"x": 2})["x"][1].float().tolist() == [
        1,
        2,
    ]


def test_a_missing_packed_column_is_filled_with_empty_rows():
    images = PackedTensor([torch.ones(2, 3).half(), None], 0)
    batches = [{"a": [0, 1, 2]}, {"a": [3, 4], "images": images}, {"a": [5]}]
    joined = BatchedDataDict.from_batches(batches)
    assert joined["a"] == [0, 1, 2, 3, 4, 5]
    assert [len(row) for row in joined["images"]] == [0, 0, 0, 1, 0, 0]
    assert joined["images"].as_tensor().shape == (2, 3)
    assert list(batches[0]) == ["a"]


def test_any_other_missing_column_is_refused():
    with pytest.raises(ValueError, match=r"column 'b' is missing in batch 1 \(it has \['a'\]\)"):
        BatchedDataDict.from_batches([{"a": [1], "b": [1]}, {"a": [1]}])
    with pytest.raises(ValueError, match="column 'b' is missing in batch 0"):
        BatchedDataDict.from_batches([{"a": [1]}, {"a": [1], "b": torch.zeros(1)}])


def test_joining_nothing():
    with pytest.raises(ValueError, match="0 batches to join; allowed: 1 or more"):
        BatchedDataDict.from_batches([])
    assert BatchedDataDict.from_batches([{}, {}]) == {}


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (torch.zeros(1), torch.zeros(1).half(), "is a tensor, .*float16.* in batch 1; allowed: a tensor, .*float32"),
        (torch.zeros(1), torch.zeros(1, 1), r"\[\*, \*\] in batch 1; allowed: .*\[\*\]"),
        (torch.zeros(1, 2, 3), torch.zeros(1, 2, 4), r"\[\*, \*, 4\] in batch 1; allowed: .*\[\*, \*, 3\]"),
        (torch.zeros(1), torch.zeros(1, device="meta"), "on meta, .* in batch 1; allowed: .* on cpu"),
        (torch.zeros(1), [1], "is a list in batch 1; allowed: a tensor"),
        ([1], (1,), "is a tuple in batch 1; allowed: a list"),
        (np.zeros(1), np.zeros(1, dtype=np.int8), "int8.* in batch 1; allowed: an array, float64"),
        (np.zeros((1, 2)), np.zeros((1, 3)), r"\[\*, 3\] in batch 1"),
        (
            torch.zeros(1, 2),
            nested_tensor_from_jagged(torch.zeros(2), torch.tensor([0, 2])),
            "nested torch.jagged.* in batch 1; allowed: a tensor, dense",
        ),
        (
            nested_tensor_from_jagged(torch.zeros(2, 3), torch.tensor([0, 2])),
            nested_tensor_from_jagged(torch.zeros(2, 4), torch.tensor([0, 2])),
            r"\[\*, \*, 4\] in batch 1; allowed: .*\[\*, \*, 3\]",
        ),
        (PackedTensor([torch.zeros(1)], 0), PackedTensor([torch.zeros(1).half()], 0), ": packed tensor 1 .*float16"),
    ],
)  # fmt: skip
def test_columns_that_do_not_join(first, second, message):
    with pytest.raises(ValueError, match=f"column 'x'.*{message}"):
        BatchedDataDict.from_batches([{"x": first}, {"x": second}])


def test_string_arrays_of_two_widths_join():
    joined = BatchedDataDict.from_batches([{"x": np.array(["a"])}, {"x": np.array(["long"])}])
    assert joined["x"].tolist() == ["a", "long"]


def test_joined_tensors_own_their_rows_and_keep_gradients():
    weight = torch.ones(1, 2, requires_grad=True)
    wide = torch.ones(1, 3)
    joined = BatchedDataDict.from_batches([{"x": weight}, {"x": wide}])["x"]
    wide.zero_()
    assert joined[1].tolist() == [1, 1, 1]
    joined.sum().backward()
    assert weight.grad.tolist() == [[1, 1]]


def test_to_moves_tensors_and_leaves_the_rest():
    batch = BatchedDataDict(
        x=torch.zeros(1),
        j=nested_tensor_from_jagged(torch.zeros(2), torch.tensor([0, 2])),
        p=PackedTensor([torch.zeros(1)], 0),
        a=np.zeros(1),
        t=["a"],
    )
    moved = batch.to("meta")
    assert isinstance(moved, BatchedDataDict)
    assert {moved["x"].device.type, moved["j"].device.type, moved["p"].as_tensor().device.type} == {"meta"}
    assert moved["a"] is batch["a"]
    assert moved["t"] is batch["t"]
    assert {batch["x"].device.type, batch["j"].device.type, batch["p"].as_tensor().device.type} == {"cpu"}


def test_rows_are_dicts_in_step():
    batch = every_kind()
    rows = list(batch.rows())
    assert len(rows) == 4
    for index, row in enumerate(rows):
        assert list(row) == list(batch)
        assert row["reward"].shape == ()
        assert row["reward"] == index
        assert row["ids"].tolist() == [2 * index, 2 * index + 1]
        assert row["jagged"].tolist() == plain(batch["jagged"])[index]
        assert row["strided"].shape == (index,)
        assert (row["texts"], row["pairs"], row["array"]) == (str(index), (index, index), index)
        assert plain(row["images"]) == [plain(batch["images"])[index]]
    rows[1]["ids"][0] = 77
    assert batch["ids"][1, 0] == 77
