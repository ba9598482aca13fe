"""Stream a training step's tensors to JSON Lines and publish only a whole step."""

from nrl_interfaces.ownership import FolderInUseError

from nrl_dump.manifest import DamagedStepError, InterruptedStepError, Manifest, NotPublishedError, verify
from nrl_dump.merge import StepIncompleteError, StepNotThereError, TornPartError
from nrl_dump.reader import read_step, read_tensors
from nrl_dump.writer import TrainDataDump

__version__ = "0.1.0"

__all__ = [
    "DamagedStepError",
    "FolderInUseError",
    "InterruptedStepError",
    "Manifest",
    "NotPublishedError",
    "StepIncompleteError",
    "StepNotThereError",
    "TornPartError",
    "TrainDataDump",
    "read_step",
    "read_tensors",
    "verify",
]
