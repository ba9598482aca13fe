"""What a user writes about a loader: the dataset, and how it is read. A key that is not known is an error."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError, field_validator

__all__ = ["CookerConfig", "EnergonLoaderConfig", "EnergonSourceConfig", "read_config"]

_Model = TypeVar("_Model", bound=BaseModel)


class _Config(BaseModel):
    # strict: "2" for 2 or 1 for True is a mistake in a config, and would change the identity unseen.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class EnergonSourceConfig(_Config):
    """One dataset, and what is taken from it.

    Attributes:
        path: The folder of a prepared dataset, a metadataset's YAML file, or a prepared JSONL file.
        split: The name of a split; None: ``train`` for training, ``val`` for validation.
        virtual_epoch_length: Batches that an epoch has on each rank. A training stream goes on where the epoch before
            ended; a validation begins at its split's start every time. None: an epoch is one pass over this rank's
            share.
        limit: Validation only: at most so many batches a pass.
    """

    path: str
    split: str | None = None
    virtual_epoch_length: PositiveInt | None = None
    limit: PositiveInt | None = None

    @field_validator("path", mode="before")
    @classmethod
    def _path_as_text(cls, value: Any) -> Any:
        return str(value) if isinstance(value, Path) else value


class CookerConfig(_Config):
    """A cooker, and the datasets that are its own.

    Attributes:
        cooker: A key of the registry, or ``/absolute/path/file.py:name``.
        has_subflavors: Take datasets that have all of these; None: take every one that is left.
    """

    cooker: str
    has_subflavors: dict[str, Any] | None = None


class EnergonLoaderConfig(_Config):
    """How a dataset is read.

    Attributes:
        num_workers: Worker processes of each rank; 0: everything happens in the calling process.
        shuffle_buffer_size: Samples that each worker shuffles among.
        max_samples_per_sequence: Training with shuffle: samples read in a row before another place of a shard is taken.
        packing_buffer_size: With packing, samples that each worker packs at a time.
        batch_grouping: ``auto``: grouped if the task encoder has a criterion of its own.
        processor_adapter: A key of the registry, or ``/absolute/path/file.py:Name``.
        topology_mapper: ``default``, or ``/absolute/path/file.py:name`` (see `nrl_energon_loader.topology`).
        task_encoder: A key of the registry, or ``/absolute/path/file.py:Name``.
        cookers: In the order in which they are asked; a name alone takes every dataset.
        seed_offset: Another order for the same data.
        prefetch_factor: Batches that each worker makes ahead.
        checkpoint_every_sec: Seconds between two positions that a worker notes: after a resume, it makes again the
            batches since the last one.
        watchdog_timeout_seconds: A worker that makes one batch for longer gives a warning and its stacks; None: never.
    """

    num_workers: int = Field(default=2, ge=0)
    shuffle_buffer_size: PositiveInt = 1000
    max_samples_per_sequence: PositiveInt = 100
    packing_buffer_size: PositiveInt = 256
    batch_grouping: Literal["auto"] = "auto"
    processor_adapter: str = "hf_multimodal"
    topology_mapper: str = "default"
    task_encoder: str = "generic_sft"
    cookers: tuple[CookerConfig, ...] = (CookerConfig(cooker="generic_conversation"),)
    seed_offset: int = 0
    prefetch_factor: PositiveInt = 2
    checkpoint_every_sec: float = Field(default=60.0, ge=0)
    watchdog_timeout_seconds: PositiveFloat | None = 60.0

    @field_validator("cookers", mode="before")
    @classmethod
    def _cookers_by_name(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return value
        entries = cast("list[Any] | tuple[Any, ...]", value)
        return tuple({"cooker": entry} if isinstance(entry, str) else entry for entry in entries)


class DataConfig(_Config):
    """What a trainer's data section says about a loader.

    Attributes:
        energon: How the dataset is read.
        shuffle: Training: shuffle shards and samples.
        add_bos: Begin each conversation with the tokenizer's token for it.
        add_eos: End each conversation with the tokenizer's token for it.
        add_generation_prompt: What the template writes before an answer belongs to the message before it, and is not
            trained on.
    """

    energon: EnergonLoaderConfig = EnergonLoaderConfig()
    shuffle: bool | None = None
    add_bos: bool = True
    add_eos: bool = True
    add_generation_prompt: bool = False


def read_config(model: type[_Model], value: Any, *, name: str) -> _Model:
    """Check a mapping against a model.

    Args:
        model: The model.
        value: A mapping, or the model already.
        name: What the value is called, for the message.

    Raises:
        ValueError: For every key and value that is not allowed, one a line; of an unknown key the nearest known one is
            named.
    """
    if isinstance(value, model):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} is {value!r}; allowed: a mapping with the keys {', '.join(model.model_fields)}")
    try:
        return model.model_validate(dict(cast("Mapping[str, Any]", value)))
    except ValidationError as error:
        lines = [_problem(model, detail["loc"], detail["msg"], detail["input"], name) for detail in error.errors()]
        raise ValueError("\n".join(lines)) from None


def _problem(model: type[BaseModel], where: tuple[int | str, ...], message: str, value: Any, name: str) -> str:
    path = name + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in where)
    if message != "Extra inputs are not permitted":
        return f"{path} is {value!r}: {message}"
    known = list(_model_at(model, where[:-1]).model_fields)
    near = difflib.get_close_matches(str(where[-1]), known, n=1, cutoff=0)
    return f"{path} is not known; the nearest key is {near[0]!r} (all: {', '.join(known)})"


def _model_at(model: type[BaseModel], where: tuple[int | str, ...]) -> type[BaseModel]:
    """The model whose fields a path of an error leads into."""
    for step in where:
        if step == "energon":
            model = EnergonLoaderConfig
        elif step == "cookers":
            model = CookerConfig
    return model
