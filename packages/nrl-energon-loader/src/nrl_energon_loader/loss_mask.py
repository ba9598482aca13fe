"""Which tokens of a conversation are trained on."""

from collections.abc import Sequence

import torch

from nrl_energon_loader.samples import Message

__all__ = ["loss_mask"]


def loss_mask(message_log: Sequence[Message], *, only_unmask_final: bool) -> torch.Tensor:
    """Mark the tokens of the assistant's messages.

    Args:
        message_log: Messages with `role` and `token_ids`.
        only_unmask_final: Mark those of its last message only.

    Returns:
        bool, [tokens of all messages].

    >>> log = [{"role": role, "token_ids": torch.arange(2)} for role in ("user", "assistant", "user")]
    >>> loss_mask(log, only_unmask_final=False).int().tolist()
    [0, 0, 1, 1, 0, 0]
    """
    trained = [number for number, message in enumerate(message_log) if message["role"] == "assistant"]
    chosen = set(trained[-1:] if only_unmask_final else trained)
    lengths = torch.tensor([len(message["token_ids"]) for message in message_log])
    return torch.tensor([number in chosen for number in range(len(message_log))]).repeat_interleave(lengths)
