import copy
import io
import pickle

import numpy as np
import pytest
import torch
from nrl_interfaces.packed import PackedTensor, row_indices


def values(packed):
    return [[segment.tolist() for segment in row] for row in packed]


def three_rows():
    """Rows of two segments, none, and one; widths 2, 1, 3 along dimension 0."""
    return PackedTensor(
        [[torch.full((2, 3), 1.0), torch.full((1, 3), 2.0)], None, torch.full((3, 3), 3.0)], dim_to_pack=0
    )


def test_rows_of_any_number_of_segments_pack_in_order():
    packed = three_rows()
    assert len(packed) == 3
    assert [len(row) for row in packed] == [2, 0, 1]
    assert packed.as_tensor()[:, 0].tolist() == [1, 1, 2, 3, 3, 3]
    assert (packed.dtype, packed.trailing_shape, packed.dim_to_pack) == (torch.float32, (3,), 0)
    assert "3 rows, 3 segments" in repr(packed)


def test_packing_along_another_dimension():
    packed = PackedTensor([torch.ones(2, 1, 4), torch.zeros(2, 3, 4)], dim_to_pack=1)
    assert packed.as_tensor().shape == (2, 4, 4)
    assert packed.trailing_shape == (2, 4)
    assert packed.slice([]).as_tensor().shape == (2, 0, 4)


@pytest.mark.parametrize("empty", [None, [], ()])
def test_no_segment_at_all_keeps_declared_dtype_and_shape(empty):
    packed = PackedTensor([empty, empty], 1, dtype=torch.bfloat16, trailing_shape=(3, 5))
    assert packed.as_tensor().shape == (3, 0, 5)
    assert packed.as_tensor().dtype == torch.bfloat16


def test_no_segment_and_nothing_declared_is_an_empty_tensor():
    packed = PackedTensor([None, None], 0)
    assert (packed.dtype, packed.trailing_shape, packed.template) == (None, None, None)
    assert packed.as_tensor().shape == (0,)
    assert packed.as_tensor(device="meta").device.type == "meta"


def test_empty_rows_keep_dtype_shape_and_device_of_what_they_came_from():
    packed = three_rows().to("meta")
    for empty in (packed.slice([1]), PackedTensor.empty_rows_like(packed, 4)):
        assert empty.stored_segments == ()
        assert empty.as_tensor().shape == (0, 3)
        assert empty.as_tensor().device.type == "meta"
    assert len(PackedTensor.empty_rows_like(packed, 4)) == 4
    assert len(PackedTensor.empty_rows_like(packed, 0)) == 0


@pytest.mark.parametrize("n", [-1, True])
def test_empty_rows_like_refuses_a_bad_count(n):
    with pytest.raises(ValueError, match=f"n is {n}; allowed: 0 or more"):
        PackedTensor.empty_rows_like(three_rows(), n)


@pytest.mark.parametrize(
    ("indices", "expected"),
    [
        ([2, 0], [2, 0]),
        ([-1, -3], [2, 0]),
        ([], []),
        ((1, 1), [1, 1]),
        (range(2), [0, 1]),
        (slice(1, None), [1, 2]),
        (slice(None, None, -1), [2, 1, 0]),
        (slice(-100, 100), [0, 1, 2]),
        (torch.tensor([0, -1]), [0, 2]),
        (torch.tensor([2], dtype=torch.uint8), [2]),
        (torch.tensor([]), []),
        (np.array([1, -2]), [1, 1]),
        ([np.int64(1), torch.tensor(2)], [1, 2]),
    ],
)
def test_indices_of_every_form(indices, expected):
    assert row_indices(indices, 3) == expected
    packed = three_rows()
    assert values(packed.slice(indices)) == [values(packed)[index] for index in expected]


@pytest.mark.parametrize("index", [3, -4, 100])
def test_an_index_out_of_range_is_named_with_the_length(index):
    with pytest.raises(IndexError, match=rf"index {index} is out of range for 3 rows; allowed: -3 to 2"):
        three_rows().slice([0, index])


