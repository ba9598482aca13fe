"""What `add_chunk` refuses, before any byte is written."""

from pathlib import Path

import pytest
import torch
from nrl_dump import TrainDataDump
from nrl_dump.columns import RESERVED

A = torch.tensor


def nested(*rows: list[int]) -> torch.Tensor:
    return torch.nested.nested_tensor([A(row, dtype=torch.int64) for row in rows], layout=torch.jagged)


REFUSED = {
    "ids as one string": ({"sample_ids": "ab"}, "sample_ids is one string, 'ab'"),
    "an id that is no string": ({"sample_ids": ["a", 7]}, r"sample_ids\[1\] is 7 \(int\): a string is needed"),
    "an id twice": ({"sample_ids": ["a", "a"]}, "sample id 'a' stands twice in the chunk"),
    "an id that is no UTF-8": ({"sample_ids": ["a", "\ud800"]}, r"sample_ids\[1\] is .* which UTF-8 can't hold"),
    "too few tags": ({"tags": [{}]}, "1 tags for 2 sample ids"),
    "tags that are no JSON": ({"tags": [{}, {"x": {1}}]}, "tags.x of sample 's1' is .* .set.: JSON has no such value"),
    "lengths as a list": ({"input_lengths": [1, 1]}, "input_lengths is a list: a 1-D tensor"),
    "lengths as floats": ({"input_lengths": A([1.0, 1.0])}, "input_lengths is a strided float32 tensor"),
    "lengths as bools": ({"input_lengths": A([True, True])}, "input_lengths is a strided bool tensor"),
    "lengths of 2-D": ({"input_lengths": A([[1], [1]])}, r"tensor of shape \[2, 1\]: one whole number for each of 2"),
    "too many lengths": ({"input_lengths": A([1, 1, 1])}, r"tensor of shape \[3\]: one whole number for each of 2"),
    "a negative length": ({"input_lengths": A([1, -1])}, r"input_lengths\[1\] is -1: lengths from 0"),
    "a length beyond a sequence": (
        {"input_lengths": A([1, 4])},
        r"input_lengths\[1\] is 4, but sequence 't' has 3 items",
    ),
    "a length beyond a jagged sequence": (
        {"input_lengths": A([2, 2]), "sequences": {"j": nested([1, 2], [3])}},
        r"input_lengths\[1\] is 2, but sequence 'j' has 1 items",
    ),
    "a sequence with other rows": ({"sequences": {"t": A([[1]])}}, r"column 't' is .* \[1, 1\]: 2 rows are needed"),
    "a jagged column with other rows": ({"scalars": {"j": nested([1])}}, "column 'j' has 1 rows: 2 are needed"),
    "a column jagged elsewhere": (
        {"scalars": {"j": torch.nested.nested_tensor([torch.ones(2, 1), torch.ones(2, 3)], layout=torch.jagged)}},
        "column 'j' is jagged in another dimension than its second",
    ),
    "a sequence of 1-D": ({"sequences": {"t": A([1, 2])}}, r"sequence 't' is .* \[2\]: \[rows, length\] is needed"),
    "a scalar of 0-D": ({"scalars": {"r": A(1)}}, r"column 'r' is .* \[\]: 2 rows are needed"),
    "a column that is no tensor": ({"scalars": {"r": [1, 2]}}, "column 'r' is a list: a tensor is needed"),
    "complex numbers": ({"scalars": {"r": A([1j, 2j])}}, "column 'r' has dtype complex64: float64, "),
    "a sparse column": ({"scalars": {"r": A([1, 0]).to_sparse()}}, "column 'r' is a sparse_coo int64 tensor"),
    "a column without data": ({"scalars": {"r": torch.empty(2, device="meta")}}, "column 'r' is .*: dense and jagged"),
    "a column on both sides": (
        {"sequences": {"t": A([[1], [1]])}, "scalars": {"t": A([1, 1])}},
        "column 't' is given as a sequence and as a scalar",
    ),
    "a name that is no string": ({"scalars": {7: A([1, 1])}}, "a column's name is 7 .int.: a string is needed"),
    "a name that is no UTF-8": ({"scalars": {"\ud800": A([1, 1])}}, "a column's name is .* which UTF-8 can't hold"),
    **{
        f"the name {name}": ({"scalars": {name: A([1, 1])}}, f"column {name!r} has a reserved name: idx, step")
        for name in RESERVED
    },
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # torch says it of every strided nested tensor
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [torch.ones(2, 3), torch.ones(2, 4)],
            r"column 'j' has rows of shapes \[\(3,\), \(4,\)\] behind their own length",
        ),
        ([torch.tensor(1.0), torch.tensor(2.0)], "column 'j' has rows of shapes"),
    ],
)
def test_a_strided_nested_column_with_rows_of_two_shapes_is_refused(tmp_path: Path, chunk, rows, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainDataDump(tmp_path).add_chunk(**chunk(2, scalars={"j": torch.nested.nested_tensor(rows)}))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_bad_chunk_is_refused_and_changes_nothing(tmp_path: Path, chunk, changes: dict, message: str) -> None:
    folder = tmp_path / "log"
    dump = TrainDataDump(folder)
    with pytest.raises(ValueError, match=message):
        dump.add_chunk(**chunk(2, **changes))
    assert not folder.exists()

    dump.add_chunk(**chunk(2, prefix="good"))
    before = (folder / "train_data_step2.jsonl.part-0").read_bytes()
    with pytest.raises(ValueError, match=message):
        dump.add_chunk(**chunk(2, **changes))
    assert (folder / "train_data_step2.jsonl.part-0").read_bytes() == before
    assert dump.finish_step(1, expected_rows=2).rows == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequences": {}}, "column 't' is sequence int64 there and missing here"),
        ({"sequences": {"t": torch.zeros(2, 3)}}, "column 't' is sequence int64 there and sequence float32 here"),
        (
            {"sequences": {"t": torch.zeros(2, 3, 5, dtype=torch.int64)}},
            r"column 't' is sequence int64 there and sequence int64 of items \[5\] here",
        ),
        ({"scalars": {"r": torch.zeros(2, 1)}}, "column 'r' is scalar float32 there and list float32 here"),
        ({"scalars": {"r": torch.zeros(2), "new": A([1, 1])}}, "column 'new' is missing there and scalar int64 here"),
        ({"input_lengths": A([1, 1], dtype=torch.int32)}, "column 'input_lengths' is int64 there and int32 here"),
    ],
)
def test_a_chunk_unlike_the_step_s_first_is_refused(tmp_path: Path, chunk, changes: dict, message: str) -> None:
    dump = TrainDataDump(tmp_path)
    dump.add_chunk(**chunk(2, prefix="a"))
    with pytest.raises(ValueError, match=f"differs from the first of step 1 .*{message}"):
        dump.add_chunk(**chunk(2, prefix="b", **changes))
    dump.add_chunk(**chunk(2, step=2, prefix="b", **changes))  # another step may differ
    assert dump.finish_step(1, expected_rows=2).rows == 2


def test_the_order_of_a_dict_does_not_matter_after_the_first_chunk(tmp_path: Path, chunk, read_rows) -> None:
    scalars = {"x": A([1, 2]), "y": A([3, 4])}
    dump = TrainDataDump(tmp_path)
    dump.add_chunk(**chunk(2, prefix="a", scalars=scalars))
    dump.add_chunk(**chunk(2, prefix="b", scalars=dict(reversed(scalars.items()))))
    dump.finish_step(1, 4)
    assert {tuple(row) for row in read_rows(tmp_path / "train_data_step2.jsonl")} == {
        ("idx", "step", "sample_id", "input_lengths", "metadata", "t", "x", "y")
    }
