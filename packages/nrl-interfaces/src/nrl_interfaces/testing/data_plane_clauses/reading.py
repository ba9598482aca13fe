"""Clauses 11 to 16: reading rows, and what metas say."""

from typing import Any

import numpy as np
import torch

from nrl_interfaces.data_plane import StaleMetaError
from nrl_interfaces.packed import PackedTensor
from nrl_interfaces.testing.data_plane_clauses.comparing import columns_as_text, described, fields_of, rows_of
from nrl_interfaces.testing.data_plane_clauses.ground import ClauseTests, least_seconds

ABD = ["a", "b", "d"]


def _columns() -> dict[str, Any]:
    """One column of every kind."""
    return {
        "x": torch.tensor([1, 2, 3]),
        "wide": torch.arange(12, dtype=torch.bfloat16).reshape(3, 2, 2),
        "jagged": torch.nested.nested_tensor_from_jagged(torch.arange(5.0), torch.tensor([0, 0, 2, 5])),
        "packed": PackedTensor([torch.ones(1, 2), None, [torch.full((2, 2), 2.0), torch.zeros(1, 2)]], 0),
        "array": np.array([1.5, 2.5, 3.5]),
        "c": ["A", "B", "D"],
        "lists": [[1], [], [3, [4]]],
        "pairs": (("a", 1), ("b", 2), ("d", 3)),
        "dicts": [{"k": "A"}, {}, {"k": [None]}],
        "bytes": [b"a", b"", b"d"],
        "text": ("A", "", "D"),
    }


