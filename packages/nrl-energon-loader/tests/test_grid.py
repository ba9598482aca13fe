"""A run that was stopped and resumed in a new process gives the batches of the run that never stopped."""

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import grid
import pytest

pytestmark = pytest.mark.slow

CELLS = [(workers, str(cell)) for workers, cells in grid.CELLS.items() for cell in cells]


Runs = Callable[[int], tuple[dict[str, Any], dict[str, Any]]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """By the number of workers, for each cell: the run that never stopped, and those of the new process."""
    folder = tmp_path_factory.mktemp("grid")
    grid.make_datasets(folder)
    recorded: dict[int, dict[str, Any]] = {}
    resuming: dict[int, subprocess.Popen[bytes]] = {}
    for workers in grid.CELLS:  # one resumes in its new process while the next is recorded
        recorded[workers] = json.loads(json.dumps(grid.record(folder, workers)))
        command = [sys.executable, grid.__file__, folder, str(workers)]
        resuming[workers] = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    assert {workers: process.wait(timeout=300) for workers, process in resuming.items()} == dict.fromkeys(resuming, 0)

    @functools.cache
    def of(workers: int) -> tuple[dict[str, Any], dict[str, Any]]:
        return recorded[workers], json.loads((folder / f"resumed {workers}.json").read_text())

    return of


@pytest.mark.parametrize(("workers", "cell"), CELLS)
@pytest.mark.parametrize("saved", grid.SAVED)
@pytest.mark.parametrize("times", ["once", "twice"])
def test_resumed_batches_and_counters_are_those_of_the_run_that_never_stopped(
    runs: Runs, workers, cell, saved, times
) -> None:
    recorded, resumed = (each[cell] for each in runs(workers))
    resumed = resumed[saved][times]
    begin = recorded["before"][saved] + (times == "twice")
    wanted = recorded["batches"][begin:]
    assert resumed["batches"] == wanted[: len(resumed["batches"])]
    if times == "once" and saved in grid.SAVED[1:]:
        assert len(resumed["batches"]) == len(wanted), "to the end of the second epoch"
    assert 0 not in resumed["iterations"], "an epoch without a batch"


@pytest.mark.parametrize(("workers", "cell"), CELLS)
@pytest.mark.parametrize("saved", grid.SAVED[1:])
def test_without_the_state_the_comparison_fails(runs: Runs, workers, cell, saved) -> None:
    # A state from before the first batch is the start, and the only one that nothing is lost without.
    recorded, resumed = (each[cell] for each in runs(workers))
    anew = resumed["without a state"]["batches"]
    assert anew == recorded["batches"][: len(anew)]
    begin = recorded["before"][saved]
    assert anew != recorded["batches"][begin : begin + len(anew)]


@pytest.mark.parametrize(("workers", "cell"), CELLS)
def test_the_grid_has_what_makes_it_hard(runs: Runs, workers, cell) -> None:
    recorded, _ = (each[cell] for each in runs(workers))
    batches = recorded["batches"]
    sources = [batch[1] for batch in batches]
    counters = batches[-1][2]
    first = sources[: recorded["iterations"][0]]
    assert counters["skipped"] > 0 or "epochs of" in cell
    assert len({len(batch) for batch in sources}) == 2 or "epochs of" in cell, "a short last batch"
    if "unpacked" not in cell:
        assert any(len(pack) > 1 for batch in sources for pack in batch)
    if "train" in cell and "epochs of" not in cell:
        assert sources[len(first) : 2 * len(first)] != first, "another order in the second epoch"
