"""Snapshots of rollouts in flight, anchored to trainer checkpoints, restored without a lost or doubled prompt."""
