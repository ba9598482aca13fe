"""SIGTERM, in this process."""

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any

import pytest
from nrl_rollout_ckpt.saving.outcomes import RolloutCheckpointSaveResult
from nrl_rollout_ckpt.saving.requests import SnapshotRefusedError
from nrl_rollout_ckpt.saving.signals import NotTheMainThreadError, install_sigterm

Uninstall = Callable[[], None]


@pytest.fixture
def reached() -> Generator[list[int]]:
    """The signals that reach the handler of before."""
    signals: list[int] = []

    def before(number: int, frame: Any) -> None:
        signals.append(number)

    outer = signal.signal(signal.SIGTERM, before)
    yield signals
    assert signal.getsignal(signal.SIGTERM) is before, "the handler of before was not put back"
    signal.signal(signal.SIGTERM, outer)


def install(bench: Any, *, grace_s: float = 30) -> Uninstall:
    return install_sigterm(asyncio.get_running_loop(), bench.pump.request, grace_s=grace_s, clock=bench.clock)


async def terminate(bench: Any) -> None:
    signal.raise_signal(signal.SIGTERM)
    await asyncio.sleep(0)  # the loop reads the signal from its pipe
    await bench.pass_time(0)


def test_sigterm_takes_a_snapshot_stops_the_run_and_puts_the_handler_back(bench: Any, reached: list[int]) -> None:
    async def story(task: asyncio.Task[None]) -> None:
        install(bench)
        await terminate(bench)
        await task
        await bench.pass_time(0)
        assert bench.saves == [(0, True, 0, "completed")]
        assert bench.pump.stop_requested
        assert reached == []
        signal.raise_signal(signal.SIGTERM)
        assert reached == [signal.SIGTERM]

    bench.play(story)


