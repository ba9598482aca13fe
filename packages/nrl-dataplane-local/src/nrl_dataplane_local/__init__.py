"""A data plane inside one process, for colocated loaders and policies.

>>> from nrl_interfaces import build_data_plane_client
>>> plane = build_data_plane_client({"impl": "local", "max_partitions": 1})
>>> plane.register_partition("p", ["input_ids"], num_samples=2, consumer_tasks=["train"])
"""

from nrl_interfaces import CheckpointDamagedError, KVBatchMeta, StaleMetaError

from nrl_dataplane_local.checkpoint import CHECKPOINT_FILENAME, OtherOwnerError
from nrl_dataplane_local.client import LOCAL_GENERATION_KEY, LocalDataPlaneClient, build_client, is_local_batch_meta
from nrl_dataplane_local.config import LocalDataPlaneConfig
from nrl_dataplane_local.partition import Partition
from nrl_dataplane_local.plain_data import NotSavableError
from nrl_dataplane_local.tensordicts import local_batch_to_tensordict, materialize_local, unwrap
from nrl_dataplane_local.values import batch_size_of, is_identity, select_rows
from nrl_dataplane_local.view import LocalDataPlaneView

__version__ = "0.1.0"

__all__ = [
    "CheckpointDamagedError",
    "KVBatchMeta",
    "LocalDataPlaneClient",
    "LocalDataPlaneConfig",
    "LocalDataPlaneView",
    "NotSavableError",
    "OtherOwnerError",
    "StaleMetaError",
    "build_client",
    "is_local_batch_meta",
    "local_batch_to_tensordict",
    "materialize_local",
]

# The names that users of NeMo-RL's local adapter import.
_LOCAL_GENERATION_KEY = LOCAL_GENERATION_KEY
_CHECKPOINT_FILENAME = CHECKPOINT_FILENAME
_LocalPartition = Partition
_value_batch_size = batch_size_of
_is_identity_indices = is_identity
_select_batch_value = select_rows
_unwrap_local_value = unwrap
