"""Clauses 29 to 31: explain, stats and freeze."""

from typing import Any

import torch

from nrl_interfaces.metrics_client import MetricsDataPlaneClient
from nrl_interfaces.testing.data_plane_clauses.comparing import columns_as_text
from nrl_interfaces.testing.data_plane_clauses.ground import ClauseTests, least_seconds

ABD = ["a", "b", "d"]


class SeeingTests(ClauseTests):
    """Clauses 29 to 31."""

    def test_clause_29_counts_rows_ready_missing_and_claimed(self) -> None:
        """What explain says: rows ready, rows missing which fields, rows already claimed."""
        client = self.with_rows(ids=list("abcde"))
        client.put_samples(["b", "d"], self.p, {"y": torch.tensor([1, 2])})
        self.claimed(client, "train", ["y"], 1)
        why = client.explain(self.p, "train", ["x", "y"], 3)
        seen = (why.rows, why.rows_ready, why.rows_claimed, dict(why.rows_missing), why.rows_expected, why.would_wait)
        self.same(seen, (5, 1, 1, {"y": 3}, 0, True), "rows, ready, claimed, missing, expected, would wait")
        asked = (why.partition_id, why.task_name, tuple(why.required_fields), why.batch_size)
        self.same(asked, (self.p, "train", ("x", "y"), 3), "what was asked")

    def test_clause_29_agrees_with_the_claim(self) -> None:
        """What explain says: whether a claim would wait: it does if and only if the claim does."""
        client = self.with_rows()
        client.put_samples(["a", "b"], self.p, {"y": torch.tensor([1, 2])})
        for fields, size in ((["x"], 2), (["x", "y"], 2), (["x", "y"], 3), (["c"], 1), (["x"], 9)):
            would_wait = client.explain(self.p, "train", fields, size).would_wait
            try:
                meta = client.claim_meta(self.p, "train", fields, size, timeout_s=0)
                waited = False
                client.release_claims(meta.sample_ids, self.p, "train")
            except TimeoutError:
                waited = True
            self.same(would_wait, waited, f"would_wait of {size} rows with {fields}")

    def test_clause_29_counts_rows_that_are_not_put(self) -> None:
        """What explain says: why a claim would wait: rows that are not put yet, too."""
        client = self.client()
        client.register_partition(self.p, ["x"], 3, list(self.TASKS))
        why = client.explain(self.p, "train", ["x"], 2)
        self.same((why.rows, why.rows_ready, why.rows_expected, why.would_wait), (0, 0, 3, True))
        self.holds(self.p in str(why) and "3" in str(why), f"as text: {why}")

    def test_clause_29_changes_nothing(self) -> None:
        """A look by explain claims nothing."""
        client = self.with_rows()
        client.explain(self.p, "train", ["x"], 3)
        self.same(self.claimed(client, "train", ["x"], 3), ABD)

    def test_clause_29_refuses_what_a_claim_refuses(self) -> None:
        """Bad arguments of explain: as in claim_meta."""
        client = self.with_rows()
        self.raises(KeyError, lambda: client.explain(self.q, "train", ["x"], 1), self.q)
        self.raises(KeyError, lambda: client.explain(self.p, "sleep", ["x"], 1), "sleep")
        self.raises(KeyError, lambda: client.explain(self.p, "train", ["nowhere"], 1), "nowhere")
        self.raises(ValueError, lambda: client.explain(self.p, "train", [], 1))
        self.raises(ValueError, lambda: client.explain(self.p, "train", ["x"], 0))

    def test_clause_30_counts_partitions_and_rows(self) -> None:
        """stats: partitions and rows."""
        client = self.with_rows()
        client.register_partition(self.q, ["x"], 2, ["train"])
        seen = [(client.stats().partitions, client.stats().rows)]
        client.put_samples(["a", "b"], self.q, {"x": torch.arange(2)})
        client.clear_samples(["d"], self.p)
        seen.append((client.stats().partitions, client.stats().rows))
        client.clear_samples(None, self.p)
        seen.append((client.stats().partitions, client.stats().rows))
        self.same(seen, [(2, 3), (2, 4), (1, 2)], "partitions and rows after each step")

    def test_clause_30_counts_operations(self) -> None:
        """stats: operations, those that succeeded, by method."""
        client = self.with_rows()
        before = client.stats().operations
        client.get_samples(ABD, self.p, ["x"])
        client.get_samples(["a"], self.p, ["x"])
        self.raises(KeyError, lambda: client.get_samples(["nobody"], self.p, ["x"]))
        client.put_samples(ABD, self.p, tags=[{"n": 1}] * 3)
        after = client.stats().operations
        self.same(after.get("get_samples", 0) - before.get("get_samples", 0), 2, "get_samples")
        self.same(after.get("put_samples", 0) - before.get("put_samples", 0), 1, "put_samples")

    def test_clause_30_counts_bytes_held(self) -> None:
        """stats: bytes held, on each device; bytes of rows that went are not held."""
        self.needs("bytes held")
        client, row = self.client(), 1024 * 4
        client.register_partition(self.p, ["x"], 8, ["train"])
        ids = list("abcdefgh")
        client.put_samples(ids, self.p, {"x": torch.zeros(8, 1024)})
        held = client.stats().bytes_held
        self.same(list(held), ["cpu"], "devices")
        self.holds(8 * row <= held["cpu"] < 9 * row, f"{held} bytes held; 8 rows of {row}")
        client.clear_samples(None, self.p)
        self.same(sum(client.stats().bytes_held.values()), 0, "bytes held when all is cleared")

    def test_clause_30_counts_the_peak(self) -> None:
        """stats: peak bytes, the most that was held at any time."""
        self.needs("bytes held")
        client = self.client()
        for size in (100, 10):
            client.register_partition(self.p, ["x"], 1, ["train"])
            client.put_samples(["a"], self.p, {"x": torch.zeros(1, size)})
            client.clear_samples(None, self.p)
        peak = client.stats().peak_bytes
        self.holds(400 <= peak < 800, f"a peak of {peak} bytes; 400 bytes and then 40 were held")

    def test_clause_30_counts_a_view_by_its_rows(self) -> None:
        """stats: bytes held are those of the rows, of copies; not of what a column was a view of."""
        self.needs("bytes held")
        self.needs("copies")
        client = self.with_rows(x=torch.zeros(3, 1000)[:, :10])
        self.same(client.stats().bytes_held, {"cpu": 120})

    def test_clause_30_a_wrapper_reports_each_operation(self) -> None:
        """MetricsDataPlaneClient calls back with one flat event per operation, around any client."""
        events: list[Any] = []
        client = MetricsDataPlaneClient(self.client(), events.append)
        client.register_partition(self.p, ["x"], 2, ["train"])
        client.put_samples(["a", "b"], self.p, {"x": torch.zeros(2, 4)})
        client.get_data(client.claim_meta(self.p, "train", ["x"], 2))
        self.raises(KeyError, lambda: client.get_samples(["nobody"], self.p, ["x"]))
        seen = [(event["op"], event["partition_id"], event["n_samples"], event["status"]) for event in events]
        right = [("register_partition", 2), ("put_samples", 2), ("claim_meta", 2), ("get_data", 2)]
        self.same(seen[:4], [(op, self.p, rows, "ok") for op, rows in right], "events")
        self.same((seen[4][0], seen[4][3]), ("get_samples", "KeyError"), "the event of a call that raised")
        self.same([event["n_bytes"] for event in events], [0, 32, 0, 32, 0], "bytes")
        self.holds(all(event["wall_ms"] >= 0 for event in events), f"times {[event['wall_ms'] for event in events]}")

    def test_clause_31_a_view_holds_its_moment(self) -> None:
        """A view is of the moment of freeze: view.save writes that, whatever happens to the client meanwhile."""
        self.needs("freeze")
        client, folder = self.with_rows(x=torch.tensor([1, 2, 3]), c=["A", "B", "D"]), self.folder()
        client.put_samples(ABD, self.p, tags=[{"n": 1}, {"n": 2}, {"n": 3}])
        self.claimed(client, "train", ["x"], 1)
        before, view = self.state(client, "x", "c"), client.freeze()
        client.put_samples(ABD, self.p, {"x": torch.tensor([7, 8, 9])}, [{}, {}, {}], replace=True)
        client.put_samples(["a"], self.p, {"y": torch.tensor([1])})
        self.claimed(client, "train", ["x"], 2)
        client.clear_samples(None, self.p)
        client.register_partition(self.q, ["z"], 1, ["other"])
        client.close()
        view.save(folder, metadata={"step": 3})
        loaded = self.client()
        self.same(loaded.load_checkpoint(folder), {"step": 3}, "metadata")
        after = self.state(loaded, "x", "c")
        kept = before.keys() - {"puts"}
        self.same({key: after[key] for key in kept}, {key: before[key] for key in kept}, "the view")
        self.same(self.claimed(loaded, "train", ["y"], 3), [], "rows with y")
        self.same(loaded.stats().partitions, 1, "partitions")

    def test_clause_31_a_view_can_be_saved_twice(self) -> None:
        """A view is immutable: it can be saved again, and saves the same."""
        self.needs("freeze")
        client, folders = self.with_rows(), [self.folder(), self.folder()]
        view = client.freeze()
        for folder in folders:
            view.save(folder)
            client.put_samples(ABD, self.p, {"x": torch.tensor([7, 8, 9])}, replace=True)
        self.drop_client(client)
        for folder in folders:
            loaded = self.client()
            loaded.load_checkpoint(folder)
            read = columns_as_text(loaded.get_samples(ABD, self.p, ["x"]), ["x"])["x"]
            self.same(read, ["int64[] 1", "int64[] 2", "int64[] 3"])
            self.drop_client(loaded)

    def test_clause_31_the_client_goes_on(self) -> None:
        """A client whose view was taken is as it was."""
        self.needs("freeze")
        client = self.with_rows()
        before = self.state(client, "x")
        client.freeze()
        self.same(self.state(client, "x"), before, "the partition")

    def test_clause_31_the_cost_does_not_grow_with_bytes(self) -> None:
        """The cost of freeze grows with rows and puts, not with bytes: it is below that of one copy of the bytes."""
        self.needs("freeze")
        big = torch.zeros(4, 4 << 20)  # 64 MiB
        client = self.with_rows(ids=list("abcd"), x=big)
        freeze, copy = least_seconds(client.freeze), least_seconds(big.clone)
        self.holds(freeze < copy, f"freeze took {1e3 * freeze:.2f} ms, a copy of the bytes {1e3 * copy:.2f} ms")
