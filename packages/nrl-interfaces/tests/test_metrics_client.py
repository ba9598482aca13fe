"""MetricsDataPlaneClient: one flat event an operation, and nothing else changed."""

import inspect
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from nrl_interfaces import MetricsDataPlaneClient
from nrl_interfaces.data_plane import DataPlaneClient
from nrl_interfaces.testing.data_plane import DataPlaneContract
from nrl_interfaces.testing.model_data_plane import ModelDataPlane
from tensordict import NonTensorData, TensorDict


class TestMetricsDataPlaneClient(DataPlaneContract):
    """A wrapped client keeps what the client in it keeps."""

    left_out = {"restricted loading": "the model in it is loaded by pickle"}  # noqa: RUF012
    random_runs = 5

    def make_client(self, **config: Any) -> DataPlaneClient:
        return MetricsDataPlaneClient(ModelDataPlane(**config), lambda event: None)


@pytest.fixture
def events() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def client(events: list[dict[str, Any]]) -> Iterator[MetricsDataPlaneClient]:
    clock = itertools.count(10.0, 0.5)  # half a second from each look to the next
    with MetricsDataPlaneClient(ModelDataPlane(), events.append, clock=lambda: next(clock)) as made:
        yield made


def test_every_operation_is_one_event(client: DataPlaneClient, events: list[Any], tmp_path: Path) -> None:
    client.register_partition("p", ["x", "c"], 2, ["train"])
    client.put_samples(["a", "b"], "p", {"x": torch.zeros(2, 3), "c": ["ab", "c"]})
    client.put_samples(["a"], "p", tags=[{"n": 1}])
    client.explain("p", "train", ["x"], 2)
    meta = client.claim_meta("p", "train", ["x"], 2)
    client.get_data(meta)
    client.get_samples(["a"], "p", ["x", "c"])
    client.release_claims(["b"], "p", "train")
    client.check_consumption_status("p", ["train"])
    client.list_sample_ids("p")
    client.stats()
    client.freeze()
    client.save_checkpoint(tmp_path)
    client.clear_samples(["a"], "p")
    client.clear_samples(None, "p")
    client.close()
    seen = [tuple(event[name] for name in ("op", "partition_id", "n_samples", "n_bytes")) for event in events]
    assert seen == [
        ("register_partition", "p", 2, 0),
        ("put_samples", "p", 2, 27),
        ("put_samples", "p", 1, 0),
        ("explain", "p", 2, 0),
        ("claim_meta", "p", 2, 0),
        ("get_data", "p", 2, 24),
        ("get_samples", "p", 1, 14),
        ("release_claims", "p", 1, 0),
        ("check_consumption_status", "p", 0, 0),
        ("list_sample_ids", "p", 2, 0),
        ("stats", None, 2, 0),
        ("freeze", None, 0, 0),
        ("save_checkpoint", None, 0, 0),
        ("clear_samples", "p", 1, 0),
        ("clear_samples", "p", 0, 0),
        ("close", None, 0, 0),
    ]
    assert {event["status"] for event in events} == {"ok"}
    assert {event["wall_ms"] for event in events} == {500.0}
    assert all(set(event) == {"op", "partition_id", "n_samples", "n_bytes", "wall_ms", "status"} for event in events)


def test_every_method_of_the_contract_is_watched() -> None:
    public = {name for name, _ in inspect.getmembers(DataPlaneClient, inspect.isfunction) if not name.startswith("_")}
    assert public <= set(vars(MetricsDataPlaneClient))


def test_columns_of_a_tensordict_are_counted(client: DataPlaneClient, events: list[Any]) -> None:
    client.register_partition("p", ["x", "c"], 2, ["train"])
    column: Any = NonTensorData(["ab", "c"], batch_size=[2])
    client.put_samples(["a", "b"], "p", TensorDict({"x": torch.zeros(2, 3), "c": column}, batch_size=[2]))
    assert events[-1]["n_bytes"] == 27


@pytest.mark.parametrize(
    ("call", "op", "error"),
    [
        (lambda client: client.get_samples(["a"], "nowhere", ["x"]), "get_samples", KeyError),
        (lambda client: client.register_partition("", ["x"], 1, ["train"]), "register_partition", ValueError),
        (lambda client: client.claim_meta("p", "train", ["x"], 1, timeout_s=0), "claim_meta", TimeoutError),
    ],
)
def test_an_error_goes_on_and_is_the_status(
    client: DataPlaneClient, events: list[Any], call: Any, op: str, error: type[Exception]
) -> None:
    client.register_partition("p", ["x"], 1, ["train"])
    with pytest.raises(error):
        call(client)
    assert (events[-1]["op"], events[-1]["status"], events[-1]["n_samples"]) == (op, error.__name__, 0)


def test_an_interrupt_is_told_and_goes_on(events: list[Any]) -> None:
    class Interrupted(ModelDataPlane):
        def stats(self) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        MetricsDataPlaneClient(Interrupted(), events.append).stats()
    assert events[-1]["status"] == "KeyboardInterrupt"


def test_a_callback_that_raises_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: Any) -> None:
        raise ConnectionError("no dashboard")

    client = MetricsDataPlaneClient(ModelDataPlane(), broken)
    client.register_partition("p", ["x"], 1, ["train"])
    assert client.stats().partitions == 1
    assert "the event is lost" in caplog.text