class ReadingTests(ClauseTests):
    """Clauses 11 to 16."""

    def test_clause_11_rows_come_in_the_order_asked(self) -> None:
        """Rows come in the order asked, every column, of any kind, in step with the ids."""
        columns = _columns()
        client = self.with_rows(**columns)
        for chosen in ([0, 1, 2], [2, 0, 1], [2, 1], [1], [2], [0, 2]):
            ids = [ABD[at] for at in chosen]
            wanted = {name: [described(rows_of(column)[at]) for at in chosen] for name, column in columns.items()}
            read = client.get_samples(ids, self.p, list(columns))
            self.same(columns_as_text(read, list(columns)), wanted, f"rows {ids}")
            self.same(list(read.batch_size), [len(ids)], f"batch size of {ids}")

    def test_clause_11_rows_of_several_puts_come_in_the_order_asked(self) -> None:
        """Rows come in the order asked, whatever puts they came by."""
        client = self.with_rows("stream", ids=ABD, x=torch.tensor([1, 2, 3]), c=["A", "B", "D"])
        client.put_samples(["f", "e"], self.p, {"x": torch.tensor([6, 5]), "c": ["F", "E"]})
        client.put_samples(["b"], self.p, {"c": ["bb"]}, replace=True)
        read = columns_as_text(client.get_samples(["e", "d", "b", "f", "a"], self.p, ["c", "x"]), ["x", "c"])
        self.same(read["x"], [f"int64[] {n}" for n in (5, 3, 2, 6, 1)], "x")
        self.same(read["c"], ["'E'", "'D'", "'bb'", "'F'", "'A'"], "c")

    def test_clause_11_reads_what_is_stored(self) -> None:
        """A read gives what is stored now, not what an earlier read gave."""
        client = self.with_rows()
        client.get_samples(ABD, self.p, ["x"])
        self.write_around(client, self.p, ["d", "a"], {"x": torch.tensor([33, 11])})
        read = columns_as_text(client.get_samples(["d", "b", "a"], self.p, ["x"]), ["x"])
        self.same(read["x"], ["int64[] 33", "int64[] 2", "int64[] 11"])

    def test_clause_11_takes_tensordicts(self) -> None:
        """Columns of a TensorDict come back as those of a mapping do."""
        from tensordict import NonTensorData, TensorDict

        client = self.client()
        client.register_partition(self.p, ["x", "c"], 3, list(self.TASKS))
        column: Any = NonTensorData(["A", "B", "D"], batch_size=[3])
        client.put_samples(ABD, self.p, TensorDict({"x": torch.tensor([1, 2, 3]), "c": column}, batch_size=[3]))
        read = columns_as_text(client.get_samples(["d", "a"], self.p, ["x", "c"]), ["x", "c"])
        self.same(read, {"x": ["int64[] 3", "int64[] 1"], "c": ["'D'", "'A'"]})

    def test_clause_11_keeps_dtypes(self) -> None:
        """Tensors come back in their dtype, exactly."""
        dtypes = [torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.uint16, torch.float16]
        dtypes += [torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.float8_e4m3fn]
        columns: dict[str, Any] = {str(dtype): torch.tensor([[0, 1], [1, 0], [1, 1]]).to(dtype) for dtype in dtypes}
        client = self.with_rows(**columns)
        wanted = {name: [described(column[at]) for at in (2, 1)] for name, column in columns.items()}
        self.same(columns_as_text(client.get_samples(["d", "b"], self.p, list(columns)), list(columns)), wanted)

    def test_clause_11_a_column_of_equal_items_keeps_them_apart(self) -> None:
        """Equal items of a column are as many as the rows."""
        client = self.with_rows(x=torch.ones(3), c=["same", "same", "same"], lists=[[1], [1], [1]])
        read = columns_as_text(client.get_samples(["d", "a"], self.p, ["c", "lists"]), ["c", "lists"])
        self.same(read, {"c": ["'same'"] * 2, "lists": ["[1]"] * 2})

    def test_clause_11_gives_the_fields_asked_alone(self) -> None:
        """A read gives the fields that were asked for and no others."""
        client = self.with_rows(x=torch.arange(3), y=torch.arange(3), c=["A", "B", "D"])
        self.same(fields_of(client.get_samples(["a"], self.p, ["c", "x"])), ["c", "x"])

    def test_clause_11_names_what_is_unknown(self) -> None:
        """An unknown partition, id or field, a field that a row lacks: KeyError that names it."""
        client = self.with_rows()
        self.raises(KeyError, lambda: client.get_samples(["a"], self.q, ["x"]), self.q)
        self.raises(KeyError, lambda: client.get_samples(["a", "nobody"], self.p, ["x"]), "nobody")
        self.raises(KeyError, lambda: client.get_samples(["a"], self.p, ["nowhere"]), "nowhere")
        self.raises(KeyError, lambda: client.get_samples(["a"], self.p, ["x", "y"]), "y")

    def test_clause_11_names_the_field_that_some_rows_lack(self) -> None:
        """A field that a row lacks: KeyError that names it, although other rows have it."""
        client = self.with_rows()
        client.put_samples(["b"], self.p, {"y": torch.tensor([2])})
        client.get_samples(["b"], self.p, ["x", "y"])
        self.raises(KeyError, lambda: client.get_samples(["b", "d"], self.p, ["x", "y"]), "y")

    def test_clause_11_names_a_duplicate_id(self) -> None:
        """Duplicate ids: ValueError."""
        client = self.with_rows()
        self.raises(ValueError, lambda: client.get_samples(["a", "b", "a"], self.p, ["x"]), "'a'")

    def test_clause_12_no_ids_keep_dtype_and_trailing_shape(self) -> None:
        """No ids: a result of 0 rows that keeps dtype and trailing shape."""
        client = self.with_rows(**_columns())
        read: Any = client.get_samples([], self.p, ["x", "wide"])
        self.same([read["x"].dtype, list(read["x"].shape)], [torch.int64, [0]], "x")
        self.same([read["wide"].dtype, list(read["wide"].shape)], [torch.bfloat16, [0, 2, 2]], "wide")
        self.same(list(read.batch_size), [0], "batch size")

    def test_clause_12_no_ids_of_every_kind_of_column(self) -> None:
        """No ids: a result of 0 rows, of columns of any kind; jagged and packed ones keep their dtype."""
        columns = _columns()
        client = self.with_rows(**columns)
        read: Any = client.get_samples([], self.p, list(columns))
        self.same(columns_as_text(read, list(columns)), {name: list[str]() for name in columns})
        self.same([read["jagged"].dtype, read["jagged"].size(0)], [torch.float32, 0], "jagged")
        self.same(described(read["packed"].as_tensor()), described(torch.empty(0, 2)), "packed")

    def test_clause_13_fields_come_from_the_argument(self) -> None:
        """get_data: fields from the argument."""
        client = self.with_rows(x=torch.arange(3), y=torch.arange(3))
        meta = client.claim_meta(self.p, "train", ["x"], 3)
        self.same(fields_of(client.get_data(meta, ["y"])), ["y"])

    def test_clause_13_else_from_the_meta(self) -> None:
        """get_data: fields from the meta where the argument names none; rows in the meta's order."""
        client = self.with_rows(x=torch.tensor([1, 2, 3]), y=torch.arange(3))
        meta = client.claim_meta(self.p, "train", ["x"], 3)
        read = client.get_data(meta.subset([2, 0]))
        self.same(fields_of(read), ["x"], "fields")
        self.same(columns_as_text(read, ["x"])["x"], ["int64[] 3", "int64[] 1"])

    def test_clause_13_never_all_fields_by_accident(self) -> None:
        """get_data: ValueError where neither argument nor meta names fields."""
        client = self.with_rows()
        meta = client.claim_meta(self.p, "train", ["x"], 3)
        meta.fields = None
        self.raises(ValueError, lambda: client.get_data(meta))

    def test_clause_14_a_meta_of_an_older_generation_is_stale(self) -> None:
        """A meta of an older generation: StaleMetaError with partition, its generation and the current one."""
        client = self.with_rows()
        old = client.claim_meta(self.p, "train", ["x"], 3)
        client.clear_samples(None, self.p)
        client.register_partition(self.p, ["x"], 3, list(self.TASKS))
        new = client.put_samples(ABD, self.p, {"x": torch.tensor([9, 9, 9])})
        error = self.raises(StaleMetaError, lambda: client.get_data(old), self.p)
        seen = (error.partition_id, error.meta_generation, error.current_generation)
        self.same(seen, (self.p, old.generation, new.generation), "fields of the error")
        self.raises(StaleMetaError, lambda: client.get_data(old, ["x"]))
        self.same(columns_as_text(client.get_data(new), ["x"])["x"], ["int64[] 9"] * 3, "a fresh meta")

    def test_clause_14_a_meta_of_a_partition_that_is_gone_is_stale(self) -> None:
        """A meta of a partition that is gone: StaleMetaError, the current generation None."""
        client = self.with_rows()
        old = client.claim_meta(self.p, "train", ["x"], 3)
        client.clear_samples(None, self.p)
        error = self.raises(StaleMetaError, lambda: client.get_data(old), self.p)
        self.same((error.meta_generation, error.current_generation), (old.generation, None), "generations")
        self.holds(isinstance(error, ValueError) and isinstance(error, KeyError), f"bases {type(error).__mro__}")

    def test_clause_14_a_meta_without_a_generation_is_stale(self) -> None:
        """A meta without a generation: StaleMetaError, its generation None."""
        client = self.with_rows()
        meta = client.claim_meta(self.p, "train", ["x"], 3)
        current = meta.generation
        meta.extra_info.clear()
        error = self.raises(StaleMetaError, lambda: client.get_data(meta))
        self.same((error.meta_generation, error.current_generation), (None, current), "generations")

    def test_clause_14_a_partition_that_went_with_its_last_row_is_gone(self) -> None:
        """A meta of a batch partition whose last row was cleared: StaleMetaError."""
        client = self.with_rows()
        old = client.claim_meta(self.p, "train", ["x"], 3)
        client.clear_samples(ABD, self.p)
        self.raises(StaleMetaError, lambda: client.get_data(old))

    def test_clause_15_lists_ids_sorted(self) -> None:
        """list_sample_ids: sorted."""
        client = self.with_rows("stream", ids=["s2", "s10", "s1"])
        self.same(client.list_sample_ids(self.p), ["s1", "s10", "s2"])

    def test_clause_15_reads_no_row(self) -> None:
        """list_sample_ids: no row is read; it takes less than a copy of the rows."""
        big = torch.zeros(4, 4 << 20)  # 64 MiB
        client = self.with_rows(ids=list("abcd"), x=big)
        listing, copy = least_seconds(lambda: client.list_sample_ids(self.p)), least_seconds(big.clone)
        self.holds(listing < copy, f"listing took {1e3 * listing:.2f} ms, a copy of the rows {1e3 * copy:.2f} ms")

    def test_clause_15_an_unknown_partition_has_no_ids(self) -> None:
        """list_sample_ids: [] for an unknown partition, and for one without rows."""
        client = self.client()
        self.same(client.list_sample_ids(self.p), [], "unknown")
        client.register_partition(self.p, ["x"], 3, ["train"])
        self.same(client.list_sample_ids(self.p), [], "without rows")

    def test_clause_16_sequence_lengths_come_from_input_lengths(self) -> None:
        """sequence_lengths of a returned meta come from input_lengths, in step with its ids."""
        client = self.with_rows("stream", x=torch.arange(3), input_lengths=torch.tensor([5, 0, 7]))
        meta = client.put_samples(["e"], self.p, {"x": torch.tensor([9]), "input_lengths": torch.tensor([2])})
        self.same(meta.sequence_lengths, [2], "of a put")
        client.put_samples(["d", "b"], self.p, tags=[{}, {}])
        self.same(client.claim_meta(self.p, "train", ["x"], 2).sequence_lengths, [5, 0], "of a claim")
        self.same(client.claim_meta(self.p, "train", ["x"], 2).sequence_lengths, [7, 2], "of the next claim")

    def test_clause_16_none_without_such_a_column(self) -> None:
        """sequence_lengths are None where there is no column input_lengths."""
        client = self.with_rows()
        self.same(client.claim_meta(self.p, "train", ["x"], 3).sequence_lengths, None)
