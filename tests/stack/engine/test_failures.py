"""Failed hand-offs are told in the log, each once, and a thousand of them do not fill it."""

import logging

from stack.engine.failures import MAX_LINES, WINDOW_S, FailureLog


class Clock:
    s = 100.0

    def now_s(self):
        return self.s


def test_each_failure_is_a_warning_with_request_room_status_and_reason(caplog):
    FailureLog(Clock()).note("r.1", 7, "the prefill instance has died", 503)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "the hand-off of request r.1 (room 7) failed with 503: the prefill instance has died"
    )


def test_a_flood_is_counted_and_not_listed(caplog):
    clock = Clock()
    failures = FailureLog(clock)
    for room in range(1000):
        failures.note("r", room, "died", 503)
    assert len(caplog.records) == MAX_LINES + 1
    clock.s += WINDOW_S
    failures.note("later", 1000, "died", 503)
    lines = [record.getMessage() for record in caplog.records[MAX_LINES:]]
    assert "counted and not listed" in lines[0]
    assert lines[1] == f"{1000 - MAX_LINES} more requests failed and were not listed"
    assert "request later (room 1000)" in lines[2]
