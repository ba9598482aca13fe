"""What a trainer may do with a loader, beside resuming it."""

import gc
import itertools
import logging
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from data import flat, numbers, plain_dataset, plain_loader, sample_numbers
from nrl_energon_loader import EnergonSFTDataLoader, SFTDataLoader

WORKERS = pytest.mark.parametrize("workers", [0, 2])


@pytest.fixture(scope="module")
def path(datasets: Path) -> Path:
    return plain_dataset(datasets / "twelve", numbers(12), shard_size=12)


@pytest.fixture(scope="module")
def eleven(datasets: Path) -> Path:
    return plain_dataset(datasets / "eleven", numbers(11), shard_size=4)


def epochs(loader: EnergonSFTDataLoader, count: int = 1) -> list[list[list[int]]]:
    return [[sample_numbers(batch) for batch in loader] for _ in range(count)]


def some(loader: EnergonSFTDataLoader, count: int) -> list[list[int]]:
    return [sample_numbers(batch) for batch in itertools.islice(loader, count)]


def test_it_is_an_sft_data_loader(path: Path) -> None:
    with plain_loader(path) as loader:
        assert isinstance(loader, SFTDataLoader)
        batch = next(iter(loader))
    assert list(batch) == ["message_log", "loss_multiplier", "source_ids"]
    assert batch["source_ids"] == ["train-000000.tar/00000000", "train-000000.tar/00000001"]


# ---- Lengths ----


@pytest.mark.slow
@WORKERS
def test_len_is_the_number_of_batches_on_each_rank(eleven: Path, workers: int) -> None:
    settings: list[dict[str, Any]] = [
        {},
        {"source": {"virtual_epoch_length": 3}},
        {"split_role": "validation"},
        {"split_role": "validation", "source": {"limit": 3}},
        {"split_role": "validation", "source": {"limit": 100}},
        {"split_role": "validation", "source": {"virtual_epoch_length": 9}},
        {"packing_algorithm": "concatenative", "source": {"virtual_epoch_length": 3}},
    ]
    for each in settings if workers == 0 else settings[1::2]:
        for rank in range(2) if workers == 0 else (1,):
            placed = {"logical_rank": rank, "logical_world_size": 2}
            with plain_loader(eleven, energon={"num_workers": workers}, **placed, **each) as loader:
                assert [len(batches) for batches in epochs(loader, 2)] == [len(loader)] * 2, each


@pytest.mark.parametrize("role", ["train", "validation"])
def test_len_of_packs_without_a_virtual_epoch_is_a_type_error(path: Path, role: str) -> None:
    loader = plain_loader(path, packing_algorithm="concatenative", split_role=role)
    with loader, pytest.raises(TypeError, match="give virtual_epoch_length"):
        len(loader)


def test_ranks_share_the_samples(eleven: Path) -> None:
    given: list[int] = []
    for rank in range(3):
        with plain_loader(eleven, logical_rank=rank, logical_world_size=3, shuffle=True) as loader:
            given += flat(epochs(loader)[0])
    assert sorted(given) == list(range(11))


# ---- Epochs, and leaving them ----


@WORKERS
def test_a_shuffled_epoch_has_each_sample_once_and_each_epoch_an_order_of_its_own(eleven: Path, workers: int) -> None:
    energon = {"num_workers": workers, "shuffle_buffer_size": 6, "max_samples_per_sequence": 2}
    with plain_loader(eleven, shuffle=True, energon=energon) as loader:
        first, second = epochs(loader, 2)
    assert first != second
    for batches in (first, second):
        assert sorted(flat(batches)) == list(range(11))


@WORKERS
def test_a_training_epoch_that_was_left_goes_on(path: Path, workers: int) -> None:
    with plain_loader(path, energon={"num_workers": workers}) as loader:
        (wanted,) = epochs(loader)
    with plain_loader(path, energon={"num_workers": workers}) as loader:
        taken = some(loader, 2)
        assert loader.counters["batches_in_epoch"] == 2
        assert taken + epochs(loader)[0] == wanted
        assert loader.epoch == 1


