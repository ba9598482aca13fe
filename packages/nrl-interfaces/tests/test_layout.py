import re
import warnings

import pytest
import torch
from nrl_interfaces.layout import check_pad_value, jagged_rows, nested_from_rows, ragged_dim, to_jagged, to_padded
from torch.nested import nested_tensor_from_jagged

DTYPES = [
    torch.bool,
    *(getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)),
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex64,
]


def bits(tensor):
    """The bytes, for comparing what has no kernel of its own and what a float round trip would round."""
    return tensor.contiguous().flatten().view(torch.uint8).tolist()


def some_values(dtype, *shape):
    count = torch.Size(shape).numel()
    if dtype in (torch.int64, torch.uint64):
        return (torch.arange(count) + 2**62 + 1).to(dtype).reshape(shape)  # a float would round these
    return (torch.arange(count) % 7).to(dtype).reshape(shape)


def strided(rows):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls the strided layout a prototype, once a process
        return torch.nested.as_nested_tensor(rows)


@pytest.mark.parametrize("trailing", [(), (3,), (2, 2)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_there_and_back_is_exact(dtype, trailing):
    lengths = [2, 0, 4, 1]
    jagged = nested_tensor_from_jagged(some_values(dtype, 7, *trailing), torch.tensor([0, 2, 2, 6, 7]))
    padded = to_padded(jagged)
    assert (padded.dtype, padded.shape) == (dtype, (4, 4, *trailing))
    for row, length, expected in zip(padded, lengths, jagged_rows(jagged), strict=True):
        assert bits(row[:length]) == bits(expected)
        assert not any(bits(row[length:]))
    back = to_jagged(padded, lengths)
    assert (back.dtype, back.layout) == (dtype, torch.jagged)
    assert bits(back.values()) == bits(jagged.values())
    assert back.offsets().tolist() == [0, 2, 2, 6, 7]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.uint16, torch.bool])
def test_zero_rows_keep_dtype_and_trailing_shape(dtype):
    empty = nested_tensor_from_jagged(torch.zeros(0, 3, dtype=dtype), torch.tensor([0]))
    assert jagged_rows(empty) == []
    assert (to_padded(empty).shape, to_padded(empty).dtype) == ((0, 0, 3), dtype)
    assert to_padded(empty, pad_to_seqlen=5).shape == (0, 5, 3)
    back = to_jagged(to_padded(empty, pad_to_seqlen=5), [])
    assert (back.size(0), back.values().shape, back.dtype) == (0, (0, 3), dtype)


def test_rows_that_are_all_empty():
    jagged = nested_tensor_from_jagged(torch.zeros(0, 3), torch.tensor([0, 0, 0]))
    assert to_padded(jagged).shape == (2, 0, 3)
    assert to_padded(jagged, 7, 2).tolist() == [[[7] * 3] * 2] * 2


@pytest.mark.parametrize(("least", "length"), [(0, 3), (2, 3), (3, 3), (5, 5)])
def test_pad_to_seqlen_is_a_least_length(least, length):
    jagged = nested_tensor_from_jagged(torch.arange(4), torch.tensor([0, 1, 4]))
    padded = to_padded(jagged, pad_value=-1, pad_to_seqlen=least)
    assert padded.shape == (2, length)
    assert padded[0].tolist() == [0] + [-1] * (length - 1)
    assert padded[1, :3].tolist() == [1, 2, 3]


def holes():
    base = torch.arange(12).reshape(3, 4)
    starts, lengths = torch.tensor([0, 1, 2]), torch.tensor([2, 0, 2])
    return torch.nested.narrow(base, 1, starts, lengths, layout=torch.jagged)


def test_items_in_holes_are_never_shown():
    assert [row.tolist() for row in jagged_rows(holes())] == [[0, 1], [], [10, 11]]
    assert to_padded(holes(), -1).tolist() == [[0, 1], [-1, -1], [10, 11]]
    assert nested_from_rows(jagged_rows(holes()), holes()).values().tolist() == [0, 1, 10, 11]


def test_offsets_that_leave_out_items_at_both_ends():
    jagged = nested_tensor_from_jagged(torch.arange(9), torch.tensor([2, 4, 7]))
    assert [row.tolist() for row in jagged_rows(jagged)] == [[2, 3], [4, 5, 6]]


def test_rows_are_views():
    jagged = nested_tensor_from_jagged(torch.arange(3), torch.tensor([0, 1, 3]))
    jagged_rows(jagged)[1][0] = 9
    assert jagged.values().tolist() == [0, 9, 2]


def test_a_ragged_dimension_behind_others():
    jagged = nested_tensor_from_jagged(torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 3])).transpose(1, 2)
    assert ragged_dim(jagged) == 2
    assert [row.tolist() for row in jagged_rows(jagged)] == [[[0], [1]], [[2, 4], [3, 5]]]
    assert to_padded(jagged, -1, 3).tolist() == [[[0, -1, -1], [1, -1, -1]], [[2, 4, -1], [3, 5, -1]]]
    rebuilt = nested_from_rows(jagged_rows(jagged)[::-1], jagged)
    assert [row.tolist() for row in jagged_rows(rebuilt)] == [[[2, 4], [3, 5]], [[0], [1]]]


