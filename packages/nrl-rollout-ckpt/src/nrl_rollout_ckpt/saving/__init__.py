"""Taking snapshots: the attempt, its phases, and the pump."""
