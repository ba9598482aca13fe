"""SFT batches from Megatron-Energon datasets, by a loader that resumes exactly and says what changed."""

from nrl_interfaces.loader import SFTDataLoader

from nrl_energon_loader.build import build_energon_sft_loader
from nrl_energon_loader.config import EnergonLoaderConfig, EnergonSourceConfig
from nrl_energon_loader.identity import StateMismatchError
from nrl_energon_loader.loader import EnergonSFTDataLoader
from nrl_energon_loader.sample_errors import compact_sample_error_handler
from nrl_energon_loader.sft_batch import prepare_sft_batch
from nrl_energon_loader.state_codec import StateFormatError
from nrl_energon_loader.topology import DataLoaderPlacementPlan, common_batches, plan_placement

__version__ = "0.1.0"

__all__ = [
    "DataLoaderPlacementPlan",
    "EnergonLoaderConfig",
    "EnergonSFTDataLoader",
    "EnergonSourceConfig",
    "SFTDataLoader",
    "StateFormatError",
    "StateMismatchError",
    "build_energon_sft_loader",
    "common_batches",
    "compact_sample_error_handler",
    "plan_placement",
    "prepare_sft_batch",
]
