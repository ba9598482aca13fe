"""The files that a snapshot has beside the data plane's: the index, the ledger, the reserve, the prompt source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
from nrl_interfaces.fileops import WRITE_NEW, FileOps, OutputFile
from nrl_interfaces.rollout import EnvironmentEpisode

from nrl_rollout_ckpt.disk import torch_files
from nrl_rollout_ckpt.disk.digests import digest_of_bytes
from nrl_rollout_ckpt.disk.json_file import FORMAT, JsonFile, SidecarError
from nrl_rollout_ckpt.disk.layout import (
    ENVIRONMENT_EPISODES,
    PROMPT_SOURCE,
    PROMPTS,
    RECOVERY,
    REPLAY_INDEX,
    RESERVE,
    RESULTS,
)
from nrl_rollout_ckpt.disk.manifest import NewerFormatError, RolloutSnapshotManifest
from nrl_rollout_ckpt.disk.torch_files import Tensors
from nrl_rollout_ckpt.disk.upstream import refuse_upstream_files
from nrl_rollout_ckpt.state.record_codec import (
    decode_group,
    decode_prompt,
    decode_replay_group,
    encode_group,
    encode_prompt,
    encode_replay_group,
)
from nrl_rollout_ckpt.state.records import PromptGroupRecoveryRecord, ReplayGroup, SavedPrompt
from nrl_rollout_ckpt.state.rollout_state import CapturedRolloutState

__all__ = [
    "RestoredSidecars",
    "SidecarError",
    "Sidecars",
    "read_sidecars",
    "serialize",
    "write_sidecars",
]

STORAGE: Final = "data_plane_checkpoint"


# ---- Saving ----


@dataclass(frozen=True)
class Sidecars:
    """A captured state as the bytes and tensors that are written.

    Attributes:
        files: JSON by file name.
        prompts: Tensors of stored prompts, by their owner.
        results: Tensors of sealed siblings, by their owner.
        prompt_source_state: The state of the prompt source.
        replay_digest: The index's ``manifest_digest``; None without an index.
        replay_group_count: Groups in the index; None without an index.
        recovery_sha256: Of the ledger's file; None without a ledger.
        recovery_group_count: Groups in the ledger; None without a ledger.
    """

    files: Mapping[str, bytes]
    prompts: Tensors
    results: Tensors
    prompt_source_state: dict[str, Any]
    replay_digest: str | None = None
    replay_group_count: int | None = None
    recovery_sha256: str | None = None
    recovery_group_count: int | None = None


def serialize(captured: CapturedRolloutState) -> Sidecars:
    """Turn a captured state into what is written; reads nothing but its argument.

    Raises:
        TypeError: The state of the prompt source holds what a weights-only load refuses.
    """
    torch_files.require_loadable(captured.prompt_source_state, "the state of the prompt source")
    files: dict[str, bytes] = {}
    prompts: Tensors = {}
    results: Tensors = {}
    replay_digest = recovery_sha256 = None
    if captured.replay_groups is not None:
        groups = _each_dumped(encode_replay_group(group, prompts) for group in captured.replay_groups)
        replay_digest = _digest_of_groups(groups)
        files[REPLAY_INDEX] = _dumps(
            {
                "storage": STORAGE,
                "partition_id": captured.partition_id,
                "saved_capacity": captured.replay_capacity,
                "manifest_digest": replay_digest,
                "groups": groups,
            }
        )
    if captured.ledger_groups is not None:
        files[RECOVERY] = _dumps(
            {
                "next_admission_id": captured.next_admission_id,
                "batch_shortfall": {str(step): count for step, count in captured.batch_shortfall.items()},
                "sampler_stamps_target_steps": captured.sampler_stamps_target_steps,
                "dropped": captured.dropped,
                "recent_prompts": [encode_prompt(prompt, "", prompts) for prompt in captured.recent_prompts],
                "groups": _each_dumped(encode_group(group, prompts, results) for group in captured.ledger_groups),
            }
        )
        recovery_sha256 = digest_of_bytes(files[RECOVERY])
    if captured.reserve:
        files[RESERVE] = _dumps(
            {
                "prompts": [
                    encode_prompt(prompt, _reserve_key(at), prompts) for at, prompt in enumerate(captured.reserve)
                ]
            }
        )
    if captured.environment_episodes is not None:
        files[ENVIRONMENT_EPISODES] = _dumps(
            {"episodes": [asdict(episode) for episode in captured.environment_episodes]}
        )
    return Sidecars(
        files,
        prompts,
        results,
        captured.prompt_source_state,
        replay_digest,
        None if captured.replay_groups is None else len(captured.replay_groups),
        recovery_sha256,
        None if captured.ledger_groups is None else len(captured.ledger_groups),
    )


def write_sidecars(folder: Path, sidecars: Sidecars, ops: FileOps) -> list[str]:
    """Write the files into a folder that is published later; returns their names.

    Raises:
        OSError: The disk refused.
    """
    for name, data in sidecars.files.items():
        with OutputFile(folder / name, WRITE_NEW, ops) as file:
            file.write(data)
    torch_contents: dict[str, Any] = {PROMPT_SOURCE: sidecars.prompt_source_state}
    if sidecars.prompts:
        torch_contents[PROMPTS] = torch_files.pack(sidecars.prompts)
    if sidecars.results:
        torch_contents[RESULTS] = torch_files.pack(sidecars.results)
    for name, content in torch_contents.items():
        torch_files.write(folder / name, content, ops)
    return [*sidecars.files, *torch_contents]


# ---- Reading ----


@dataclass(frozen=True)
class RestoredSidecars:
    """What the files of a snapshot say.

    Attributes:
        prompt_source_state: The state of the prompt source.
        replay_groups: The index; None where none was saved.
        saved_capacity: The index's capacity when it was saved; None without an index.
        partition_id: The partition of the index's rows; None without an index.
        replay_digest: What the data plane's metadata names as ``replay_manifest_digest``; None without an index.
        ledger_groups: The ledger; None where none was saved.
        recovery_sha256: What the data plane's metadata names as ``rollout_recovery_payload_sha256``.
        next_admission_id: The ledger's next batch number.
        batch_shortfall: By target step, how many groups will never come.
        sampler_stamps_target_steps: Whether the groups are stamped.
        dropped: Ids of prompts that were given up on purpose.
        recent_prompts: The prompts that were taken last, without their content.
        reserve: The replacement reserve.
        environment_episodes: Episodes that the environment saved; None where it saved none.
    """

    prompt_source_state: dict[str, Any]
    replay_groups: tuple[ReplayGroup, ...] | None = None
    saved_capacity: int | None = None
    partition_id: str | None = None
    replay_digest: str | None = None
    ledger_groups: tuple[PromptGroupRecoveryRecord, ...] | None = None
    recovery_sha256: str | None = None
    next_admission_id: int = 0
    batch_shortfall: Mapping[int, int] = field(default_factory=dict[int, int])
    sampler_stamps_target_steps: bool = False
    dropped: tuple[str, ...] = ()
    recent_prompts: tuple[SavedPrompt, ...] = ()
    reserve: tuple[SavedPrompt, ...] = ()
    environment_episodes: tuple[EnvironmentEpisode, ...] | None = None


def read_sidecars(folder: Path, manifest: RolloutSnapshotManifest) -> RestoredSidecars:
    """Read and check the files of a snapshot that `select_resume_source` chose; it has compared their digests.

    Raises:
        SidecarError: A file does not hold what it should; names it.
        TorchFileError: A torch file is damaged.
        UpstreamFormatError: NeMo RL itself wrote the folder.
        NewerFormatError: A later version wrote a file.
        OSError: A file can't be read.
    """
    refuse_upstream_files(folder)
    names = manifest.file_names
    prompts, results = _tensors(folder / PROMPTS, names), _tensors(folder / RESULTS, names)
    read: dict[str, Any] = {}
    if PROMPT_SOURCE not in names:
        raise SidecarError(folder / PROMPT_SOURCE, "the manifest does not name it")
    read["prompt_source_state"] = torch_files.read(folder / PROMPT_SOURCE)
    readers: dict[str, Callable[[JsonFile], dict[str, Any]]] = {
        REPLAY_INDEX: lambda file: _read_replay_index(file, prompts),
        RECOVERY: lambda file: _read_recovery(file, prompts, results),
        RESERVE: lambda file: {
            "reserve": tuple(
                decode_prompt(item, _reserve_key(at), prompts, f"prompts[{at}]")
                for at, item in enumerate(file.take("prompts", list))
            )
        },
        ENVIRONMENT_EPISODES: lambda file: {
            "environment_episodes": tuple(_read_episode(item) for item in file.take("episodes", list))
        },
    }
    for name, reader in readers.items():
        if name in names:
            read |= _read_json(folder / name, reader)
    return RestoredSidecars(**read)


def _read_json(path: Path, reader: Callable[[JsonFile], dict[str, Any]]) -> dict[str, Any]:
    try:
        file = JsonFile(path)
        values = reader(file)
        file.end()
    except (SidecarError, NewerFormatError, OSError):
        raise
    except (TypeError, ValueError) as error:
        raise SidecarError(path, str(error)) from error
    return values


def _read_replay_index(file: JsonFile, prompts: Tensors) -> dict[str, Any]:
    groups: list[Any] = file.take("groups", list)
    storage, digest = file.take("storage", str), file.take("manifest_digest", str)
    if storage != STORAGE:
        file.fail(f"storage is {storage!r}; allowed: {STORAGE!r}")
    if digest != _digest_of_groups(groups):
        file.fail("manifest_digest is not that of its groups")
    return {
        "replay_groups": tuple(decode_replay_group(item, prompts, f"groups[{at}]") for at, item in enumerate(groups)),
        "saved_capacity": file.take_count("saved_capacity"),
        "partition_id": file.take("partition_id", str),
        "replay_digest": digest,
    }


def _read_recovery(file: JsonFile, prompts: Tensors, results: Tensors) -> dict[str, Any]:
    groups: list[Any] = file.take("groups", list)
    shortfall: dict[str, Any] = file.take("batch_shortfall", dict)
    dropped: list[Any] = file.take("dropped", list)
    if not all(isinstance(item, str) for item in dropped):
        file.fail("dropped holds what is no string")
    return {
        "ledger_groups": tuple(decode_group(item, prompts, results, f"groups[{at}]") for at, item in enumerate(groups)),
        "recovery_sha256": digest_of_bytes(file.data),
        "next_admission_id": file.take_count("next_admission_id"),
        "batch_shortfall": {
            int(step): file.require_count(f"batch_shortfall[{step!r}]", count) for step, count in shortfall.items()
        },
        "sampler_stamps_target_steps": file.take("sampler_stamps_target_steps", bool),
        "dropped": tuple(dropped),
        "recent_prompts": tuple(
            decode_prompt(item, "", prompts, f"recent_prompts[{at}]")
            for at, item in enumerate(file.take("recent_prompts", list))
        ),
    }


def _read_episode(item: Any) -> EnvironmentEpisode:
    episode = EnvironmentEpisode(**item)
    texts = isinstance(episode.instance_id, str) and isinstance(episode.rollout_id, str)
    if not texts or type(episode.attempt) is not int or episode.attempt < 0:
        raise ValueError(f"an episode is {item!r}; allowed: two strings and an int from 0")
    return episode


def _tensors(path: Path, names: frozenset[str]) -> Tensors:
    if path.name not in names:
        return {}
    content = torch_files.read(path)
    try:
        return torch_files.unpack(content)
    except (AttributeError, KeyError, RuntimeError, StopIteration, TypeError, ValueError) as error:
        raise SidecarError(path, f"it holds no tensors as this package packs them: {error!r}") from error


def _dumps(content: Mapping[str, Any]) -> bytes:
    return orjson.dumps({"schema_version": FORMAT, **content}, option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)


def _each_dumped(items: Iterable[Mapping[str, Any]]) -> list[orjson.Fragment]:
    """Turn one after the other into bytes: thousands of dicts at once would set off a full garbage collection."""
    return [orjson.Fragment(orjson.dumps(item, option=orjson.OPT_SORT_KEYS)) for item in items]


def _digest_of_groups(groups: list[Any]) -> str:
    return digest_of_bytes(orjson.dumps(groups, option=orjson.OPT_SORT_KEYS))


def _reserve_key(at: int) -> str:
    return f"reserve/{at}"
