"""The dataset that a config names: opened, and described by its content."""
# Energon is typed in parts.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from megatron.energon import WorkerConfig, load_dataset
from megatron.energon.epathlib import EPath
from megatron.energon.eyaml import load_yaml
from megatron.energon.flavors.webdataset.metadata import EnergonDatasetType, get_dataset_info, get_dataset_type
from nrl_interfaces.identity import fingerprint

from nrl_energon_loader.config import EnergonSourceConfig

__all__ = ["META", "PREPARED", "SplitRole", "content", "load_split", "source_path", "split_of"]

SplitRole: TypeAlias = Literal["train", "validation"]

PREPARED: Final = "nrl-prepared.json"
"""What `prepare` writes beside Energon's files: a digest of every shard, which a size does not give."""

META: Final = ".nv-meta"
"""The folder that makes a dataset of a folder of tar files."""
_DEFAULT_SPLITS: Final[dict[str, str]] = {"train": "train", "validation": "val"}


def split_of(source: EnergonSourceConfig, split_role: SplitRole) -> str:
    """Give the name of the split that a loader reads."""
    return source.split or _DEFAULT_SPLITS[split_role]


def load_split(source: EnergonSourceConfig, split_role: SplitRole, worker_config: WorkerConfig, **settings: Any) -> Any:
    """Open the datasets of a split.

    Args:
        source: Where they are.
        split_role: Training shuffles.
        worker_config: Which share of them is read.
        **settings: Energon's, for each dataset.

    Returns:
        Energon's list of datasets, with the way to blend them.

    Raises:
        ValueError: If nothing prepared is there, or no such split.
    """
    path = EPath(source.path)
    if get_dataset_type(path) not in (
        EnergonDatasetType.WEBDATASET,
        EnergonDatasetType.METADATASET,
        EnergonDatasetType.JSONL,
    ):
        raise ValueError(
            f"source.path {source.path!r} is not a prepared dataset; allowed: a folder with a {META} folder "
            f"(nrl-energon-loader prepare makes one of conversations, energon prepare of tar files), "
            f"a metadataset's .yaml file, or an indexed .jsonl file"
        )
    split = split_of(source, split_role)
    with _as_value_error(f"split {split!r} of {source.path!r} can't be read", splits=_splits(path)):
        return load_dataset(path).get_datasets(
            training=split_role == "train", split_part=split, worker_config=worker_config, **settings
        )


def content(source: EnergonSourceConfig, split_role: SplitRole) -> str:
    """Give a digest, 64 hex digits, of what the datasets hold, wherever they lie.

    Of each dataset the files in ``.nv-meta`` that say what it is, and its shards' names, sizes and counts; of a
    metadataset what it says about each dataset too.

    Raises:
        ValueError: As `load_split`, or if a shard is missing.
    """
    loaded = load_split(source, split_role, WorkerConfig(rank=0, world_size=1, num_workers=0))
    described = [
        {
            "content": [_folder_content(path) for path in each.dataset.paths],
            "weight": None if each.weight is None else float(each.weight),
            "repetitions": None if each.repetitions is None else float(each.repetitions),
            "subflavors": {str(key): str(value) for key, value in (each.dataset.subflavors or {}).items()},
            "subset": str(each.dataset.subset.config()) if getattr(each.dataset, "subset", None) else None,
        }
        for each in loaded.datasets
    ]
    return fingerprint({"datasets": described, "blend": str(loaded.blend_mode)})


def _folder_content(path: EPath) -> str:
    if path.is_file():  # JSONL: its index says where each line begins
        index = EPath(f"{path}.idx")
        return fingerprint({"size": path.size(), "index": index.read_bytes().hex() if index.is_file() else None})
    meta = path / META
    files = {name: meta / name for name in ("dataset.yaml", "split.yaml", "split.json", PREPARED)}
    texts = {name: file.read_bytes().decode() for name, file in files.items() if file.is_file()}
    counts: dict[str, int] = get_dataset_info(path)["shard_counts"]
    with _as_value_error(f"a shard of {path} is missing"):
        shards = [[name, (path / name).size(), count] for name, count in counts.items()]
    return fingerprint({"files": texts, "shards": shards})


def _splits(path: EPath) -> str:
    """The splits of a folder, for a message; empty where that is not so easily said."""
    with contextlib.suppress(Exception):
        parts = load_yaml((path / META / "split.yaml").read_bytes())["split_parts"]
        return ", ".join(name for name, shards in parts.items() if shards)
    return ""


@contextlib.contextmanager
def _as_value_error(what: str, splits: str = "") -> Generator[None]:
    try:
        yield
    except (AssertionError, KeyError, OSError, ValueError) as error:
        allowed = f"; splits with shards in it: {splits}" if splits else ""
        raise ValueError(f"{what}: {error}{allowed}") from error


def source_path(source: EnergonSourceConfig) -> str:
    """Give the absolute path, or the address of a store."""
    return source.path if "://" in source.path else str(Path(source.path).absolute())
