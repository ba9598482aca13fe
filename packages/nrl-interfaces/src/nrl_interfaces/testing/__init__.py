"""What the authors of pieces and adapters test with; nothing else in the packages imports it."""
