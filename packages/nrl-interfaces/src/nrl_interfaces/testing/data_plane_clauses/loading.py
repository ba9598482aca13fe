"""Clause 28: what checkpoints may hold, what they cost, and what is never loaded."""

import pickle
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nrl_interfaces.data_plane import CheckpointDamagedError, DataPlaneClient
from nrl_interfaces.packed import PackedTensor
from nrl_interfaces.testing.data_plane_clauses.comparing import columns_as_text
from nrl_interfaces.testing.data_plane_clauses.ground import ClauseTests

ABD = ["a", "b", "d"]


class Reward:
    """A class that no adapter knows."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reward) and other.value == self.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return f"Reward({self.value})"


class _Opens:
    """What a pickle runs when it is loaded without care: it makes a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, str]]:
        return open, (str(self._path), "w")


def _plain_columns() -> dict[str, Any]:
    """Columns of all that passes without being named."""
    jagged = torch.nested.nested_tensor_from_jagged(torch.arange(5.0), torch.tensor([0, 0, 2, 5]))
    dtypes = [torch.bool, torch.uint8, torch.int16, torch.uint32, torch.bfloat16, torch.float64, torch.complex64]
    dtypes.append(torch.float8_e4m3fn)
    return {
        **{str(dtype): torch.tensor([[0, 1], [1, 0], [1, 1]]).to(dtype) for dtype in dtypes},
        "jagged": jagged,
        "packed": PackedTensor([torch.ones(1, 2), None, [torch.zeros(2, 2)]], 0),
        "array": np.array([[1, 2], [3, 4], [5, 6]], dtype=np.int16),
        "text_array": np.array(["A", "B", "long"]),
        "scalars": [np.float32(0.5), np.int64(3), np.bool_(True)],  # noqa: FBT003
        "texts": ["A", "\u2028", "\U0001f600"],
        "bytes": [b"", b"\x00\xff", b"d"],
        "numbers": [2**200, -1, float("inf")],
        "mixed": [[1, (2, {"k": {3}})], None, {"t": torch.tensor([1.5]), (1, 2): frozenset({4})}],
        "tuple": ("a", 1, 2.5),
    }


