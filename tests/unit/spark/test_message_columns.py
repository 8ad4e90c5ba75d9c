"""Tests the columns of `epochmq.commitlog` for analytics: times, hosts, properties and bodies."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

import numpy as np

from epochmq_protocol import message
from epochmq_spark import schemas
from epochmq_spark.decode.message_columns import TIME_MS_MAX, host_text, timestamps
from epochmq_spark.sources.commitlog import CommitLogReader
from epochmq_spark.store_layout import AuditedReplica
from tests.spark.damage_kit import records
from tests.unit.spark import inprocess
from tests.unit.store.support import HOST_V6, Message, open_store, put


def write(root: Path) -> None:
    store = open_store(root)
    for number in range(40):
        host = {"born_host": HOST_V6} if number % 3 == 0 else {}
        properties = {"UNIQ_KEY": f"{number:032X}", "größe": f"wert {number}"}
        sent = Message(body=b"b" * (number * 20), properties=properties, **host)
        put(store, sent)
    store.stop()


def test_the_columns_have_what_the_messages_have(tmp_path: Path) -> None:
    write(tmp_path)
    own = records(tmp_path)
    rows = inprocess.rows(CommitLogReader([AuditedReplica("", "a", str(tmp_path))], {"body": "true"}))
    messages = [row for row in rows if row["kind"] == "message"]
    blanks = [row for row in rows if row["kind"] == "blank"]
    assert len(messages) == len(own) == 40
    assert blanks
    for row, record in zip(messages, own, strict=True):
        one = record.message
        assert round(row["store_time"].timestamp() * 1000) == one.store_timestamp == row["store_timestamp"]
        assert round(row["born_time"].timestamp() * 1000) == one.born_timestamp
        assert row["store_time"].utcoffset().total_seconds() == 0
        assert row["born_host"] == host_text(one.born_host)
        assert row["store_host"] == host_text(one.store_host)
        assert dict(row["properties"]) == message.parse_properties(one.properties)
        assert row["body"] == one.body
    for row in blanks:
        names = ("store_time", "born_time", "born_host", "store_host", "properties", "body")
        assert {row[name] for name in names} == {None}
    hosts = {row["born_host"] for row in messages}
    assert hosts == {"127.0.0.2:40000", "[::1]:40000"}


def test_bodies_are_null_unless_they_are_asked_for(tmp_path: Path) -> None:
    write(tmp_path)
    reader = CommitLogReader([AuditedReplica("", "a", str(tmp_path))], {})
    rows = inprocess.rows(reader)
    assert {row["body"] for row in rows} == {None}
    assert list(rows[0]) == schemas.RECORDS.names


def test_times_that_no_calendar_has_are_null() -> None:
    times = np.array([0, TIME_MS_MAX, TIME_MS_MAX + 1, -1, 5])
    found = timestamps(times, np.array([False, False, False, False, True])).to_pylist()
    assert [one is None for one in found] == [False, False, True, True, True]
    assert found[1].year == 9999
