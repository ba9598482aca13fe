"""The callback through which every piece reports what it measured.

A piece takes ``metrics: Metrics | None = None`` and calls `emit`; the user's callback may write to a logger, a
file or a dashboard. It can't break the work that it watches.

>>> events = []
>>> emit(events.append, op="put", n_samples=8, wall_ms=0.5)
>>> events
[{'op': 'put', 'n_samples': 8, 'wall_ms': 0.5}]
>>> emit(None, op="put")
"""

import logging
from collections.abc import Callable, Mapping
from typing import TypeAlias

__all__ = ["MetricEvent", "MetricValue", "Metrics", "emit"]

MetricValue: TypeAlias = str | int | float | bool | None
MetricEvent: TypeAlias = Mapping[str, MetricValue]
"""One flat event: names to plain values, units in the names (``wall_ms``, ``n_bytes``)."""
Metrics: TypeAlias = Callable[[MetricEvent], None]

_log = logging.getLogger(__name__)


def emit(metrics: Metrics | None, /, **fields: MetricValue) -> None:
    """Call ``metrics`` with ``fields`` as one event of its own.

    Args:
        metrics: The callback; None does nothing.
        **fields: The event.

    An `Exception` of the callback becomes one logged warning; KeyboardInterrupt and SystemExit pass.
    """
    if metrics is None:
        return
    try:
        metrics(fields)
    except Exception:  # noqa: BLE001 - a broken dashboard must not stop the work it watches
        _log.warning("the metrics callback %r failed; the event is lost: %r", metrics, fields, exc_info=True)
