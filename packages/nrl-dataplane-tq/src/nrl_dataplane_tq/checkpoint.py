"""Checkpoints on disk: each in a folder of its own name, and one small file, replaced in one step, that says which.

TransferQueue's own save removes the old checkpoint before the new one has its name. Here it writes into a folder that
nobody knows yet; what is not named by the switch file is a left-over, and goes with a later save.

| in the checkpoint folder | what it is |
| --- | --- |
| `tq_data_plane.json` | the switch: format, owner, storage units, and the current folder with the digest of each file |
| `tq_state_000007/` | a checkpoint: TransferQueue's files, and `contract_state.pkl` |

A reader holds a shared lock (`flock`) on the folder that it reads, and a writer on the one that it writes, so that
nobody removes it meanwhile.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import pickle
import re
from collections.abc import Generator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nrl_interfaces.data_plane import CheckpointDamagedError
from nrl_interfaces.fileops import WRITE_NEW, FileOps, OutputFile
from nrl_interfaces.publish import make_folder, publish, remove_folder

__all__ = ["SWITCH_FILENAME", "Facts", "OtherOwnerError", "StorageUnitsError", "current_state", "new_state"]

SWITCH_FILENAME = "tq_data_plane.json"
_STATE = re.compile(r"tq_state_(\d{6,})")
_CONTRACT = "contract_state.pkl"
_FORMAT = 1

logger = logging.getLogger(__name__)


class OtherOwnerError(ValueError):
    """Raised when a checkpoint belongs to another owner than the config names.

    Attributes:
        path: The switch file.
        saved: Its owner.
        current: The config's owner.
    """

    def __init__(self, path: Path, saved: str | None, current: str | None) -> None:
        super().__init__(path, saved, current)
        self.path, self.saved, self.current = path, saved, current

    def __str__(self) -> str:
        return (
            f"{self.path} is of owner {self.saved!r}, and this is {self.current!r}: give each owner a folder of its own"
        )


class StorageUnitsError(ValueError):
    """Raised when a checkpoint is of a queue with another number of storage units; nothing was loaded.

    Attributes:
        path: The switch file.
        saved: How many storage units the checkpoint is of.
        current: How many the queue has.
    """

    def __init__(self, path: Path, saved: int, current: int) -> None:
        super().__init__(path, saved, current)
        self.path, self.saved, self.current = path, saved, current

    def __str__(self) -> str:
        return (
            f"{self.path} is of a queue with {self.saved} storage units, and this one has {self.current}; start one "
            f"with num_data_storage_units = {self.saved}"
        )


@dataclass(frozen=True)
class Facts:
    """What the switch file says of the current checkpoint, besides its format.

    Attributes:
        owner: Whose it is.
        storage_units: How many storage units the queue has.
        folder: The name of the folder.
        files: By path below the folder, each file's size and SHA-256.
    """

    owner: str | None
    storage_units: int
    folder: str
    files: dict[str, tuple[int, str]]


# ---- Writing ----


class NewState:
    """A checkpoint that is being written.

    Attributes:
        path: Its folder.
    """

    def __init__(self, path: Path, owner: str | None, ops: FileOps) -> None:
        self.path = path
        self.is_published = False
        self._owner, self._ops = owner, ops

    def publish(self, contract: dict[str, Any], storage_units: int) -> None:
        """Add the contract's part, make everything durable, and name this folder the current one."""
        folder, ops = self.path.parent, self._ops
        with OutputFile(self.path / _CONTRACT, WRITE_NEW, ops) as file:
            file.write(pickle.dumps(contract, protocol=pickle.HIGHEST_PROTOCOL))
        files: dict[str, tuple[int, str]] = {}
        for below in _files_below(self.path):
            path = self.path / below
            files[below] = (path.stat().st_size, _digest(path))
            _fsync_file(path, ops)
        for inner, _, _ in os.walk(self.path, topdown=False):
            ops.fsync_folder(Path(inner))
        ops.fsync_folder(folder)
        facts = Facts(self._owner, storage_units, self.path.name, files)
        publish(folder / SWITCH_FILENAME, json.dumps({"format": _FORMAT, **asdict(facts)}, indent=1).encode(), ops)
        self.is_published = True
        self._remove_older()

    def _remove_older(self) -> None:
        for number, path in _states(self.path.parent):
            if path != self.path and number < _number(self.path):
                with contextlib.suppress(OSError), _locked(path, fcntl.LOCK_EX):  # in use: the next save will do it
                    remove_folder(path, self._ops)


@contextlib.contextmanager
def new_state(folder: Path, owner: str | None, ops: FileOps) -> Generator[NewState]:
    """Make a folder for a checkpoint, which goes again where it is not published in the block.

    Raises:
        ValueError: ``folder`` is a symlink.
        OtherOwnerError: What is there belongs to another owner.
        OSError: The disk refused.
    """
    if folder.is_symlink():
        raise ValueError(f"{folder} is a symbolic link; allowed: a folder, so name {folder.resolve()}")
    try:
        saved = _read_facts(folder).owner
    except FileNotFoundError:
        saved = owner
    except CheckpointDamagedError as error:
        logger.warning("saving over a checkpoint that could not be loaded: %s", error)
        saved = owner
    if saved != owner:
        raise OtherOwnerError(folder / SWITCH_FILENAME, saved, owner)
    make_folder(folder, ops)
    path = _make_next(folder, ops)
    with _locked(path, fcntl.LOCK_SH):
        state = NewState(path, owner, ops)
        try:
            yield state
        finally:
            if not state.is_published and not _names(folder, path):  # it may have failed behind the rename
                with contextlib.suppress(OSError):
                    remove_folder(path, ops)


