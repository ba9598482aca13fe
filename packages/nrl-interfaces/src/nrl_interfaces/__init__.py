"""The small shared part of the nrl packages."""

__version__ = "0.1.0"
