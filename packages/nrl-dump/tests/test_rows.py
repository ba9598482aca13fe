"""A row's bytes: keys, order, cutting, numbers, tags."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from nrl_dump import TrainDataDump
from nrl_dump.chunk import check_chunk
from nrl_dump.rows import encode_array, encode_rows


def lines_of(chunk_rows: int | None = None, inf_nan="constants", **chunk) -> list[bytes]:
    chunk.pop("step", None)
    return b"".join(encode_rows(check_chunk(**chunk, inf_nan=inf_nan), 2, inf_nan, chunk_rows)).split(b"\n")[:-1]


def test_keys_stand_in_order_and_values_in_lists_of_one(tmp_path: Path, chunk) -> None:
    dump = TrainDataDump(tmp_path)
    dump.add_chunk(**chunk(2))
    dump.finish_step(1)
    assert (tmp_path / "train_data_step2.jsonl").read_bytes() == (
        b'{"idx":0,"step":2,"sample_id":["s0"],"input_lengths":[1],"metadata":[{"prefix":"s","row":0}],"t":[[0]],"r":[0.0]}\n'
        b'{"idx":1,"step":2,"sample_id":["s1"],"input_lengths":[2],"metadata":[{"prefix":"s","row":1}],"t":[[3,4]],"r":[0.25]}\n'
    )


def test_a_row_needs_neither_columns_nor_tags(chunk) -> None:
    assert lines_of(**chunk(1, tags=None, sequences={}, scalars={})) == [
        b'{"step":2,"sample_id":["s0"],"input_lengths":[1],"metadata":[{}]}'
    ]


def test_sequences_are_cut_and_scalars_are_not(chunk) -> None:
    rows = [
        json.loads(line)
        for line in lines_of(
            **chunk(
                3,
                input_lengths=torch.tensor([2, 0, 3], dtype=torch.int32),
                sequences={"t": torch.ones(3, 4), "k": torch.arange(24).reshape(3, 4, 2)},
                scalars={"one": torch.tensor([[1], [2], [3]]), "m": torch.zeros(3, 2, 2), "none": torch.zeros(3, 0)},
            )
        )
    ]
    assert [row["t"] for row in rows] == [[[1.0, 1.0]], [[]], [[1.0, 1.0, 1.0]]]
    assert [row["k"] for row in rows] == [[[[0, 1], [2, 3]]], [[]], [[[16, 17], [18, 19], [20, 21]]]]
    assert [row["one"] for row in rows] == [[[1]], [[2]], [[3]]]
    assert [row["m"] for row in rows] == [[[[0.0, 0.0], [0.0, 0.0]]]] * 3
    assert [row["none"] for row in rows] == [[[]]] * 3


@pytest.mark.parametrize("chunk_rows", [None, 1, 2, 100])
def test_the_size_of_blocks_changes_no_byte(chunk, chunk_rows) -> None:
    rows = 7
    given = chunk(
        rows,
        scalars={
            "x": torch.randn(rows, generator=torch.Generator().manual_seed(0)),
            "bf": torch.randn(rows, 2).bfloat16(),
            "j": torch.nested.nested_tensor([torch.arange(i % 3) for i in range(rows)], layout=torch.jagged),
        },
    )
    assert lines_of(chunk_rows, **given) == lines_of(3, **given)


def test_a_nan_in_the_padding_or_in_another_row_changes_nothing(chunk) -> None:
    clean = torch.tensor([[1.0, 0.0], [2.0, 3.0]])
    dirty = torch.tensor([[1.0, float("nan")], [2.0, 3.0]])
    lengths = torch.tensor([1, 2])
    assert lines_of(**chunk(2, input_lengths=lengths, sequences={"t": dirty})) == lines_of(
        **chunk(2, input_lengths=lengths, sequences={"t": clean})
    )


def test_views_strides_grad_and_neg_are_read_without_a_trace(chunk) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    leaf = torch.tensor([0.5, 1.5], requires_grad=True)
    grown = leaf * 2
    complex_numbers = torch.tensor([1 + 2j, 3 - 4j])
    neg = complex_numbers.conj().imag
    assert neg.is_neg()
    [first, second] = map(
        json.loads,
        lines_of(
            **chunk(
                2,
                input_lengths=torch.tensor([3, 2]),
                sequences={"view": base[1:3, ::2], "t": base.t()[:2, :3], "flip": base[:2].flip(1)[:, :3]},
                scalars={"g": grown, "neg": neg, "every": torch.arange(4)[::2], "same": torch.tensor([7]).expand(2)},
            )
        ),
    )
    assert first["view"] == [[6.0, 8.0, 10.0]]
    assert second["t"] == [[1.0, 7.0]]
    assert first["flip"] == [[5.0, 4.0, 3.0]]
    assert (first["g"], second["g"]) == ([1.0], [3.0])
    assert (first["neg"], second["neg"]) == ([-2.0], [4.0])
    assert (first["every"], second["every"]) == ([0], [2])
    assert (first["same"], second["same"]) == ([7], [7])
    assert neg.is_neg()
    grown.sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [2.0, 2.0]


def test_jagged_rows_with_holes_write_only_what_is_selected(chunk) -> None:
    values = torch.tensor([1, 2, -1, 3, -1, -1, 4, 5, 6])
    holed = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 3, 6, 9]), lengths=torch.tensor([2, 1, 3]))
    lines = lines_of(**chunk(3, input_lengths=torch.tensor([1, 1, 2]), sequences={"s": holed}, scalars={"j": holed}))
    assert [json.loads(line)["j"] for line in lines] == [[[1, 2]], [[3]], [[4, 5, 6]]]
    assert [json.loads(line)["s"] for line in lines] == [[[1]], [[3]], [[4, 5]]]


def test_a_jagged_row_longer_than_its_room_is_refused(chunk) -> None:
    values = torch.arange(4)
    wrong = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 2, 4]), lengths=torch.tensor([2, 2]))
    wrong.lengths()[0] = 3
    with pytest.raises(ValueError, match="column 'j' says 3 items for row 0, whose offsets leave room for 2"):
        lines_of(**chunk(2, scalars={"j": wrong}))


def test_integers_never_get_a_point_and_floats_are_shortest(chunk) -> None:
    [line] = lines_of(
        **chunk(
            1,
            input_lengths=torch.tensor([2]),
            sequences={},
            tags=None,
            scalars={
                "i": torch.tensor([-(2**63)]),
                "u": torch.tensor([2**64 - 1], dtype=torch.uint64),
                "f": torch.tensor([0.1]),
                "d": torch.tensor([0.1], dtype=torch.float64),
                "z": torch.tensor([-0.0]),
            },
        )
    )
    assert line.endswith(b'"i":[-9223372036854775808],"u":[18446744073709551615],"f":[0.1],"d":[0.1],"z":[-0.0]}')


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_non_finite_words_stand_where_the_numbers_stood(dtype) -> None:
    array = np.array([[np.nan, 1.5], [np.inf, -np.inf], [0.0, np.nan]], dtype=dtype)
    assert encode_array(array, "constants") == b"[[NaN,1.5],[Infinity,-Infinity],[0.0,NaN]]"
    assert encode_array(array, "strings") == b'[["NaN",1.5],["Infinity","-Infinity"],[0.0,"NaN"]]'
    assert encode_array(array, "null") == b"[[null,1.5],[null,null],[0.0,null]]"
    assert encode_array(array[:0], "constants") == b"[]"


@pytest.mark.parametrize("kind", ["sequences", "scalars"])
def test_the_one_float32_whose_shortest_decimal_misleads_a_double(chunk, kind: str) -> None:
    odd = torch.tensor(0x15AE43FD, dtype=torch.int32).view(torch.float32)
    column = torch.stack([odd, -odd]) if kind == "scalars" else torch.stack([odd, -odd]).reshape(2, 1)
    for inf_nan in ("constants", "strings", "null"):
        given = chunk(2, input_lengths=torch.ones(2, dtype=torch.int64), sequences={}, scalars={}) | {
            kind: {"x": column}
        }
        rows = [json.loads(line)["x"] for line in lines_of(inf_nan=inf_nan, **given)]
        back = torch.tensor(rows, dtype=torch.float64).float().reshape(column.shape)
        assert torch.equal(back.view(torch.int32), column.view(torch.int32))


def test_column_names_of_any_kind_are_escaped(chunk) -> None:
    name = 'quote " back \\ line \u2028 null'
    [line] = lines_of(**chunk(1, sequences={}, scalars={name: torch.tensor([float("nan")])}))
    assert repr(json.loads(line)[name]) == "[nan]"
