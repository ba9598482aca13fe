"""Clients in several Ray processes share one queue, and the death of one loses nothing."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import ray
import torch
from nrl_dataplane_tq import StaleMetaError, TransferQueueDataPlaneClient
from nrl_dataplane_tq.puts import PUT_LIMIT_S

TIMEOUT_S = 60.0


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()
    return thread, results


def test_producers_and_consumers_in_processes_of_their_own(queue: Any) -> None:
    """Claims wait in other processes, each row goes to one of them, and carries what was put."""

    @ray.remote(num_cpus=0)
    def produce(plane: TransferQueueDataPlaneClient, number: int) -> None:
        for turn in range(3):
            ids = [f"s{number}-{turn}-{at}" for at in range(4)]
            plane.put_samples(ids, "p", {"x": torch.full((4, 5), 10 * number + turn)}, [{"from": number}] * 4)

    @ray.remote(num_cpus=0)
    def consume(plane: TransferQueueDataPlaneClient) -> list[tuple[str, int, int]]:
        got: list[tuple[str, int, int]] = []
        for _ in range(2):
            meta = plane.claim_meta("p", "train", ["x"], 6, timeout_s=TIMEOUT_S)
            rows = plane.get_data(meta)["x"]
            tags = meta.tags or []
            got += [(i, tag["from"], int(row[0])) for i, tag, row in zip(meta.sample_ids, tags, rows, strict=True)]
        return got

    plane = queue.client(partition_mode="stream")
    plane.register_partition("p", ["x"], 64, ["train"])
    consumers = [consume.remote(plane) for _ in range(2)]
    ray.get([produce.remote(plane, number) for number in range(2)])
    got = [row for rows in ray.get(consumers) for row in rows]
    assert sorted(sample_id for sample_id, _, _ in got) == plane.list_sample_ids("p")
    assert all(sample_id.startswith(f"s{number}-{value % 10}-") for sample_id, number, value in got)
    assert all(value // 10 == number for _, number, value in got)
    assert plane.check_consumption_status("p", ["train"])


def test_a_claim_of_a_process_that_died_takes_nothing(queue: Any) -> None:
    @ray.remote(num_cpus=0)
    class Consumer:
        def claim(self, plane: TransferQueueDataPlaneClient) -> list[str]:
            return plane.claim_meta("p", "train", ["x"], 1, timeout_s=TIMEOUT_S).sample_ids

        def pid(self) -> None:
            pass

    plane = queue.client(partition_mode="stream")
    plane.register_partition("p", ["x"], 4, ["train"])
    consumer: Any = Consumer.remote()
    ray.get(consumer.pid.remote())
    claim = consumer.claim.remote(plane)
    assert not ray.wait([claim], timeout=0.5)[0]
    ray.kill(consumer)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(claim)
    plane.put_samples(["a", "b"], "p", {"x": torch.arange(2)})
    assert plane.claim_meta("p", "train", ["x"], 2, timeout_s=TIMEOUT_S).sample_ids == ["a", "b"]


def test_what_one_client_knows_of_a_partition_another_may_have_changed(queue: Any) -> None:
    plane = queue.client()
    other = queue.client(plane._cfg.plane)
    plane.register_partition("p", ["x"], 1, ["train"])
    old = other.put_samples(["a"], "p", {"x": torch.tensor([1])})
    plane.clear_samples(None, "p")
    plane.register_partition("p", ["y"], 1, ["eval"])
    with pytest.raises(StaleMetaError):
        other.get_data(old)
    with pytest.raises(KeyError, match="task 'train' is not declared"):
        other.claim_meta("p", "train", ["y"], 1)
    with pytest.raises(ValueError, match="field 'x' is not declared"):
        other.put_samples(["a"], "p", {"x": torch.tensor([1])})
    other.put_samples(["a"], "p", {"y": torch.tensor([2])})
    assert other.claim_meta("p", "eval", ["y"], 1).sample_ids == ["a"]
    plane.clear_samples(None, "p")
    with pytest.raises(KeyError, match="partition 'p' is not registered"):
        other.put_samples(["a"], "p", {"y": torch.tensor([2])})


# ---- A put under way ----


def begin(plane: Any, ids: list[str], **columns: Any) -> tuple[tuple[Any, ...], Any]:
    """Begin a put as a client does, and go no further."""
    from nrl_dataplane_tq.columns import kind_of

    declared = plane._ask("declaration", "p")
    where = ("p", declared.generation)
    kinds = {name: kind_of(column) for name, column in columns.items()}
    return where, plane._ask("begin_put", *where, ids, kinds, None, False)


def send(plane: Any, begun: Any, ids: list[str], **columns: Any) -> None:
    from nrl_dataplane_tq.columns import kind_of, to_wire

    wire = {name: to_wire(name, column, kind_of(column), ids) for name, column in columns.items()}
    plane._connection.put_rows(wire, begun.rows)


def test_a_put_is_seen_as_a_whole_at_its_end(queue: Any) -> None:
    plane = queue.client(partition_mode="stream")
    plane.register_partition("p", ["x", "y"], 4, ["train"])
    plane.put_samples(["a"], "p", {"x": torch.tensor([1])})
    column = {"y": torch.arange(2)}
    where, new = begin(plane, ["b", "d"], **column)
    send(plane, new, ["b", "d"], **column)
    assert plane.list_sample_ids("p") == ["a"]
    assert plane.explain("p", "train", ["y"], 1).rows_ready == 0
    with pytest.raises(ValueError, match="room for 1 of 4"):
        plane.put_samples(["e", "f"], "p", {"x": torch.arange(2)})
    plane._ask("end_put", *where, new.number, True)
    late, more = begin(plane, ["a"], y=torch.tensor([7]))
    send(plane, more, ["a"], y=torch.tensor([7]))
    assert plane.explain("p", "train", ["y"], 1).rows_ready == 2, "a column of a put under way"
    plane._ask("end_put", *late, more.number, True)
    assert plane.explain("p", "train", ["y"], 1).rows_ready == 3
    assert plane.list_sample_ids("p") == ["a", "b", "d"]
    assert plane.get_samples(["d", "a"], "p", ["y"])["y"].tolist() == [1, 7]


def test_a_put_that_fails_leaves_nothing(queue: Any) -> None:
    plane = queue.client(partition_mode="stream")
    plane.register_partition("p", ["x"], 2, ["train"])
    where, begun = begin(plane, ["a", "b"], x=torch.arange(2))
    send(plane, begun, ["a", "b"], x=torch.arange(2))
    plane._ask("end_put", *where, begun.number, False)
    assert plane.list_sample_ids("p") == []
    plane.put_samples(["b", "c"], "p", {"x": torch.tensor([5, 6])})
    assert plane.claim_meta("p", "train", ["x"], 2, timeout_s=TIMEOUT_S).sample_ids == ["b", "c"]


def test_puts_of_the_same_rows_clears_and_saves_wait_for_a_put(queue: Any, tmp_path: Any) -> None:
    plane = queue.client(partition_mode="stream")
    plane.register_partition("p", ["x", "y"], 4, ["train"])
    where, begun = begin(plane, ["a"], x=torch.tensor([1]))
    waiting = [
        in_thread(lambda: plane.put_samples(["a"], "p", {"y": torch.tensor([2])})),
        in_thread(lambda: plane.save_checkpoint(tmp_path) or "saved"),
    ]
    plane.explain("p", "train", ["x"], 1)  # the registry has had its turns
    assert all(thread.is_alive() for thread, _ in waiting)
    send(plane, begun, ["a"], x=torch.tensor([1]))
    plane._ask("end_put", *where, begun.number, True)
    for thread, results in waiting:
        thread.join(TIMEOUT_S)
        assert results
    assert plane.get_samples(["a"], "p", ["x", "y"])["y"].tolist() == [2]
    where, begun = begin(plane, ["b"], x=torch.tensor([1]))
    clears = [
        in_thread(lambda: plane.clear_samples(["a"], "p") or "cleared"),
        in_thread(lambda: plane.clear_samples(None, "p") or "cleared"),
    ]
    clears[0][0].join(TIMEOUT_S)
    assert clears[0][1], "a clear of other rows need not wait"
    assert clears[1][0].is_alive()
    plane._ask("end_put", *where, begun.number, False)
    clears[1][0].join(TIMEOUT_S)
    assert clears[1][1]


def test_a_put_whose_client_died_is_given_up(queue: Any) -> None:
    """By a registry in this process, whose clock is the test's."""
    from nrl_dataplane_tq import engine
    from nrl_dataplane_tq.answers import Refusal
    from nrl_dataplane_tq.columns import kind_of
    from nrl_dataplane_tq.declaration import Declaration
    from nrl_dataplane_tq.registry import Registry

    now = 100.0
    controller = engine.controller_of(queue.name, "tests")
    kinds = {"x": kind_of(torch.arange(2))}

    async def run() -> None:
        nonlocal now
        registry = Registry(controller, engine.queue_config(controller), clock=lambda: now, watch_s=3600)
        await registry.call("open", "late", "batch", 1)
        declared = Declaration.checked("p", ["x"], 2, ["train"], None, None)
        await registry.call("declare", "late", declared, "late")
        generation = (await registry.call("declaration", "late", "p")).generation
        put = ("begin_put", "late", "p", generation, ["a", "b"], kinds, None, False)
        first = await registry.call(*put)
        now += PUT_LIMIT_S + 1
        second = await registry.call(*put)  # would be refused beside the first one, and waits for it
        assert second.number != first.number
        refused = await registry.call("end_put", "late", "p", generation, first.number, True)
        assert isinstance(refused, Refusal)
        assert "was given up" in str(refused.error)
        await registry.call("end_put", "late", "p", generation, second.number, True)
        assert await registry.call("sample_ids", "late", "p") == ["a", "b"]
        await registry.call("reset", "late")
        assert "plane 'late' was reset" in str((await registry.call("sizes", "late")).error)
        registry._watch.cancel()  # type: ignore[union-attr]
        registry._engine._client.close()

    asyncio.run(run())


