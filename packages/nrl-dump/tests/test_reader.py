"""Reading back: rows as they stand, tensors bit for bit."""

from __future__ import annotations

import doctest
import importlib
import json
import tracemalloc
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import orjson
import pytest
import torch
from nrl_dump import DamagedStepError, InterruptedStepError, TrainDataDump, read_step, read_tensors
from nrl_dump.columns import DTYPES, InfNan
from nrl_interfaces.layout import jagged_rows

MODES: tuple[InfNan, ...] = ("constants", "strings", "null")
INTS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
FLOATS = [name for name, dtype in DTYPES.items() if dtype.is_floating_point]
WHOLE = [name for name, dtype in DTYPES.items() if not dtype.is_floating_point and dtype is not torch.bool]


def jagged(values: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    return torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, *lengths]).cumsum(0))


def publish(folder: Path, *chunks: dict[str, Any], inf_nan: InfNan = "constants") -> Path:
    """Publish step 0 of these chunks and return its path."""
    with TrainDataDump(folder, inf_nan=inf_nan) as dump:
        for number, chunk in enumerate(chunks):
            rows = len(chunk["input_lengths"])
            ids = [f"{number}-{row}" for row in range(rows)]
            given = {"sample_ids": ids, "tags": None, "sequences": {}, "scalars": {}}
            dump.add_chunk(step=0, **(given | chunk))
        dump.finish_step(0)
    return folder / "train_data_step1.jsonl"


def same_bits(read: torch.Tensor, written: torch.Tensor, inf_nan: InfNan = "constants") -> None:
    """Equal dtype, shape and bits; NaN of any payload and sign are one, and "null" makes NaN of infinities."""
    assert (read.dtype, read.shape) == (written.dtype, written.shape)
    same = read.view(INTS[read.element_size()]) == written.view(INTS[read.element_size()])
    if written.dtype.is_floating_point:
        wide_read, wide = read.to(torch.float64), written.to(torch.float64)
        odd = wide.isnan() if inf_nan != "null" else ~wide.isfinite()
        same |= wide_read.isnan() & odd
    assert bool(same.all())


def every_bit_pattern(name: str, amount: int) -> torch.Tensor:
    """All bit patterns of a narrow dtype, random ones and extremes of a wide one."""
    dtype = DTYPES[name]
    size = torch.empty(0, dtype=dtype).element_size()
    if size <= 2:
        return torch.arange(256**size, dtype=torch.int64).to(INTS[size]).view(dtype)
    generator = torch.Generator().manual_seed(size)
    random = torch.randint(0, 256, (amount * size,), dtype=torch.uint8, generator=generator).view(dtype)
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        return torch.cat([random, torch.tensor([info.min, info.min + 1, 0, 1, info.max - 1, info.max], dtype=dtype)])
    info = torch.finfo(dtype)
    smallest = info.smallest_normal * info.eps
    extremes = [
        0.0,
        -0.0,
        info.max,
        info.min,
        info.smallest_normal,
        smallest,
        float("nan"),
        float("inf"),
        -float("inf"),
    ]
    return torch.cat([random, torch.tensor(extremes, dtype=dtype)])


