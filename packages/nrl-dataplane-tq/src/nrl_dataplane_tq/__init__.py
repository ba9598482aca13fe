"""A data plane for many processes: the contract of nrl-interfaces on TransferQueue and Ray.

Importing it loads neither of them; the first client does.
"""

from nrl_interfaces import CheckpointDamagedError, KVBatchMeta, StaleMetaError

from nrl_dataplane_tq.checkpoint import OtherOwnerError, StorageUnitsError
from nrl_dataplane_tq.client import GENERATION_KEY, TransferQueueDataPlaneClient, build_client
from nrl_dataplane_tq.config import TransferQueueDataPlaneConfig

__version__ = "0.1.0"

__all__ = [
    "GENERATION_KEY",
    "CheckpointDamagedError",
    "KVBatchMeta",
    "OtherOwnerError",
    "StaleMetaError",
    "StorageUnitsError",
    "TransferQueueDataPlaneClient",
    "TransferQueueDataPlaneConfig",
    "build_client",
]
