"""What docs/dump/reading-elsewhere.md recommends for other programs' readers, tried on real files."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from nrl_dump import TrainDataDump, read_step
from nrl_dump.columns import InfNan
from nrl_dump.commands.parquet import write_parquet
from nrl_interfaces.fileops import FileOps

NAN, INF = math.nan, math.inf
Columns = dict[str, list[Any]]
"""Column name to a value a row, as plain lists."""


def of_readers_group(name: str) -> Any:
    """A package that `tests` has and `minimums` leaves out, since it would raise the floors that are on trial there."""
    return pytest.importorskip(name, reason="the dependency group readers is not installed here")


def publish(folder: Path, *, inf_nan: InfNan = "constants", odd: bool = False, **changes: Any) -> Path:
    """Publish three rows, an empty sequence among them; `odd` puts non-finite numbers in, one of them first."""
    chunk: dict[str, Any] = {
        "sample_ids": ["a", "b\u2028c", "ü"],
        "tags": [{"task": "math", "n": 1}, {}, {"n": 2}],
        "input_lengths": torch.tensor([2, 0, 1]),
        "sequences": {
            "t": torch.tensor([[1, 2], [3, 4], [5, 6]]),
            "lp": torch.tensor([[NAN if odd else 0.5, 0.25], [0, 0], [-INF if odd else -1.5, 0]]),
        },
        "scalars": {
            "reward": torch.tensor([NAN, INF, 0.1] if odd else [0.5, 1.0, 0.1]),
            "u": torch.tensor([0, 1, 2], dtype=torch.uint64),
            "ok": torch.tensor([True, False, True]),
        },
    }
    with TrainDataDump(folder, inf_nan=inf_nan) as dump:
        dump.add_chunk(step=0, **(chunk | changes))
        dump.finish_step(0)
    return folder / "train_data_step1.jsonl"


@pytest.fixture(autouse=True)
def no_network_and_no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")


def read_with_datasets(*paths: Path, typed: bool = False) -> Columns:
    datasets: Any = of_readers_group("datasets")
    datasets.disable_progress_bars()
    value, lists = datasets.Value, datasets.List
    features = datasets.Features(
        {
            "idx": value("int64"),
            "step": value("int64"),
            "sample_id": lists(value("string")),
            "input_lengths": lists(value("int64")),
            "metadata": lists({"task": value("string"), "n": value("int64")}),
            "t": lists(lists(value("int64"))),
            "lp": lists(lists(value("float32"))),
            "reward": lists(value("float32")),
            "u": lists(value("uint64")),
            "ok": lists(value("bool")),
        }
    )
    loaded = datasets.load_dataset(
        "json",
        data_files=[str(path) for path in paths],
        split="train",
        cache_dir=str(paths[0].parent / "cache"),
        features=features if typed else None,
    )
    return loaded[:]


def read_with_pandas(path: Path) -> Columns:
    return of_readers_group("pandas").read_json(path, lines=True).to_dict("list")


def read_with_pyarrow(path: Path, *, typed: bool = False) -> Columns:
    arrow: Any = importlib.import_module("pyarrow")
    reader: Any = importlib.import_module("pyarrow.json")
    number, numbers = arrow.list_(arrow.float32()), arrow.list_(arrow.list_(arrow.float32()))
    schema = arrow.schema([("lp", numbers), ("reward", number), ("u", arrow.list_(arrow.uint64()))])
    return reader.read_json(
        path, parse_options=reader.ParseOptions(explicit_schema=schema if typed else None)
    ).to_pydict()


def read_with_polars(path: Path) -> Columns:
    return of_readers_group("polars").read_ndjson(path).to_dict(as_series=False)


def read_with_duckdb(path: Path, columns: str = "") -> Columns:
    duckdb: Any = of_readers_group("duckdb")
    found = duckdb.sql(f"select * from read_json('{path}', format='newline_delimited'{columns})")
    return {name: [row[at] for row in found.fetchall()] for at, name in enumerate(found.columns)}


_DUCKDB_TYPES = ", columns={lp: 'FLOAT[][]', reward: 'FLOAT[]'}"

Reader = Callable[[Path], Columns]
READERS: dict[str, Reader] = {
    "datasets": read_with_datasets,
    "pandas": read_with_pandas,
    "pyarrow": read_with_pyarrow,
    "polars": read_with_polars,
    "duckdb": read_with_duckdb,
}
ALL = pytest.mark.parametrize("reader", READERS.values(), ids=READERS)


@ALL
@pytest.mark.parametrize("inf_nan", ["constants", "strings", "null"])
def test_finite_numbers_load_everywhere(tmp_path: Path, reader: Reader, inf_nan: InfNan) -> None:
    read = reader(publish(tmp_path, inf_nan=inf_nan))
    assert read["idx"] == [0, 1, 2]
    assert read["step"] == [1, 1, 1]
    assert read["sample_id"] == [["a"], ["b\u2028c"], ["ü"]]
    assert read["input_lengths"] == [[2], [0], [1]]
    assert read["t"] == [[[1, 2]], [[]], [[5]]]
    assert read["lp"] == [[[0.5, 0.25]], [[]], [[-1.5]]]
    assert read["ok"] == [[True], [False], [True]]
    assert [tag["n"] for (tag,) in read["metadata"] if tag.get("n")] == [1, 2]


def same(read: list[Any], lists: str) -> bool:
    """Whether numbers are these; float32 may have been widened, so a few digits do."""
    return repr([round(v, 6) if isinstance(v, float) and math.isfinite(v) else v for v in read]) == lists


@pytest.mark.parametrize(
    ("reader", "inf_nan", "nan", "inf"),
    [
        (read_with_pyarrow, "constants", "nan", "inf"),
        (read_with_duckdb, "constants", "nan", "inf"),
        (read_with_pandas, "constants", "None", "inf"),
        (lambda path: read_with_datasets(path, typed=True), "constants", "nan", "inf"),
        (lambda path: read_with_datasets(path, typed=True), "strings", "nan", "inf"),
        (lambda path: read_with_datasets(path, typed=True), "null", "None", "None"),
        (
            lambda path: read_with_duckdb(path, ", columns={lp: 'FLOAT[][]', reward: 'FLOAT[]'}"),
            "strings",
            "nan",
            "inf",
        ),
        (read_with_pandas, "null", "None", "None"),
        (read_with_polars, "null", "None", "None"),
        (read_with_duckdb, "null", "None", "None"),
        (lambda path: read_with_pyarrow(path, typed=True), "null", "None", "None"),
    ],
)
def test_d07_non_finite_numbers_load_as_the_table_says(
    tmp_path: Path, reader: Reader, inf_nan: InfNan, nan: str, inf: str
) -> None:
    read = reader(publish(tmp_path, inf_nan=inf_nan, odd=True))
    assert same([reward for (reward,) in read["reward"]], f"[{nan}, {inf}, 0.1]")
    assert same(
        [item for (row,) in read["lp"] for item in row], f"[{nan}, 0.25, {'None' if inf == 'None' else '-inf'}]"
    )


@pytest.mark.parametrize(
    "reader", [read_with_pandas, read_with_polars, read_with_duckdb, lambda path: read_with_pyarrow(path, typed=True)]
)
def test_uint64_is_exact(tmp_path: Path, reader: Reader) -> None:
    values = [0, 2**63, 2**64 - 1]
    path = publish(tmp_path, scalars={"u": torch.tensor(values, dtype=torch.uint64), "reward": torch.ones(3)})
    assert reader(path)["u"] == [[value] for value in values]


def test_datasets_loads_everything_by_way_of_parquet(tmp_path: Path) -> None:
    datasets: Any = of_readers_group("datasets")
    datasets.disable_progress_bars()
    scalars = {
        "u": torch.tensor([0, 2**63, 2**64 - 1], dtype=torch.uint64),
        "reward": torch.tensor([NAN, INF, 0.5], dtype=torch.bfloat16),
    }
    write_parquet(publish(tmp_path, odd=True, scalars=scalars), tmp_path / "step.parquet", FileOps())
    files = str(tmp_path / "step.parquet")
    read = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache"))[:]
    assert read["u"] == [0, 2**63, 2**64 - 1]
    assert repr(read["reward"]) == "[nan, inf, 0.5]"
    assert repr(read["lp"]) == "[[nan, 0.25], [], [-inf]]"


def test_integers_beyond_64_bits_are_exact_in_polars_and_by_read_step(tmp_path: Path) -> None:
    path = publish(tmp_path, tags=[{"n": 2**70}, {"n": 1}, {"n": 2}])
    assert read_with_polars(path)["metadata"][0] == [{"n": 2**70}]
    assert of_readers_group("pandas").DataFrame(read_step(path))["metadata"][0] == [{"n": 2**70}]


@ALL
def test_sequences_that_are_empty_throughout_load(tmp_path: Path, reader: Reader) -> None:
    read = reader(publish(tmp_path, input_lengths=torch.zeros(3, dtype=torch.int64)))
    assert read["t"] == read["lp"] == [[[]], [[]], [[]]]


def test_datasets_joins_steps_of_which_one_has_empty_sequences_only(tmp_path: Path) -> None:
    empty = publish(tmp_path / "a", input_lengths=torch.zeros(3, dtype=torch.int64))
    read = read_with_datasets(empty, publish(tmp_path / "b"), typed=True)
    assert read["t"] == [[[]], [[]], [[]], [[1, 2]], [[]], [[5]]]


@pytest.mark.parametrize("inf_nan", ["constants", "null"])
def test_datasets_takes_rows_from_read_step(tmp_path: Path, inf_nan: InfNan) -> None:
    datasets: Any = of_readers_group("datasets")
    path = publish(tmp_path, inf_nan=inf_nan, odd=True, scalars={"reward": torch.tensor([NAN, INF, 1.0])})
    datasets.disable_progress_bars()
    made = datasets.Dataset.from_generator(read_step, gen_kwargs={"path": str(path)}, cache_dir=str(tmp_path / "cache"))
    expected = "[[nan], [inf], [1.0]]" if inf_nan == "constants" else "[[None], [None], [1.0]]"
    assert repr(made[:]["reward"]) == expected
