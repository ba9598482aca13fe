"""A loader from configs: everything that can be wrong is refused here, before any worker starts."""
# Energon is typed in parts.
# pyright: reportPrivateUsage=false, reportUnusedFunction=false, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from typing import Any, cast

from megatron.energon import SavableDataLoader, SavableDataset, WorkerConfig, get_savable_loader
from megatron.energon.wrappers import LimitDataset, RepeatDataset
from megatron.energon.wrappers.base import BaseWrapperDataset

from nrl_energon_loader.config import DataConfig, EnergonLoaderConfig, EnergonSourceConfig, read_config
from nrl_energon_loader.cookers import make_cookers
from nrl_energon_loader.encoders.base import BaseSFTTaskEncoder
from nrl_energon_loader.identity import RECORDED
from nrl_energon_loader.loader import EnergonSFTDataLoader
from nrl_energon_loader.passes import PassDataset, exact_pass, without_progress_bar, wrapped
from nrl_energon_loader.registry import PROCESSOR_ADAPTERS, TASK_ENCODERS
from nrl_energon_loader.sample_errors import compact_sample_error_handler
from nrl_energon_loader.source import SplitRole, content, load_split, source_path
from nrl_energon_loader.stream import EnergonStream
from nrl_energon_loader.topology import _v2_topology

__all__ = ["build_energon_sft_loader"]


def build_energon_sft_loader(
    *,
    data_config: Mapping[str, Any],
    source: Mapping[str, Any] | EnergonSourceConfig,
    processor: Any,
    batch_size: int,
    max_sequence_length: int,
    split_role: SplitRole,
    logical_rank: int,
    logical_world_size: int,
    placement_fingerprint: str,
    packing_algorithm: str | None,
    max_sequences_per_bin: int | None,
    sequence_length_pad_multiple: int,
    only_unmask_final: bool,
) -> EnergonSFTDataLoader:
    """Build one loader for an explicit logical data shard and split. No worker starts before it is iterated.

    Args:
        data_config: `energon` (an `EnergonLoaderConfig`), `shuffle`, `add_bos`, `add_eos`, `add_generation_prompt`.
        source: The dataset, as an `EnergonSourceConfig`.
        processor: A Hugging Face processor or tokenizer; None for a task encoder that needs none.
        batch_size: Rows of a batch: conversations, or packs. A pass's last batch may be shorter.
        max_sequence_length: The most tokens of a conversation, and the capacity of a pack.
        split_role: Training shuffles, if `shuffle` says so, and goes on from epoch to epoch; validation has one order.
        logical_rank: The shard, from 0.
        logical_world_size: How many shards there are.
        placement_fingerprint: The placement hash, of `DataLoaderPlacementPlan` for instance.
        packing_algorithm: A name of `nrl_energon_loader.packing.algorithms`; None: no packing.
        max_sequences_per_bin: The most conversations in a pack; None: no bound but the capacity.
        sequence_length_pad_multiple: In a pack each conversation is padded to a multiple of this.
        only_unmask_final: Train on the last assistant message of a conversation only.

    Raises:
        ValueError: For every setting that is not allowed or does not fit the dataset.
    """
    config = read_config(DataConfig, data_config, name="data_config")
    source = _source_config(source, name="source")
    _check_numbers(batch_size=batch_size, logical_world_size=logical_world_size)
    _check_role(source, split_role)
    if not 0 <= logical_rank < logical_world_size:
        raise ValueError(
            f"logical_rank is {logical_rank} of {logical_world_size}; allowed: 0 to {logical_world_size - 1}"
        )
    if packing_algorithm is not None and logical_world_size > 1 and source.virtual_epoch_length is None:
        raise ValueError(
            f"source.virtual_epoch_length is None with packing and logical_world_size {logical_world_size}: ranks "
            f"would give different numbers of batches; allowed: the number of batches that each rank's epoch has"
        )
    adapter, fingerprint = _adapter(config, processor)
    encoder = _task_encoder(
        loader_config=config.energon,
        adapter=adapter,
        include_source_ids=True,
        packing_algorithm=packing_algorithm,
        max_sequences_per_bin=max_sequences_per_bin,
        max_sequence_length=max_sequence_length,
        sequence_length_pad_multiple=sequence_length_pad_multiple,
        tokenizer=None if adapter is None else adapter.tokenizer,
        only_unmask_final=only_unmask_final,
    )
    identity = _loader_identity(
        source=source,
        loader_config=config.energon,
        adapter_fingerprint=fingerprint,
        split_role=split_role,
        batch_size=batch_size,
        shuffle=config.shuffle,
        topology=_v2_topology(
            loader_config=config.energon,
            placement_fingerprint=placement_fingerprint,
            logical_rank=logical_rank,
            logical_world_size=logical_world_size,
        ),
        packing_algorithm=packing_algorithm,
        max_sequences_per_bin=max_sequences_per_bin,
        sequence_length_pad_multiple=sequence_length_pad_multiple,
        only_unmask_final=only_unmask_final,
    )
    make = partial(
        _energon_loader,
        source=source,
        config=config,
        split_role=split_role,
        encoder=encoder,
        batch_size=batch_size,
        packing=packing_algorithm is not None,
        logical_rank=logical_rank,
        logical_world_size=logical_world_size,
    )
    return EnergonSFTDataLoader(EnergonStream(make), identity={**identity, "encoder": encoder.identity()})


