"""The trainer's own checkpoints: written beside their name, published in the background, the newest ones kept."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import yaml
from nrl_interfaces.fileops import FileOps
from nrl_interfaces.identity import redact
from nrl_interfaces.publish import make_folder, publish, publish_folder, remove_folder

from nrl_rollout_ckpt.disk.layout import CONFIG, TRAINING_INFO, step_folders, step_of
from nrl_rollout_ckpt.disk.trash import TRASH, move_to_trash, remove_leftover

__all__ = ["CheckpointManager", "config_yaml"]

_TMP: Final = "tmp_"
_OLD: Final = "old_"

logger = logging.getLogger(__name__)


@dataclass
class _Finalization:
    """A checkpoint on its way: what is published, by which thread, and what went wrong."""

    folder: Path
    step: int
    wait_fn: Callable[[], object] | None
    thread: threading.Thread = field(default_factory=threading.Thread)
    error: BaseException | None = None


class CheckpointManager:
    """Keeps the checkpoints of a trainer, ``step_<N>``, each whole or not there.

    A checkpoint is written into ``tmp_step_<N>``, made durable file by file, and renamed. One of the same step that is
    there already makes way as ``old_step_<N>``, which counts as ``step_<N>`` as long as that is missing: at every
    moment one of the two is complete. One process at a time may write; reading changes nothing.

    Meets `nrl_interfaces.rollout.TrainerCheckpoints`. One thread saves; waiting and `protect` are for any thread.

    Args:
        checkpoint_dir: The folder; made when it is missing.
        keep_latest_k: How many checkpoints are kept; None keeps all. The newest one always is.
        ops: The operations on files.

    Raises:
        ValueError: If `keep_latest_k` is not allowed.

    >>> import tempfile
    >>> manager = CheckpointManager(Path(tempfile.mkdtemp()), keep_latest_k=2)
    >>> folder = manager.init_tmp_checkpoint(1, {"current_step": 1}, {"seed": 7})
    >>> manager.begin_finalization(folder)
    >>> manager.finalize_pending()
    >>> path = manager.get_latest_checkpoint_path()
    >>> path.name, manager.load_training_info(path)
    ('step_1', {'current_step': 1})
    """

    def __init__(
        self, checkpoint_dir: str | Path, *, keep_latest_k: int | None = None, ops: FileOps | None = None
    ) -> None:
        if keep_latest_k is not None and (type(keep_latest_k) is not int or keep_latest_k < 1):
            raise ValueError(f"keep_latest_k is {keep_latest_k!r}; allowed: an int from 1, or None")
        self._checkpoint_dir = Path(checkpoint_dir)
        self._keep_latest_k = keep_latest_k
        self._ops = ops or FileOps()
        self._pending: _Finalization | None = None
        self._protected: Counter[int] = Counter()
        self._lock = threading.Lock()

    @property
    def checkpoint_dir(self) -> Path:
        """The folder that holds the checkpoints."""
        return self._checkpoint_dir

    def step_path(self, step: int) -> Path:
        """Where the checkpoint of a step is once it is durable; a folder is there only then."""
        return step_folders(self._checkpoint_dir).get(step, self._checkpoint_dir / f"step_{step}")

    def get_latest_checkpoint_path(self) -> Path | None:
        """The checkpoint of the highest step; None where there is none."""
        return next(iter(step_folders(self._checkpoint_dir).values()), None)

    def load_training_info(self, path: str | Path) -> dict[str, Any]:
        """Read a checkpoint's ``training_info.json``.

        Raises:
            ValueError: It is damaged.
            OSError: There is none.
        """
        file = Path(path) / TRAINING_INFO
        try:
            info = json.loads(file.read_bytes())
        except ValueError as error:
            raise ValueError(f"{file} is damaged: {error}") from error
        if not isinstance(info, dict):
            raise ValueError(f"{file} holds {type(info).__name__}; allowed: an object")
        return cast("dict[str, Any]", info)

    # ---- Saving ----

    def init_tmp_checkpoint(self, step: int, info: Mapping[str, Any], config: Mapping[str, Any]) -> Path:
        """Begin a checkpoint, after the one before it is published.

        Args:
            step: Its step, from 0.
            info: What ``training_info.json`` says: JSON values.
            config: The run's config; written as ``config.yaml``, without its secrets.

        Returns:
            The folder to write weights and optimizer into.

        Raises:
            ValueError: If a value is not allowed.
            RuntimeError: The checkpoint before it failed; raised once.
            OSError: The disk refused.
        """
        if type(step) is not int or step < 0:
            raise ValueError(f"step is {step!r}; allowed: an int from 0")
        written_info = json.dumps(dict(info), indent=2, sort_keys=True, allow_nan=False).encode() + b"\n"
        written_config = config_yaml(config)
        self.finalize_pending()
        make_folder(self._checkpoint_dir, self._ops)
        folder = self._checkpoint_dir / f"{_TMP}step_{step}"
        remove_folder(folder, self._ops)
        self._ops.mkdir(folder)
        publish(folder / TRAINING_INFO, written_info, self._ops)
        publish(folder / CONFIG, written_config, self._ops)
        return folder

    def begin_finalization(self, path: str | Path, wait_fn: Callable[[], object] | None = None) -> None:
        """Publish a checkpoint in the background.

        Args:
            path: What `init_tmp_checkpoint` gave; complete but for what `wait_fn` waits for.
            wait_fn: Waits until everybody has written everything; called in the background.

        Raises:
            ValueError: If `path` is another folder.
            RuntimeError: The checkpoint before it failed; raised once.
        """
        folder = Path(path)
        step = step_of(folder.name.removeprefix(_TMP)) if folder.name.startswith(_TMP) else None
        if step is None or folder.parent != self._checkpoint_dir or not folder.is_dir():
            raise ValueError(f"{folder} can't be published; allowed: the folder that init_tmp_checkpoint gave")
        self.finalize_pending()
        pending = _Finalization(folder, step, wait_fn)
        pending.thread = threading.Thread(
            target=self._finalize, args=(pending,), name=f"finalize step_{step}", daemon=True
        )
        pending.thread.start()
        self._pending = pending

    @property
    def has_pending_finalization(self) -> bool:
        """Whether a checkpoint is being published now."""
        pending = self._pending
        return pending is not None and pending.thread.is_alive()

    def finalize_pending(self) -> None:
        """Wait until the checkpoint under way is durable.

        Raises:
            RuntimeError: It failed; raised once.
        """
        pending = self._pending
        if pending is None:
            return
        pending.thread.join()
        with self._lock:  # of several that waited, one raises
            error, pending.error = pending.error, None
            if self._pending is pending:
                self._pending = None
        if error is not None:
            raise RuntimeError(f"a trainer checkpoint was not published: {error}") from error

    def shutdown(self) -> None:
        """As `finalize_pending`; to be called before the process ends, which would not wait for it."""
        self.finalize_pending()

    @contextlib.contextmanager
    def protect(self, step: int) -> Generator[None]:
        """Keep retention and replacement from the checkpoint of a step, as long as the block runs.

        Whether the checkpoint is there has to be looked up within the block.
        """
        with self._lock:
            self._protected[step] += 1
        try:
            yield
        finally:
            with self._lock:
                self._protected[step] -= 1

    # ---- In the background ----

    def _finalize(self, pending: _Finalization) -> None:
        try:
            if pending.wait_fn is not None:
                pending.wait_fn()
            self._publish(pending.folder, pending.step)
        except BaseException as error:  # noqa: BLE001 - it is raised where the next save or the end of the run waits
            pending.error = error
            return
        try:
            self._prune()
        except OSError as error:
            logger.warning("old checkpoints in %s can't be removed: %s", self._checkpoint_dir, error)

    def _publish(self, folder: Path, step: int) -> None:
        final, old = self._checkpoint_dir / f"step_{step}", self._checkpoint_dir / f"{_OLD}step_{step}"
        if final.is_dir():
            remove_folder(old, self._ops)
            self._ops.rename(final, old)
            self._ops.fsync_folder(self._checkpoint_dir)
        publish_folder(folder, final, self._ops)

    def _prune(self) -> None:
        """Remove what retention, a replacement or a crash leaves: only names of this class, no symbolic links."""
        steps = step_folders(self._checkpoint_dir)
        kept = list(steps)[: self._keep_latest_k]
        doomed = {path: step for step, path in steps.items() if step not in kept}
        for path in self._checkpoint_dir.iterdir():
            step = _step_left_over(path.name)
            if step is not None and step <= kept[0] and path not in steps.values() and not path.is_symlink():
                doomed[path] = step
        for path, step in doomed.items():
            self._discard(path, step)

    def _discard(self, path: Path, step: int) -> None:
        if path.name.startswith(TRASH):
            remove_leftover(path, self._ops)
            return
        with self._lock:  # between the look and the rename nobody may begin to write in it
            trash = None if self._protected[step] else move_to_trash(path, self._ops)
        if trash is not None:
            remove_leftover(trash, self._ops)


def config_yaml(config: Mapping[str, Any]) -> bytes:
    """Write a run's config as it stands in ``config.yaml``: for people, without its secrets."""
    return yaml.safe_dump(_plain(redact(config)), sort_keys=False).encode()


def _step_left_over(name: str) -> int | None:
    """The step of a folder that is being written, replaced or removed; None for a checkpoint and for foreign names."""
    bare = name.removeprefix(TRASH)
    for prefix in (_TMP, _OLD):
        bare = bare.removeprefix(prefix)
    return step_of(bare) if bare != name else None


def _plain(value: Any) -> Any:
    """Make what YAML has no form for (a path, an enum, a tuple) a string or a list; the file is for people."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("list[Any]", value)]
    return value if type(value) in (type(None), bool, int, float, str) else str(value)
