"""What the tests of nrl-energon-loader share: datasets on disk, and that nothing is left running."""

import multiprocessing
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))  # `import hf`, `import data`: the import mode adds no folder

# Workers are forked: after a parallel torch operation a forked child would hang in its own first one.
torch.set_num_threads(1)


# A slow moment of the machine fails nothing.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """No worker process and no thread outlives a test."""
    before = set(threading.enumerate())
    yield
    assert multiprocessing.active_children() == []
    assert [thread.name for thread in threading.enumerate() if thread not in before] == []


@pytest.fixture(scope="session")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for datasets that tests share; `data.conversations` makes each once."""
    return tmp_path_factory.mktemp("datasets")
