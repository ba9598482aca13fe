"""Packing: which conversations share a row, and the row."""
