"""Torch files of plain data and tensors: checked when they are written, checked again before they are read."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import torch
from nrl_interfaces.fileops import WRITE_NEW, FileOps, OutputFile

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["Tensors", "TorchFileError", "pack", "read", "require_loadable", "unpack", "write"]

Tensors: TypeAlias = dict[str, tuple[torch.Tensor, ...]]
"""Tensors by the id of what they belong to."""
_BLOCK: Final = 1 << 20


class TorchFileError(ValueError):
    """Raised when a torch file can't be read.

    Attributes:
        path: The file.
        problem: What is wrong with it.
    """

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(path, problem)
        self.path, self.problem = path, problem

    def __str__(self) -> str:
        return f"{self.path} is damaged or foreign: {self.problem}"


def require_loadable(state: Any, what: str) -> None:
    """Check that a state comes back from a weights-only load, which runs no code of the file.

    Raises:
        TypeError: It doesn't; names the first value that is in the way.
    """
    if (problem := _problem_of(state)) is None:
        return
    path, value, problem = next(_unloadable(state, ""), ("<root>", state, problem))
    raise TypeError(
        f"{what} can't be saved: {path} is a {type(value).__module__}.{type(value).__qualname__}, which torch does not"
        f" load with weights_only=True ({problem}). Allowed: None, bool, int, float, str, bytes, list, tuple, dict,"
        " tensors"
    )


def write(path: Path, content: Any, ops: FileOps) -> None:
    """Write plain data and tensors as a new file; it is durable once its folder is published.

    Raises:
        OSError: The disk refused.
    """
    with OutputFile(path, WRITE_NEW, ops) as file:
        target = _Target(file)
        torch.save(content, cast("Any", target))
        target.finish()


def read(path: Path) -> Any:
    """Read a file after the CRC of each of its records was checked; nothing in it is run.

    Raises:
        TorchFileError: It is damaged, or holds what weights-only loading refuses.
        OSError: There is none, or it can't be read.
    """
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                damaged = archive.testzip()
        except Exception as error:  # zipfile raises many kinds, of which some are no documented ones
            raise TorchFileError(path, f"its records can't be listed: {error!r}") from error
        if damaged is not None:
            raise TorchFileError(path, f"the CRC of its record {damaged} differs")
        file.seek(0)
        try:
            return torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:
            first_line = str(error).partition("\n")[0]
            raise TorchFileError(path, f"torch refuses it: {type(error).__name__}: {first_line}") from error


# ---- Many small tensors as a few large ones: torch.save holds the interpreter for each record ----


def pack(tensors: Tensors) -> dict[str, Any]:
    """Join tensors to one run of bytes a dtype.

    >>> packed = pack({"p0": (torch.tensor([1, 2]), torch.tensor(0.5)), "p1": ()})
    >>> unpack(packed)
    {'p0': (tensor([1, 2]), tensor(0.5000)), 'p1': ()}
    """
    runs: dict[str, list[torch.Tensor]] = {}
    shapes: dict[str, list[int]] = {}
    index: list[tuple[str, list[str]]] = []
    for key, values in tensors.items():
        index.append((key, [_dtype_name(value) for value in values]))
        for value in values:
            name = _dtype_name(value)
            runs.setdefault(name, []).append(value.detach().contiguous().reshape(-1).view(torch.uint8))
            shapes.setdefault(name, []).extend((value.dim(), *value.shape))
    return {
        "index": index,
        "shapes": {name: torch.tensor(sizes, dtype=torch.int64) for name, sizes in shapes.items()},
        "bytes": {name: torch.cat(parts) for name, parts in runs.items()},
    }


def unpack(packed: Mapping[str, Any]) -> Tensors:
    """Give back what `pack` joined; the tensors are parts of the large ones.

    Raises:
        KeyError, TypeError, ValueError, AttributeError, StopIteration, RuntimeError: It is no such thing.
    """
    streams = {name: _split(name, packed["bytes"][name], packed["shapes"][name].tolist()) for name in packed["bytes"]}
    tensors = {str(key): tuple(next(streams[name]) for name in names) for key, names in packed["index"]}
    if any(True for stream in streams.values() for _ in stream):
        raise ValueError("it holds more tensors than its index names")
    return tensors


def _split(name: str, run: torch.Tensor, sizes: list[int]) -> Iterator[torch.Tensor]:
    dtype: torch.dtype = getattr(torch, name)
    at = start = 0
    while at < len(sizes):
        shape = sizes[at + 1 : at + 1 + sizes[at]]
        size = dtype.itemsize * torch.Size(shape).numel()
        yield run[start : start + size].view(dtype).reshape(shape)
        at, start = at + 1 + len(shape), start + size


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _problem_of(state: Any) -> str | None:
    file = io.BytesIO()
    try:
        torch.save(state, file)
        file.seek(0)
        torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001 - pickling may raise whatever an object's own code raises
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return None


def _unloadable(value: Any, path: str) -> Iterator[tuple[str, Any, str]]:
    """Find the innermost values that don't load, in order."""
    children: list[tuple[str, Any]] = []
    if type(value) is dict:
        children = [(f"{path}[{key!r}]", item) for key, item in cast("dict[Any, Any]", value).items()]
    elif type(value) in (list, tuple):
        children = [(f"{path}[{at}]", item) for at, item in enumerate(cast("list[Any]", value))]
    for where, child in children:
        if (problem := _problem_of(child)) is not None:
            yield from _unloadable(child, where)
            yield where, child, problem


class _Target:
    """What torch.save writes to, many small pieces at once.

    torch.save would hide an error of `write` behind one of its own: so the error waits, and the rest goes by.
    """

    def __init__(self, file: OutputFile) -> None:
        self._file = file
        self._pieces = bytearray()
        self._error: OSError | None = None

    def write(self, data: ReadableBuffer) -> int:
        size = memoryview(data).nbytes
        if size < _BLOCK:
            self._pieces += data
        if len(self._pieces) >= _BLOCK or size >= _BLOCK:
            self._pass_on(self._pieces)
            self._pieces = bytearray()
        if size >= _BLOCK:
            self._pass_on(data)
        return size

    def flush(self) -> None:
        """Nothing is gained by it before the end; torch.save calls this."""

    def finish(self) -> None:
        """Write what waits, or raise the error of a write."""
        self._pass_on(self._pieces)
        if self._error is not None:
            raise self._error

    def _pass_on(self, data: ReadableBuffer) -> None:
        if self._error is None:
            try:
                self._file.write(data)
            except OSError as error:
                self._error = error
