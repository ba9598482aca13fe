"""The checker finds a resume that is not exact."""

from pathlib import Path

import pytest
from data import numbers, plain_dataset, plain_loader
from nrl_energon_loader import EnergonSFTDataLoader, StateMismatchError
from nrl_energon_loader.resume_check import check_resume, compare_run, record_run


@pytest.fixture(scope="module")
def path(datasets: Path) -> Path:
    return plain_dataset(datasets / "checked", numbers(11))


class Forgetful(EnergonSFTDataLoader):
    """Begins anew whatever state it is given."""

    def load_state_dict(self, state: object) -> None:
        pass


def forgetful(path: Path) -> EnergonSFTDataLoader:
    loader = plain_loader(path, batch_size=3)
    loader.__class__ = Forgetful
    return loader


@pytest.mark.parametrize("stop_after", [0, 2, 4, 6])
def test_exact_over_the_ends_of_epochs(path: Path, stop_after: int) -> None:
    report = check_resume(lambda: plain_loader(path, batch_size=3), stop_after=stop_after, compare=9)
    assert report.exact
    assert (report.stopped_after, report.compared, report.differences) == (stop_after, 9, [])


def test_a_resume_that_begins_anew_is_found(path: Path) -> None:
    report = check_resume(lambda: forgetful(path), stop_after=2, compare=3)
    assert not report.exact
    assert report.differences == [
        f"batch {number} differs in {columns}"
        for number, columns in (
            (3, "message_log, source_ids"),
            (4, "loss_multiplier, message_log, source_ids"),
            (5, "message_log, source_ids"),
        )
    ]


def test_a_loader_of_another_stream_is_refused(path: Path) -> None:
    recorded = record_run(lambda: plain_loader(path), stop_after=1, compare=1)
    with pytest.raises(StateMismatchError, match="batch_size 2 -> 3"):
        compare_run(lambda: plain_loader(path, batch_size=3), recorded)


def test_bad_numbers(path: Path) -> None:
    for numbers_ in ({"stop_after": -1}, {"stop_after": 1, "compare": 0}, {"stop_after": 1.0}):
        with pytest.raises(ValueError, match="allowed: whole numbers from"):
            check_resume(lambda: plain_loader(path), **numbers_)


def test_a_dataset_without_a_batch(datasets: Path) -> None:
    path = plain_dataset(datasets / "two bad", ["bad", "bad"])
    with pytest.raises(ValueError, match="gives no batch"):
        check_resume(lambda: plain_loader(path), stop_after=1)
