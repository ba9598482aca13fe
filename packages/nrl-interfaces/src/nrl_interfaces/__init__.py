"""The small shared part of the nrl packages: batches, data planes, crash-safe publication, identity, metrics.

The types that people pass around stand here; everything else is imported from its module, as in
`from nrl_interfaces.publish import stage`.
"""

from nrl_interfaces.batch import BatchedDataDict
from nrl_interfaces.batch_meta import KVBatchMeta
from nrl_interfaces.data_plane import DataPlaneClient
from nrl_interfaces.data_plane_errors import CheckpointDamagedError, StaleMetaError
from nrl_interfaces.layout import Layout
from nrl_interfaces.metrics import MetricEvent, Metrics
from nrl_interfaces.metrics_client import MetricsDataPlaneClient
from nrl_interfaces.ownership import FolderInUseError
from nrl_interfaces.packed import PackedTensor
from nrl_interfaces.plugins import build_data_plane_client

__version__ = "0.3.0"

__all__ = [
    "BatchedDataDict",
    "CheckpointDamagedError",
    "DataPlaneClient",
    "FolderInUseError",
    "KVBatchMeta",
    "Layout",
    "MetricEvent",
    "Metrics",
    "MetricsDataPlaneClient",
    "PackedTensor",
    "StaleMetaError",
    "build_data_plane_client",
]
