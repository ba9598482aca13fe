"""What a snapshot is of: the barrier, the ledger, the replay index and their records."""
