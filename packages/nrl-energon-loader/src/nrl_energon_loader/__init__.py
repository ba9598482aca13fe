"""SFT batches from Megatron-Energon datasets, by a loader that resumes exactly and says what changed."""

__version__ = "0.1.0"