def _energon_loader(
    first_epoch: int,
    *,
    source: EnergonSourceConfig,
    config: DataConfig,
    split_role: SplitRole,
    encoder: BaseSFTTaskEncoder,
    batch_size: int,
    packing: bool,
    logical_rank: int,
    logical_world_size: int,
) -> SavableDataLoader[Any]:
    """Make Energon's loader for a run that begins at an epoch; training in an order of that epoch's own."""
    workers = _worker_config(config.energon, logical_rank=logical_rank, logical_world_size=logical_world_size)
    workers.seed_offset = _epoch_seed(workers.seed_offset, first_epoch)
    buffer_size = config.energon.packing_buffer_size if packing else None
    if split_role == "train":
        dataset = _train_dataset(source, config, encoder, workers, batch_size, buffer_size)
    else:
        dataset = _validation_dataset(source, encoder, workers, batch_size, buffer_size)
    _check_shares(dataset, workers, source)
    return get_savable_loader(
        PassDataset(without_progress_bar(dataset), worker_config=workers),
        checkpoint_every_sec=config.energon.checkpoint_every_sec,
        prefetch_factor=config.energon.prefetch_factor,
        # Without workers Energon's watchdog would leave a thread for every pass.
        watchdog_timeout_seconds=config.energon.watchdog_timeout_seconds if workers.num_workers else None,
    )


def _train_dataset(
    source: EnergonSourceConfig,
    config: DataConfig,
    encoder: BaseSFTTaskEncoder,
    workers: WorkerConfig,
    batch_size: int,
    packing_buffer_size: int | None,
) -> SavableDataset[Any]:
    energon, shuffle = config.energon, bool(config.shuffle)
    settings: dict[str, Any] = {"decoder": encoder.decoder}
    if shuffle:
        settings["max_samples_per_sequence"] = energon.max_samples_per_sequence
    else:
        settings |= {"shuffle_over_epochs_multiplier": None, "parallel_shard_iters": 1}
    loaded = load_split(source, "train", workers, **settings)
    try:
        dataset = encoder.build_train_datasets(
            datasets=loaded.datasets,
            worker_config=workers,
            batch_size=batch_size,
            packing_buffer_size=packing_buffer_size,
            virtual_epoch_length=source.virtual_epoch_length or 0,
            shuffle_buffer_size=energon.shuffle_buffer_size if shuffle else None,
            blend_mode=loaded.blend_mode,
            repeat=source.virtual_epoch_length is not None,
        )
    except AssertionError as error:
        raise ValueError(
            f"source.virtual_epoch_length is {source.virtual_epoch_length}: {source.path!r} can't be read like that "
            f"({error}); allowed: a number of batches for a blend by weights, which has no end"
        ) from error
    return dataset if source.virtual_epoch_length is not None else exact_pass(dataset)


