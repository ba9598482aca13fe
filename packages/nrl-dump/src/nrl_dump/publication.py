"""Publishing a step: find its parts, join them, and make the joined file appear in one move."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nrl_interfaces.fileops import FileOps
from nrl_interfaces.metrics import Metrics, emit
from nrl_interfaces.publish import remove, stage

from nrl_dump.leftovers import end_interrupted_cleanup, published_manifest, take_away, withdraw_manifest
from nrl_dump.manifest import Manifest
from nrl_dump.merge import StepIncompleteError, StepNotThereError, merge, read_columns
from nrl_dump.names import StepFiles, described_steps, published_steps, shard_order

logger = logging.getLogger(__name__)

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 1.0


@dataclass(frozen=True)
class Publisher:
    """Publishes the steps of one folder.

    Attributes:
        ops: Operations on files.
        clock: A monotonic clock, in seconds.
        sleep: Waits for some seconds.
        keep_last: How many published steps stay, up to the one just published; None for all.
        metrics: Called with an event for each publication.
    """

    ops: FileOps
    clock: Callable[[], float]
    sleep: Callable[[float], object]
    keep_last: int | None = None
    metrics: Metrics | None = None

    def publish(
        self, files: StepFiles, expected_rows: int | None, shard_ids: Sequence[str] | None, timeout_s: float
    ) -> Manifest:
        """Publish a step; see `TrainDataDump.finish_step`."""
        began = self.clock()
        deadline = began + timeout_s
        wanted = None if shard_ids is None else sorted(set(shard_ids), key=shard_order)
        while True:
            seen = _sizes(files, wanted)
            try:
                manifest = self._attempt(files, expected_rows, wanted)
            except StepNotThereError:
                if wanted is None or not self._wait_for_change(files, wanted, seen, deadline):
                    raise
            else:
                break
        logger.info("published step %d: %d rows, %d bytes", files.step, manifest.rows, manifest.bytes)
        self._drop_older(files)
        emit(
            self.metrics,
            op="finish_step",
            step=files.step,
            rows=manifest.rows,
            n_bytes=manifest.bytes,
            wall_ms=1e3 * (self.clock() - began),
        )
        return manifest

    def discard(self, files: StepFiles) -> list[str]:
        """Remove what is unpublished of a step; returns the names of the files that went."""
        gone = withdraw_manifest(files, self.ops) + remove(files.leftovers(), self.ops)
        return [path.name for path in gone]

    def _attempt(self, files: StepFiles, expected_rows: int | None, wanted: list[str] | None) -> Manifest:
        before_it = published_manifest(files)
        if (
            before_it
            and end_interrupted_cleanup(files, before_it, self.ops)
            and _is_asked(before_it, expected_rows, wanted)
        ):
            return before_it
        shard_ids = _find(files, wanted)
        columns = read_columns(files, shard_ids)
        sizes = _sizes(files, shard_ids)
        with stage(files.data, self.ops) as data:
            manifest = merge(files, columns, data.write)
            if before_it:
                manifest = replace(manifest, replaces=replace(before_it, replaces=None))
            _check_rows(files, manifest, expected_rows)
            data.seal()
            if _sizes(files, shard_ids) != sizes:
                raise StepIncompleteError(
                    files.step, "a part was written to while it was merged; flush every writer first"
                )
            with stage(files.manifest, self.ops) as manifest_file:
                manifest_file.write(manifest.to_bytes())
                manifest_file.commit()
            data.commit()
        self.ops.fsync_folder(files.folder)
        take_away(files, shard_ids, self.ops)
        return manifest

    def _wait_for_change(self, files: StepFiles, wanted: list[str], seen: object, deadline: float) -> bool:
        wait = _FIRST_WAIT_S
        while (left := deadline - self.clock()) > 0:
            self.sleep(min(wait, left))
            if _sizes(files, wanted) != seen:
                return True
            wait = min(2 * wait, _LONGEST_WAIT_S)
        return False

    def _drop_older(self, files: StepFiles) -> None:
        if self.keep_last is not None:
            kept = [step for step in published_steps(files.folder) if step.number <= files.number][-self.keep_last :]
            prune(files.folder, kept[0].number, self.ops)


def prune(folder: Path, below: int, ops: FileOps) -> list[Path]:
    """Remove the published steps of lower numbers, each one's data before its manifest; returns the paths that went."""
    # Manifests count, too: one may be all that a crash in here has left of its step.
    numbers = {step.number for step in (*published_steps(folder), *described_steps(folder)) if step.number < below}
    steps = [StepFiles(folder, number) for number in sorted(numbers)]
    return remove([path for step in steps for path in (step.data, step.manifest)], ops)


def _find(files: StepFiles, wanted: list[str] | None) -> list[str]:
    found = files.find_shards()
    if not found and not wanted:
        raise StepNotThereError(files.step, f"there is no part of it in {files.folder}{_already(files)}")
    if wanted is None:
        return found
    missing = [shard_id for shard_id in wanted if _size(files.part(shard_id)) is None]
    if missing:
        raise StepNotThereError(
            files.step,
            f"the parts of shards {missing} are not in {files.folder}{_already(files)}: {_CAUSES}",
        )
    more = [files.part(shard_id).name for shard_id in found if shard_id not in wanted]
    if more:
        raise StepIncompleteError(
            files.step,
            f"beside the shards {wanted} there are {', '.join(more)}, perhaps of an earlier attempt:"
            f" discard_step({files.step}) and write the step again, or name them in shard_ids",
        )
    return wanted


def _is_asked(manifest: Manifest, expected_rows: int | None, wanted: list[str] | None) -> bool:
    return expected_rows in {None, manifest.rows} and wanted in (None, [shard.shard_id for shard in manifest.shards])


_CAUSES = (
    "either their writers have another file system there, or this one shows new files late;"
    " mend the first, or wait and call finish_step again, for the second (visibility_timeout_s does)"
)


def _already(files: StepFiles) -> str:
    return f" ({files.data.name} is published already)" if files.data.exists() else ""


def _check_rows(files: StepFiles, manifest: Manifest, expected_rows: int | None) -> None:
    rows = {shard.shard_id: shard.rows for shard in manifest.shards}
    if expected_rows is not None and manifest.rows != expected_rows:
        counts = ", ".join(f"{files.part(shard_id).name} has {n}" for shard_id, n in rows.items())
        short = manifest.rows < expected_rows
        error = StepNotThereError if short else StepIncompleteError
        causes = _CAUSES if short else "parts of an earlier attempt may be there: discard_step and write the step again"
        raise error(
            files.step,
            f"{expected_rows} rows are expected and {manifest.rows} are there ({counts}): {causes}",
            expected_rows,
            rows,
        )
    if manifest.rows == 0:
        raise StepIncompleteError(files.step, f"its parts have no row: {list(rows)}", expected_rows, rows)


def _sizes(files: StepFiles, shard_ids: list[str] | None) -> dict[str, tuple[int, int] | None]:
    """Inode and size of each part and column file by name, None where there is none.

    Opened, not just looked at: a network file system then asks its server.
    """
    paths = [path for shard_id in shard_ids or () for path in (files.part(shard_id), files.columns(shard_id))]
    return {path.name: _size(path) for path in paths}


def _size(path: Path) -> tuple[int, int] | None:
    try:
        with path.open("rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            return status.st_ino, status.st_size
    except FileNotFoundError:
        return None