def _names(folder: Path, state: Path) -> bool:
    """Tell whether the switch file names a checkpoint."""
    try:
        return _read_facts(folder).folder == state.name
    except (OSError, ValueError):
        return False


def _make_next(folder: Path, ops: FileOps) -> Path:
    number = max((number for number, _ in _states(folder)), default=0)
    while True:
        number += 1
        path = folder / f"tq_state_{number:06d}"
        try:
            ops.mkdir(path)
        except FileExistsError:  # somebody else was faster
            continue
        return path


# ---- Reading ----


class SavedState:
    """The current checkpoint, checked and held.

    Attributes:
        path: Its folder.
        facts: What the switch file says.
    """

    def __init__(self, path: Path, facts: Facts) -> None:
        self.path, self.facts = path, facts

    def contract(self) -> dict[str, Any]:
        """Read the contract's part."""
        return pickle.loads((self.path / _CONTRACT).read_bytes())  # noqa: S301 - as TransferQueue reads its own


@contextlib.contextmanager
def current_state(folder: Path, owner: str | None, storage_units: int) -> Generator[SavedState]:
    """Find the current checkpoint, check all of it, and hold it for the block.

    Raises:
        FileNotFoundError: There is none.
        CheckpointDamagedError: A file is missing or was changed, or the format is newer.
        OtherOwnerError: It belongs to another owner.
        StorageUnitsError: The queue has another number of storage units.
    """
    while True:
        facts = _read_facts(folder)
        if facts.owner != owner:
            raise OtherOwnerError(folder / SWITCH_FILENAME, facts.owner, owner)
        if facts.storage_units != storage_units:
            raise StorageUnitsError(folder / SWITCH_FILENAME, facts.storage_units, storage_units)
        path = folder / facts.folder
        with contextlib.ExitStack() as held:
            problem = _hold(path, held)
            if _read_facts(folder) != facts:
                continue  # a save was faster, and may be removing this one
            if isinstance(problem, FileNotFoundError):
                raise CheckpointDamagedError(path, None, "the folder is missing") from problem
            if problem is not None:
                raise problem
            _verify(path, facts)
            yield SavedState(path, facts)
            return


def _hold(path: Path, held: contextlib.ExitStack) -> OSError | None:
    """Hold a checkpoint for reading, or give the reason why that is not possible."""
    try:
        held.enter_context(_locked(path, fcntl.LOCK_SH))
    except (BlockingIOError, FileNotFoundError) as error:
        return error
    return None


def _read_facts(folder: Path) -> Facts:
    path = folder / SWITCH_FILENAME
    try:
        data = json.loads(path.read_bytes())
        version = data.pop("format")
        if version != _FORMAT:
            problem = f"it is of format {version!r}; this version of nrl-dataplane-tq reads format {_FORMAT}"
            raise CheckpointDamagedError(path, None, problem)
        files = {str(name): (int(size), str(digest)) for name, (size, digest) in data.pop("files").items()}
        facts = Facts(**data, files=files)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{folder} has no checkpoint: {path.name} is missing") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, CheckpointDamagedError):
            raise
        raise CheckpointDamagedError(path, None, f"it can't be read: {error}") from error
    if not isinstance(facts.folder, str) or not _STATE.fullmatch(facts.folder):
        raise CheckpointDamagedError(path, None, f"it names the folder {facts.folder!r}")
    return facts


def _verify(path: Path, facts: Facts) -> None:
    for below, (size, digest) in facts.files.items():
        file = path / below
        if not file.is_file():
            raise CheckpointDamagedError(file, None, "the file is missing")
        if (seen := file.stat().st_size) != size:
            raise CheckpointDamagedError(file, None, f"it has {seen} bytes, and {size} were written")
        if _digest(file) != digest:
            raise CheckpointDamagedError(file, None, "its bytes are not those that were written")
    if _CONTRACT not in facts.files:
        raise CheckpointDamagedError(path / _CONTRACT, None, "the file is not listed")


# ---- Files ----


def _states(folder: Path) -> list[tuple[int, Path]]:
    return [(_number(path), path) for path in folder.iterdir() if _STATE.fullmatch(path.name)]


def _number(path: Path) -> int:
    return int(path.name.rpartition("_")[2])


def _files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fsync_file(path: Path, ops: FileOps) -> None:
    descriptor = ops.open(path, os.O_RDONLY)
    try:
        ops.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _locked(folder: Path, kind: int) -> Generator[None]:
    """Hold a lock on a folder; BlockingIOError where another has one that doesn't go with it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
