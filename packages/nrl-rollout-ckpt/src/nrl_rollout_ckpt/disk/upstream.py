"""Rollout state in NeMo RL's own format: told apart, not read."""

from pathlib import Path
from typing import Final

__all__ = ["UPSTREAM_FILES", "UpstreamFormatError", "refuse_upstream_files"]

UPSTREAM_FILES: Final = (
    "replay_buffer_metadata.pt",
    "rollout_recovery.pt",
    "replay_buffer.pt",
    "replacement_reserve.pt",
)


class UpstreamFormatError(ValueError):
    """Raised for a folder that NeMo RL itself wrote.

    Attributes:
        folder: The folder.
        name: The file that tells.
    """

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder, name)
        self.folder, self.name = folder, name

    def __str__(self) -> str:
        return (
            f"{self.folder} holds {self.name}, rollout state in NeMo RL's own format, which nrl-rollout-ckpt does not"
            " read: go on with NeMo RL, or start in another checkpoint_dir"
        )


def refuse_upstream_files(folder: Path) -> None:
    """Refuse a folder with rollout state of NeMo RL's own, whose prompts would be lost in silence.

    Raises:
        UpstreamFormatError: It is one.
    """
    for name in UPSTREAM_FILES:
        if (folder / name).exists():
            raise UpstreamFormatError(folder, name)