def test_a_second_sigterm_meanwhile_changes_nothing(
    bench: Any, reached: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    async def second() -> None:
        await terminate(bench)

    async def story(task: asyncio.Task[None]) -> None:
        install(bench)
        bench.script = [second]
        await terminate(bench)
        await task
        assert len(bench.saves) == 1
        await bench.pass_time(0)
        assert caplog.text.count("a snapshot is requested") == 1

    bench.play(story)
    assert reached == []


def test_after_the_grace_it_gives_up_says_so_and_hands_the_signal_on(
    bench: Any, reached: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    async def story(task: asyncio.Task[None]) -> None:
        install(bench, grace_s=30)
        bench.window.open()
        await terminate(bench)
        await bench.pass_time(29)
        assert reached == []
        await bench.pass_time(1)
        assert reached == [signal.SIGTERM]
        assert "given up, there is no snapshot after 30 s" in caplog.text

    bench.play(story)


@pytest.mark.parametrize(
    ("last_save_s", "deadline_grace_s", "waits_s"), [(0, 120, 29), (10, 120, 20), (10, 5, 5), (40, 120, 0)]
)
def test_without_an_anchor_the_run_stops_in_order_before_the_grace_is_over(
    make_bench: Any,
    reached: list[int],
    caplog: pytest.LogCaptureFixture,
    last_save_s: float,
    deadline_grace_s: float,
    waits_s: float,
) -> None:
    bench = make_bench(deadline_grace_s=deadline_grace_s)

    async def take() -> None:
        bench.clock.advance(last_save_s)

    async def story(task: asyncio.Task[None]) -> None:
        bench.script = [take]
        bench.pump.request("before")
        await bench.pass_time(0)
        bench.progress.advance()
        install(bench, grace_s=30)
        await terminate(bench)
        if waits_s:
            await bench.pass_time(waits_s - 0.5)
            assert not task.done()
            await bench.pass_time(0.5)
        await task
        assert "without a last snapshot: SIGTERM; step_1 is not durable" in caplog.text

    bench.play(story)
    assert bench.reasons[-1] == "missing_trainer_anchor"
    assert reached == []


def test_a_signal_shortens_the_wait_at_the_deadline(make_bench: Any, reached: list[int]) -> None:
    bench = make_bench(budget_s=50)

    async def story(task: asyncio.Task[None]) -> None:
        bench.progress.advance()
        await bench.pass_time(60)
        install(bench, grace_s=30)
        await terminate(bench)
        await bench.pass_time(28.5)
        assert not task.done()
        await bench.pass_time(0.5)
        await task

    bench.play(story)
    assert reached == []


def test_without_a_pump_the_signal_is_handed_on_at_once(
    bench: Any, reached: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    async def story(task: asyncio.Task[None]) -> None:
        bench.pump.close()
        install(bench)
        await terminate(bench)
        assert reached == [signal.SIGTERM]
        assert (
            "given up, the snapshot requested for 'SIGTERM' was not taken: the snapshot pump has ended" in caplog.text
        )

    bench.play(story)


def test_a_snapshot_that_fails_ends_the_run_by_its_error(bench: Any, reached: list[int]) -> None:
    async def story(task: asyncio.Task[None]) -> None:
        install(bench)
        bench.script = [OSError(28, "full")]
        await terminate(bench)
        with pytest.raises(RuntimeError, match="required"):
            await task
        await bench.pass_time(0)
        assert reached == []

    bench.play(story)


def test_without_a_signal_the_handler_is_put_back_by_hand(bench: Any, reached: list[int]) -> None:
    async def story(task: asyncio.Task[None]) -> None:
        uninstall = install(bench)
        uninstall()
        signal.raise_signal(signal.SIGTERM)
        assert reached == [signal.SIGTERM]
        uninstall()
        assert bench.saves == []

    bench.play(story)


def test_a_loop_that_ends_while_it_waits_puts_the_handler_back(bench: Any, reached: list[int]) -> None:
    async def story(task: asyncio.Task[None]) -> None:
        install(bench)
        bench.window.open()
        await terminate(bench)

    bench.play(story)  # asyncio.run cancels what is left
    assert reached == []


@pytest.mark.parametrize("where", ["another thread", "a loop of another thread"])
def test_only_a_loop_on_the_main_thread_is_accepted(where: str, reached: list[int]) -> None:
    def request(reason: str, *, stop: bool, within_s: float) -> Future[RolloutCheckpointSaveResult]:
        raise AssertionError

    errors: list[BaseException] = []
    clock: Any = None
    loop = asyncio.new_event_loop()
    started = threading.Event()

    async def install_there() -> None:
        try:
            install_sigterm(asyncio.get_running_loop(), request, grace_s=1, clock=clock)
        except NotTheMainThreadError as error:
            errors.append(error)

    def run_loop() -> None:
        loop.call_soon(started.set)
        loop.run_forever()

    thread = threading.Thread(target=run_loop, name="actor")
    thread.start()
    started.wait()
    try:
        if where == "another thread":
            asyncio.run_coroutine_threadsafe(install_there(), loop).result()
        else:
            with pytest.raises(RuntimeError) as raised:
                install_sigterm(loop, request, grace_s=1, clock=clock)
            errors.append(raised.value)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    assert [type(error) for error in errors] == [NotTheMainThreadError]
    assert "request_snapshot('SIGTERM', stop=True)" in str(errors[0])


@pytest.mark.parametrize("grace", [0, -1, float("nan"), float("inf"), True, "30"])
def test_a_bad_grace_is_refused_and_nothing_installed(bench: Any, reached: list[int], grace: Any) -> None:
    async def story(task: asyncio.Task[None]) -> None:
        with pytest.raises(ValueError, match=r"grace_s is .* allowed: seconds above 0"):
            install(bench, grace_s=grace)

    bench.play(story)


def test_the_refusal_is_logged_as_an_error(bench: Any, reached: list[int], caplog: pytest.LogCaptureFixture) -> None:
    async def story(task: asyncio.Task[None]) -> None:
        bench.pump.close()
        install(bench)
        await terminate(bench)
        assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.ERROR]
        with pytest.raises(SnapshotRefusedError):
            bench.pump.request("again").result(timeout=0)

    bench.play(story)
