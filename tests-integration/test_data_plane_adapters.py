"""Every data plane that an installed package announces keeps to the contract, made by its name as a config does it."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from nrl_interfaces import build_data_plane_client
from nrl_interfaces.plugins import data_plane_adapters
from nrl_interfaces.testing.data_plane import check_data_plane


@contextlib.contextmanager
def local() -> Iterator[dict[str, Any]]:
    yield {"make_client": lambda **config: build_data_plane_client({"impl": "local", **config})}


ADAPTERS: dict[str, Callable[[], AbstractContextManager[dict[str, Any]]]] = {"local": local}
"""For each adapter what gives the arguments of `check_data_plane`, with all that its clients need running meanwhile."""


def test_the_adapters_of_this_repository_are_announced() -> None:
    assert data_plane_adapters().keys() >= ADAPTERS.keys()


@pytest.mark.parametrize("impl", sorted(data_plane_adapters()))
def test_every_adapter_keeps_the_contract(impl: str) -> None:
    if impl not in ADAPTERS:
        where = data_plane_adapters()[impl].value
        pytest.fail(f"{where} announces the data plane {impl!r}: say in ADAPTERS of {__file__} how clients are made")
    with ADAPTERS[impl]() as arguments:
        report = check_data_plane(**arguments)
    assert report.ok, report
    reasons = arguments.get("left_out", {}).values()
    assert [r for r in report.left_out if not any(reason in r.reason for reason in reasons)] == [], report
