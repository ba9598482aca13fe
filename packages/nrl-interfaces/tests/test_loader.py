"""The protocol of an SFT data loader."""

from collections.abc import Iterator
from typing import Any

from nrl_interfaces import BatchedDataDict
from nrl_interfaces.loader import SFTDataLoader


class OneBatch:
    def __iter__(self) -> Iterator[BatchedDataDict[Any]]:
        yield BatchedDataDict(x=[1])

    def __len__(self) -> int:
        return 1

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def test_whatever_has_its_methods_is_one() -> None:
    loader: SFTDataLoader = OneBatch()
    assert isinstance(loader, SFTDataLoader)
    assert not isinstance([BatchedDataDict(x=[1])], SFTDataLoader)
