"""Clauses 26 and 27: checkpoints that replace each other, and their loading. What they may hold stands in `loading`."""

import threading
from pathlib import Path
from typing import Any

import torch

from nrl_interfaces.data_plane import DataPlaneClient
from nrl_interfaces.testing.data_plane_clauses.comparing import columns_as_text
from nrl_interfaces.testing.data_plane_clauses.ground import ClauseTests, Mode, Waiting
from nrl_interfaces.testing.data_plane_clauses.loading import Reward

ABD = ["a", "b", "d"]


class CheckpointTests(ClauseTests):
    """Clauses 26 and 27."""

    def _save(self, folder: Path, value: int, **config: Any) -> None:
        """Save, from a client of its own, three rows of ``value`` and the same in the metadata."""
        client = self.client(**config)
        client.register_partition(self.p, ["x"], 3, list(self.TASKS))
        client.put_samples(ABD, self.p, {"x": torch.full((3,), value)})
        client.save_checkpoint(folder, metadata={"value": value})
        self.drop_client(client)

    def _load(self, folder: Path, **config: Any) -> tuple[dict[str, Any], list[str]]:
        """Load with a client of its own; give the metadata and the rows."""
        client = self.client(**config)
        metadata = client.load_checkpoint(folder)
        rows = columns_as_text(client.get_samples(ABD, self.p, ["x"]), ["x"])["x"]
        self.drop_client(client)
        return metadata, rows

    def _holds(self, folder: Path, value: int, **config: Any) -> None:
        self.same(self._load(folder, **config), ({"value": value}, [f"int64[] {value}"] * 3), "loaded")

    def test_clause_26_a_save_replaces_the_one_before(self) -> None:
        """The state in the folder is replaced; the folder is made where it is missing."""
        self.needs("crash-safe replacing")
        folder = self.folder() / "made" / "anew"
        for value in (1, 2):
            self._save(folder, value)
            self._holds(folder, value)

    def test_clause_26_a_loader_finds_the_old_state_or_the_new_one(self) -> None:
        """At every moment a loader finds the old state or the new one."""
        self.needs("crash-safe replacing")
        folder, done = self.folder(), threading.Event()
        self._save(folder, 0)
        clients = [self.client() for _ in range(2)]
        for value, client in enumerate(clients):
            client.register_partition(self.p, ["x"], 3, list(self.TASKS))
            client.put_samples(ABD, self.p, {"x": torch.full((3,), value)})

        def save_on() -> None:
            while not done.is_set():
                for value, client in enumerate(clients):
                    client.save_checkpoint(folder, metadata={"value": value})

        saving = Waiting(save_on)
        try:
            loaded = [self._load(folder) for _ in range(15)]
        finally:
            done.set()
            saving.result()
        for metadata, rows in loaded:
            self.same(rows, [f"int64[] {metadata['value']}"] * 3, f"rows loaded with metadata {metadata}")

    def test_clause_26_a_failed_save_leaves_the_old_state(self) -> None:
        """A save that fails leaves the old state, and nothing beside it."""
        self.needs("crash-safe replacing")
        self.needs("restricted loading")
        folder = self.folder()
        self._save(folder, 1)
        files = sorted(path.name for path in folder.iterdir())
        client = self.with_rows()
        client.put_samples(["b"], self.p, tags=[{"r": Reward(1.0)}])
        self.raises(TypeError, lambda: client.save_checkpoint(folder))
        self.drop_client(client)
        self.same(sorted(path.name for path in folder.iterdir()), files, "files")
        self._holds(folder, 1)

    def test_clause_26_left_overs_never_stop_the_next_save(self) -> None:
        """Left-overs of a crash never stop the next save."""
        self.needs("crash-safe replacing")
        folder = self.folder()
        self._save(folder, 1)
        for file in [path for path in folder.rglob("*") if path.is_file()]:
            for ending in (".partial", ".tmp"):
                file.with_name(file.name + ending).write_bytes(b"left by a crash")
        self._holds(folder, 1)
        self._save(folder, 2)
        self._holds(folder, 2)

    def test_clause_26_other_files_are_left_alone(self) -> None:
        """Other files in the folder are left alone."""
        self.needs("crash-safe replacing")
        folder = self.folder()
        (folder / "notes.txt").write_text("mine")
        (folder / "weights").mkdir()
        (folder / "weights" / "w.pt").write_bytes(b"mine, too")
        for value in (1, 2):
            self._save(folder, value)
        self.same((folder / "notes.txt").read_text(), "mine")
        self.same((folder / "weights" / "w.pt").read_bytes(), b"mine, too")

    def test_clause_26_a_symlink_is_refused(self) -> None:
        """A folder that is a symlink is refused, with the folder intact."""
        self.needs("crash-safe replacing")
        folder = self.folder()
        real, link = folder / "real", folder / "link"
        real.mkdir()
        self._save(real, 1)
        link.symlink_to(real)
        self.raises((ValueError, OSError), lambda: self._save(link, 2))  # type: ignore[arg-type] # either is caught
        self._holds(real, 1)
        self.holds(link.is_symlink(), "the symlink is gone")

    def test_clause_26_an_empty_client_can_be_saved(self) -> None:
        """What is held is saved: nothing, too."""
        self.needs("crash-safe replacing")
        folder = self.folder()
        self._save(folder, 1)
        self.client().save_checkpoint(folder)
        loaded = self.client()
        self.same(loaded.load_checkpoint(folder), {}, "metadata")
        self.same(loaded.stats().partitions, 0, "partitions")

    def test_clause_26_one_folder_an_owner(self) -> None:
        """A load of a file by another owner, or a save over it: ValueError that names both."""
        self.needs("crash-safe replacing")
        folder = self.folder()
        self._save(folder, 1, owner="rank-0")
        self.raises(ValueError, lambda: self._load(folder, owner="rank-1"), "rank-0", "rank-1")
        self.raises(ValueError, lambda: self._save(folder, 2, owner="rank-1"), "rank-0", "rank-1")
        self._holds(folder, 1, owner="rank-0")
        self._save(folder, 2, owner="rank-0")
        self._holds(folder, 2, owner="rank-0")

    def test_clause_27_gives_the_metadata_back(self) -> None:
        """load_checkpoint returns the metadata."""
        client, folder = self.with_rows(), self.folder()
        metadata = {"step": 7, "names": ["a", "b"], "nested": {"lr": 0.5, "none": None}}
        client.save_checkpoint(folder, metadata=metadata)
        self.drop_client(client)
        self.same(self.client().load_checkpoint(folder), metadata)

    def test_clause_27_brings_everything_back(self) -> None:
        """A loaded client holds what was saved: rows, their order, tags, lengths, claims, and it goes on from there."""
        for mode in ("batch", "stream"):
            self._everything_comes_back(mode)
            self.p = self.q

    def _everything_comes_back(self, mode: Mode) -> None:
        columns = {"x": torch.tensor([1, 2, 3]), "c": ["Z", "M", "A"], "input_lengths": torch.tensor([3, 1, 2])}
        client, folder = self.with_rows(mode, ids=["z", "m", "a"], **columns), self.folder()
        client.put_samples(["m"], self.p, {"y": torch.tensor([0.5])}, [{"n": 1}])
        self.claimed(client, "train", ["x"], 2)
        before = self.state(client, "x", "c", "input_lengths")
        client.save_checkpoint(folder)
        self.drop_client(client)
        loaded = self.client(mode)
        loaded.load_checkpoint(folder)
        after = self.state(loaded, "x", "c", "input_lengths")
        kept = before.keys() - {"puts"}
        self.same({key: after[key] for key in kept}, {key: before[key] for key in kept}, f"a {mode} partition")
        self.same(self.claimed(loaded, "train", ["x"], 3), ["a"], "claimable")
        self.same(self.claimed(loaded, "eval", ["y"], 3), ["m"], "rows with y")
        self.raises(ValueError, lambda: loaded.put_samples(["z"], self.p, {"nowhere": torch.arange(1)}), "nowhere")
        self.drop_client(loaded)

    def test_clause_27_brings_groups_and_vocabularies_back(self) -> None:
        """A loaded client holds what was registered: groups and enums, too."""
        client, folder = self.client("stream"), self.folder()
        client.register_partition(self.p, ["x", "k"], 8, ["train"], grpo_group_size=2, enums={"k": ["u"]})
        client.put_samples(list("abcd"), self.p, {"x": torch.arange(4)})
        client.save_checkpoint(folder)
        self.drop_client(client)
        loaded = self.client("stream")
        loaded.load_checkpoint(folder)
        self.raises(ValueError, lambda: self.claimed(loaded, "train", ["x"], 3))
        self.raises(ValueError, lambda: loaded.put_samples(["a"], self.p, {"k": ["v"]}), "v")
        self.same(self.claimed(loaded, "train", ["x"], 2), ["a", "b"])

    def test_clause_27_metas_from_before_the_save_stay_good(self) -> None:
        """A meta from before the save reads its rows from the client that loaded them."""
        client, folder = self.with_rows(), self.folder()
        meta = client.claim_meta(self.p, "train", ["x"], 2)
        client.save_checkpoint(folder)
        self.drop_client(client)
        loaded = self.client()
        loaded.load_checkpoint(folder)
        self.same(columns_as_text(loaded.get_data(meta), ["x"])["x"], ["int64[] 1", "int64[] 2"])

    def test_clause_27_a_client_in_use_loads_nothing(self) -> None:
        """load_checkpoint works only in a client that was never used: RuntimeError, and it is unchanged."""
        folder = self.folder()
        self._save(folder, 1)
        self.p, saved = self.q, self.p
        client = self.with_rows()
        before = self.state(client, "x")
        self.raises(RuntimeError, lambda: client.load_checkpoint(folder))
        self.same(self.state(client, "x"), before, "the client")
        self.same(client.list_sample_ids(saved), [], "ids of the partition in the checkpoint")

    def test_clause_27_a_client_that_is_empty_again_is_used(self) -> None:
        """A used client that is empty again is still used: RuntimeError."""
        folder = self.folder()
        self._save(folder, 1)
        client = self.with_rows()
        client.clear_samples(None, self.p)
        self.raises(RuntimeError, lambda: client.load_checkpoint(folder))
        self.same(client.stats().partitions, 0, "partitions")

    def test_clause_27_a_client_loads_once(self) -> None:
        """A client that has loaded a checkpoint is used: RuntimeError."""
        folder = self.folder()
        self._save(folder, 1)
        client = self.client()
        client.load_checkpoint(folder)
        self.raises(RuntimeError, lambda: client.load_checkpoint(folder))
        self.same(client.list_sample_ids(self.p), ABD, "ids")

    def test_clause_27_looking_is_no_use(self) -> None:
        """A client that was only looked at was never used."""
        folder = self.folder()
        self._save(folder, 1)
        client = self.client()
        client.stats()
        client.list_sample_ids(self.p)
        client.load_checkpoint(folder)
        self.same(client.list_sample_ids(self.p), ABD, "ids")

    def test_clause_27_new_generations_are_above_all_before(self) -> None:
        """After a load new generations are above every one from before the save."""
        client, folder, before = self.client(), self.folder(), list[int]()
        for _ in range(3):
            client.register_partition(self.p, ["x"], 1, ["train"])
            before.append(self._generation(client))
            client.clear_samples(None, self.p)
        client.save_checkpoint(folder)
        self.drop_client(client)
        loaded = self.client()
        loaded.load_checkpoint(folder)
        loaded.register_partition(self.p, ["x"], 1, ["train"])
        new = self._generation(loaded)
        self.holds(new > max(before), f"generation {new} after {before}")

    def _generation(self, client: DataPlaneClient) -> int:
        generation = client.put_samples(["a"], self.p, {"x": torch.tensor([1])}).generation
        self.holds(generation is not None, "a meta without a generation")
        return generation or 0
