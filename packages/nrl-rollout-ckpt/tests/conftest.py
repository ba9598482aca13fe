"""What the tests of nrl-rollout-ckpt share."""

import asyncio
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # `import runs`: the import mode adds no folder

# Kill tests fork this process: after a parallel torch operation a forked child would hang in its own first one.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint folder of `saved_runs.saved_run`; to be read only."""
    from saved_runs import saved_run

    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    asyncio.run(saved_run(folder))
    return folder
