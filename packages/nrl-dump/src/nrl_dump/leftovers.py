"""What a crash leaves of a publication: parts whose rows stand in the published file already, a manifest too early.

Column files are taken away before parts, so a part without one is the mark of a crash in between; a part with one is
told by the attempt that its column file and the manifest name. Both only count where the rows are the published ones,
byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nrl_interfaces.fileops import FileOps
from nrl_interfaces.publish import publish, remove

from nrl_dump.columns import StepColumns
from nrl_dump.manifest import DamagedStepError, Manifest, ShardEntry, held_by_file, read_manifest
from nrl_dump.merge import PartReader, StepNotThereError, TornPartError
from nrl_dump.names import StepFiles


def take_away(files: StepFiles, shard_ids: Sequence[str], ops: FileOps) -> None:
    """Remove shards' column files and then, when no power cut can bring those back, their parts."""
    remove([files.columns(shard_id) for shard_id in shard_ids], ops)
    ops.fsync_folder(files.folder)
    remove([files.part(shard_id) for shard_id in shard_ids], ops)


def end_interrupted_cleanup(files: StepFiles, manifest: Manifest, ops: FileOps) -> bool:
    """Take away the parts that are published already, by the manifest of what is; tells whether those were all.

    Raises:
        StepNotThereError: Parts without a column file are there that are not what is published.
    """
    found = files.find_shards()
    shards = {shard.shard_id: shard for shard in manifest.shards}
    published = [s for s in found if s in shards and _is_published(files, manifest, shards[s])]
    foreign = [s for s in found if s not in published and not files.columns(s).exists()]
    if foreign:
        names = ", ".join(files.part(shard_id).name for shard_id in foreign)
        raise StepNotThereError(
            files.step,
            f"{files.data.name} is published already, and {names} without a column file are left-overs of another"
            f" attempt: discard_step({files.step}) removes them and leaves the published file",
        )
    if published:
        take_away(files, published, ops)
    return bool(published) and published == found


def published_manifest(files: StepFiles) -> Manifest | None:
    """The manifest of what is published of a step, None if nothing is, or nothing that a manifest fits."""
    try:
        manifest = read_manifest(files)
        return manifest and held_by_file(files, manifest)
    except (FileNotFoundError, DamagedStepError):
        return None


def withdraw_manifest(files: StepFiles, ops: FileOps) -> list[Path]:
    """Take back a manifest whose file never followed, so that what is published can do without the parts.

    Returns:
        The manifest's path if it was of a step that was never published, and went.
    """
    held = published_manifest(files)
    if held is None and not files.data.exists():
        return remove([files.manifest], ops)
    if held is not None and held != read_manifest(files):
        publish(files.manifest, held.to_bytes(), ops)
    return []


def _is_published(files: StepFiles, manifest: Manifest, shard: ShardEntry) -> bool:
    try:
        columns = StepColumns.from_bytes(files.columns(shard.shard_id).read_bytes())
    except FileNotFoundError:
        return _holds_rows(files, manifest, shard)
    except ValueError:
        return False
    return columns.attempt == shard.attempt and _holds_rows(files, manifest, shard)


def _holds_rows(files: StepFiles, manifest: Manifest, shard: ShardEntry) -> bool:
    """Whether the part's rows are those of the published file, where the manifest says they stand."""
    before = manifest.shards[: manifest.shards.index(shard)]
    part = PartReader(files, shard.shard_id, first_idx=sum(s.rows for s in before))
    with files.data.open("rb") as published:
        published.seek(sum(s.bytes for s in before))
        try:
            same = all(published.read(len(block)) == block for block in part.numbered_blocks())
        except TornPartError:
            return False
    return same and part.rows == shard.rows
