"""Clauses 24 and 25: clearing rows, and the end of a client."""

from collections.abc import Callable

import torch

from nrl_interfaces.testing.data_plane_clauses.comparing import columns_as_text
from nrl_interfaces.testing.data_plane_clauses.ground import ClauseTests, Waiting

ABD = ["a", "b", "d"]


class ClearingTests(ClauseTests):
    """Clauses 24 and 25."""

    def test_clause_24_drops_rows(self) -> None:
        """clear_samples(ids, p) drops these rows and no others."""
        client = self.with_rows()
        client.clear_samples(["b"], self.p)
        self.same(client.list_sample_ids(self.p), ["a", "d"], "ids")
        self.same(self.stored(client, ["d", "a"], "x")["x"], ["int64[] 3", "int64[] 1"], "rows that stay")
        self.raises(KeyError, lambda: client.get_samples(["b"], self.p, ["x"]), "b")

    def test_clause_24_cleared_rows_are_not_claimed(self) -> None:
        """Rows that were dropped are not claimed, and not waited for."""
        client = self.with_rows()
        client.clear_samples(["a"], self.p)
        self.same(client.claim_meta(self.p, "train", ["x"], 3, timeout_s=self.limit_s).sample_ids, ["b", "d"])
        self.same(client.check_consumption_status(self.p, ["train"]), True, "status")  # noqa: FBT003

    def test_clause_24_a_batch_partition_goes_with_its_last_row(self) -> None:
        """In a batch partition the partition goes with the last row."""
        client = self.with_rows()
        client.clear_samples(["a", "d"], self.p)
        self.same(client.stats().partitions, 1, "partitions while a row is there")
        client.clear_samples(["b"], self.p)
        self.same(client.stats().partitions, 0, "partitions")
        client.register_partition(self.p, ["x"], 1, ["train"])

    def test_clause_24_a_stream_stays_without_rows(self) -> None:
        """A stream partition stays when its last row goes."""
        client = self.with_rows("stream")
        client.clear_samples(ABD, self.p)
        self.same((client.list_sample_ids(self.p), client.stats().partitions), (list[str](), 1), "ids and partitions")
        client.put_samples(["a"], self.p, {"x": torch.tensor([9])})
        self.same(self.claimed(client, "train", ["x"], 1), ["a"], "an id that comes again")

    def test_clause_24_none_drops_rows_and_partition(self) -> None:
        """None drops rows and partition, of both kinds, without rows too."""
        for mode in ("batch", "stream"):
            client = self.with_rows(mode)
            client.register_partition(self.q, ["x"], 1, ["train"])
            for partition in (self.p, self.q):
                client.clear_samples(None, partition)
            self.same((client.stats().partitions, client.stats().rows), (0, 0), f"partitions and rows of a {mode}")
            self.drop_client(client)

    def test_clause_24_names_what_is_unknown_and_drops_nothing(self) -> None:
        """Unknown ids: KeyError, nothing dropped. An unknown partition: KeyError."""
        client = self.with_rows()
        self.raises(KeyError, lambda: client.clear_samples(["a", "nobody"], self.p), "nobody")
        self.raises(KeyError, lambda: client.clear_samples(["a"], self.q), self.q)
        self.raises(KeyError, lambda: client.clear_samples(None, self.q), self.q)
        self.same(client.list_sample_ids(self.p), ABD, "ids")

    def test_clause_24_results_outlive_their_rows(self) -> None:
        """What was read stays as it was when its rows are dropped."""
        client = self.with_rows()
        read = client.get_samples(["d", "a"], self.p, ["x"])
        client.clear_samples(None, self.p)
        client.register_partition(self.p, ["x"], 3, ["train"])
        client.put_samples(ABD, self.p, {"x": torch.tensor([7, 8, 9])})
        self.same(columns_as_text(read, ["x"])["x"], ["int64[] 3", "int64[] 1"])

    def test_clause_25_may_be_closed_twice(self) -> None:
        """close() may be called twice."""
        client = self.with_rows()
        client.close()
        client.close()

    def test_clause_25_any_other_call_is_refused(self) -> None:
        """Any other call after close: RuntimeError."""
        client, folder = self.with_rows(), self.folder()
        meta = client.claim_meta(self.p, "train", ["x"], 1)
        client.close()
        calls: dict[str, Callable[[], object]] = {
            "register_partition": lambda: client.register_partition(self.q, ["x"], 1, ["train"]),
            "claim_meta": lambda: client.claim_meta(self.p, "train", ["x"], 1),
            "release_claims": lambda: client.release_claims(["a"], self.p, "train"),
            "get_data": lambda: client.get_data(meta),
            "check_consumption_status": lambda: client.check_consumption_status(self.p, ["train"]),
            "put_samples": lambda: client.put_samples(["a"], self.p, tags=[{}]),
            "get_samples": lambda: client.get_samples(["a"], self.p, ["x"]),
            "list_sample_ids": lambda: client.list_sample_ids(self.p),
            "clear_samples": lambda: client.clear_samples(None, self.p),
            "save_checkpoint": lambda: client.save_checkpoint(folder),
            "load_checkpoint": lambda: client.load_checkpoint(folder),
            "explain": lambda: client.explain(self.p, "train", ["x"], 1),
            "stats": client.stats,
        }
        if "freeze" not in self.left_out:
            calls["freeze"] = client.freeze
        for call in calls.values():
            self.raises(RuntimeError, call)
        self.same(list(folder.iterdir()), [], "files written after close")

    def test_clause_25_a_claim_that_waits_is_woken(self) -> None:
        """A claim that waits when the client is closed is woken and raises RuntimeError."""
        client = self.client("stream")
        client.register_partition(self.p, ["x"], 3, ["train"])
        claims = [
            Waiting(lambda: client.claim_meta(self.p, "train", ["x"], 1, timeout_s=self.limit_s)) for _ in range(2)
        ]
        self.holds(all(claim.is_waiting() for claim in claims), "a claim came back before anything was put")
        client.close()
        for claim in claims:
            self.raises(RuntimeError, lambda claim=claim: claim.result(self.limit_s / 2))

    def test_clause_25_the_end_of_a_with_block_closes(self) -> None:
        """A client is closed at the end of a with block."""
        with self.client() as client:
            client.register_partition(self.p, ["x"], 3, ["train"])
        self.raises(RuntimeError, client.stats)