def _validation_dataset(
    source: EnergonSourceConfig,
    encoder: BaseSFTTaskEncoder,
    workers: WorkerConfig,
    batch_size: int,
    packing_buffer_size: int | None,
) -> SavableDataset[Any]:
    loaded = load_split(source, "validation", workers, decoder=encoder.decoder)
    dataset = exact_pass(
        encoder.build_val_datasets(
            datasets=loaded.datasets,
            worker_config=workers,
            batch_size=batch_size,
            packing_buffer_size=packing_buffer_size,
        )
    )
    if source.virtual_epoch_length is not None:
        dataset = RepeatDataset(dataset, worker_config=workers)
    length = source.virtual_epoch_length or source.limit
    return dataset if length is None else LimitDataset(dataset, length, reset_after_epoch=True, worker_config=workers)


def _check_shares(dataset: SavableDataset[Any], workers: WorkerConfig, source: EnergonSourceConfig) -> None:
    """Refuse a rank without samples, and a worker without samples of what it would have to repeat for ever."""
    numbers = range(max(workers.num_workers, 1))
    leaves = list(_leaves(dataset))
    where = f"rank {workers.rank} of {workers.world_size} with {len(numbers)} worker(s)"
    if not any(leaf.len_worker(number) for leaf in leaves for number in numbers):
        total = sum(sum(len(reader) for reader in leaf.join_readers[:1]) for leaf in leaves)
        raise ValueError(
            f"{where} gets no sample of {source.path!r}, which has {total}; "
            f"allowed: a logical_world_size of at most {total}"
        )
    for repeated in wrapped(dataset, RepeatDataset):
        empty = [number for number in numbers if repeated.repeats is None and not repeated.len_worker(number)]
        if empty:
            raise ValueError(
                f"worker {empty[0]} of {where} gets no sample to repeat of a dataset of {source.path!r}; "
                f"allowed: as many samples as logical_world_size x num_workers, "
                f"{workers.world_size * len(numbers)}, in each dataset"
            )


def _leaves(dataset: Any) -> list[Any]:
    if not isinstance(dataset, BaseWrapperDataset):
        return [dataset]
    return [leaf for within in cast("tuple[Any, ...]", dataset.datasets) for leaf in _leaves(within)]


def _source_config(value: Any, *, name: str) -> EnergonSourceConfig:
    """Check a source's config; `name` is what messages call it."""
    return read_config(EnergonSourceConfig, value, name=name)


def _loader_config(value: Any) -> EnergonLoaderConfig:
    """Check a loader's config."""
    return read_config(EnergonLoaderConfig, value, name="energon")


def _loader_identity(
    *,
    source: EnergonSourceConfig,
    loader_config: EnergonLoaderConfig,
    adapter_fingerprint: str,
    split_role: SplitRole,
    batch_size: int,
    shuffle: bool | None,
    topology: dict[str, Any],
    packing_algorithm: str | None,
    max_sequences_per_bin: int | None,
    sequence_length_pad_multiple: int,
    only_unmask_final: bool,
) -> dict[str, Any]:
    """Describe what a state must agree with: whatever changes the stream of batches, and nothing else."""
    _, cookers = make_cookers([(each.cooker, each.has_subflavors) for each in loader_config.cookers])
    return {
        "source": {
            "content": content(source, split_role),
            "split": source.split,
            "virtual_epoch_length": source.virtual_epoch_length,
            "limit": source.limit,
        },
        "split_role": split_role,
        "batch_size": batch_size,
        "shuffle": shuffle,
        "loader": {
            "num_workers": loader_config.num_workers,
            "shuffle_buffer_size": loader_config.shuffle_buffer_size,
            "max_samples_per_sequence": loader_config.max_samples_per_sequence,
            "packing_buffer_size": loader_config.packing_buffer_size if packing_algorithm is not None else None,
            "batch_grouping": loader_config.batch_grouping,
            "seed_offset": loader_config.seed_offset,
        },
        "processor_adapter": _adapter_identity(loader_config) if adapter_fingerprint else None,
        "adapter": adapter_fingerprint,
        "task_encoder": TASK_ENCODERS.resolve(loader_config.task_encoder).identity,
        "cookers": cookers,
        "packing_algorithm": packing_algorithm,
        "max_sequences_per_bin": max_sequences_per_bin,
        "sequence_length_pad_multiple": sequence_length_pad_multiple,
        "only_unmask_final": only_unmask_final,
        "topology": topology,
        # Energon promises that states load within a major version.
        "energon_major_version": version("megatron-energon").partition(".")[0],
        RECORDED: {"source": {"path": source_path(source)}},
    }


