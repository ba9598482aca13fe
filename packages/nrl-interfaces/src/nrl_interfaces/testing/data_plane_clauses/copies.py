"""Clause 9: nothing of the caller's is kept, and nothing of the store's is handed out."""

from collections.abc import Iterable
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from nrl_interfaces.packed import PackedTensor
from nrl_interfaces.testing.data_plane_clauses.comparing import columns_as_text, rows_of
from nrl_interfaces.testing.data_plane_clauses.ground import ClauseTests

ABD = ["a", "b", "d"]


def _columns() -> dict[str, Any]:
    """One column of every kind that is copied."""
    return {
        "x": torch.tensor([1, 2, 3]),
        "wide": torch.arange(6.0).reshape(3, 2),
        "jagged": torch.nested.nested_tensor_from_jagged(torch.arange(6), torch.tensor([0, 1, 3, 6])),
        "packed": PackedTensor([torch.ones(1, 2), None, [torch.ones(2, 2), torch.zeros(1, 2)]], 0),
        "array": np.array([1, 2, 3]),
        "c": ["A", "B", "D"],
        "lists": [[1, [2]], [], [3]],
        "dicts": [{"k": [1]}, {}, {"t": torch.tensor([5])}],
        "pairs": ((1, [2]), (3, []), (4, [5])),
        "sets": [{1}, {2}, set[int]()],
        "bytes": [b"1", bytearray(b"2"), b"3"],
    }


def _spoil(value: Any) -> None:
    """Change a value in place wherever that is possible."""
    if isinstance(value, torch.Tensor):
        (value.values() if value.is_nested else value).fill_(99)
    elif isinstance(value, PackedTensor):
        for segment in value.stored_segments:
            segment.fill_(99)
    elif isinstance(value, np.ndarray):
        cast("NDArray[Any]", value).fill(99)
    elif isinstance(value, dict):
        _spoil_items(cast("dict[str, Any]", value).values())
        value["spoiled"] = True
    elif isinstance(value, list):
        _spoil_items(cast("list[Any]", value))
        value[:] = ["spoiled"] * len(cast("list[Any]", value))
    elif isinstance(value, tuple):
        _spoil_items(cast("tuple[Any, ...]", value))
    elif isinstance(value, set):
        cast("set[Any]", value).add("spoiled")
    elif isinstance(value, bytearray):
        value[:] = b"spoiled"


def _spoil_items(values: Iterable[Any]) -> None:
    for item in values:
        _spoil(item)


