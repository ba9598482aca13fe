"""The inputs behind public bug reports, each by its number."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from data import flat, numbers, plain_dataset, plain_loader, sample_numbers
from megatron.energon import SourceInfo
from megatron.energon.errors import FatalSampleError
from nrl_energon_loader import EnergonSFTDataLoader, StateMismatchError, common_batches, compact_sample_error_handler
from nrl_energon_loader.sample_errors import take_skips

WORKERS = pytest.mark.parametrize("workers", [0, 2])


def take(loader: EnergonSFTDataLoader, count: int) -> list[list[int]]:
    """Batches over the ends of epochs."""
    taken: list[list[int]] = []
    while len(taken) < count:
        for batch in loader:
            taken.append(sample_numbers(batch))
            if len(taken) == count:
                break
    return taken


def passes(loader: EnergonSFTDataLoader, count: int = 2) -> list[list[list[int]]]:
    return [[sample_numbers(batch) for batch in loader] for _ in range(count)]


@WORKERS
@pytest.mark.parametrize("stop", [1, 3])
def test_l01_save_load_save_at_once_and_resume_a_second_time(datasets: Path, workers: int, stop: int) -> None:
    path = plain_dataset(datasets / "twelve", numbers(12), shard_size=12)

    def loader() -> EnergonSFTDataLoader:
        return plain_loader(path, energon={"num_workers": workers})

    with loader() as never_stopped:
        wanted = take(never_stopped, 6)
    with loader() as first:
        assert take(first, stop) == wanted[:stop]
        s1 = first.state_dict()
        assert take(first, 2) == wanted[stop : stop + 2], "saving moved the position"
    with loader() as second:
        second.load_state_dict(s1)
        s2 = second.state_dict()
    with loader() as third:
        third.load_state_dict(s2)
        taken = take(third, 1)
        s3 = third.state_dict()  # with workers, one that has given nothing since the load
    with loader() as fourth:
        fourth.load_state_dict(s3)
        taken += take(fourth, 2)
    assert taken == wanted[stop : stop + 3]
    assert s2["loader_state"]["fields"]["next_worker_id"] == s1["loader_state"]["fields"]["next_worker_id"]
    assert s2["counters"] == s1["counters"]


@WORKERS
@pytest.mark.parametrize("samples", [6, 5])
@pytest.mark.parametrize("role", ["train", "validation"])
def test_l03_saved_after_the_last_batch_before_the_end_is_signalled(
    datasets: Path, workers: int, samples: int, role: str
) -> None:
    path = plain_dataset(datasets / f"of {samples}", numbers(samples), shard_size=samples)

    def loader() -> EnergonSFTDataLoader:
        return plain_loader(path, energon={"num_workers": workers}, split_role=role)

    with loader() as never_stopped:
        first, second = passes(never_stopped)
    assert sorted(flat(first)) == list(range(samples)), "the short last batch is given once"
    with loader() as stopped:
        batches = iter(stopped)
        for _ in first:
            next(batches)
        before_stop = stopped.state_dict()
        assert next(batches, None) is None
        after_stop = stopped.state_dict()
    for state in (before_stop, after_stop):
        with loader() as resumed:
            resumed.load_state_dict(state)
            assert passes(resumed, 1) == [second]
            assert resumed.epoch == 2


def test_l03_with_packing_and_with_virtual_epochs(datasets: Path) -> None:
    path = plain_dataset(datasets / "twelve", numbers(12), shard_size=12)
    for settings in ({"packing_algorithm": "concatenative"}, {"source": {"virtual_epoch_length": 4}}):

        def loader(settings: dict[str, Any] = settings) -> EnergonSFTDataLoader:
            return plain_loader(path, **settings)

        with loader() as never_stopped:
            first, second = passes(never_stopped)
        with loader() as stopped:
            batches = iter(stopped)
            for _ in first:
                next(batches)
            state = stopped.state_dict()
        with loader() as resumed:
            resumed.load_state_dict(state)
            assert passes(resumed, 1) == [second]


@WORKERS
def test_l05_state_of_another_shard_or_of_another_world_size(datasets: Path, workers: int) -> None:
    path = plain_dataset(datasets / "sixteen", numbers(16))

    def loader(rank: int, world: int, placement: str = "a") -> EnergonSFTDataLoader:
        energon = {"num_workers": workers}
        placed = {"logical_rank": rank, "logical_world_size": world, "placement_fingerprint": placement}
        return plain_loader(path, energon=energon, **placed)

    with loader(0, 2) as saved:
        wanted = take(saved, 4)
    with loader(0, 2) as saved:
        take(saved, 1)
        state = saved.state_dict()
    refused = {
        (1, 2, "a"): ["topology.logical_rank 0 -> 1"],
        (0, 1, "a"): ["topology.logical_world_size 2 -> 1"],
        (0, 4, "a"): ["topology.logical_world_size 2 -> 4"],
        (0, 2, "b"): ['topology.placement_fingerprint "a" -> "b"'],
    }
    for changed, lines in refused.items():
        with loader(*changed) as untouched, loader(*changed) as other:
            start = take(untouched, 1)
            with pytest.raises(StateMismatchError) as caught:
                other.load_state_dict(state)
            assert list(caught.value.differences) == lines
            assert take(other, 1) == start, "a refused load leaves the loader at its start"
    with loader(0, 2) as same:
        same.load_state_dict(state)
        assert take(same, 3) == wanted[1:]


def test_l07_batch_size_or_dataset_changed_between_save_and_load(
    datasets: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a = plain_dataset(datasets / "ten", numbers(10))
    moved = plain_dataset(tmp_path / "moved", numbers(10))
    b = plain_dataset(datasets / "three", numbers(3))
    with plain_loader(a) as saved:
        take(saved, 2)
        state = saved.state_dict()
    refused: list[tuple[Path, dict[str, Any], str]] = [
        (a, {"batch_size": 3}, "batch_size 2 -> 3"),
        (b, {}, "source.content "),
        (a, {"shuffle": True}, "shuffle false -> true"),
        (a, {"split_role": "validation"}, 'split_role "train" -> "validation"'),
        (a, {"sequence_length_pad_multiple": 8}, "sequence_length_pad_multiple 1 -> 8"),
        (a, {"only_unmask_final": True}, "only_unmask_final false -> true"),
    ]
    for path, changes, line in refused:
        with plain_loader(path, **changes) as other:
            with pytest.raises(StateMismatchError) as caught:
                other.load_state_dict(state)
            (told,) = caught.value.differences
            assert told.startswith(line)
            assert next(iter(other))["source_ids"], "a refused load leaves the loader usable"
    for path in (a, moved):
        with plain_loader(path) as same, caplog.at_level(logging.WARNING):
            same.load_state_dict(state)
            assert take(same, 3) == [[4, 5], [6, 7], [8, 9]]
    assert [record.message for record in caplog.records] == [
        f'the same data, elsewhere: source.path "{a}" -> "{moved}"'
    ]


@WORKERS
def test_l09_shards_of_unequal_length(datasets: Path, workers: int) -> None:
    path = plain_dataset(datasets / "ten", numbers(10))
    settings = {"energon": {"num_workers": workers}, "split_role": "validation", "batch_size": 1}
    lengths: list[int] = []
    for rank in range(4):
        with plain_loader(path, logical_rank=rank, logical_world_size=4, **settings) as loader:
            lengths.append(len(loader))
            assert len(list(loader)) == lengths[-1], f"rank {rank}"
    assert sorted(lengths) == [2, 2, 3, 3]
    assert common_batches(lengths) == 2


def test_l09_a_shard_with_nothing_is_refused_when_the_loader_is_built(datasets: Path) -> None:
    path = plain_dataset(datasets / "ten", numbers(10))
    for role in ("train", "validation"):
        sizes: list[int] = []
        for rank in range(16):
            try:
                with plain_loader(
                    path, split_role=role, batch_size=1, logical_rank=rank, logical_world_size=16
                ) as loader:
                    sizes.append(len(list(loader)))
            except ValueError as error:
                sizes.append(0)
                assert f"rank {rank} of 16" in str(error)
                assert "which has 10" in str(error)
        assert sorted(sizes) == [0] * 6 + [1] * 10
        assert sizes[0] == 1
        assert sizes[15] == 0


def test_l09_more_workers_than_samples(datasets: Path) -> None:
    path = plain_dataset(datasets / "three", numbers(3))
    settings = {"energon": {"num_workers": 2}, "batch_size": 1, "logical_world_size": 2}
    given: list[int] = []
    for rank in range(2):
        with plain_loader(path, logical_rank=rank, **settings) as loader:
            (batches,) = passes(loader, 1)
            assert len(batches) == len(loader)
            given += flat(batches)
    assert sorted(given) == [0, 1, 2]
    with pytest.raises(ValueError, match=r"worker 1 of rank 1 of 2 with 2 worker\(s\) gets no sample to repeat"):
        plain_loader(path, logical_rank=1, source={"virtual_epoch_length": 7}, **settings)


@WORKERS
def test_l11_one_bad_sample(datasets: Path, workers: int, caplog: pytest.LogCaptureFixture) -> None:
    path = plain_dataset(datasets / "number 7 is bad", numbers(10, bad=[7]))

    def loader() -> EnergonSFTDataLoader:
        return plain_loader(path, energon={"num_workers": workers}, batch_size=1)

    with loader() as never_stopped:
        (wanted,) = passes(never_stopped, 1)
        assert never_stopped.counters["skipped"] == 1
        assert never_stopped.counters["skipped_by_source"] == {str(path): 1}
    assert sorted(flat(wanted)) == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    if workers == 0:
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert caplog.messages[0].startswith("skipped a sample: ValueError: bad of 00000007: key 00000007, source ")
        assert caplog.messages[0].endswith("number 7 is bad/train-000001.tar[7]")
    with loader() as stopped:
        take(stopped, 3)
        state = stopped.state_dict()
    with loader() as resumed:
        resumed.load_state_dict(state)
        assert passes(resumed, 1) == [wanted[3:]]
        assert resumed.counters["skipped"] == 1


@WORKERS
def test_l11_all_bad_ends_in_an_error_that_names_the_last(datasets: Path, workers: int) -> None:
    path = plain_dataset(datasets / "all bad", ["bad"] * 10)
    source = {"virtual_epoch_length": 3}
    with plain_loader(path, energon={"num_workers": workers}, source=source) as loader:
        with pytest.raises(FatalSampleError, match="failed 100 times in a row") as caught:
            next(iter(loader))
        assert "0000000" in str(caught.value)
        with pytest.raises(RuntimeError, match="make a new loader"):
            loader.state_dict()
    take_skips()


@pytest.mark.parametrize(("word", "error"), [("interrupt", KeyboardInterrupt), ("exit", SystemExit)])
def test_l11_interrupts_pass(datasets: Path, word: str, error: type[BaseException]) -> None:
    path = plain_dataset(datasets / word, [*numbers(4), word, *numbers(5)])
    with plain_loader(path) as loader:
        batches = iter(loader)
        next(batches)
        next(batches)
        with pytest.raises(error):
            next(batches)


def test_l11_skip_sample_is_silent_and_not_counted_as_bad(datasets: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = plain_dataset(datasets / "skip", [*numbers(4), "skip", *numbers(5)])
    with plain_loader(path) as loader:
        assert sorted(flat(passes(loader, 1)[0])) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
        assert loader.counters["skipped"] == 0
    assert caplog.messages == []


class Unreadable:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    @property
    def __key__(self) -> str:
        raise RuntimeError("no key")


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_l11_the_handler_never_raises_and_writes_one_short_line(caplog: pytest.LogCaptureFixture) -> None:
    source = SourceInfo(dataset_path="/" + "d" * 5000, index=3, shard_name="s.tar", file_names=())
    handed: list[tuple[Any, Any, Any]] = [
        (ValueError("a"), [{"__key__": "1"}, {"__key__": "2"}], [source, source]),
        (ValueError("a\n" * 1000), None, None),
        (ValueError("b" * 1_000_000), {"__key__": "k" * 1_000_000, "pixels": torch.zeros(1_000_000)}, [source]),
        (ValueError("c"), Unreadable(), None),
        (UnreadableError(), [Unreadable()], [object()]),
        (ValueError("d"), [], []),
    ]
    take_skips()
    for exception, sample, sources in handed:
        compact_sample_error_handler(exception, sample, sources)
    assert len(caplog.messages) == len(handed)
    assert all(len(message) < 500 and "\n" not in message for message in caplog.messages)
    assert sum(take_skips().values()) == 7
    assert take_skips() == {}
