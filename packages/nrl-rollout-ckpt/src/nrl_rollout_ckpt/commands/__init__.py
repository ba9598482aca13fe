"""What the verbs of the command `nrl-rollout-ckpt` do; only `prune` changes anything or takes a lock."""