@pytest.mark.parametrize("inf_nan", MODES)
@pytest.mark.parametrize("name", FLOATS)
def test_every_float_comes_back_bit_for_bit(tmp_path: Path, name: str, inf_nan: InfNan) -> None:
    values = every_bit_pattern(name, 50_000)
    rows = values[: len(values) // 8 * 8].reshape(-1, 8)
    lengths = torch.full((len(rows),), 8)
    scalar = rows[:, 0].contiguous()
    chunk = {"input_lengths": lengths, "sequences": {"s": rows}, "scalars": {"k": rows, "x": scalar}}
    read = read_tensors(publish(tmp_path, chunk, inf_nan=inf_nan))
    same_bits(read["s"].values(), rows.flatten(), inf_nan)
    same_bits(read["k"], rows, inf_nan)
    same_bits(read["x"], scalar, inf_nan)


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_extremes_of_wide_floats_come_back_bit_for_bit(tmp_path: Path, name: str) -> None:
    extremes = every_bit_pattern(name, 0)
    read = read_tensors(
        publish(tmp_path, {"input_lengths": torch.zeros(9, dtype=torch.int64), "scalars": {"x": extremes}})
    )
    same_bits(read["x"], extremes)


@pytest.mark.parametrize("name", WHOLE)
def test_integers_come_back_exactly(tmp_path: Path, name: str) -> None:
    values = every_bit_pattern(name, 5_000)
    chunk = {
        "input_lengths": torch.tensor([len(values)]),
        "sequences": {"s": values[None]},
        "scalars": {"k": values[None]},
    }
    read = read_tensors(publish(tmp_path, chunk))
    same_bits(read["s"].values(), values)
    same_bits(read["k"], values[None])


def test_bools_come_back(tmp_path: Path) -> None:
    mask = torch.tensor([[True, False, True], [False, False, True]])
    chunk = {"input_lengths": torch.tensor([3, 1]), "sequences": {"m": mask}, "scalars": {"ok": mask[:, 0]}}
    path = publish(tmp_path, chunk)
    assert [row["m"] for row in read_step(path)] == [[[True, False, True]], [[False]]]
    read = read_tensors(path)
    same_bits(read["m"].values(), torch.tensor([True, False, True, False]))
    same_bits(read["ok"], mask[:, 0])


def test_lengths_keep_their_dtype_and_columns_their_order(tmp_path: Path) -> None:
    chunk = {
        "input_lengths": torch.tensor([1, 0], dtype=torch.uint8),
        "sequences": {"t": torch.tensor([[1], [2]])},
        "scalars": {"r": torch.tensor([0.5, 1])},
    }
    path = publish(tmp_path, chunk)
    assert list(read_tensors(path)) == ["input_lengths", "t", "r"]
    same_bits(read_tensors(path)["input_lengths"], chunk["input_lengths"])
    assert list(read_tensors(path, ["r", "input_lengths"])) == ["r", "input_lengths"]
    assert read_tensors(path, []) == {}


def test_rows_of_length_zero_and_items_of_a_shape_stay(tmp_path: Path) -> None:
    tensor = torch.arange(24, dtype=torch.int16).reshape(2, 3, 4)
    chunk = {
        "input_lengths": torch.tensor([0, 2]),
        "sequences": {"s": tensor, "none": torch.ones(2, 2, 0)},
        "scalars": {
            "k": tensor,
            "j": jagged(torch.arange(6.0).reshape(3, 2), [3, 0]),
            "empty": jagged(torch.empty(0, 2, dtype=torch.bfloat16), [0, 0]),
            "nothing": torch.ones(2, 0),
        },
    }
    read = read_tensors(publish(tmp_path, chunk))
    assert [row.tolist() for row in jagged_rows(read["s"])] == [[], tensor[1, :2].tolist()]
    assert [row.shape for row in jagged_rows(read["none"])] == [(0, 0), (2, 0)]
    assert torch.equal(read["k"], tensor)
    assert [row.tolist() for row in jagged_rows(read["j"])] == [[[0, 1], [2, 3], [4, 5]], []]
    assert [row.shape for row in jagged_rows(read["empty"])] == [(0, 2), (0, 2)]
    assert read["empty"].dtype is torch.bfloat16
    assert read["nothing"].shape == (2, 0)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_d05_jagged_scalars_keep_empty_and_one_item_rows(tmp_path: Path) -> None:
    for layout, prompts in {
        "jagged": jagged(torch.tensor([5, 6, 7, 8]), [3, 0, 1]),
        "strided": torch.nested.as_nested_tensor([torch.tensor(r, dtype=torch.int64) for r in ([5, 6, 7], [], [8])]),
    }.items():
        chunk = {
            "input_lengths": torch.tensor([2, 0, 1]),
            "sequences": {"t": torch.tensor([[1, 2], [3, 4], [5, 6]])},
            "scalars": {"prompt_ids": prompts},
        }
        path = publish(tmp_path / layout, chunk)
        assert [row["prompt_ids"] for row in read_step(path)] == [[[5, 6, 7]], [[]], [[8]]]
        assert [row["t"] for row in read_step(path)] == [[[1, 2]], [[]], [[5]]]
        assert [row.tolist() for row in jagged_rows(read_tensors(path)["prompt_ids"])] == [[5, 6, 7], [], [8]]


def test_lists_of_two_lengths_are_jagged(tmp_path: Path) -> None:
    chunks = [{"input_lengths": torch.tensor([0]), "scalars": {"k": torch.ones(1, width)}} for width in (2, 3)]
    read = read_tensors(publish(tmp_path, *chunks))
    assert [row.tolist() for row in jagged_rows(read["k"])] == [[1, 1], [1, 1, 1]]


def test_d07_non_finite_numbers_stay_apart(tmp_path: Path) -> None:
    nan, inf = float("nan"), float("inf")
    reward = torch.tensor([nan, inf, -inf, 1.0])
    chunk = {
        "input_lengths": torch.zeros(4, dtype=torch.int64),
        "tags": [{"x": nan}, {}, {}, {}],
        "scalars": {"r": reward},
    }
    texts = {mode: [row["r"][0] for row in read_step(publish(tmp_path / mode, chunk, inf_nan=mode))] for mode in MODES}
    assert repr(texts["constants"]) == "[nan, inf, -inf, 1.0]"
    assert texts["strings"] == ["NaN", "Infinity", "-Infinity", 1.0]
    assert texts["null"] == [None, None, None, 1.0]
    tag = next(read_step(tmp_path / "constants" / "train_data_step1.jsonl"))["metadata"][0]["x"]
    assert tag != tag


def test_d11_lines_end_at_newlines_only_and_integers_are_exact(tmp_path: Path) -> None:
    ids = ["a\u2028b", "c\u0085d", "e\rf\x0b\x0c\x1c"]
    tags = [{"n": "x\u2029y"}, {"big": [2**200, -(2**64)]}, {"deep": {"u": 2**64 - 1, "f": 1e300}}]
    path = publish(tmp_path, {"sample_ids": ids, "tags": tags, "input_lengths": torch.zeros(3, dtype=torch.int32)})
    rows = list(read_step(path))
    assert [row["sample_id"] for row in rows] == [[sample_id] for sample_id in ids]
    assert [row["metadata"] for row in rows] == [[tag] for tag in tags]
    assert [(row["idx"], row["step"], row["input_lengths"]) for row in rows] == [(0, 1, [0]), (1, 1, [0]), (2, 1, [0])]


def test_big_tags_beside_numbers_do_not_hurt_tensors(tmp_path: Path) -> None:
    chunk = {
        "input_lengths": torch.zeros(1, dtype=torch.int64),
        "tags": [{"big": 2**200, "nan": float("nan")}],
        "scalars": {"u": torch.tensor([2**64 - 1], dtype=torch.uint64)},
    }
    assert read_tensors(publish(tmp_path, chunk))["u"].tolist() == [2**64 - 1]


def test_unknown_columns_are_named_with_those_there_are(tmp_path: Path) -> None:
    path = publish(tmp_path, {"input_lengths": torch.zeros(1, dtype=torch.int64), "scalars": {"r": torch.ones(1)}})
    with pytest.raises(KeyError, match=r"no column 'x': it has 'input_lengths', 'r'"):
        read_tensors(path, ["r", "x"])
    with pytest.raises(ValueError, match="a list of names is needed"):
        read_tensors(path, "r")


def a_step(folder: Path) -> Path:
    return publish(folder, {"input_lengths": torch.tensor([1, 1]), "sequences": {"t": torch.tensor([[10], [20]])}})


def test_a_file_that_is_not_whole_is_refused_before_the_first_row(tmp_path: Path) -> None:
    path = a_step(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    for read in (read_step, read_tensors):
        with pytest.raises(DamagedStepError, match=f"{len(whole) - 1} bytes are not the {len(whole)} of its manifest"):
            read(path)
    path.with_name("train_data_step1.jsonl.part-0").write_bytes(b"")
    with pytest.raises(InterruptedStepError, match=r"finish_step\(0\) again"):
        read_step(path)
    path.unlink()
    with pytest.raises(InterruptedStepError, match="not there"):
        read_step(path)


def test_missing_and_unpublished_files_are_told_apart(tmp_path: Path) -> None:
    for name in ("train_data_step1.jsonl", "rows.jsonl"):
        with pytest.raises(FileNotFoundError):
            read_step(tmp_path / name)
    for name in ("train_data_step1.jsonl.part-0", "train_data_step1.jsonl.partial"):
        (tmp_path / name).write_text('{"step":1}\n')
        with pytest.raises(ValueError, match="is not published"):
            read_step(tmp_path / name)


def test_rows_without_a_manifest_are_read_but_not_as_tensors(tmp_path: Path) -> None:
    text = "".join(json.dumps({"idx": i, "step": 1, "token_ids": [[i, i]], "reward": [0.5]}) + "\n" for i in range(3))
    for name in ("train_data_step1.jsonl", "old.jsonl"):
        (tmp_path / name).write_text(text.removesuffix("\n"))
        assert [row["token_ids"] for row in read_step(tmp_path / name)] == [[[0, 0]], [[1, 1]], [[2, 2]]]
        with pytest.raises(ValueError, match=r"manifest\.json is not there|is not a published step"):
            read_tensors(tmp_path / name)


@pytest.mark.parametrize("bad", [b'{"idx":1,', b"", b"7", b'{"a":"\xff"}'])
def test_a_line_that_is_no_row_is_named(tmp_path: Path, bad: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"idx":0}\n' + bad + b"\n")
    rows = read_step(path)
    assert next(rows) == {"idx": 0}
    with pytest.raises(DamagedStepError, match="line 2 is not"):
        next(rows)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"[[20]]", b"[[2,]]", "line 2 is not JSON"),
        (b"[[20]]", b"[[{}]]", "line 2: column 't' is not a sequence of int64"),
        (b"[[20]]", b'["20"]', "line 2: column 't' is not"),
        (b"[[20]]", b"[20  ]", "line 2: column 't' is not"),
        (b"[[20]]", b"[2, 0]", "line 2: 't' does not stand in a list of one"),
        (b'"t":[[20]]', b'"u":[[20]]', "line 2: 't' does not stand in a list of one"),
        (b"}\n{", b"} {", "Extra data|unexpected content|not JSON"),
        (b"[[20]]}\n", b"[[2]]}\n\n", "line 3 is not JSON"),
    ],
)
def test_damage_of_the_same_size_is_found_where_it_shows(tmp_path: Path, old: bytes, new: bytes, message: str) -> None:
    path = a_step(tmp_path)
    damaged = path.read_bytes().replace(old, new)
    path.write_bytes(damaged.ljust(path.stat().st_size))
    with pytest.raises(DamagedStepError, match=message):
        read_tensors(path)