def test_strided_nested():
    nested = strided([torch.ones(2, 3), torch.ones(0, 3), torch.ones(1, 3)])
    assert [tuple(row.shape) for row in jagged_rows(nested)] == [(2, 3), (0, 3), (1, 3)]
    padded = to_padded(nested, 5, pad_to_seqlen=3)
    assert padded[:, :, 0].tolist() == [[1, 1, 5], [5, 5, 5], [1, 5, 5]]
    rebuilt = nested_from_rows(jagged_rows(nested)[2:], nested)
    assert (rebuilt.layout, rebuilt.size(0)) == (torch.strided, 1)
    empty = nested_from_rows([], strided([torch.ones(1).bfloat16()]))
    assert (to_padded(empty, 0, 4).shape, to_padded(empty).dtype) == ((0, 4), torch.bfloat16)


@pytest.mark.parametrize("make", [list, torch.tensor, lambda n: torch.tensor(n, dtype=torch.int32)])
def test_lengths_in_any_form(make):
    assert to_jagged(torch.arange(6).reshape(2, 3), make([3, 1])).values().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([1, 4], "row 1 has length 4; allowed: an int from 0 to 3"),
        ([-1, 1], "row 0 has length -1; allowed"),
        ([1, True], "row 1 has length True; allowed"),
        (torch.tensor([1.0, 2.0]), "row 0 has length 1.0; allowed"),
        (torch.tensor([[1], [2]]), r"row 0 has length \[1\]; allowed"),
        ([1], "there are 1 lengths; allowed: 2"),
        ([1, 1, 1], "there are 3 lengths; allowed: 2"),
    ],
)
def test_lengths_that_do_not_fit(lengths, message):
    with pytest.raises(ValueError, match=message):
        to_jagged(torch.zeros(2, 3), lengths)


def test_tensors_of_the_wrong_layout():
    jagged = nested_tensor_from_jagged(torch.arange(3), torch.tensor([0, 1, 3]))
    with pytest.raises(ValueError, match="allowed: a nested tensor"):
        to_padded(torch.zeros(2, 2))
    with pytest.raises(ValueError, match="1 dimensions, nested: False; allowed: a dense tensor"):
        to_jagged(torch.zeros(2), [0, 0])
    with pytest.raises(ValueError, match="nested: True; allowed: a dense tensor"):
        to_jagged(jagged, [1, 1])
    for least in (-1, True):
        with pytest.raises(ValueError, match=f"pad_to_seqlen is {least}; allowed: 0 or more"):
            to_padded(jagged, 0, least)


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("value", "dtype", "holds"),
    [
        (0, torch.bool, True), (False, torch.bool, True), (1.0, torch.bool, True), (2, torch.bool, False),
        (-1, torch.bool, False), (0.5, torch.bool, False),
        (255, torch.uint8, True), (256, torch.uint8, False), (-1, torch.uint8, False), (-100.0, torch.int8, True),
        (0.5, torch.int64, False), (NAN, torch.int64, False), (INF, torch.int64, False), (2**63, torch.int64, False),
        (2**64 - 1, torch.uint64, True), (True, torch.int32, True),
        (0.1, torch.bfloat16, True), (65504, torch.float16, True), (1e5, torch.float16, False),
        (-INF, torch.float16, True), (NAN, torch.float8_e4m3fn, True), (INF, torch.float8_e4m3fn, False),
        (INF, torch.float8_e5m2, True), (449, torch.float8_e4m3fn, False), (-448, torch.float8_e4m3fn, True),
        (0, torch.float8_e5m2, True), (10**400, torch.float64, False), (1e300, torch.float64, True),
        (1e300, torch.complex64, False), (-1, torch.complex64, True),
        ("0", torch.int64, False), (None, torch.int64, False),
    ],
)  # fmt: skip
def test_which_pad_values_a_dtype_holds(value, dtype, holds):
    if holds:
        check_pad_value(value, dtype, "x")
        torch.full((2,), value, dtype=dtype)
        return
    with pytest.raises(ValueError, match=re.escape(f"x is {value!r}; allowed: ")):
        check_pad_value(value, dtype, "x")


@pytest.mark.skipif(not hasattr(torch, "float8_e8m0fnu"), reason="torch before 2.7 has no float8_e8m0fnu")
@pytest.mark.parametrize("value", [0, -1])
def test_a_dtype_without_zero_and_sign(value):
    check_pad_value(2, torch.float8_e8m0fnu, "x")
    with pytest.raises(ValueError, match=f"x is {value}; allowed"):
        check_pad_value(value, torch.float8_e8m0fnu, "x")


def test_a_pad_value_that_does_not_fit_is_refused_also_where_nothing_is_padded():
    with pytest.raises(ValueError, match=r"pad_value is 0\.5; allowed: what torch\.int64 holds"):
        to_padded(nested_tensor_from_jagged(torch.arange(2), torch.tensor([0, 2])), 0.5)


def test_gradients_flow_both_ways():
    values = torch.ones(3, requires_grad=True)
    jagged = nested_tensor_from_jagged(values, torch.tensor([0, 1, 3]))
    to_jagged(to_padded(jagged), [1, 1]).values().sum().backward()
    assert values.grad.tolist() == [1, 1, 0]


def test_results_own_their_items():
    padded = torch.arange(4).reshape(2, 2)
    jagged = to_jagged(padded, [2, 2])
    padded.zero_()
    assert jagged.values().tolist() == [0, 1, 2, 3]
    back = to_padded(jagged)
    back.zero_()
    assert jagged.values().tolist() == [0, 1, 2, 3]
