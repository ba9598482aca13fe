"""An immutable view of the partitions at one moment, which can be written later."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nrl_interfaces.fileops import FileOps

from nrl_dataplane_local.checkpoint import save
from nrl_dataplane_local.config import LocalDataPlaneConfig
from nrl_dataplane_local.partition import Partition

__all__ = ["LocalDataPlaneView"]


class LocalDataPlaneView:
    """What a `LocalDataPlaneClient` held when it was frozen. It shares the rows' memory with the client.

    With ``zero_copy`` the promise not to write into values holds for the life of the view, too.
    """

    def __init__(
        self, partitions: Sequence[Partition], next_generation: int, cfg: LocalDataPlaneConfig, file_ops: FileOps
    ) -> None:
        self._partitions = tuple(partitions)
        self._next_generation = next_generation
        self._cfg = cfg
        self._file_ops = file_ops

    def save(self, checkpoint_dir: str | Path, metadata: dict[str, Any] | None = None) -> None:
        """Write what the view holds; see `DataPlaneClient.save_checkpoint`.

        Raises:
            OSError: The disk refused; the folder holds the state that it held before.
            TypeError: Something is of a class that a load would refuse.
            ValueError: The folder is a symbolic link, or holds the checkpoint of another owner.
        """
        save(
            Path(checkpoint_dir),
            self._partitions,
            next_generation=self._next_generation,
            metadata=metadata or {},
            cfg=self._cfg,
            ops=self._file_ops,
        )
