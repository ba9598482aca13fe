"""The file of a checkpoint: torch's own archive, and behind it a footer of ours.

The footer is one line of JSON with the format, the owner and a CRC of these and of the archive, then the length of
that line and `MAGIC`. torch looks for an archive's end from behind and takes no notice of it.
"""

import json
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

import torch
from nrl_interfaces.data_plane import CheckpointDamagedError
from nrl_interfaces.fileops import FileOps
from nrl_interfaces.publish import StagedFile, stage

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["FORMAT", "Footer", "read", "read_footer", "write"]

FORMAT = 1
MAGIC = b"NRLPLANE"
_BLOCK = 1 << 20


class Footer(NamedTuple):
    """What stands behind the archive.

    Attributes:
        format: The version of the format.
        owner: Whose checkpoint it is.
        size: The bytes of the archive.
        crc: The CRC-32 of the archive and of the three fields above.
    """

    format: int
    owner: str | None
    size: int
    crc: int

    def with_crc_of(self, archive_crc: int) -> "Footer":
        """Give the footer with the CRC that it should have."""
        return self._replace(crc=zlib.crc32(json.dumps(self[:-1]).encode(), archive_crc))

    def to_bytes(self) -> bytes:
        """Give the line that stands in the file."""
        return json.dumps(self._asdict()).encode()


class _Summed:
    """A file for torch.save to write to: it keeps a CRC of what goes through it.

    torch.save would hide an error of `write` behind one of its own, so the error waits here and the rest is dropped.
    """

    def __init__(self, file: StagedFile) -> None:
        self._file = file
        self._error: OSError | None = None
        self.crc, self.size = 0, 0

    def write(self, data: "ReadableBuffer") -> int:
        self.crc = zlib.crc32(data, self.crc)
        size = memoryview(data).nbytes
        self.size += size
        if self._error is None:
            try:
                self._file.write(data)
            except OSError as error:
                self._error = error
        return size

    def flush(self) -> None:
        """Nothing waits here to be written; torch.save calls this."""

    def raise_error(self) -> None:
        """Raise the error of a write, if there was one."""
        if self._error is not None:
            raise self._error


def write(path: Path, content: Any, owner: str | None, ops: FileOps) -> None:
    """Publish ``content``, plain data, as the file at ``path``.

    Raises:
        OSError: The disk refused; the file is as it was.
    """
    with stage(path, ops) as file:
        summed = _Summed(file)
        torch.save(content, cast("Any", summed))
        summed.raise_error()
        footer = Footer(FORMAT, owner, summed.size, 0).with_crc_of(summed.crc).to_bytes()
        file.write(footer + len(footer).to_bytes(8, "little") + MAGIC)
        file.commit()
    ops.fsync_folder(path.parent)


def read(path: Path, safe_globals: Iterable[type]) -> tuple[Any, Footer]:
    """Read a file back, after every byte of it was checked.

    Raises:
        CheckpointDamagedError: It is a symbolic link, foreign, damaged, truncated, or of a newer format.
        OSError: There is no file, or it can't be read.
    """
    if path.is_symlink():
        raise CheckpointDamagedError(path, None, "it is a symbolic link")
    with path.open("rb") as file:
        footer = read_footer(file, path)
        if footer.with_crc_of(_crc(file, footer.size)) != footer:
            _name_damaged_record(file, path)
            raise CheckpointDamagedError(path, None, "bytes outside of its records were changed")
        file.seek(0)
        try:
            with torch.serialization.safe_globals(list(safe_globals)):
                return torch.load(file, map_location="cpu", weights_only=True), footer
        except Exception as error:
            first_line = str(error).partition("\n")[0]
            problem = f"torch refuses it: {type(error).__name__}: {first_line}"
            raise CheckpointDamagedError(path, "data.pkl", problem) from error


def read_footer(file: IO[bytes], path: Path) -> Footer:
    """Read what stands behind the archive.

    Raises:
        CheckpointDamagedError: There is no footer, or it is of a newer format.
    """
    end = file.seek(0, 2)
    file.seek(max(0, end - len(MAGIC) - 8))
    length, magic = int.from_bytes(file.read(8), "little"), file.read()
    size = end - len(MAGIC) - 8 - length
    if magic != MAGIC or size < 0:
        raise CheckpointDamagedError(path, None, "it ends unlike a data plane's checkpoint: foreign or truncated")
    file.seek(size)
    line = file.read(length)
    try:
        fields: dict[str, Any] = json.loads(line)
        if fields["format"] > FORMAT:
            problem = f"it is of format {fields['format']}, and this version reads up to {FORMAT}: update it"
            raise CheckpointDamagedError(path, "footer", problem)
        footer = Footer(**fields)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, CheckpointDamagedError):
            raise
        raise CheckpointDamagedError(path, "footer", f"it can't be read: {error!r}") from error
    if footer.size != size or footer.to_bytes() != line:
        raise CheckpointDamagedError(path, "footer", "it was changed, or is for another archive than the one before it")
    return footer


def _name_damaged_record(file: IO[bytes], path: Path) -> None:
    """Raise if a record has the change, which one pass over the whole file has found."""
    file.seek(0)
    try:
        with zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()
    except Exception as error:  # zipfile raises many kinds, of which some are no documented ones
        raise CheckpointDamagedError(path, None, f"its records can't be listed: {error!r}") from error
    if damaged is not None:
        raise CheckpointDamagedError(path, damaged, "its bytes were changed: the CRC differs")


def _crc(file: IO[bytes], size: int) -> int:
    file.seek(0)
    crc = 0
    while size > 0 and (block := file.read(min(_BLOCK, size))):
        crc, size = zlib.crc32(block, crc), size - len(block)
    return crc