def _worker_config(config: EnergonLoaderConfig, *, logical_rank: int, logical_world_size: int) -> WorkerConfig:
    """Give Energon's description of this rank's share."""
    return WorkerConfig(
        rank=logical_rank,
        world_size=logical_world_size,
        num_workers=config.num_workers,
        seed_offset=config.seed_offset,
        global_error_handler=compact_sample_error_handler,
    )


def _task_encoder(
    *,
    loader_config: EnergonLoaderConfig,
    adapter: Any,
    include_source_ids: bool,
    packing_algorithm: str | None,
    max_sequences_per_bin: int | None,
    max_sequence_length: int,
    sequence_length_pad_multiple: int,
    tokenizer: Any,
    only_unmask_final: bool,
) -> BaseSFTTaskEncoder:
    """Make the task encoder that the config names."""
    cookers, _ = make_cookers([(each.cooker, each.has_subflavors) for each in loader_config.cookers])
    return TASK_ENCODERS.resolve(loader_config.task_encoder).obj(
        cookers=cookers,
        max_sequence_length=max_sequence_length,
        adapter=adapter,
        tokenizer=tokenizer,
        include_source_ids=include_source_ids,
        packing_algorithm=packing_algorithm,
        max_sequences_per_bin=max_sequences_per_bin,
        sequence_length_pad_multiple=sequence_length_pad_multiple,
        only_unmask_final=only_unmask_final,
    )


def _adapter(config: DataConfig, processor: Any) -> tuple[Any, str]:
    """Make the processor adapter, and give its fingerprint; None and an empty one without a processor."""
    if processor is None:
        return None, ""
    found = PROCESSOR_ADAPTERS.resolve(config.energon.processor_adapter)
    adapter = found.obj(
        processor,
        add_bos=config.add_bos,
        add_eos=config.add_eos,
        add_generation_prompt=config.add_generation_prompt,
    )
    return adapter, adapter.fingerprint


def _adapter_identity(config: EnergonLoaderConfig) -> dict[str, Any]:
    return PROCESSOR_ADAPTERS.resolve(config.processor_adapter).identity


def _epoch_seed(seed_offset: int, first_epoch: int) -> int:
    if first_epoch == 0:
        return seed_offset
    return int.from_bytes(hashlib.sha256(f"{seed_offset},{first_epoch}".encode()).digest()[:8], "big")


def _check_numbers(**numbers: Any) -> None:
    for name, number in numbers.items():
        if type(number) is not int or number < 1:
            raise ValueError(f"{name} is {number!r}; allowed: whole numbers from 1")


def _check_role(source: EnergonSourceConfig, split_role: Any) -> None:
    if split_role not in ("train", "validation"):
        raise ValueError(f"split_role is {split_role!r}; allowed: 'train', 'validation'")
    if source.limit is not None and split_role == "train":
        raise ValueError(f"source.limit is {source.limit} in training; allowed: virtual_epoch_length there")
    if source.limit is not None and source.virtual_epoch_length is not None:
        raise ValueError(
            f"source.limit is {source.limit} and source.virtual_epoch_length is {source.virtual_epoch_length}; "
            f"allowed: one of them"
        )
