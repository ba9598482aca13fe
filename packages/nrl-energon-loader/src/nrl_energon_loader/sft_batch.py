"""From an unpacked batch to padded tensors."""

from typing import Any

import torch
from nrl_interfaces import BatchedDataDict
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from nrl_energon_loader.loss_mask import loss_mask
from nrl_energon_loader.packing.packs import padded_length

__all__ = ["prepare_sft_batch"]


def prepare_sft_batch(
    batch: BatchedDataDict[Any],
    tokenizer: Any,
    only_unmask_final: bool,  # noqa: FBT001 - the name and place that trainers call it by
    make_sequence_length_divisible_by: int,
) -> BatchedDataDict[Any]:
    """Turn conversations into padded tensors with a loss mask.

    Args:
        batch: An unpacked batch of the loader, with `message_log` and `loss_multiplier`.
        tokenizer: Its `pad_token_id` stands behind each conversation's end.
        only_unmask_final: Train on the last assistant message of each conversation only.
        make_sequence_length_divisible_by: S is padded to a multiple of this.

    Returns:
        A batch of as many rows:

        - `input_ids`: int64, [B, S].
        - `input_lengths`: int64, [B].
        - `token_mask`: bool, [B, S]: the tokens of assistant messages.
        - `sample_mask`: float32, [B]: `loss_multiplier`.
        - every other column of ``batch`` as it is: media, `source_ids`.

    Raises:
        ValueError: If the batch is packed, the tokenizer has no pad token, or the divisor is below 1.

    >>> from types import SimpleNamespace
    >>> log = [{"role": role, "token_ids": torch.tensor(ids)} for role, ids in (("user", [5, 6]), ("assistant", [7]))]
    >>> batch = BatchedDataDict(message_log=[log], loss_multiplier=torch.ones(1))
    >>> made = prepare_sft_batch(batch, SimpleNamespace(pad_token_id=0), False, 4)
    >>> made["input_ids"].tolist(), made["token_mask"].int().tolist()
    ([[5, 6, 7, 0]], [[0, 0, 1, 0]])
    """
    if "message_log" not in batch:
        raise ValueError(f"the batch has {sorted(batch)}; allowed: an unpacked one, with message_log (packs are ready)")
    if tokenizer.pad_token_id is None:
        raise ValueError("the tokenizer's pad_token is None; allowed: any token (set tokenizer.pad_token)")
    divisor = make_sequence_length_divisible_by
    if divisor < 1:
        raise ValueError(f"make_sequence_length_divisible_by is {divisor}; allowed: 1 or more")
    logs = batch["message_log"]
    rows = [torch.cat([message["token_ids"] for message in log]) for log in logs]
    masks = [loss_mask(log, only_unmask_final=only_unmask_final) for log in logs]
    longest = max(len(row) for row in rows)
    missing = (0, padded_length(longest, divisor) - longest)
    ids = pad_sequence(rows, batch_first=True, padding_value=tokenizer.pad_token_id)
    others = {name: column for name, column in batch.items() if name not in {"message_log", "loss_multiplier"}}
    return BatchedDataDict(
        input_ids=pad(ids, missing, value=tokenizer.pad_token_id),
        input_lengths=torch.tensor([len(row) for row in rows]),
        token_mask=pad(pad_sequence(masks, batch_first=True), missing, value=False),
        sample_mask=batch["loss_multiplier"],
        **others,
    )