@WORKERS
def test_a_validation_that_was_left_begins_anew(path: Path, workers: int) -> None:
    def loader() -> EnergonSFTDataLoader:
        return plain_loader(path, split_role="validation", energon={"num_workers": workers})

    with loader() as validation:
        (wanted,) = epochs(validation)
        assert some(validation, 2) == wanted[:2]
        left = validation.state_dict()
        held = iter(validation)
        assert sample_numbers(next(held)) == wanted[0]
        assert epochs(validation) == [wanted]  # a newer iteration, while the older one is still held
        assert validation.epoch == 4
        with pytest.raises(RuntimeError, match="replaced by a newer one"):
            next(held)
    with loader() as resumed:
        resumed.load_state_dict(left)
        assert epochs(resumed) == [wanted]


def test_a_resumed_validation_goes_on_once_and_then_begins_at_the_start(path: Path) -> None:
    with plain_loader(path, split_role="validation") as validation:
        batches = iter(validation)
        first = [sample_numbers(next(batches)) for _ in range(2)]
        state = validation.state_dict()
    with plain_loader(path, split_role="validation") as resumed:
        resumed.load_state_dict(state)
        rest, whole = epochs(resumed, 2)
    assert first + rest == whole


@WORKERS
def test_an_older_iterator_is_refused(path: Path, workers: int) -> None:
    with plain_loader(path, energon={"num_workers": workers}) as loader:
        older = iter(loader)
        assert sample_numbers(next(older)) == [0, 1]
        newer = iter(loader)
        with pytest.raises(RuntimeError, match="replaced by a newer one"):
            next(older)
        assert sample_numbers(next(newer)) not in ([0, 1], [])


def test_start_at_epoch_allows_another_number_of_workers(eleven: Path) -> None:
    energon = {"shuffle_buffer_size": 6, "max_samples_per_sequence": 2}

    def at_epoch_3(workers: int) -> list[list[list[int]]]:
        with plain_loader(eleven, shuffle=True, energon={**energon, "num_workers": workers}) as loader:
            loader.start_at_epoch(3)
            assert loader.epoch == 3
            return epochs(loader, 2)

    first, second = at_epoch_3(2)
    assert at_epoch_3(2) == [first, second]
    assert sorted(flat(first)) == sorted(flat(second)) == list(range(11))
    with plain_loader(eleven, shuffle=True, energon={**energon, "num_workers": 2}) as loader:
        assert epochs(loader)[0] not in (first, second), "not the order of the run's beginning"
    assert len(at_epoch_3(0)) == 2


@WORKERS
def test_a_state_of_a_run_that_began_at_an_epoch_needs_no_second_start_at_epoch(eleven: Path, workers: int) -> None:
    energon = {"num_workers": workers, "shuffle_buffer_size": 6, "max_samples_per_sequence": 2}

    def loader() -> EnergonSFTDataLoader:
        return plain_loader(eleven, shuffle=True, energon=energon)

    with loader() as never_stopped:
        never_stopped.start_at_epoch(3)
        at_start = never_stopped.state_dict()
        batches = iter(never_stopped)
        wanted = [sample_numbers(next(batches)) for _ in range(2)]
        behind_2 = never_stopped.state_dict()
        wanted += [sample_numbers(batch) for batch in batches]
    for state, taken in ((at_start, 0), (behind_2, 2)):
        with loader() as resumed:
            resumed.load_state_dict(state)
            assert resumed.epoch == 3
            assert epochs(resumed) == [wanted[taken:]]


def test_start_at_epoch_refuses(path: Path) -> None:
    with plain_loader(path) as loader:
        for epoch in (-1, 1.0, True):
            with pytest.raises(ValueError, match="allowed: 0 or more"):
                loader.start_at_epoch(epoch)
        iter(loader)
        with pytest.raises(RuntimeError, match="before the first iteration"):
            loader.start_at_epoch(1)


# ---- Workers that are not through at the same time ----