class CopiesTests(ClauseTests):
    """Clause 9."""

    def test_clause_09_the_caller_may_change_what_it_put(self) -> None:
        """What the caller does to its tensors, arrays, lists, dicts, ... after a put changes nothing here."""
        self.needs("copies")
        columns, wanted = _columns(), columns_as_text(_columns(), list(_columns()))
        client = self.with_rows(**columns)
        _spoil(columns)
        self.same(self.stored(client, ABD, *wanted), wanted)

    def test_clause_09_the_caller_may_change_the_storage_of_a_view(self) -> None:
        """What the caller does to the tensor that a column is a view of changes nothing here."""
        self.needs("copies")
        storage = torch.arange(10)
        client = self.with_rows(x=storage[2:5])
        storage.zero_()
        self.same(self.stored(client, ABD, "x")["x"], ["int64[] 2", "int64[] 3", "int64[] 4"])

    def test_clause_09_the_caller_may_change_its_ids(self) -> None:
        """What the caller does to its list of ids changes nothing here."""
        self.needs("copies")
        client, ids = self.client(), [*ABD]
        client.register_partition(self.p, ["x"], 3, list(self.TASKS))
        meta = client.put_samples(ids, self.p, {"x": torch.arange(3)})
        ids.clear()
        self.same((client.list_sample_ids(self.p), meta.sample_ids), (ABD, ABD))

    def test_clause_09_the_caller_may_change_its_tags(self) -> None:
        """What the caller does to its tags changes nothing here."""
        self.needs("copies")
        client, tags = self.with_rows(), [{"turns": [1]}, {"turns": [2]}, {"turns": [3]}]
        client.put_samples(ABD, self.p, tags=tags)
        tags[0]["turns"].append(99)
        tags[1].clear()
        self.same(self.state(client, "x")["tags"], [{"turns": [1]}, {"turns": [2]}, {"turns": [3]}])

    def test_clause_09_a_meta_may_be_changed(self) -> None:
        """What is done to a meta that was handed out, to its tags too, changes nothing here."""
        self.needs("copies")
        client = self.with_rows()
        put = client.put_samples(ABD, self.p, tags=[{"turns": [n]} for n in range(3)])
        for meta in (put, client.claim_meta(self.p, "train", ["x"], 3)):
            for tag in meta.tags or []:
                tag["turns"].append(99)
            meta.sample_ids.clear()
        self.same(self.state(client, "x")["tags"], [{"turns": [0]}, {"turns": [1]}, {"turns": [2]}], "tags")
        self.same(client.list_sample_ids(self.p), ABD, "ids")

    def test_clause_09_a_full_result_may_be_changed(self) -> None:
        """What is done to a result of all rows, in place, changes nothing here."""
        self._spoil_result(ABD)

    def test_clause_09_a_partial_result_may_be_changed(self) -> None:
        """What is done to a result of some rows, in place, changes nothing here."""
        self._spoil_result(["a", "b"])  # a slice, which may share memory
        self.p = self.q
        self._spoil_result(["d", "a"])

    def _spoil_result(self, ids: list[str]) -> None:
        self.needs("copies")
        wanted = columns_as_text(_columns(), list(_columns()))
        client = self.with_rows(**_columns())
        result = client.get_samples(ids, self.p, list(wanted))
        for name in wanted:
            _spoil(result[name])
        self.same(self.stored(client, ABD, *wanted), wanted, f"stored, after the result for {ids} was changed")

    def test_clause_09_a_result_of_no_rows_may_be_changed(self) -> None:
        """What is done to a result of 0 rows changes no other one."""
        self.needs("copies")
        client = self.with_rows(c=["A", "B", "D"])
        first: Any = client.get_samples([], self.p, ["c"])["c"]
        first.append("spoiled")
        self.same(rows_of(client.get_samples([], self.p, ["c"])["c"]), list[Any]())

    def test_clause_09_results_share_nothing_with_each_other(self) -> None:
        """What is done to a result does not change another one."""
        self.needs("copies")
        client = self.with_rows(**_columns())
        names = list(_columns())
        first, second = (client.get_samples(ABD, self.p, names) for _ in range(2))
        for name in names:
            _spoil(first[name])
        self.same(columns_as_text(second, names), columns_as_text(_columns(), names))

    def test_clause_09_a_result_may_lose_columns(self) -> None:
        """A column that is removed from a result, or put in its place, does not reach the store."""
        self.needs("copies")
        client = self.with_rows(x=torch.tensor([1, 2, 3]), c=["A", "B", "D"])
        result = client.get_samples(ABD, self.p, ["x", "c"])
        result["x"] = torch.zeros(3)
        del result["c"]
        self.same(
            self.stored(client, ABD, "x", "c"), {"x": [f"int64[] {n}" for n in (1, 2, 3)], "c": ["'A'", "'B'", "'D'"]}
        )

    def test_clause_09_other_objects_are_kept_by_reference(self) -> None:
        """Any object but those that are copied is kept and handed out by reference."""
        self.needs("copies")
        things = [object(), object(), object()]
        client = self.with_rows(x=torch.arange(3), c=[things[0], [things[1]], {"k": things[2]}])
        read = rows_of(client.get_samples(["d", "b", "a"], self.p, ["c"])["c"])
        self.holds(read[0]["k"] is things[2] and read[1][0] is things[1] and read[2] is things[0], f"{read!r}")
