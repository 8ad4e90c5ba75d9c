"""Log lines in JSON: one object for each record, with the caller's fields. `test_process` of the controller
tests lines in logfmt."""

from __future__ import annotations

import json
import logging
import sys

from epochmq_protocol.log_lines import JsonLinesFormatter


def line(message: str, *arguments: object, exc_info: bool = False, **extra: object) -> dict[str, object]:
    """The fields of a record's line."""
    info = sys.exc_info() if exc_info else None
    record = logging.LogRecord("a.b", logging.WARNING, "", 0, message, arguments, info)
    record.created, record.msecs = 1_000_000_000.9996, 999.6
    vars(record).update(extra)
    text = JsonLinesFormatter().format(record)
    assert "\n" not in text
    fields: dict[str, object] = json.loads(text)
    return fields


def test_a_record_is_one_object_with_its_time_in_utc() -> None:
    assert line('the "disk"\nof %s', "ü", broker_id=2) == {
        "time": "2001-09-09T01:46:40.999Z",
        "level": "warning",
        "logger": "a.b",
        "event": 'the "disk"\nof ü',
        "broker_id": 2,
    }


def test_an_exception_is_in_the_same_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        fields = line("failed", exc_info=True)
    assert fields["event"] == "failed"
    assert str(fields["exception"]).endswith("ValueError: two\nlines")