class LoadingTests(ClauseTests):
    """Clause 28."""

    def _size(self, folder: Path) -> int:
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

    def _saved(self, folder: Path) -> list[Path]:
        """Save three rows of 1, 2, 3; give the files."""
        client = self.with_rows()
        client.save_checkpoint(folder, metadata={"step": 1})
        self.drop_client(client)
        return [path for path in folder.rglob("*") if path.is_file()]

    def _load_refused(self, folder: Path, what: str) -> None:
        """Fail unless a load raises CheckpointDamagedError and leaves the client as new."""
        client, good = self.client(), self.folder()
        error = self.raises(CheckpointDamagedError, lambda: client.load_checkpoint(folder))
        self.holds(Path(error.path).name in {path.name for path in folder.rglob("*")}, f"{what}: path {error.path}")
        self.same((client.stats().partitions, client.list_sample_ids(self.p)), (0, list[str]()), f"client after {what}")
        self._saved(good)
        client.load_checkpoint(good)
        self.drop_client(client)

    def test_clause_28_plain_data_passes_as_it_is(self) -> None:
        """Tensors of every dtype, jagged tensors, text, bytes, numbers, lists, tuples, dicts, sets, arrays pass."""
        self.needs("restricted loading")
        columns, folder = _plain_columns(), self.folder()
        client = self.with_rows(**columns)
        tags = [{"n": 1, "l": [(1, 2)], "s": {1}, "a": np.arange(2)}, {}, {"t": torch.ones(2)}]
        client.put_samples(ABD, self.p, tags=tags)
        before = self.state(client, *columns)
        self.same(before["data"], columns_as_text(columns, list(columns)), "before")
        client.save_checkpoint(folder)
        self.drop_client(client)
        loaded = self.client()
        loaded.load_checkpoint(folder)
        after = self.state(loaded, *columns)
        self.same(after["data"], before["data"], "columns")
        self.same(repr(after["tags"]), repr(before["tags"]), "tags")

    def test_clause_28_an_unknown_class_in_a_column_is_refused(self) -> None:
        """Whatever load would refuse is refused before anything is written: TypeError naming column, id and class."""
        self._refuses_to_save(lambda client: client.put_samples(ABD, self.p, {"c": [1, [Reward(1.0)], 2]}), "c", "'b'")

    def test_clause_28_an_unknown_class_in_a_tag_is_refused(self) -> None:
        """Whatever load would refuse is refused before anything is written: TypeError naming tag, id and class."""
        tags = [{}, {}, {"score": {"r": Reward(1.0)}}]
        self._refuses_to_save(lambda client: client.put_samples(ABD, self.p, tags=tags), "tag", "'d'")

    def _refuses_to_save(self, put: Callable[[DataPlaneClient], object], *names: str) -> None:
        self.needs("restricted loading")
        client, folder = self.with_rows(), self.folder()
        put(client)
        self.raises(TypeError, lambda: client.save_checkpoint(folder), "Reward", *names)
        self.same(list(folder.iterdir()), [], "files after the refused save")

    def test_clause_28_unknown_metadata_is_refused(self) -> None:
        """Whatever load would refuse is refused before anything is written: in the metadata, too."""
        self.needs("restricted loading")
        client, folder = self.with_rows(), self.folder()
        self.raises(TypeError, lambda: client.save_checkpoint(folder, metadata={"r": Reward(1.0)}), "Reward")
        self.same(list(folder.iterdir()), [], "files after the refused save")

    def test_clause_28_what_is_saved_can_be_loaded(self) -> None:
        """Whatever load would refuse is refused: subclasses of containers, say, load as they were or are not saved."""
        self.needs("restricted loading")
        odds: list[Any] = [OrderedDict(k=1), defaultdict(int, k=1), torch.device("cpu"), torch.float32, slice(1), 1j]
        for odd in [*odds, range(2)]:
            client, folder = self.with_rows("stream", c=[odd, 1, 2]), self.folder()
            self.p, saved = f"{self.p}+", self.p
            try:
                client.save_checkpoint(folder)
            except TypeError:
                continue
            finally:
                self.drop_client(client)
            loaded = self.client("stream")
            loaded.load_checkpoint(folder)
            read: Any = loaded.get_samples(["a"], saved, ["c"])["c"]
            self.same(repr(read[0]), repr(odd), "loaded")
            self.drop_client(loaded)

    def test_clause_28_a_class_that_is_named_passes(self) -> None:
        """A user names other classes once, for both directions."""
        self.needs("restricted loading")
        client, folder = self.client(safe_globals=(Reward,)), self.folder()
        client.register_partition(self.p, ["c"], 1, ["train"])
        client.put_samples(["a"], self.p, {"c": [Reward(0.5)]}, [{"r": Reward(2.0)}])
        client.save_checkpoint(folder)
        self.drop_client(client)
        loaded = self.client(safe_globals=(Reward,))
        loaded.load_checkpoint(folder)
        meta = loaded.claim_meta(self.p, "train", ["c"], 1)
        self.same((loaded.get_data(meta)["c"][0], meta.tags), (Reward(0.5), [{"r": Reward(2.0)}]))

    def test_clause_28_a_class_that_is_not_named_is_not_loaded(self) -> None:
        """Nothing is loaded but classes known to be safe: a client that was not told of a class refuses the file."""
        self.needs("restricted loading")
        client, folder = self.client(safe_globals=(Reward,)), self.folder()
        client.register_partition(self.p, ["c"], 1, ["train"])
        client.put_samples(["a"], self.p, {"c": [Reward(0.5)]})
        client.save_checkpoint(folder)
        self.drop_client(client)
        self._load_refused(folder, "a checkpoint with a class that is not named")

    def test_clause_28_nothing_is_run_by_a_load(self) -> None:
        """Nothing is unpickled but classes known to be safe: a file that would run code runs none."""
        self.needs("restricted loading")
        folder, elsewhere = self.folder(), self.folder()
        for file in self._saved(folder):
            torch.save(_Opens(elsewhere / "opened"), file)
            self._load_refused(folder, "a torch.save that would run code")
            file.write_bytes(pickle.dumps(_Opens(elsewhere / "opened")))
            self._load_refused(folder, "a pickle that would run code")
            self.same(list(elsewhere.iterdir()), [], "files that the loads made")

    def test_clause_28_views_are_saved_as_their_rows(self) -> None:
        """Saving a view writes the rows, not the base storage."""
        self.needs("restricted loading")
        storage, folder = torch.zeros(3, 100_000), self.folder()
        client = self.with_rows(x=storage[:, :2], c=[storage[0, :2], 1, 2])
        client.save_checkpoint(folder)
        self.holds(self._size(folder) < 50_000, f"{self._size(folder)} bytes for 32 bytes of rows")

    def test_clause_28_columns_are_saved_whole(self) -> None:
        """Columns are saved, never a tensor a row."""
        self.needs("restricted loading")
        rows, folder = 2_000, self.folder()
        client = self.with_rows(ids=[f"{n:04}" for n in range(rows)], x=torch.arange(rows))
        client.save_checkpoint(folder)
        self.holds(self._size(folder) < 100 * rows, f"{self._size(folder)} bytes for {rows} rows of 8 bytes and an id")

    def test_clause_28_tensors_load_on_the_cpu(self) -> None:
        """Tensors go to the CPU and load there."""
        self.needs("restricted loading")
        device, folder = "cuda" if torch.cuda.is_available() else "cpu", self.folder()
        client = self.with_rows(x=torch.tensor([1, 2, 3], device=device))
        client.save_checkpoint(folder)
        self.drop_client(client)
        loaded = self.client()
        loaded.load_checkpoint(folder)
        self.same(loaded.get_samples(ABD, self.p, ["x"])["x"].device.type, "cpu", "device")

    def test_clause_28_a_file_with_a_changed_byte_is_never_loaded(self) -> None:
        """A damaged checkpoint: CheckpointDamagedError, and the client is unchanged. Never loaded as if whole."""
        self.needs("restricted loading")
        folder = self.folder()
        for file in self._saved(folder):
            whole = file.read_bytes()
            for at in range(3, len(whole), max(1, len(whole) // 25)):
                file.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
                self._damaged_or_the_same(folder, at)
            file.write_bytes(whole)

    def _damaged_or_the_same(self, folder: Path, at: int) -> None:
        client = self.client()
        try:
            metadata = client.load_checkpoint(folder)
        except CheckpointDamagedError:
            self.same(client.stats().partitions, 0, f"partitions after a damaged byte {at}")
        else:  # a byte that means nothing, such as padding
            rows = columns_as_text(client.get_samples(ABD, self.p, ["x"]), ["x"])["x"]
            self.same(
                (metadata, rows), ({"step": 1}, [f"int64[] {n}" for n in (1, 2, 3)]), f"loaded with byte {at} changed"
            )
        self.drop_client(client)

    def test_clause_28_a_truncated_file_is_refused(self) -> None:
        """A truncated checkpoint: CheckpointDamagedError, and the client is unchanged."""
        self.needs("restricted loading")
        folder = self.folder()
        for file in self._saved(folder):
            whole = file.read_bytes()
            for size in (0, 1, len(whole) // 2, len(whole) - 1):
                file.write_bytes(whole[:size])
                self._load_refused(folder, f"a file cut to {size} bytes")
            file.write_bytes(whole)

    def test_clause_28_a_foreign_file_is_refused(self) -> None:
        """A foreign file: CheckpointDamagedError, and the client is unchanged."""
        self.needs("restricted loading")
        folder = self.folder()
        for file in self._saved(folder):
            file.write_bytes(b"not a checkpoint, but a text of some length\n" * 20)
            self._load_refused(folder, "a text")
            torch.save({"weight": torch.ones(2)}, file)
            self._load_refused(folder, "somebody else's torch.save")
