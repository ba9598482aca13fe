"""The small shared part of the nrl packages: batches, crash-safe publication, identity, metrics.

The types that people pass around stand here; everything else is imported from its module, as in
`from nrl_interfaces.publish import stage`.
"""

from nrl_interfaces.batch import BatchedDataDict
from nrl_interfaces.layout import Layout
from nrl_interfaces.metrics import MetricEvent, Metrics
from nrl_interfaces.ownership import FolderInUseError
from nrl_interfaces.packed import PackedTensor

__version__ = "0.1.0"

__all__ = ["BatchedDataDict", "FolderInUseError", "Layout", "MetricEvent", "Metrics", "PackedTensor"]
