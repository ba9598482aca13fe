"""Puts under way: what is checked with TransferQueue before one, and what is done about one that fails."""

import logging

import numpy as np

from nrl_dataplane_tq.engine import Engine
from nrl_dataplane_tq.partition import Partition, Put

__all__ = ["PUT_LIMIT_S", "check_not_there", "forget", "give_up_late_puts"]

PUT_LIMIT_S = 900.0  # longer than TransferQueue tries to reach a storage unit: 3 times 200 s

logger = logging.getLogger(__name__)


async def check_not_there(engine: Engine, partition: Partition, put: Put) -> None:
    """Refuse columns that are there already, unless they are to be replaced.

    Raises:
        ValueError: Names the field and the id.
    """
    old_ids = [sample_id for sample_id in put.ids if sample_id in partition.rows]
    if put.is_replacing or not old_ids:
        return
    numbers = np.array(partition.numbers_of(old_ids))
    for name in put.kinds.keys() & partition.kinds.keys():
        there = await engine.having(partition.declaration.engine_id, name, numbers)
        if there.any():
            raise ValueError(
                f"field {name!r} of sample id {old_ids[int(there.argmax())]!r} was put before; allowed: fields that "
                f"are not there yet, or replace=True"
            )


async def forget(engine: Engine, partition: Partition, put: Put) -> None:
    """Drop the new rows of a put that did not come to its end."""
    new = set(put.new_ids)
    numbers = [number for sample_id, number in zip(put.ids, put.numbers, strict=True) if sample_id in new]
    await engine.clear(partition.declaration.engine_id, numbers)


async def give_up_late_puts(engine: Engine, partition: Partition, now: float) -> None:
    """Forget puts whose clients must have died."""
    late = [number for number, put in partition.puts.items() if now - put.began > PUT_LIMIT_S]
    for number in late:
        logger.warning("a put to %r was not ended and is given up", partition.declaration.partition_id)
        await forget(engine, partition, partition.puts.pop(number))
