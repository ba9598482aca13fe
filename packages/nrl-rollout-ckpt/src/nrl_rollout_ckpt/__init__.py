"""Snapshots of rollouts in flight, anchored to trainer checkpoints, restored without a lost or doubled prompt.

A training loop tells `RolloutTransitions` what happens, `RolloutSnapshotter` saves it beside the loop, and after a
crash `select_resume_source` and `RolloutRestorer` take a new process to where it was. `nrl_rollout_ckpt.testing` has
every part of a run in memory.
"""

from nrl_rollout_ckpt.clock import Clock, SystemClock
from nrl_rollout_ckpt.config import RolloutCheckpointConfig
from nrl_rollout_ckpt.disk.bootstrap import BootstrapCompatibilityIdentity, BootstrapMismatchError
from nrl_rollout_ckpt.disk.layout import FolderInUseError
from nrl_rollout_ckpt.disk.manifest import NewerFormatError, RolloutSnapshotManifest
from nrl_rollout_ckpt.disk.selection import RolloutStateDamagedError, select_resume_source
from nrl_rollout_ckpt.disk.trainer_checkpoints import CheckpointManager
from nrl_rollout_ckpt.restore import (
    PromptChangedError,
    RestoreCheckError,
    RestoreIncompleteError,
    RestorePlan,
    RestoreReport,
    RolloutRestorer,
    read_recovery_sidecar,
)
from nrl_rollout_ckpt.samplers import InOrderSampler, WindowedSampler
from nrl_rollout_ckpt.saving.deadline import TimeoutChecker
from nrl_rollout_ckpt.saving.outcomes import (
    RolloutCheckpointAttemptOutcome,
    RolloutCheckpointAttemptReason,
    RolloutCheckpointSaveResult,
)
from nrl_rollout_ckpt.saving.snapshots import RolloutSnapshotter
from nrl_rollout_ckpt.state.barrier import DataPlaneCheckpointBarrier, DataPlaneMutationCut
from nrl_rollout_ckpt.state.ledger import LedgerError, RolloutRecoveryLedger, UnknownGroupError
from nrl_rollout_ckpt.state.ledger_states import (
    PromptGroupPhase,
    PromptGroupStatus,
    RecoveryGranularity,
    RecoveryTargetLevel,
    RolloutAttemptStatus,
)
from nrl_rollout_ckpt.state.records import Prompt, PromptGroupRecoveryRecord, ReplayGroup, SiblingSealResult
from nrl_rollout_ckpt.state.replay_index import ReplayIndex, TrainingClaim
from nrl_rollout_ckpt.state.rollout_state import (
    CheckpointKind,
    ResumeSource,
    RolloutParts,
    RolloutRuntimeState,
    TrainingProgress,
)
from nrl_rollout_ckpt.state.transitions import RolloutTransitions

__version__ = "0.1.0"

__all__ = [
    "BootstrapCompatibilityIdentity",
    "BootstrapMismatchError",
    "CheckpointKind",
    "CheckpointManager",
    "Clock",
    "DataPlaneCheckpointBarrier",
    "DataPlaneMutationCut",
    "FolderInUseError",
    "InOrderSampler",
    "LedgerError",
    "NewerFormatError",
    "Prompt",
    "PromptChangedError",
    "PromptGroupPhase",
    "PromptGroupRecoveryRecord",
    "PromptGroupStatus",
    "RecoveryGranularity",
    "RecoveryTargetLevel",
    "ReplayGroup",
    "ReplayIndex",
    "RestoreCheckError",
    "RestoreIncompleteError",
    "RestorePlan",
    "RestoreReport",
    "ResumeSource",
    "RolloutAttemptStatus",
    "RolloutCheckpointAttemptOutcome",
    "RolloutCheckpointAttemptReason",
    "RolloutCheckpointConfig",
    "RolloutCheckpointSaveResult",
    "RolloutParts",
    "RolloutRecoveryLedger",
    "RolloutRestorer",
    "RolloutRuntimeState",
    "RolloutSnapshotManifest",
    "RolloutSnapshotter",
    "RolloutStateDamagedError",
    "RolloutTransitions",
    "SiblingSealResult",
    "SystemClock",
    "TimeoutChecker",
    "TrainingClaim",
    "TrainingProgress",
    "UnknownGroupError",
    "WindowedSampler",
    "read_recovery_sidecar",
    "select_resume_source",
]
