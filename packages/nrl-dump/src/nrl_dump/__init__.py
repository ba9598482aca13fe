"""Stream a training step's tensors to JSON Lines and publish only a whole step."""

__version__ = "0.1.0"