def test_a_read_that_met_a_clear_begins_again(queue: Any) -> None:
    """TransferQueue gives a cleared row's number to another row: the read must not give that one."""
    plane = queue.client(partition_mode="stream")
    plane.register_partition("p", ["x"], 2000, ["train"])
    plane.put_samples(["a", "b"], "p", {"x": torch.tensor([1, 2])})
    get_rows, calls = plane._connection.get_rows, list[Any]()

    def number_of(sample_id: str) -> int:
        return plane._ask("locate", "p", None, [sample_id], ["x"]).numbers[0]

    def slow_get_rows(engine_id: str, numbers: list[int], fields: list[str]) -> Any:
        calls.append(numbers)
        if len(calls) == 1:
            plane.clear_samples(["a"], "p")
            for at in range(1000):  # until somebody has the number; those that were free before come first
                plane.put_samples([f"c{at}"], "p", {"x": torch.tensor([3])})
                if number_of(f"c{at}") == numbers[0]:
                    break
            plane.put_samples(["a"], "p", {"x": torch.tensor([9])})
        return get_rows(engine_id, numbers, fields)

    plane._connection.get_rows = slow_get_rows
    assert plane.get_samples(["a"], "p", ["x"])["x"].tolist() == [9]
    assert len(calls) == 2


def test_a_claim_takes_next_to_no_time_while_it_waits(queue: Any) -> None:
    """It waits for the registry's answer: a wait of half a second is a handful of messages, not a poll."""
    plane = queue.client(partition_mode="stream")
    plane.register_partition("p", ["x"], 4, ["train"])
    asked: list[str] = []
    future = plane._connection.future

    def counted(operation: str, *args: Any) -> Any:
        asked.append(operation)
        return future(operation, *args)

    plane._connection.future = counted
    thread, results = in_thread(lambda: plane.claim_meta("p", "train", ["x"], 1, timeout_s=TIMEOUT_S))
    thread.join(0.5)
    began = time.monotonic()
    plane.put_samples(["a"], "p", {"x": torch.tensor([1])})
    thread.join(TIMEOUT_S)
    assert results
    assert time.monotonic() - began < TIMEOUT_S / 10
    assert asked == ["wait"]
