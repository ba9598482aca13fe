"""Importing a package loads nothing heavy that its user may not need."""

import importlib
import importlib.metadata
import subprocess
import sys

import pytest

HEAVY = {
    "nrl_interfaces": {"megatron", "ray", "tensordict", "transformers"},
    "nrl_dump": {"ray", "tensordict"},
    "nrl_dataplane_local": {"megatron", "ray", "transformers"},
    "nrl_dataplane_tq": {"megatron", "ray", "tensordict", "transfer_queue", "transformers"},
    "nrl_rollout_ckpt": {"megatron", "ray", "tensordict", "transformers"},
    "nrl_energon_loader": {"ray", "tensordict", "transformers"},
}


@pytest.mark.parametrize("module", HEAVY)
def test_import_is_light(module: str) -> None:
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert module in loaded
    assert not HEAVY[module] & loaded


@pytest.mark.parametrize("module", HEAVY)
def test_the_version_is_that_of_the_distribution(module: str) -> None:
    assert importlib.import_module(module).__version__ == importlib.metadata.version(module.replace("_", "-"))