def test_an_index_into_no_rows():
    with pytest.raises(IndexError, match="index 0 is out of range for 0 rows; allowed: none"):
        row_indices([0], 0)


@pytest.mark.parametrize("indices", [[True], torch.tensor([True, False, True]), [1.0], torch.tensor([1.0]), "ab"])
def test_indices_that_are_no_ints(indices):
    with pytest.raises(TypeError, match="allowed: an int"):
        row_indices(indices, 3)


def test_index_tensors_of_other_dimensions():
    with pytest.raises(ValueError, match="2 dimensions; allowed: 1"):
        row_indices(torch.tensor([[0]]), 3)


def test_shared_segments_are_stored_once_through_every_operation():
    image, other = torch.ones(2, 3), torch.zeros(1, 3)
    packed = PackedTensor([image, [image, other], None, other], 0)
    assert [segment is image for segment in packed.stored_segments] == [True, False]
    assert packed.as_tensor().shape == (6, 3)

    repeated = packed.slice([0, 0, 0])
    assert len(repeated.stored_segments) == 1
    assert repeated.as_tensor().shape == (6, 3)

    joined = PackedTensor.concat([packed, repeated, packed])
    assert len(joined.stored_segments) == 2
    assert values(joined) == values(packed) + values(repeated) + values(packed)

    moved = joined.to("meta")
    assert len(moved.stored_segments) == 2
    assert len({id(segment) for row in moved for segment in row}) == 2
    assert joined.to("cpu").stored_segments[0] is image

    copied = pickle.loads(pickle.dumps(joined))
    assert len(copied.stored_segments) == 2
    assert values(copied) == values(joined)


def test_equal_segments_that_are_two_objects_stay_two():
    packed = PackedTensor([torch.ones(2), torch.ones(2)], 0)
    assert len(packed.stored_segments) == 2


def test_slice_lets_unused_segments_go():
    packed = three_rows()
    assert packed.slice([2]).stored_segments == (packed.stored_segments[2],)


def test_operations_leave_the_original_alone():
    packed = three_rows()
    before = values(packed)
    packed.slice([0])
    packed.to("meta")
    PackedTensor.concat([packed, packed])
    packed.as_tensor()[:] = 9
    packed.slice([0]).as_tensor()[:] = 9
    empty = packed.slice([1])
    empty.as_tensor().resize_(5, 3)
    assert empty.as_tensor().shape == (0, 3)
    assert values(packed) == before
    assert packed.template is not None
    assert packed.template.shape == (0, 3)


def test_map_segments_calls_once_a_stored_segment_and_changes_empty_columns_too():
    image = torch.ones(2, 3)
    seen = []
    packed = PackedTensor([image, image], 0)
    cloned = packed.map_segments(lambda segment: seen.append(segment.shape) or segment.clone())
    assert seen == [(2, 3), (0, 3)]
    image.zero_()
    assert cloned.as_tensor().sum() == 12
    assert packed.slice([]).map_segments(torch.Tensor.half).as_tensor().dtype == torch.float16


def test_map_segments_refuses_results_that_do_not_fit():
    with pytest.raises(ValueError, match=r"stored segment 1 has dtype torch\.float16; allowed: torch\.float32"):
        three_rows().map_segments(lambda segment: segment.half() if len(segment) == 1 else segment)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([torch.ones(1, 3), torch.ones(1, 3).half()], "row 1 has dtype torch.float16; allowed: torch.float32"),
        ([None, torch.ones(1, 3), [torch.ones(1, 4)]], r"row 2 has shape \[1, 4\]; allowed: \[3\] outside"),
        ([torch.ones(1, 3), torch.ones(1)], r"row 1 has shape \[1\]; allowed"),
        ([torch.tensor(1)], "row 0 has a segment of 0 dimensions"),
        ([torch.ones(2, 2).to_sparse()], "layout torch.sparse_coo"),
    ],
)
def test_segments_that_do_not_fit(rows, message):
    with pytest.raises(ValueError, match=message):
        PackedTensor(rows, 0)


