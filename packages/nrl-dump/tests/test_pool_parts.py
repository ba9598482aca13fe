"""What a pool consists of, without Ray running: chunks as they travel, and the count of rows."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from nrl_dump.chunk import check_chunk
from nrl_dump.columns import DTYPES
from nrl_dump.pool_actors import ShippedChunk
from nrl_dump.pool_steps import PoolStep


@pytest.mark.parametrize("name", DTYPES)
def test_a_column_of_every_dtype_travels_bit_for_bit(name: str) -> None:
    whole = torch.randint(0, 2, (4, 6, 8), dtype=torch.uint8).view(DTYPES[name])
    view = whole[1:3].transpose(0, 1)[::2].transpose(0, 1)
    travelled = travel(sequences={"dense": view, "none": whole[1:3, :0]}, input_lengths=torch.tensor([0, 0]))
    for column, sent in ("dense", view), ("none", whole[1:3, :0]):
        came = travelled["sequences"][column]
        assert (came.dtype, came.shape) == (sent.dtype, sent.shape)
        assert torch.equal(came.contiguous().view(torch.uint8), sent.contiguous().view(torch.uint8))


def test_nothing_but_the_chunk_travels() -> None:
    weights = torch.randn(1000, 3, requires_grad=True)
    values = torch.arange(1000)
    holes = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 400, 1000]), torch.tensor([2, 0]))
    shipped = ship(sequences={"w": (weights * 2)[:2]}, scalars={"j": holes, "neg": torch._neg_view(values[5:7])})
    assert sum(column.data.nbytes for column in shipped.columns) == 2 * 3 * 4 + 2 * 8 + 2 * 8
    travelled = pickle.loads(pickle.dumps(shipped)).arguments()
    assert not travelled["sequences"]["w"].requires_grad
    assert torch.equal(travelled["sequences"]["w"], (weights * 2)[:2])
    assert [row.tolist() for row in travelled["scalars"]["j"].unbind()] == [[0, 1], []]
    assert travelled["scalars"]["neg"].tolist() == [-5, -6]


def test_tags_and_lengths_travel() -> None:
    tags = [{"big": 10**40, "nan": float("nan"), "np": np.float32(0.1)}, {"t": torch.tensor(3), "s": "\u2028"}]
    travelled = travel(tags=tags, input_lengths=torch.tensor([1, 0], dtype=torch.int32))
    assert travelled["tags"][0]["big"] == 10**40
    assert travelled["tags"][0]["nan"] != travelled["tags"][0]["nan"]
    assert np.float32(travelled["tags"][0]["np"]) == np.float32(0.1)
    assert travelled["tags"][1] == {"t": 3, "s": "\u2028"}
    assert travelled["input_lengths"].dtype == torch.int32
    assert travelled["input_lengths"].tolist() == [1, 0]


def ship(**changes: Any) -> ShippedChunk:
    chunk: dict[str, Any] = {
        "sample_ids": ["a", "b"],
        "tags": None,
        "input_lengths": torch.tensor([2, 1]),
        "sequences": {"t": torch.tensor([[1, 2], [3, 4]])},
        "scalars": {},
    }
    return ShippedChunk.of(check_chunk(**{**chunk, **changes}, inf_nan="null"))


def travel(**changes: Any) -> dict[str, Any]:
    return pickle.loads(pickle.dumps(ship(**changes))).arguments()


def test_counting_of_rows_that_change_hands() -> None:
    step = PoolStep(0)
    step.give("0", ["a", "b"])
    step.lose(["a"])
    step.give("1", ["a"])
    assert (step.rows_given("0"), step.rows_given("1")) == (1, 1)
    assert step.lose_shard("0") == ["b"]
    assert step.lose_shard("0") == ["b"]  # still
    step.forgive(["b"])
    assert step.lose_shard("0") == []
    step.check_whole()
