"""Data planes by name."""

from importlib.metadata import EntryPoint
from typing import Any

import pytest
from nrl_interfaces import build_data_plane_client
from nrl_interfaces.plugins import DATA_PLANE_GROUP, data_plane_adapters
from nrl_interfaces.testing.model_data_plane import ModelDataPlane


def build_model(config: dict[str, Any]) -> ModelDataPlane:
    """What an entry point names."""
    return ModelDataPlane(**config)


def entry(name: str, value: str = "nrl_interfaces.testing.model_data_plane:ModelDataPlane") -> EntryPoint:
    return EntryPoint(name=name, value=value, group=DATA_PLANE_GROUP)


class Made(EntryPoint):
    """An entry point that loads a function of this file."""

    def load(self) -> Any:
        return build_model


def adapters(*names: str) -> dict[str, EntryPoint]:
    return {name: Made(name=name, value="here:build_model", group=DATA_PLANE_GROUP) for name in names}


def test_impl_names_the_adapter_and_the_rest_is_its_config() -> None:
    config = {"impl": "model", "max_partitions": 1, "partition_mode": "stream"}
    client = build_data_plane_client(config, adapters=adapters("model", "other"))
    assert isinstance(client, ModelDataPlane)
    client.register_partition("p", ["x"], 1, ["train"])
    with pytest.raises(RuntimeError, match="1 partitions is the limit"):
        client.register_partition("q", ["x"], 1, ["train"])
    assert config["impl"] == "model", "the caller's config is not changed"


def test_an_unknown_adapter_is_told_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"impl 'lokal'.* allowed: 'local', 'tq'"):
        build_data_plane_client({"impl": "lokal"}, adapters=adapters("tq", "local"))


@pytest.mark.parametrize("config", [{}, {"max_partitions": 1}, {"impl": None}])
def test_a_config_without_impl_is_told(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"no impl.* allowed: 'local'"):
        build_data_plane_client(config, adapters=adapters("local"))


def test_without_any_adapter_the_error_says_what_to_install() -> None:
    with pytest.raises(ValueError, match=r"none, as no adapter is installed \(pip install nrl-dataplane-local"):
        build_data_plane_client({"impl": "local"}, adapters={})


def test_what_the_adapter_raises_goes_on() -> None:
    with pytest.raises(TypeError, match="max_partition"):
        build_data_plane_client({"impl": "model", "max_partition": 1}, adapters=adapters("model"))


def test_an_adapter_that_is_not_asked_for_is_not_imported() -> None:
    known = {**adapters("model"), "broken": entry("broken", "no_such_module:build")}
    assert build_data_plane_client({"impl": "model"}, adapters=known)
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        build_data_plane_client({"impl": "broken"}, adapters=known)


def test_installed_adapters_are_listed_by_name() -> None:
    assert all(found.group == DATA_PLANE_GROUP and found.name == name for name, found in data_plane_adapters().items())