@pytest.mark.parametrize("settings", [{}, {"source": {"virtual_epoch_length": 5}}], ids=["passes", "virtual epochs"])
@pytest.mark.parametrize("stop", [3, 4, 5])
def test_a_worker_that_is_through_before_the_other_waits_for_it(datasets: Path, settings: Any, stop: int) -> None:
    nine = plain_dataset(datasets / "nine", numbers(9), shard_size=3)  # 5 and 4 samples: 3 and 2 batches

    def loader() -> EnergonSFTDataLoader:
        return plain_loader(nine, energon={"num_workers": 2}, **settings)

    with loader() as never_stopped:
        wanted = epochs(never_stopped, 3)
    assert [len(batches) for batches in wanted] == [5, 5, 5]
    taken: list[list[int]] = []
    state: dict[str, Any] = {}
    for part in (stop, 1, 9):  # the second time the other worker has not given anything yet
        with loader() as resumed:
            if state:
                resumed.load_state_dict(state)
            batches = itertools.chain.from_iterable(resumed for _ in range(3))
            taken += [sample_numbers(batch) for batch in itertools.islice(batches, part)]
            state = resumed.state_dict()
    assert taken == [batch for epoch in wanted for batch in epoch][: stop + 10]


def test_packing_draws_no_progress_bar(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with plain_loader(path, packing_algorithm="concatenative") as loader:
        list(loader)
    assert capsys.readouterr().err == ""


# ---- What is left behind ----


@WORKERS
def test_close_and_the_end_of_a_loader_leave_nothing(path: Path, workers: int) -> None:
    loader = plain_loader(path, energon={"num_workers": workers})
    next(iter(loader))
    assert len(multiprocessing.active_children()) == workers
    loader.close()
    loader.close()
    assert multiprocessing.active_children() == []
    for use in (lambda: iter(loader), loader.state_dict, lambda: loader.load_state_dict({})):
        with pytest.raises(RuntimeError, match="closed"):
            use()
    dropped = plain_loader(path, energon={"num_workers": workers})
    next(iter(dropped))
    del dropped
    gc.collect()
    # The fixture `nothing_stays` looks for threads too.
    assert multiprocessing.active_children() == []


def test_an_iteration_is_refused_once_the_loader_is_closed(path: Path) -> None:
    loader = plain_loader(path)
    batches = iter(loader)
    next(batches)
    loader.close()
    with pytest.raises(RuntimeError, match="closed"):
        next(batches)


@pytest.mark.slow
def test_a_worker_that_dies_is_an_error_and_not_a_wait_for_ever(path: Path) -> None:
    with plain_loader(path, energon={"num_workers": 2}) as loader:
        batches = iter(loader)
        next(batches)
        victim = multiprocessing.active_children()[0]
        os.kill(victim.pid, signal.SIGKILL)
        victim.join()
        with pytest.raises(RuntimeError, match=f"worker {victim.pid} has died"):
            loader.state_dict()
        with pytest.raises(RuntimeError, match="exited unexpectedly"):
            list(batches)
        with pytest.raises(RuntimeError, match="make a new loader"):
            next(iter(loader))


# ---- Metrics ----


def test_metrics_tell_waiting_time_and_samples_per_second(path: Path) -> None:
    events: list[Any] = []
    times = itertools.count()
    with plain_loader(path) as loader:
        loader.metrics = events.append
        loader.clock = lambda: next(times)
        list(loader)
    assert len(events) == 6
    assert events[0].keys() == events[1].keys()
    assert events[1] == {
        "op": "next_batch",
        "epoch": 0,
        "batch": 2,
        "samples": 2,
        "wait_ms": 1000,
        "step_ms": 2000,
        "samples_per_s": 1.0,
    }


def test_a_broken_metrics_callback_stops_nothing(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with plain_loader(path) as loader, caplog.at_level(logging.WARNING):
        loader.metrics = lambda _event: 1 / 0
        assert len(list(loader)) == 6
    assert len(caplog.records) == 6