def test_segments_that_do_not_fit_what_was_declared():
    with pytest.raises(ValueError, match=r"row 1 has dtype torch\.float32; allowed: torch\.int64"):
        PackedTensor([None, torch.ones(1, 3)], 0, dtype=torch.int64, trailing_shape=(3,))


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"rows": torch.ones(2), "dim_to_pack": 0}, TypeError, "rows is a tensor"),
        ({"rows": [[1, 2]], "dim_to_pack": 0}, TypeError, "row 0 holds a int; allowed: tensors"),
        ({"rows": [None, 5], "dim_to_pack": 0}, TypeError, "row 1 holds a int; allowed: tensors"),
        ({"rows": [], "dim_to_pack": -1}, ValueError, "dim_to_pack is -1; allowed: 0 or more"),
        ({"rows": [], "dim_to_pack": True}, ValueError, "dim_to_pack is True"),
        ({"rows": [], "dim_to_pack": 0, "dtype": torch.int8}, ValueError, "allowed: neither, or both"),
        ({"rows": [], "dim_to_pack": 0, "trailing_shape": ()}, ValueError, "allowed: neither, or both"),
        ({"rows": [], "dim_to_pack": 1, "dtype": torch.int8, "trailing_shape": ()}, ValueError, "at least"),
    ],
)
def test_bad_arguments(arguments, kind, message):
    with pytest.raises(kind, match=message):
        PackedTensor(**arguments)


def test_concat_of_columns_that_differ():
    first = three_rows()
    with pytest.raises(ValueError, match=r"packed tensor 1 \(rows from 3\) has dtype torch.float16; allowed"):
        PackedTensor.concat([first, first.map_segments(torch.Tensor.half)])
    with pytest.raises(ValueError, match=r"packed tensor 1 .* has shape \[0, 4\]; allowed: \[3\]"):
        PackedTensor.concat([first, PackedTensor([None], 0, dtype=torch.float32, trailing_shape=(4,))])
    with pytest.raises(ValueError, match="has dim_to_pack 1; allowed: 0"):
        PackedTensor.concat([first, PackedTensor([], 1)])
    with pytest.raises(ValueError, match="0 packed tensors"):
        PackedTensor.concat([])


def test_concat_fills_in_what_an_undeclared_empty_column_does_not_know():
    joined = PackedTensor.concat([PackedTensor([None], 0), three_rows(), PackedTensor([None, None], 0)])
    assert (len(joined), joined.trailing_shape) == (6, (3,))
    empty = PackedTensor.concat([PackedTensor([None], 0), three_rows().slice([1])])
    assert empty.as_tensor().shape == (0, 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.uint16, torch.bool, torch.int64])
def test_packing_keeps_every_bit(dtype):
    first, second = torch.tensor([1, 0, 1]).to(dtype), torch.tensor([0, 1]).to(dtype)
    packed = PackedTensor([first, None, second], 0).as_tensor()
    assert packed.dtype == dtype
    assert packed.float().tolist() == [1, 0, 1, 0, 1]


def test_gradients_flow_through_packing():
    weight = torch.ones(2, requires_grad=True)
    PackedTensor([weight, weight], 0).as_tensor().sum().backward()
    assert weight.grad.tolist() == [2, 2]


def test_weights_only_loading_keeps_sharing():
    image = torch.ones(2, 3)
    file = io.BytesIO()
    torch.save(PackedTensor([image, image, None], 0), file)
    file.seek(0)
    with torch.serialization.safe_globals([PackedTensor]):
        loaded = torch.load(file, weights_only=True)
    assert (len(loaded), len(loaded.stored_segments)) == (3, 1)


def test_deepcopy_has_storage_of_its_own():
    packed = three_rows()
    copied = copy.deepcopy(packed)
    packed.stored_segments[0].zero_()
    assert copied.as_tensor()[0, 0] == 1


def test_many_rows_stay_linear():
    image = torch.ones(1, 3)
    packed = PackedTensor([image] * 100_000, 0)
    assert len(PackedTensor.concat([packed, packed]).slice(range(150_000)).stored_segments) == 1
