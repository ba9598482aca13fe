"""What the tests of nrl-rollout-ckpt share."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))  # `import runs`: the import mode adds no folder

# Kill tests fork this process: after a parallel torch operation a forked child would hang in its own first one.
torch.set_num_threads(1)
