"""Task encoders make tokens of conversations, and batches of these."""
