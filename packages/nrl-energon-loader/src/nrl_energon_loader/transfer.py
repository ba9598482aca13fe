"""Bytes of an object on its way between two processes of this machine.

torch sends each tensor as a shared memory file of its own, about half a millisecond each; a batch of conversations has
hundreds of small ones. Here those travel by value, and only large ones as torch sends them.
"""

import io
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

__all__ = ["received", "to_send"]

LARGE = 1 << 17  # bytes: copying more through a pipe takes longer than opening a file
WITH_NUMPY = {torch.bool, torch.int32, torch.int64, torch.float32, torch.float64}


class _Pickler(ForkingPickler):
    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is torch.Tensor and _is_small(obj):
            return torch.from_numpy, (obj.numpy(),)  # pyright: ignore[reportUnknownMemberType]
        return NotImplemented


def to_send(value: Any) -> bytes:
    """Pickle a value for another process, which must call `received` while this one lives."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def received(sent: bytes) -> Any:
    """Give the value back, from what this machine's own process has sent."""
    return pickle.loads(sent)  # noqa: S301


def _is_small(tensor: torch.Tensor) -> bool:
    plain = tensor.device.type == "cpu" and tensor.layout == torch.strided and not tensor.requires_grad
    return plain and tensor.dtype in WITH_NUMPY and tensor.nbytes < LARGE
