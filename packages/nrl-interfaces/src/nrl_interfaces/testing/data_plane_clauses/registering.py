"""Clauses 1 to 4: registering a partition."""

from collections.abc import Callable
from typing import Any

import torch

from nrl_interfaces.testing.data_plane_clauses.ground import ClauseTests


class RegisteringTests(ClauseTests):
    """Clauses 1 to 4."""

    def _registration_refused(self, *changes: dict[str, Any]) -> None:
        client = self.client()
        usual: dict[str, Any] = {"fields": ["x"], "num_samples": 4, "consumer_tasks": ["train"]}
        for change in changes:
            call: Callable[[], None] = lambda change=change: client.register_partition(self.p, **{**usual, **change})  # noqa: E731
            self.raises(ValueError, call)
            self.same(client.stats().partitions, 0, f"partitions after the refused {change}")
        client.register_partition(self.p, **usual)

    def test_clause_01_declares_fields_rows_and_tasks(self) -> None:
        """register_partition declares fields, row count and tasks."""
        client = self.client()
        client.register_partition(self.p, ["x"], 2, ["train"])
        self.same(client.stats().partitions, 1, "partitions")
        client.put_samples(["a", "b"], self.p, {"x": torch.tensor([1, 2])})
        self.same(self.claimed(client, "train", ["x"], 2), ["a", "b"])

    def test_clause_01_refuses_empty_names(self) -> None:
        """An empty name: ValueError, and nothing is registered."""
        self._registration_refused({"fields": ["x", ""]}, {"consumer_tasks": [""]})

    def test_clause_01_refuses_an_empty_id(self) -> None:
        """An empty id: ValueError, and nothing is registered."""
        client = self.client()
        self.raises(ValueError, lambda: client.register_partition("", ["x"], 4, ["train"]))
        self.same(client.stats().partitions, 0, "partitions")

    def test_clause_01_refuses_duplicate_names(self) -> None:
        """A duplicate name: ValueError, and nothing is registered."""
        self._registration_refused({"fields": ["x", "x"]}, {"consumer_tasks": ["train", "train"]})

    def test_clause_01_refuses_too_few_rows(self) -> None:
        """num_samples below 1, or a bool: ValueError, and nothing is registered."""
        self._registration_refused({"num_samples": 0}, {"num_samples": -1}, {"num_samples": True})

    def test_clause_01_refuses_groups_that_do_not_divide(self) -> None:
        """A grpo_group_size that does not divide num_samples: ValueError, and nothing is registered."""
        self._registration_refused({"grpo_group_size": 3}, {"grpo_group_size": 8}, {"grpo_group_size": 0})

    def test_clause_01_copies_its_arguments(self) -> None:
        """The arguments are copied."""
        fields, tasks, enums = ["x", "k"], ["train"], {"k": ["u"]}
        client = self.client()
        client.register_partition(self.p, fields, 1, tasks, enums=enums)
        fields.append("y")
        tasks.append("eval")
        enums["k"].append("v")
        self.raises(ValueError, lambda: client.put_samples(["a"], self.p, {"y": torch.tensor([1])}), "y")
        self.raises(KeyError, lambda: self.claimed(client, "eval", ["x"], 1), "eval")
        self.raises(ValueError, lambda: client.put_samples(["a"], self.p, {"k": ["v"]}), "v")

    def test_clause_01_partitions_share_nothing(self) -> None:
        """What is registered, put and claimed in one partition is not seen in another."""
        client = self.client()
        for partition in (self.p, self.q):
            client.register_partition(partition, ["x"], 1, ["train"])
        client.put_samples(["a"], self.p, {"x": torch.tensor([1])})
        self.claimed(client, "train", ["x"], 1)
        self.same(client.list_sample_ids(self.q), [], "ids of the other partition")
        self.same(client.check_consumption_status(self.q, ["train"]), False, "status of the other partition")  # noqa: FBT003

    def test_clause_02_refuses_a_live_id(self) -> None:
        """An id that is live: ValueError."""
        client = self.with_rows()
        before = self.state(client, "x")
        self.raises(ValueError, lambda: client.register_partition(self.p, ["z"], 1, ["other"]), self.p)
        self.same(self.state(client, "x"), before, "the partition")

    def test_clause_02_takes_an_id_again_after_it_was_cleared(self) -> None:
        """After clear_samples(None, id) it may be registered again, and gets a new generation."""
        client = self.with_rows()
        old = client.claim_meta(self.p, "train", ["x"], 3)
        client.clear_samples(None, self.p)
        client.register_partition(self.p, ["z"], 1, ["train"])
        new = client.put_samples(["a"], self.p, {"z": torch.tensor([1])})
        self.holds(new.generation not in (None, old.generation), f"generation {new.generation} after {old.generation}")

    def test_clause_02_a_cleared_id_begins_anew(self) -> None:
        """After clear_samples(None, id) a registration has no rows, tags or claims of the one before."""
        client = self.with_rows()
        self.claimed(client, "train", ["x"], 3)
        client.clear_samples(None, self.p)
        client.register_partition(self.p, ["x"], 3, ["train"])
        self.same(client.list_sample_ids(self.p), [], "ids")
        client.put_samples(["a", "b", "d"], self.p, {"x": torch.tensor([7, 8, 9])})
        self.same(client.check_consumption_status(self.p, ["train"]), False, "status")  # noqa: FBT003
        self.same(self.claimed(client, "train", ["x"], 3), ["a", "b", "d"], "claimed")

    def test_clause_03_refuses_more_partitions_than_the_limit(self) -> None:
        """max_partitions reached: RuntimeError with the limit and the ids that are held."""
        client = self.client(max_partitions=2)
        for partition in (self.p, self.q):
            client.register_partition(partition, ["x"], 1, ["train"])
        third = f"{self.p}-third"
        self.raises(RuntimeError, lambda: client.register_partition(third, ["x"], 1, ["train"]), 2, self.p, self.q)
        self.same(client.stats().partitions, 2, "partitions")
        client.clear_samples(None, self.p)
        client.register_partition(third, ["x"], 1, ["train"])

    def test_clause_04_generations_are_never_used_twice(self) -> None:
        """Every registration gets a generation number never used before in this client."""
        client = self.client()
        seen: list[int | None] = []
        for _ in range(3):
            for partition in (self.p, self.q):
                client.register_partition(partition, ["x"], 1, ["train"])
                seen.append(client.put_samples(["a"], partition, {"x": torch.tensor([1])}).generation)
            for partition in (self.q, self.p):
                client.clear_samples(None, partition)
        self.holds(None not in seen and len(set(seen)) == len(seen), f"generations {seen}")

    def test_clause_04_generations_of_a_checkpoint_are_not_used_again(self) -> None:
        """No generation that a loaded checkpoint used is used again, not that of a partition that was gone either."""
        client, folder, used = self.client(), self.folder(), list[Any]()
        for partition in (self.p, self.q):
            client.register_partition(partition, ["x"], 1, ["train"])
            used.append(client.put_samples(["a"], partition, {"x": torch.tensor([1])}).generation)
        client.clear_samples(None, self.q)
        client.save_checkpoint(folder)
        self.drop_client(client)
        loaded = self.client()
        loaded.load_checkpoint(folder)
        loaded.register_partition(self.q, ["x"], 1, ["train"])
        new = loaded.put_samples(["a"], self.q, {"x": torch.tensor([1])}).generation
        self.holds(new is not None and new not in used, f"generation {new} after {used}")
