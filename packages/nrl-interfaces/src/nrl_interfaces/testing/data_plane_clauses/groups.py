"""Clause 22: groups of rows, and data-parallel ranks."""

import torch

from nrl_interfaces.data_plane import DataPlaneClient
from nrl_interfaces.testing.data_plane_clauses.ground import ClauseTests, Mode, Waiting

IDS = [f"{prompt}{answer}" for prompt in "abc" for answer in "12"]


class GroupsTests(ClauseTests):
    """Clause 22."""

    def _groups(self, mode: Mode = "batch", *, put: int = 6) -> DataPlaneClient:
        """Make a client with groups of 2: a1 a2 | b1 b2 | c1 c2."""
        client = self.client(mode)
        client.register_partition(self.p, ["x", "y"], 6 if mode == "batch" else 8, list(self.TASKS), grpo_group_size=2)
        if put:
            client.put_samples(IDS[:put], self.p, {"x": torch.arange(put)})
        return client

    def test_clause_22_claims_hand_out_whole_groups(self) -> None:
        """Claims hand out whole groups."""
        client = self._groups()
        self.same(self.claimed(client, "train", ["x"], 4), IDS[:4])
        self.same(self.claimed(client, "train", ["x"], 4), IDS[4:])

    def test_clause_22_a_group_waits_for_its_last_row(self) -> None:
        """Claims hand out whole groups: not one of whose rows one lacks a field."""
        client = self._groups()
        client.put_samples(["a1", "b1", "b2", "c2"], self.p, {"y": torch.arange(4)})
        self.same(self.claimed(client, "train", ["y"], 6), ["b1", "b2"])
        client.put_samples(["a2"], self.p, {"y": torch.tensor([9])})
        self.same(self.claimed(client, "train", ["y"], 6), ["a1", "a2"])

    def test_clause_22_each_put_brings_whole_groups(self) -> None:
        """Each put brings whole groups of g consecutive ids: one that does not is a ValueError."""
        client = self._groups("stream", put=2)
        self.raises(ValueError, lambda: client.put_samples(["b1", "b2", "c1"], self.p, {"x": torch.arange(3)}), 2)
        self.same(client.list_sample_ids(self.p), ["a1", "a2"], "ids")
        client.put_samples(["b1", "b2"], self.p, {"x": torch.arange(2)})

    def test_clause_22_groups_stay_groups_when_other_rows_go(self) -> None:
        """Rows stay a group when other rows go."""
        client = self._groups()
        client.clear_samples(["a1"], self.p)
        client.clear_samples(["b1", "b2"], self.p)
        claimed = self.claimed(client, "train", ["x"], 2) + self.claimed(client, "train", ["x"], 2)
        self.same(claimed, ["a2", "c1", "c2"], "claimed by two")

    def test_clause_22_a_group_is_ready_when_the_row_that_lacked_a_field_goes(self) -> None:
        """Of a group that has lost rows claims hand out what is left of it."""
        client = self._groups()
        client.put_samples(["a1", "b1", "b2"], self.p, {"y": torch.arange(3)})
        self.same(self.claimed(client, "train", ["y"], 2), ["b1", "b2"], "while a2 lacks y")
        client.clear_samples(["a2"], self.p)
        self.same(self.claimed(client, "train", ["y"], 2), ["a1"], "when a2 is gone")

    def test_clause_22_groups_stay_groups_in_a_stream(self) -> None:
        """Rows stay a group when rows before them go and others come."""
        client = self._groups("stream")
        client.clear_samples(["a1", "a2"], self.p)
        client.put_samples(["d1", "d2"], self.p, {"x": torch.arange(2)})
        for wanted in (["b1", "b2"], ["c1", "c2"], ["d1", "d2"]):
            self.same(self.claimed(client, "train", ["x"], 2), wanted)

    def test_clause_22_releases_whole_groups(self) -> None:
        """Claims are released by whole groups: ValueError otherwise, nothing released."""
        client = self._groups()
        self.claimed(client, "train", ["x"], 4)
        self.raises(ValueError, lambda: client.release_claims(["a1", "a2", "b1"], self.p, "train"))
        self.same(self.claimed(client, "train", ["x"], 2), ["c1", "c2"], "claimable after the refused release")
        client.release_claims(["b1", "b2"], self.p, "train")
        self.same(self.claimed(client, "train", ["x"], 2), ["b1", "b2"], "claimable after the release")

    def test_clause_22_refuses_a_batch_size_of_parts_of_groups(self) -> None:
        """A batch_size that g does not divide is a ValueError."""
        client = self._groups()
        for size in (1, 3):
            self.raises(
                ValueError, lambda size=size: client.claim_meta(self.p, "train", ["x"], size, blocking=False), size, 2
            )
        self.same(self.claimed(client, "train", ["x"], 6), IDS)

    def test_clause_22_a_waiting_claim_takes_whole_groups(self) -> None:
        """Claims that wait hand out whole groups, too."""
        client = self._groups("stream", put=2)
        claim = Waiting(lambda: client.claim_meta(self.p, "train", ["x"], 4, timeout_s=self.limit_s).sample_ids)
        client.put_samples(["b1", "b2"], self.p, {"x": torch.arange(2)})
        self.same(claim.result(), ["a1", "a2", "b1", "b2"])

    def test_clause_22_keeps_the_rank_and_nothing_else(self) -> None:
        """dp_rank is kept in the meta's extra_info and changes nothing else."""
        client = self.with_rows()
        ranked = client.claim_meta(self.p, "train", ["x"], 2, dp_rank=3)
        plain = client.claim_meta(self.p, "eval", ["x"], 2)
        self.same(ranked.extra_info.get("dp_rank"), 3, "dp_rank")
        self.same((ranked.sample_ids, ranked.generation), (plain.sample_ids, plain.generation), "what it claims")
        self.holds("dp_rank" not in plain.extra_info, f"extra_info without a rank: {plain.extra_info}")