def test_a_row_too_few_is_damage(tmp_path: Path) -> None:
    path = a_step(tmp_path)
    first = path.read_bytes().split(b"\n")[0]
    path.write_bytes(first[:-1].ljust(path.stat().st_size - 2) + b"}\n")
    with pytest.raises(DamagedStepError, match="1 rows are not the 2"):
        read_tensors(path)


def test_steps_are_read_a_row_at_a_time_and_only_columns_asked_for_are_kept(tmp_path: Path) -> None:
    rows, width = 256, 2048
    chunk = {
        "input_lengths": torch.full((rows,), width),
        "sequences": {"big": torch.ones(rows, width), "small": torch.ones(rows, width, dtype=torch.bool)},
    }
    path = publish(tmp_path, chunk)
    next(read_step(path))
    row_bytes = path.stat().st_size // rows
    tracemalloc.start()
    try:
        for _ in read_step(path):
            pass
        assert tracemalloc.get_traced_memory()[1] < 40 * row_bytes
        tracemalloc.reset_peak()
        assert read_tensors(path, ["small"])["small"].values().numel() == rows * width
        assert tracemalloc.get_traced_memory()[1] < 2 * rows * width + 40 * row_bytes  # of 256
    finally:
        tracemalloc.stop()


@st.composite
def chunks(draw: st.DrawFn) -> tuple[InfNan, list[dict[str, Any]]]:
    """Chunks of the same random columns, of any bits and any lengths."""
    inf_nan = draw(st.sampled_from(MODES))
    names = st.sampled_from(sorted(DTYPES))
    kinds = st.sampled_from(["sequence", "jagged sequence", "scalar", "list", "jagged"])
    columns = draw(st.lists(st.tuples(kinds, names, st.sampled_from([(), (2,), (0,)])), max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))

    def bits(dtype: torch.dtype, *shape: int) -> torch.Tensor:
        size = torch.empty(0, dtype=dtype).element_size()
        if dtype is torch.bool:
            return torch.as_tensor(rng.integers(0, 2, shape)).bool()
        raw = torch.as_tensor(rng.integers(0, 256, (int(np.prod(shape)), size), dtype=np.uint8))
        return raw.view(dtype).reshape(shape) if raw.numel() else torch.empty(shape, dtype=dtype)

    result: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 3))):
        lengths = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
        rows, widest = len(lengths), max(lengths)
        chunk: dict[str, Any] = {"input_lengths": torch.tensor(lengths), "sequences": {}, "scalars": {}}
        for number, (kind, name, item) in enumerate(columns):
            dtype = DTYPES[name]
            if kind == "sequence":
                chunk["sequences"][f"c{number}"] = bits(dtype, rows, widest + draw(st.integers(0, 2)), *item)
            elif kind == "jagged sequence":
                chunk["sequences"][f"c{number}"] = jagged(bits(dtype, sum(lengths), *item), lengths)
            elif kind == "scalar":
                chunk["scalars"][f"c{number}"] = bits(dtype, rows)
            elif kind == "list":
                chunk["scalars"][f"c{number}"] = bits(dtype, rows, draw(st.integers(0, 3)), *item)
            else:
                own = draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows))
                chunk["scalars"][f"c{number}"] = jagged(bits(dtype, sum(own), *item), own)
        result.append(chunk)
    return inf_nan, result


