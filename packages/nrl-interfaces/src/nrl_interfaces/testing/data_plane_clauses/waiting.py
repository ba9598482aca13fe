"""Clauses 18 and 19: claims that wait. Times are compared with each other and with the limits, never with a clock's."""

import itertools
import math
import threading
import time

import torch

from nrl_interfaces.batch_meta import KVBatchMeta
from nrl_interfaces.data_plane import DataPlaneClient, StaleMetaError
from nrl_interfaces.testing.data_plane_clauses.ground import ClauseTests, Waiting

ABD = ["a", "b", "d"]


class WaitingTests(ClauseTests):
    """Clauses 18 and 19."""

    def _claim(
        self, client: DataPlaneClient, size: int, *fields: str, within: float | None = None
    ) -> Waiting[KVBatchMeta]:
        return Waiting(
            lambda: client.claim_meta(self.p, "train", list(fields or ["x"]), size, timeout_s=within or self.limit_s)
        )

    def _woken_by(self, claim: Waiting[KVBatchMeta], at: float, by: str) -> None:
        """Fail unless a claim ended far sooner after ``at`` than its time limit."""
        took = claim.ended_at - at
        self.holds(
            took < self.limit_s / 4,
            f"the claim came back {took:.2f} s after {by}; its time limit was {self.limit_s:.0f} s",
        )

    def test_clause_18_waits_for_the_first_put_of_a_batch(self) -> None:
        """Blocking, the default, waits until batch_size rows can be claimed."""
        client = self.without_rows()
        claim = self._claim(client, 2)
        self.holds(claim.is_waiting(), "a claim came back before anything was put")
        client.put_samples(ABD, self.p, {"x": torch.arange(3)})
        self.same(claim.result().sample_ids, ["a", "b"])

    def test_clause_18_waits_for_the_whole_batch_size_in_a_stream(self) -> None:
        """In a stream more can always come: there a claim waits for the whole of batch_size."""
        client = self.without_rows("stream")
        client.put_samples(["a", "b"], self.p, {"x": torch.arange(2)})
        claim = self._claim(client, 4)
        client.put_samples(["d"], self.p, {"x": torch.tensor([3])})
        self.holds(claim.is_waiting(), "a claim of 4 rows came back when there were 3")
        client.put_samples(["e", "f"], self.p, {"x": torch.arange(2)})
        self.same(claim.result().sample_ids, ["a", "b", "d", "e"])

    def test_clause_18_waits_for_columns_that_can_still_come(self) -> None:
        """Blocking waits for the required fields of rows that are there."""
        client = self.with_rows()
        claim = self._claim(client, 2, "x", "y")
        client.put_samples(["b"], self.p, {"y": torch.tensor([1])})
        self.holds(claim.is_waiting(), "a claim of 2 rows came back when 1 had its fields")
        client.put_samples(["d"], self.p, {"y": torch.tensor([1])})
        self.same(claim.result().sample_ids, ["b", "d"])

    def test_clause_18_gives_the_tail_at_once(self) -> None:
        """When no more can come it gives the tail at once."""
        client = self.with_rows()
        self.same(self._claim(client, 2, within=10 * self.limit_s).result(self.limit_s).sample_ids, ["a", "b"])
        self.same(self._claim(client, 2, within=10 * self.limit_s).result(self.limit_s).sample_ids, ["d"], "the tail")

    def test_clause_18_gives_the_tail_to_a_claim_that_waits(self) -> None:
        """When no more can come it gives the tail: to a claim that has waited, too, and no more than there is."""
        client = self.without_rows()
        claims = [self._claim(client, 2) for _ in range(2)]
        self.holds(all(claim.is_waiting() for claim in claims), "a claim came back before anything was put")
        client.put_samples(ABD, self.p, {"x": torch.arange(3)})
        got = [claim.result().sample_ids for claim in claims]
        self.same(sorted(map(len, got)), [1, 2], "rows of the two claims")
        self.same(sorted(itertools.chain(*got)), ABD, "ids of the two claims")

    def test_clause_18_gives_an_empty_meta_when_all_are_claimed(self) -> None:
        """When all rows have been claimed it gives an empty meta."""
        client = self.with_rows()
        self.claimed(client, "train", ["x"], 3)
        self.same(self._claim(client, 2, within=10 * self.limit_s).result(self.limit_s).sample_ids, [])

    def test_clause_18_a_waiting_claim_ends_when_another_takes_the_rest(self) -> None:
        """When no more can come a claim that waits ends, with an empty meta, although another one took the rows."""
        client = self.with_rows()
        waiting = self._claim(client, 3, "x", "y")
        self.holds(waiting.is_waiting(), "a claim came back before y was put")
        self.same(self.claimed(client, "train", ["x"], 3), ABD, "claimed by another one")
        self.same(waiting.result(self.limit_s / 2).sample_ids, [])

    def test_clause_18_the_tail_comes_when_missing_rows_are_cleared(self) -> None:
        """When the rows that lacked a field are cleared no more can come: the tail comes at once."""
        client = self.with_rows()
        client.put_samples(["a"], self.p, {"y": torch.tensor([1])})
        claim = self._claim(client, 2, "x", "y")
        self.holds(claim.is_waiting(), "a claim came back before y was there")
        client.clear_samples(["b", "d"], self.p)
        self.same(claim.result(self.limit_s / 2).sample_ids, ["a"])

    def test_clause_18_wakes_when_a_put_arrives(self) -> None:
        """It wakes when a put arrives."""
        self.needs("waking")
        client = self.without_rows("stream")
        for number in range(3):
            claim = self._claim(client, 1)
            self.holds(claim.is_waiting(0.05), "a claim came back before anything was put")
            at = time.monotonic()
            client.put_samples([f"s{number}"], self.p, {"x": torch.tensor([number])})
            self.same(claim.result().sample_ids, [f"s{number}"])
            self._woken_by(claim, at, "the put")

    def test_clause_18_wakes_every_claim_that_can_go_on(self) -> None:
        """It wakes when a put arrives: every claim that the put is enough for, of any task."""
        self.needs("waking")
        client = self.without_rows("stream")
        claims = [self._claim(client, 1) for _ in range(3)]
        claims.append(Waiting(lambda: client.claim_meta(self.p, "eval", ["x"], 3, timeout_s=self.limit_s)))
        self.holds(all(claim.is_waiting(0.05) for claim in claims), "a claim came back before anything was put")
        at = time.monotonic()
        client.put_samples(ABD, self.p, {"x": torch.arange(3)})
        for claim in claims:
            claim.result()
            self._woken_by(claim, at, "the put")

    def test_clause_18_wakes_the_claim_that_can_go_on(self) -> None:
        """It wakes when a put arrives: the claim that the put is enough for, although others have waited longer."""
        self.needs("waking")
        client = self.without_rows("stream")
        for_y = Waiting(lambda: client.claim_meta(self.p, "eval", ["y"], 1, timeout_s=self.limit_s))
        self.holds(for_y.is_waiting(0.05), "a claim came back before anything was put")
        for_x = self._claim(client, 1)
        self.holds(for_x.is_waiting(0.05), "a claim came back before anything was put")
        at = time.monotonic()
        client.put_samples(["a"], self.p, {"x": torch.tensor([1])})
        self.same(for_x.result().sample_ids, ["a"])
        self._woken_by(for_x, at, "the put")
        client.put_samples(["a"], self.p, {"y": torch.tensor([1])})
        self.same(for_y.result().sample_ids, ["a"], "the one that waited longer")

    def test_clause_18_wakes_when_a_claim_is_released(self) -> None:
        """It wakes when rows become claimable by a release."""
        self.needs("waking")
        client = self.with_rows("stream")
        self.claimed(client, "train", ["x"], 3)
        claim = self._claim(client, 2)
        self.holds(claim.is_waiting(0.05), "a claim came back although all rows were claimed")
        at = time.monotonic()
        client.release_claims(["a", "d"], self.p, "train")
        self.same(claim.result().sample_ids, ["a", "d"])
        self._woken_by(claim, at, "the release")

    def test_clause_18_does_not_poll(self) -> None:
        """It does not poll: a claim that waits takes next to no processor time."""
        self.needs("waking")
        client, spent = self.without_rows("stream"), list[float]()

        def claim() -> None:
            began = time.thread_time()
            client.claim_meta(self.p, "train", ["x"], 1, timeout_s=self.limit_s)
            spent.append(time.thread_time() - began)

        waiting = Waiting(claim)
        self.holds(waiting.is_waiting(0.4), "a claim came back before anything was put")
        client.put_samples(["a"], self.p, {"x": torch.tensor([1])})
        waiting.result()
        self.holds(spent[0] < 0.1, f"{spent[0]:.3f} s of processor time in a wait of 0.4 s")

    def test_clause_18_a_partition_cleared_meanwhile_is_stale(self) -> None:
        """If the partition is cleared meanwhile: StaleMetaError."""
        client = self.without_rows()
        generation = self._generation_of_an_empty_claim(client)
        claim = self._claim(client, 2)
        self.holds(claim.is_waiting(), "a claim came back before anything was put")
        client.clear_samples(None, self.p)
        error = self.raises(StaleMetaError, lambda: claim.result(self.limit_s / 2), self.p)
        self.same((error.meta_generation, error.current_generation), (generation, None), "generations")

    def test_clause_18_a_partition_registered_again_meanwhile_is_stale(self) -> None:
        """If the partition is cleared meanwhile: StaleMetaError, also where it is registered and filled again."""
        client = self.without_rows()
        claim = self._claim(client, 2)
        self.holds(claim.is_waiting(), "a claim came back before anything was put")
        client.clear_samples(None, self.p)
        client.register_partition(self.p, list(self.FIELDS), 3, list(self.TASKS))
        client.put_samples(ABD, self.p, {"x": torch.arange(3)})
        self.raises(StaleMetaError, lambda: claim.result(self.limit_s / 2), self.p)
        self.same(self.claimed(client, "train", ["x"], 3), ABD, "claimable in the new one")

    def _generation_of_an_empty_claim(self, client: DataPlaneClient) -> int | None:
        return client.claim_meta(self.p, "train", ["x"], 1, blocking=False).generation

    def test_clause_19_a_wait_runs_out(self) -> None:
        """A wait that runs out raises TimeoutError, not before its time, and claims nothing."""
        client = self.with_rows()
        began = time.monotonic()
        self.raises(TimeoutError, lambda: client.claim_meta(self.p, "train", ["x", "y"], 1, timeout_s=0.2))
        took = time.monotonic() - began
        self.holds(0.15 <= took < self.limit_s / 2, f"a time limit of 0.2 s took {took:.2f} s")
        self.same(self.claimed(client, "train", ["x"], 3), ABD, "claimable afterwards")

    def test_clause_19_says_what_is_missing(self) -> None:
        """The TimeoutError says which fields of how many rows were missing."""
        client = self.with_rows()
        client.put_samples(["b"], self.p, {"y": torch.tensor([1])})
        self.raises(
            TimeoutError, lambda: client.claim_meta(self.p, "train", ["x", "y"], 3, timeout_s=0), "'y'", "2 rows"
        )
        self.same(self.claimed(client, "train", ["x", "y"], 3), ["b"], "claimable afterwards")

    def test_clause_19_says_that_rows_are_not_put(self) -> None:
        """The TimeoutError says that rows were missing where nothing was put."""
        client = self.without_rows()
        self.raises(TimeoutError, lambda: client.claim_meta(self.p, "train", ["x"], 2, timeout_s=0), self.p, "3 rows")

    def test_clause_19_a_wait_for_more_than_there_is_claims_nothing(self) -> None:
        """A wait that runs out claims nothing, although some rows were ready."""
        client = self.with_rows("stream")
        self.raises(TimeoutError, lambda: client.claim_meta(self.p, "train", ["x"], 4, timeout_s=0.05))
        self.same(self.claimed(client, "train", ["x"], 4), ABD)

    def test_clause_19_zero_looks_once(self) -> None:
        """timeout_s of 0 looks once: it claims what is there, or raises TimeoutError at once."""
        client = self.with_rows()
        self.same(client.claim_meta(self.p, "train", ["x"], 2, timeout_s=0).sample_ids, ["a", "b"])
        look = Waiting(lambda: client.claim_meta(self.p, "train", ["y"], 1, timeout_s=0))
        self.raises(TimeoutError, lambda: look.result(self.limit_s))

    def test_clause_19_refuses_a_limit_that_is_none(self) -> None:
        """timeout_s that is negative or NaN: ValueError."""
        client = self.with_rows()
        for limit in (-1.0, math.nan):
            self.raises(
                ValueError,
                lambda limit=limit: client.claim_meta(self.p, "train", ["x"], 1, timeout_s=limit),
                "timeout_s",
            )
        self.same(self.claimed(client, "train", ["x"], 3), ABD, "claimable afterwards")

    def test_clause_19_counts_from_the_call(self) -> None:
        """timeout_s counts from the call on: puts that are not enough do not begin it anew."""
        client, stop = self.without_rows("stream"), threading.Event()

        def trickle() -> None:
            for number in range(16):
                if stop.wait(0.05):
                    return
                client.put_samples([f"s{number}"], self.p, {"c": ["without x"]})

        puts = Waiting(trickle)
        began = time.monotonic()
        try:
            self.raises(TimeoutError, lambda: client.claim_meta(self.p, "train", ["x"], 1, timeout_s=0.3))
            took, still_putting = time.monotonic() - began, puts.is_waiting(0)
        finally:
            stop.set()
            puts.result()
        self.holds(still_putting, f"a time limit of 0.3 s took {took:.2f} s, until no more puts came")
