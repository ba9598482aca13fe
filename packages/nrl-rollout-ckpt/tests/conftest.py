"""What the tests of nrl-rollout-ckpt share."""

import torch

# Kill tests fork this process: after a parallel torch operation a forked child would hang in its own first one.
torch.set_num_threads(1)
