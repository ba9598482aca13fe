"""Clauses 5 to 8 and 10: putting rows. Clause 9 stands in `copies`."""

from typing import Any

import torch

from nrl_interfaces.testing.data_plane_clauses.comparing import columns_as_text
from nrl_interfaces.testing.data_plane_clauses.ground import ClauseTests

ABD = ["a", "b", "d"]


class WritingTests(ClauseTests):
    """Clauses 5 to 8 and 10."""

    def test_clause_05_a_put_stores_all_of_its_columns(self) -> None:
        """A put is all: every column and every tag is there afterwards."""
        client = self.client()
        client.register_partition(self.p, list(self.FIELDS), 3, list(self.TASKS))
        columns = {"x": torch.tensor([1, 2, 3]), "c": ["A", "B", "D"]}
        client.put_samples(ABD, self.p, columns, [{"n": 1}, {"n": 2}, {"n": 3}])
        self.same(self.stored(client, ABD, "x", "c"), columns_as_text(columns, ["x", "c"]))
        self.same(self.state(client, "x")["tags"], [{"n": 1}, {"n": 2}, {"n": 3}], "tags")

    def test_clause_05_a_put_says_which_rows_it_wrote(self) -> None:
        """put_samples gives a meta of these rows, with the fields of this put."""
        client = self.client()
        client.register_partition(self.p, list(self.FIELDS), 3, list(self.TASKS))
        meta = client.put_samples(ABD, self.p, {"x": torch.tensor([1, 2, 3])}, [{"n": 1}, {}, {}])
        self.same((meta.partition_id, meta.sample_ids, meta.fields), (self.p, ABD, ["x"]))
        self.same(columns_as_text(client.get_data(meta), ["x"])["x"], ["int64[] 1", "int64[] 2", "int64[] 3"])

    def test_clause_05_a_refused_first_put_leaves_nothing(self) -> None:
        """A refused put leaves ids, rows, tags and counters as they were: here, empty."""
        client = self.client()
        client.register_partition(self.p, ["x", "c"], 3, list(self.TASKS))
        puts = client.stats().operations.get("put_samples", 0)
        good, short = torch.tensor([1, 2, 3]), ["A", "B"]
        for columns in ({"x": good, "c": short}, {"x": good, "nowhere": good}):
            self.raises(ValueError, lambda columns=columns: client.put_samples(ABD, self.p, columns))
        self.same(client.list_sample_ids(self.p), [], "ids")
        self.same(client.stats().operations.get("put_samples", 0), puts, "puts that were counted")
        self.same(client.claim_meta(self.p, "train", ["x"], 3, blocking=False).sample_ids, [], "claimed")
        client.put_samples(ABD, self.p, {"x": good, "c": ["A", "B", "D"]})

    def test_clause_05_a_refused_later_put_leaves_all_as_it_was(self) -> None:
        """A refused put leaves ids, rows, tags and counters as they were: one that adds a column, too."""
        client = self.with_rows()
        before = self.state(client, "x")
        y, short = torch.tensor([4, 5, 6]), ["A", "B"]
        self.raises(ValueError, lambda: client.put_samples(ABD, self.p, {"y": y, "c": short}, [{"n": 0}] * 3))
        self.raises(ValueError, lambda: client.put_samples(ABD, self.p, {"y": y, "x": y}, [{"n": 0}] * 3))
        self.raises(ValueError, lambda: client.put_samples(ABD, self.p, {"x": y, "c": short}, replace=True))
        self.same(self.state(client, "x"), before, "the partition")
        self.same(self.claimed(client, "train", ["y"], 3), [], "rows that have the refused column")

    def test_clause_06_the_first_put_of_a_batch_is_whole(self) -> None:
        """In a batch partition the first put holds exactly num_samples unique ids."""
        client = self.client()
        client.register_partition(self.p, ["x"], 3, list(self.TASKS))
        for ids in (["a", "b"], ["a", "b", "d", "e"]):
            column = {"x": torch.arange(len(ids))}
            self.raises(ValueError, lambda ids=ids, column=column: client.put_samples(ids, self.p, column), 3, len(ids))
        self.same(client.list_sample_ids(self.p), [], "ids")

    def test_clause_06_a_batch_takes_no_ids_after_the_first_put(self) -> None:
        """In a batch partition later puts are for ids that are there."""
        client = self.with_rows()
        client.clear_samples(["a"], self.p)
        for late in ("e", "a"):
            self.raises(
                ValueError, lambda late=late: client.put_samples([late], self.p, {"x": torch.tensor([1])}), late
            )
        self.same(client.list_sample_ids(self.p), ["b", "d"], "ids")

    def test_clause_06_a_stream_takes_ids_as_they_come(self) -> None:
        """In a stream puts bring new ids as they come."""
        client = self.with_rows("stream")
        client.put_samples(["e", "c"], self.p, {"x": torch.tensor([4, 5])})
        self.same(self.state(client, "x")["order"], ["a", "b", "d", "e", "c"], "ids in the order of their puts")
        self.same(self.stored(client, ["c", "b"], "x")["x"], ["int64[] 5", "int64[] 2"])

    def test_clause_06_a_stream_refuses_a_put_over_its_capacity_whole(self) -> None:
        """In a stream num_samples is the capacity: a put over it is refused whole."""
        client = self.with_rows("stream")  # 3 rows of 8
        before, ids = self.state(client, "x"), list("efghij")
        self.raises(ValueError, lambda: client.put_samples(ids, self.p, {"x": torch.arange(6)}), 8)
        self.same(self.state(client, "x"), before, "the partition")
        client.put_samples(ids[:5], self.p, {"x": torch.arange(5)})

    def test_clause_06_cleared_rows_make_room_in_a_stream(self) -> None:
        """In a stream cleared rows make room."""
        client = self.with_rows("stream", ids=list("abcdefgh"))
        self.raises(ValueError, lambda: client.put_samples(["i"], self.p, {"x": torch.tensor([9])}))
        client.clear_samples(["c", "a"], self.p)
        client.put_samples(["i", "a"], self.p, {"x": torch.tensor([9, 10])})
        self.same(self.stored(client, ["a", "i", "b"], "x")["x"], ["int64[] 10", "int64[] 9", "int64[] 2"])

    def test_clause_06_later_puts_add_columns(self) -> None:
        """In both kinds later puts for ids that are there may add columns that are not there yet."""
        for mode in ("batch", "stream"):
            client = self.with_rows(mode)
            client.put_samples(["d", "a"], self.p, {"y": torch.tensor([0.3, 0.1])})
            self.same(self.claimed(client, "train", ["x", "y"], 3), ["a", "d"], f"rows with both columns in a {mode}")
            client.put_samples(["b"], self.p, {"y": torch.tensor([0.5])})
            self.same(self.stored(client, ["b", "d"], "x")["x"], ["int64[] 2", "int64[] 3"], f"x in a {mode}")
            self.same(self.claimed(client, "train", ["x", "y"], 3), ["b"], f"the last row in a {mode}")
            self.drop_client(client)
            self.p = self.q

    def test_clause_06_later_puts_replace_tags(self) -> None:
        """In both kinds later puts may replace tags."""
        client = self.with_rows()
        client.put_samples(ABD, self.p, tags=[{"n": 1}, {"n": 2}, {"n": 3}])
        client.put_samples(["b"], self.p, tags=[{"m": 9}])
        self.same(self.state(client, "x")["tags"], [{"n": 1}, {"m": 9}, {"n": 3}], "tags")

    def test_clause_06_a_column_is_written_once(self) -> None:
        """A column that is there already: ValueError."""
        client = self.with_rows()
        before = self.state(client, "x")
        for ids in (ABD, ["b"]):
            values = torch.zeros(len(ids), dtype=torch.int64)
            self.raises(ValueError, lambda ids=ids, values=values: client.put_samples(ids, self.p, {"x": values}), "x")
        self.same(self.state(client, "x"), before, "the partition")

    def test_clause_06_replace_writes_a_column_again(self) -> None:
        """With replace=True a column is written a second time, for these ids alone."""
        client = self.with_rows()
        client.put_samples(["d", "a"], self.p, {"x": torch.tensor([30, 10])}, replace=True)
        self.same(self.stored(client, ABD, "x")["x"], ["int64[] 10", "int64[] 2", "int64[] 30"])
        self.same(self.state(client, "x")["order"], ABD, "order")

    def test_clause_06_replace_leaves_results_their_values(self) -> None:
        """With replace=True the ids get new storage: results handed out before keep the old values."""
        client = self.with_rows(x=torch.tensor([1, 2, 3]), c=["A", "B", "D"])
        full, part = (client.get_samples(ids, self.p, ["x", "c"]) for ids in (ABD, ["b"]))
        client.put_samples(ABD, self.p, {"x": torch.tensor([7, 8, 9]), "c": ["X", "Y", "Z"]}, replace=True)
        self.same(columns_as_text(full, ["x"])["x"], ["int64[] 1", "int64[] 2", "int64[] 3"], "a full result")
        self.same(columns_as_text(part, ["x", "c"]), {"x": ["int64[] 2"], "c": ["'B'"]}, "a partial result")

    def test_clause_06_replace_keeps_claims(self) -> None:
        """A replaced column makes no claimed row claimable again."""
        client = self.with_rows()
        self.claimed(client, "train", ["x"], 2)
        client.put_samples(ABD, self.p, {"x": torch.tensor([7, 8, 9])}, replace=True)
        self.same(self.claimed(client, "train", ["x"], 3), ["d"])

    def test_clause_07_names_a_field_that_is_not_declared(self) -> None:
        """A field not declared: ValueError that names it."""
        client = self.with_rows()
        self.raises(ValueError, lambda: client.put_samples(ABD, self.p, {"nowhere": torch.arange(3)}), "nowhere")

    def test_clause_07_names_a_column_of_another_size(self) -> None:
        """A batch size that does not fit: ValueError that names it."""
        client = self.with_rows()
        for column in (torch.arange(2), torch.arange(4), ["A", "B"]):
            self.raises(ValueError, lambda column=column: client.put_samples(ABD, self.p, {"y": column}), "y", 3)
        self.raises(ValueError, lambda: client.put_samples(ABD, self.p, {"y": torch.tensor(1)}), "y")

    def test_clause_07_refuses_a_tensordict_of_another_size(self) -> None:
        """A batch size that does not fit: ValueError, of a TensorDict too."""
        from tensordict import NonTensorData, TensorDict

        client = self.with_rows()
        column: Any = NonTensorData(["A", "B", "D"], batch_size=[2])
        columns = TensorDict({"y": torch.arange(2), "c": column}, batch_size=[2])
        self.raises(ValueError, lambda: client.put_samples(ABD, self.p, columns), 3)

    def test_clause_07_names_a_duplicate_id(self) -> None:
        """A duplicate id: ValueError that names it."""
        client = self.with_rows()
        self.raises(ValueError, lambda: client.put_samples(["a", "b", "a"], self.p, {"y": torch.arange(3)}), "'a'")

    def test_clause_07_refuses_an_empty_id(self) -> None:
        """An empty id: ValueError."""
        client = self.with_rows("stream")
        self.raises(ValueError, lambda: client.put_samples(["e", ""], self.p, {"x": torch.arange(2)}))
        self.same(client.list_sample_ids(self.p), ABD, "ids")

    def test_clause_07_refuses_tags_of_another_length(self) -> None:
        """Tags of another length: ValueError that names it."""
        client = self.with_rows()
        self.raises(ValueError, lambda: client.put_samples(ABD, self.p, {"y": torch.arange(3)}, [{}, {}]), 2, 3)
        self.raises(ValueError, lambda: client.put_samples(ABD, self.p, tags=[{}, {}]), 2, 3)

    def test_clause_07_refuses_a_put_of_nothing(self) -> None:
        """Neither fields nor tags: ValueError."""
        client = self.with_rows()
        self.raises(ValueError, lambda: client.put_samples(ABD, self.p))

    def test_clause_07_names_an_unknown_partition(self) -> None:
        """An unknown partition: KeyError that names it."""
        client = self.with_rows()
        self.raises(KeyError, lambda: client.put_samples(ABD, self.q, {"x": torch.arange(3)}), self.q)

    def test_clause_08_a_put_of_tags_keeps_the_rows(self) -> None:
        """A put of tags alone keeps the rows."""
        client = self.with_rows(x=torch.tensor([1, 2, 3]), c=["A", "B", "D"])
        before = self.state(client, "x", "c")
        client.put_samples(["d", "a"], self.p, tags=[{"n": 3}, {"n": 1}])
        after = self.state(client, "x", "c")
        self.same(
            {name: after[name] for name in ("data", "order", "rows")},
            {name: before[name] for name in ("data", "order", "rows")},
        )
        tags: list[dict[str, Any]] = after["tags"]
        self.same([tag.get("n") for tag in tags], [1, None, 3], "tags")

    def test_clause_10_takes_words_of_the_vocabulary(self) -> None:
        """Strings of a field with enums are in its vocabulary."""
        client = self.client()
        client.register_partition(self.p, ["k"], 3, list(self.TASKS), enums={"k": ["good", "bad"]})
        client.put_samples(ABD, self.p, {"k": ["bad", "good", "bad"]})
        self.same(self.stored(client, ABD, "k")["k"], ["'bad'", "'good'", "'bad'"])

    def test_clause_10_names_a_word_that_is_not_in_the_vocabulary(self) -> None:
        """Other strings: ValueError with value, field and vocabulary."""
        client = self.client()
        client.register_partition(self.p, ["x", "kind"], 3, list(self.TASKS), enums={"kind": ["good", "bad"]})
        columns = {"x": torch.arange(3), "kind": ["good", "bad", "ugly"]}
        self.raises(ValueError, lambda: client.put_samples(ABD, self.p, columns), "ugly", "kind", "good", "bad")
        self.same(client.list_sample_ids(self.p), [], "ids")
