"""What stands in a checkpoint, and how partitions come out of it again."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from nrl_interfaces.data_plane import CheckpointDamagedError
from nrl_interfaces.fileops import FileOps
from nrl_interfaces.publish import make_folder

from nrl_dataplane_local import archive
from nrl_dataplane_local.columns import Bytes, NewRows, Slots
from nrl_dataplane_local.config import LocalDataPlaneConfig
from nrl_dataplane_local.partition import Partition
from nrl_dataplane_local.plain_data import Encoder, decode, tagged_dict
from nrl_dataplane_local.values import batch_size_of, empty_like, from_numpy

__all__ = ["CHECKPOINT_FILENAME", "OtherOwnerError", "load", "save"]

CHECKPOINT_FILENAME = "local_data_plane_state.pkl"

logger = logging.getLogger(__name__)


class OtherOwnerError(ValueError):
    """Raised when a checkpoint belongs to another owner than the config names.

    Attributes:
        path: The file.
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


def save(
    folder: Path,
    partitions: Sequence[Partition],
    *,
    next_generation: int,
    metadata: dict[str, Any],
    cfg: LocalDataPlaneConfig,
    ops: FileOps,
) -> None:
    """Write partitions into a folder; see `DataPlaneClient.save_checkpoint` for what holds at every moment."""
    if folder.is_symlink():
        raise ValueError(f"{folder} is a symbolic link; allowed: a folder, so name {folder.resolve()}")
    path = folder / CHECKPOINT_FILENAME
    _check_owner(path, cfg.owner)
    encoder = Encoder(cfg.safe_globals)
    content = {
        "next_generation": next_generation,
        "metadata": encoder.encode(metadata, lambda: "metadata"),
        "partitions": [_encode(partition, encoder) for partition in partitions],
    }
    make_folder(folder, ops)
    archive.write(path, content, cfg.owner, ops)


def load(folder: Path, cfg: LocalDataPlaneConfig, held: Bytes) -> tuple[list[Partition], int, dict[str, Any]]:
    """Read the partitions, the next generation and the metadata that `save` wrote.

    Raises:
        CheckpointDamagedError, OtherOwnerError, OSError: As `DataPlaneClient.load_checkpoint`.
    """
    path = folder / CHECKPOINT_FILENAME
    content, footer = archive.read(path, cfg.safe_globals)
    if footer.owner != cfg.owner:
        raise OtherOwnerError(path, footer.owner, cfg.owner)
    try:
        partitions = [_decode(saved, held) for saved in content["partitions"]]
        return partitions, int(content["next_generation"]), decode(content["metadata"])
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        problem = f"what it says does not fit together: {type(error).__name__}: {error}"
        raise CheckpointDamagedError(path, "data.pkl", problem) from error


def _check_owner(path: Path, owner: str | None) -> None:
    """Refuse to write over the checkpoint of another owner."""
    try:
        with path.open("rb") as file:
            saved = archive.read_footer(file, path).owner
    except FileNotFoundError:
        return
    except CheckpointDamagedError as error:
        logger.warning("saving over a file that could not be loaded: %s", error)
        return
    if saved != owner:
        raise OtherOwnerError(path, saved, owner)


# ---- One partition ----


def _encode(partition: Partition, encoder: Encoder) -> dict[str, Any]:
    ids, slots = partition.sample_ids, partition.slots_of(partition.slots)
    return {
        "partition_id": partition.partition_id,
        "fields": list(partition.fields),
        "num_samples": partition.num_samples,
        "consumer_tasks": list(partition.consumer_tasks),
        "grpo_group_size": partition.grpo_group_size,
        "enums": {name: list(vocabulary) for name, vocabulary in partition.enums.items()},
        "generation": partition.generation,
        "is_stream": partition.is_stream,
        "started": partition.started,
        "sample_ids": ids,
        "slots": from_numpy(slots),
        "tags": [
            _encode_tag(tag, at, partition, encoder) for at, tag in zip(ids, partition.raw_tags(slots), strict=True)
        ],
        "claimed": {task: from_numpy(array.view[slots]) for task, array in partition.claimed.items()},
        "columns": {name: _encode_column(name, partition, slots, encoder) for name in partition.columns},
    }


def _encode_tag(tag: dict[str, Any] | None, sample_id: str, partition: Partition, encoder: Encoder) -> Any:
    place = f"the tag of sample id {sample_id!r} in partition {partition.partition_id!r}"
    return None if tag is None else encoder.encode(tag, lambda: place)


def _encode_column(name: str, partition: Partition, slots: Slots, encoder: Encoder) -> dict[str, Any]:
    group = partition.columns[name]
    places = group.places_of(slots)
    rows = np.flatnonzero(places >= 0)
    value = group.find(places[rows]).read(name, copy=False)
    ids = partition.ids_at(slots[rows])

    def place(row: int | None) -> Callable[[], str]:
        return lambda: (
            f"column {name!r}"
            + (f" of sample id {ids[row]!r}" if row is not None else f" of {len(ids)} sample ids")
            + f" in partition {partition.partition_id!r}"
        )

    return {"rows": from_numpy(rows), "value": _encode_rows(value, place, encoder)}


def _encode_rows(value: Any, place: Callable[[int | None], Callable[[], str]], encoder: Encoder) -> Any:
    """Encode a column, item by item where it has items, so that an error can name the row."""
    if isinstance(value, dict):
        columns = cast("dict[str, Any]", value)
        return tagged_dict(columns, [_encode_rows(column, place, encoder) for column in columns.values()])
    if type(value) in (list, tuple):
        return type(value)([encoder.encode(item, place(row)) for row, item in enumerate(value)])
    return encoder.encode(value, place(None))


def _decode(saved: dict[str, Any], held: Bytes) -> Partition:
    declared = ("partition_id", "num_samples", "grpo_group_size", "generation", "is_stream", "started")
    partition = Partition(
        **{name: saved[name] for name in declared},
        fields=tuple(saved["fields"]),
        consumer_tasks=tuple(saved["consumer_tasks"]),
        enums={name: tuple(vocabulary) for name, vocabulary in saved["enums"].items()},
        held=held,
    )
    slots: Slots = saved["slots"].numpy().astype(np.int64)
    partition.place(saved["sample_ids"], slots, [None if tag is None else decode(tag) for tag in saved["tags"]])
    for task, claimed in saved["claimed"].items():
        partition.claim(slots[claimed.numpy()], task)
    by_rows: dict[bytes, dict[str, NewRows]] = {}
    for name, column in saved["columns"].items():
        value, rows = decode(column["value"]), column["rows"].numpy()
        if name not in partition.fields or batch_size_of(value) != len(rows):
            raise ValueError(f"column {name!r} has other rows than it says, or is not declared")
        by_rows.setdefault(rows.tobytes(), {})[name] = NewRows.of(value, empty_like(value))
    for rows, columns in by_rows.items():
        partition.write(slots[np.frombuffer(rows, dtype=np.int64)], columns)
    return partition
