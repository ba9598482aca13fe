"""Clauses 17 and 20 to 23: claims that do not wait. Those that do stand in `waiting`."""

import threading

import torch

from nrl_interfaces.batch_meta import KVBatchMeta
from nrl_interfaces.testing.data_plane_clauses.ground import ClauseTests, Waiting

ABD = ["a", "b", "d"]


class ClaimingTests(ClauseTests):
    """Clauses 17 and 20 to 23."""

    def test_clause_17_claims_up_to_batch_size_in_insertion_order(self) -> None:
        """A claim marks up to batch_size rows, in the order in which they were put."""
        client = self.with_rows("stream", ids=["z", "m", "a"])
        client.put_samples(["n", "b"], self.p, {"x": torch.tensor([4, 5])})
        self.same(self.claimed(client, "train", ["x"], 2), ["z", "m"])
        self.same(self.claimed(client, "train", ["x"], 2), ["a", "n"])
        self.same(self.claimed(client, "train", ["x"], 2), ["b"])

    def test_clause_17_the_meta_says_what_was_claimed(self) -> None:
        """The meta of a claim has partition, task, fields, and the rows' tags."""
        client = self.with_rows()
        client.put_samples(ABD, self.p, tags=[{"n": 1}, {"n": 2}, {"n": 3}])
        meta = client.claim_meta(self.p, "train", ["x"], 2)
        seen = (meta.partition_id, meta.task_name, meta.sample_ids, meta.fields, meta.tags)
        self.same(seen, (self.p, "train", ["a", "b"], ["x"], [{"n": 1}, {"n": 2}]))

    def test_clause_17_claims_rows_that_have_all_fields(self) -> None:
        """Rows are claimed whose required_fields are all there."""
        client = self.with_rows()
        client.put_samples(["b", "d"], self.p, {"y": torch.tensor([1, 2])})
        client.put_samples(["d"], self.p, {"c": ["D"]})
        self.same(self.claimed(client, "train", ["x", "y", "c"], 3), ["d"])
        self.same(self.claimed(client, "train", ["y"], 3), ["b"])
        self.same(self.claimed(client, "train", ["x"], 3), ["a"])

    def test_clause_17_each_task_claims_for_itself(self) -> None:
        """Rows are claimed for that task alone."""
        client = self.with_rows()
        self.same(self.claimed(client, "train", ["x"], 2), ["a", "b"], "train")
        self.same(self.claimed(client, "eval", ["x"], 3), ABD, "eval")
        self.same(self.claimed(client, "train", ["x"], 3), ["d"], "train again")

    def test_clause_17_no_id_is_claimed_twice(self) -> None:
        """No id is ever claimed twice by one task."""
        ids = [f"s{n}" for n in range(30)]
        client = self.with_rows(ids=ids)
        claimed = [sample_id for n in range(20) for sample_id in self.claimed(client, "train", ["x"], 1 + n % 3)]
        self.same(claimed, ids)

    def test_clause_17_no_id_is_claimed_twice_by_threads(self) -> None:
        """No id is ever claimed twice by one task, whatever the threads do; and none is left over."""
        ids = [f"s{n:03}" for n in range(120)]
        client = self.with_rows(ids=ids)
        together = threading.Barrier(6)

        def claim_all() -> list[str]:
            mine: list[str] = []
            together.wait(self.limit_s)
            while claimed := self.claimed(client, "train", ["x"], 3):
                mine += claimed
            return mine

        threads = [Waiting(claim_all) for _ in range(6)]
        claimed = [sample_id for thread in threads for sample_id in thread.result()]
        self.same(sorted(claimed), ids, "ids claimed by 6 threads")

    def test_clause_17_waiting_threads_share_what_comes(self) -> None:
        """No id is ever claimed twice by one task, by claims that wait together either."""
        client = self.client("stream")
        client.register_partition(self.p, ["x"], 60, list(self.TASKS))
        waiting = [
            Waiting(lambda: client.claim_meta(self.p, "train", ["x"], 5, timeout_s=self.limit_s).sample_ids)
            for _ in range(6)
        ]
        ids = [f"s{n:02}" for n in range(30)]
        for start in range(0, 30, 3):
            client.put_samples(ids[start : start + 3], self.p, {"x": torch.arange(3)})
        claimed = [sample_id for thread in waiting for sample_id in thread.result()]
        self.same(sorted(claimed), ids, "ids claimed by 6 threads that waited")

    def test_clause_17_released_rows_can_be_claimed_again(self) -> None:
        """release_claims makes claimed rows claimable again, at their old place in the order, for that task alone."""
        client = self.with_rows(ids=list("abcdef"))
        self.claimed(client, "train", ["x"], 4)
        self.claimed(client, "eval", ["x"], 4)
        client.release_claims(["c", "b"], self.p, "train")
        self.same(self.claimed(client, "train", ["x"], 3), ["b", "c", "e"], "train")
        self.same(self.claimed(client, "eval", ["x"], 3), ["e", "f"], "eval")

    def test_clause_17_releases_all_or_none(self) -> None:
        """An id that is not claimed: ValueError, nothing released."""
        client = self.with_rows()
        self.claimed(client, "train", ["x"], 2)
        for strange in ("d", "nobody"):
            ids = ["a", strange]
            self.raises(ValueError, lambda ids=ids: client.release_claims(ids, self.p, "train"), strange)
        self.same(self.claimed(client, "train", ["x"], 3), ["d"], "claimable after the refused release")

    def test_clause_20_gives_what_is_there(self) -> None:
        """Not blocking: what is there, at once."""
        client = self.with_rows()
        meta = client.claim_meta(self.p, "train", ["x"], 8, blocking=False, timeout_s=self.limit_s)
        self.same(meta.sample_ids, ABD)

    def test_clause_20_gives_an_empty_meta(self) -> None:
        """Not blocking: perhaps an empty meta; a read of it has no rows."""
        client = self.with_rows()
        self.same(self.claimed(client, "train", ["x", "y"], 2), [], "rows without y")
        self.claimed(client, "train", ["x"], 3)
        meta = client.claim_meta(self.p, "train", ["x"], 2, blocking=False)
        self.same(meta.sample_ids, [], "when all are claimed")
        self.same(list(client.get_data(meta).batch_size), [0], "batch size of its data")

    def test_clause_20_before_anything_is_put(self) -> None:
        """Not blocking: an empty meta at once where nothing was put."""
        for mode in ("batch", "stream"):
            self.p = f"{self.p}-{mode}"
            client = self.without_rows(mode)
            self.same(self.claimed(client, "train", ["x"], 2), [], f"in a {mode}")

    def test_clause_21_names_what_is_unknown_at_once(self) -> None:
        """An unknown partition or task, or a field that is not declared: KeyError at once, not after the time limit."""
        client = self.with_rows()

        def claim(partition: str, task: str, field: str) -> KVBatchMeta:
            waiting = Waiting(lambda: client.claim_meta(partition, task, [field], 3, timeout_s=10 * self.limit_s))
            return waiting.result(self.limit_s)

        self.raises(KeyError, lambda: claim(self.q, "train", "x"), self.q)
        self.raises(KeyError, lambda: claim(self.p, "sleep", "x"), "sleep")
        self.raises(KeyError, lambda: claim(self.p, "train", "nowhere"), "nowhere")
        self.same(self.claimed(client, "train", ["x"], 3), ABD, "claimable afterwards")

    def test_clause_21_refuses_no_fields_and_no_rows(self) -> None:
        """No field, or batch_size below 1: ValueError."""
        client = self.with_rows()
        self.raises(ValueError, lambda: client.claim_meta(self.p, "train", [], 3, blocking=False))
        for size in (0, -1):
            self.raises(
                ValueError, lambda size=size: client.claim_meta(self.p, "train", ["x"], size, blocking=False), size
            )

    def test_clause_23_is_true_when_all_rows_are_claimed(self) -> None:
        """check_consumption_status: True only when each task named has claimed all rows."""
        client = self.with_rows()
        tasks = ["train", "eval"]
        seen = [client.check_consumption_status(self.p, ["train"])]
        self.claimed(client, "train", ["x"], 2)
        seen.append(client.check_consumption_status(self.p, ["train"]))
        self.claimed(client, "train", ["x"], 2)
        seen += [client.check_consumption_status(self.p, names) for names in (["train"], ["eval"], tasks)]
        self.claimed(client, "eval", ["x"], 3)
        seen.append(client.check_consumption_status(self.p, tasks))
        self.same(seen, [False, False, True, False, False, True], "status after each step")

    def test_clause_23_is_false_before_rows_were_put(self) -> None:
        """check_consumption_status: False when no rows were put."""
        for mode in ("batch", "stream"):
            self.p = f"{self.p}-{mode}"
            client = self.without_rows(mode)
            self.same(client.check_consumption_status(self.p, ["train"]), False, f"in a {mode}")  # noqa: FBT003

    def test_clause_23_is_false_again_after_a_release(self) -> None:
        """check_consumption_status: False again when a claim was released."""
        client = self.with_rows()
        self.claimed(client, "train", ["x"], 3)
        client.release_claims(["b"], self.p, "train")
        self.same(client.check_consumption_status(self.p, ["train"]), False)  # noqa: FBT003

    def test_clause_23_names_what_is_unknown(self) -> None:
        """check_consumption_status: an unknown partition or task: KeyError. No task named: ValueError."""
        client = self.with_rows()
        self.raises(KeyError, lambda: client.check_consumption_status(self.q, ["train"]), self.q)
        self.raises(KeyError, lambda: client.check_consumption_status(self.p, ["train", "sleep"]), "sleep")
        self.raises(ValueError, lambda: client.check_consumption_status(self.p, []))
