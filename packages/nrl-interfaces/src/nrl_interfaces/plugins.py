"""Data planes by name: adapters announce themselves as entry points of the group ``nrl.data_plane``."""

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from nrl_interfaces.data_plane import DataPlaneClient

__all__ = ["DATA_PLANE_GROUP", "build_data_plane_client", "data_plane_adapters"]

DATA_PLANE_GROUP = "nrl.data_plane"
"""An entry point of this group names a callable that takes the config, a mapping without ``impl``."""


def data_plane_adapters() -> dict[str, EntryPoint]:
    """List the adapters that are installed, by name."""
    return {entry.name: entry for entry in entry_points(group=DATA_PLANE_GROUP)}


def build_data_plane_client(
    config: Mapping[str, Any], *, adapters: Mapping[str, EntryPoint] | None = None
) -> DataPlaneClient:
    """Build the data plane that ``config["impl"]`` names.

    Args:
        config: ``impl`` is the adapter's name, such as ``"local"``; the rest is handed to the adapter.
        adapters: Where to look for it; the installed ones by default.

    Raises:
        ValueError: If ``impl`` is missing or no adapter has that name; lists those there are. Or as the adapter says.
    """
    known = data_plane_adapters() if adapters is None else adapters
    name = config.get("impl")
    if not isinstance(name, str) or name not in known:
        said = "no impl" if name is None else f"impl {name!r}, which no installed package announces"
        raise ValueError(
            f"the config of the data plane has {said}; allowed: {_listed(known)} "
            f"(pip install nrl-dataplane-local brings 'local')"
        )
    make = cast("Callable[[dict[str, Any]], DataPlaneClient]", known[name].load())
    return make({key: value for key, value in config.items() if key != "impl"})


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names)) or "none, as no adapter is installed"
