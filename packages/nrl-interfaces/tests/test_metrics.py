import logging

import pytest
from nrl_interfaces.metrics import emit


def test_none_does_nothing():
    emit(None, op="put")


def test_each_event_is_a_dict_of_its_own():
    events = []
    emit(events.append, op="put", metrics=1, wall_ms=0.5, ok=True, note=None)
    emit(events.append, op="get")
    assert events == [{"op": "put", "metrics": 1, "wall_ms": 0.5, "ok": True, "note": None}, {"op": "get"}]


def test_a_failing_callback_is_one_warning_with_its_traceback(caplog):
    def broken(event):
        raise KeyError("no such panel")

    with caplog.at_level(logging.DEBUG):
        emit(broken, op="put")
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("nrl_interfaces.metrics", logging.WARNING)
    assert "'op': 'put'" in record.getMessage()
    assert "no such panel" in caplog.text


def test_an_interrupt_passes():
    def interrupt(event):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        emit(interrupt, op="put")
