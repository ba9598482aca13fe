"""Columns in TensorDicts and out of them again."""

import numpy as np
import pytest
import torch
from nrl_dataplane_local import local_batch_to_tensordict, materialize_local
from nrl_dataplane_local.tensordicts import columns_of
from nrl_interfaces import BatchedDataDict, PackedTensor
from tensordict import NonTensorData, NonTensorStack, TensorDict

PACKED = PackedTensor([torch.ones(2, 3), None], 0)


def jagged() -> torch.Tensor:
    return torch.nested.nested_tensor_from_jagged(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 3, 3]))


def test_columns_come_back_as_they_were() -> None:
    columns = {"x": torch.arange(2), "c": ["A", "B"], "t": (1, 2), "n": np.arange(2), "p": PACKED, "d": {"a": [1, 2]}}
    td = local_batch_to_tensordict(columns, batch_size=2)
    assert td.batch_size == (2,)
    found = materialize_local(td)
    assert isinstance(found, BatchedDataDict)
    for name, column in columns.items():
        assert found[name] is column


def test_a_column_of_one_row_stays_a_list_of_one() -> None:
    assert materialize_local(local_batch_to_tensordict({"c": ["D"]}, batch_size=1))["c"] == ["D"]


def test_a_column_of_another_size_is_named() -> None:
    with pytest.raises(ValueError, match=r"field 'c' has 3 rows; allowed: 2"):
        local_batch_to_tensordict({"x": torch.arange(2), "c": ["A", "B", "D"]}, batch_size=2)
    with pytest.raises(ValueError, match=r"field 'c' can't be a column: it is a str"):
        local_batch_to_tensordict({"c": "AB"}, batch_size=2)


def test_padded_and_jagged() -> None:
    td = local_batch_to_tensordict({"j": jagged(), "x": torch.zeros(2, 1)}, batch_size=2)
    assert materialize_local(td)["j"].tolist() == [[1, 2, 3], [0, 0, 0]]
    padded = materialize_local(td, "padded", {"j": -1, "other": 3}, 5)
    assert padded["j"].tolist() == [[1, 2, 3, -1, -1], [-1] * 5]
    assert padded["x"].shape == (2, 1)
    assert materialize_local(td, layout="jagged")["j"].is_nested
    with pytest.raises(ValueError, match="layout is 'dense'"):
        materialize_local(td, layout="dense")


@pytest.mark.parametrize(
    "entry",
    [
        ["A", "B"],
        NonTensorStack("A", "B"),
        NonTensorData(["A", "B"], batch_size=[2]),
        torch.stack([TensorDict({"c": "A"}), TensorDict({"c": "B"})]).get("c"),
    ],
    ids=["list", "stack", "whole", "joined"],
)
def test_all_forms_of_a_column_of_items(entry) -> None:
    assert columns_of(TensorDict({"c": entry}, batch_size=[2]), 2) == {"c": ["A", "B"]}


def test_one_item_for_all_rows_is_an_item_a_row() -> None:
    joined = torch.stack([TensorDict({"c": "A"}), TensorDict({"c": "A"})]).get("c")
    for entry in ("A", NonTensorData("A", batch_size=[2]), joined):
        assert columns_of(TensorDict({"c": entry}, batch_size=[2]), 2) == {"c": ["A", "A"]}


def test_a_mapping_will_do() -> None:
    assert columns_of(BatchedDataDict(c=["A"]), 1) == {"c": ["A"]}


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match=r"batch size \[3\]; allowed: \[2\]"):
        columns_of(TensorDict({"x": torch.arange(3)}, batch_size=[3]), 2)
    with pytest.raises(ValueError, match=r"batch size \[\]"):
        columns_of(TensorDict({"x": torch.arange(3)}), 3)
    with pytest.raises(ValueError, match="'n' is a nested TensorDict"):
        columns_of(TensorDict({"n": {"a": torch.arange(2)}}, batch_size=[2]), 2)
    with pytest.raises(ValueError, match=r"'c' has 1 rows; allowed: 2"):
        columns_of({"c": ["A"]}, 2)