def rows_of(tensor: torch.Tensor, lengths: list[int] | None) -> list[torch.Tensor]:
    rows = jagged_rows(tensor) if tensor.is_nested else list(tensor)
    return rows if lengths is None else [row[:length] for row, length in zip(rows, lengths, strict=True)]


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(chunks())
def test_any_chunks_come_back(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[InfNan, list[dict[str, Any]]]
) -> None:
    inf_nan, written = case
    path = publish(tmp_path_factory.mktemp("any"), *written, inf_nan=inf_nan)
    read = read_tensors(path)
    assert torch.equal(read.pop("input_lengths"), torch.cat([chunk["input_lengths"] for chunk in written]))
    assert set(read) == {*written[0]["sequences"], *written[0]["scalars"]}
    for name, tensor in read.items():
        expected: list[torch.Tensor] = []
        for chunk in written:
            is_sequence = name in chunk["sequences"]
            given = chunk["sequences" if is_sequence else "scalars"][name]
            expected += rows_of(given, chunk["input_lengths"].tolist() if is_sequence else None)
        for row, wanted in zip(rows_of(tensor, None), expected, strict=True):
            same_bits(row.contiguous(), wanted.contiguous(), inf_nan)
    for row, line in zip(read_step(path), path.read_bytes().splitlines(), strict=True):
        assert list(row)[:5] == ["idx", "step", "sample_id", "input_lengths", "metadata"]
        if inf_nan != "constants":
            assert row == orjson.loads(line)  # strict JSON


@pytest.mark.parametrize("module", ["nrl_dump.reader", "nrl_dump.values"])
def test_examples_in_docstrings_run(module: str) -> None:
    assert doctest.testmod(importlib.import_module(module)).failed == 0
