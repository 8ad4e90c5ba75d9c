"""Tests that a data source returns the columns that are asked for, as a read of all columns does."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from epochmq_protocol import message
from epochmq_spark import schemas
from epochmq_spark.decode import record_columns
from epochmq_spark.sources.commitlog import CommitLogSource
from epochmq_spark.sources.consumequeue import ConsumeQueueSource
from epochmq_spark.sources.file_ranges import ReplicaDataSource
from epochmq_spark.sources.index import IndexSource
from epochmq_spark.sources.summary import SummarySource
from tests.spark.damage_kit import records
from tests.unit.spark import inprocess
from tests.unit.spark.conftest import Group
from tests.unit.store.support import HOST_V6, Message, open_store, put

NAMES = schemas.RECORD_COLUMNS.names
PROPERTIES = (
    b"KEYS\x01a b\x02TAGS\x01paid\x02UNIQ_KEY\x01AC11\x02",
    b"",
    b"a\x01first\x02b\x012\x02a\x01last\x02",
    b"a\x011\x02empty\x01\x02\x01nameless\x02alone\x02b\x01x\x01y",
    b"a\xff\x011\x02a\xfe\x012\x02KEYS\x01\xe9\x02",
    "größe\x0112 \N{EURO SIGN}\x02".encode(),
)


def rows_of(source: ReplicaDataSource, schema: StructType | None = None) -> list[dict[str, Any]]:
    """What Spark gets, with the schema that it passes."""
    return inprocess.rows(source.reader(schema or source.schema()))


def options_of(paths: Sequence[Path], **others: str) -> dict[str, str]:
    return {"path": str(paths[0].parent / "r*"), "partitionBytes": "3000", "taskBytes": "1", **others}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Properties of all kinds, hosts of both kinds, and several segments."""
    folder = tmp_path / "r1"
    opened = open_store(folder)
    for number in range(60):
        host = (
            {"born_host": HOST_V6}
            if number % 3 == 0
            else {"born_host": bytes([10, 0, 0, number % 4, 0, 0, 1, 0])}
        )
        raw = PROPERTIES[number % len(PROPERTIES)]
        opened.append(
            opened.queue(f"topic-{number % 2}", 0),
            body=b"b" * (number * 20),
            properties=raw,
            born_timestamp=1_700_000_000_000 + number,
            flag=0,
            sys_flag=0,
            tags_code=0,
            uniq_key=None,
            keys=None,
            **host,
        )
    opened.stop()
    return folder


def test_properties_are_those_that_the_broker_parses(store: Path) -> None:
    found = rows_of(CommitLogSource({"path": str(store), "columns": "kind,properties,properties_text"}))
    messages = [row for row in found if row["kind"] == "message"]
    own = [one.message.properties for one in records(store)]
    assert [row["properties"] for row in messages] == [
        list(message.parse_properties(raw).items()) for raw in own
    ]
    assert [row["properties_text"] for row in messages] == [raw.decode("utf-8", "replace") for raw in own]
    assert {row["properties"] for row in found if row["kind"] == "blank"} <= {None}


@pytest.mark.parametrize("batch_bytes", [1, 2000, 1 << 25])
def test_each_column_alone_is_that_of_a_read_of_all(
    batch_bytes: int, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_columns, "BATCH_BYTES", batch_bytes)
    path = {"path": str(store)}
    whole = rows_of(CommitLogSource(path | {"columns": ",".join(NAMES)}))
    assert len(whole) > 60
    for name in NAMES:
        assert rows_of(CommitLogSource(path | {"columns": name})) == [{name: row[name]} for row in whole]
    order = random.Random(5).sample(NAMES, 7)
    found = rows_of(CommitLogSource(path | {"columns": " , ".join(order)}))
    assert found == [{name: row[name] for name in order} for row in whole]
    assert list(found[0]) == order
    assert rows_of(CommitLogSource(path | {"body": "true"})) == [
        {name: row[name] for name in schemas.RECORDS.names} for row in whole
    ]


def test_columns_of_a_damaged_log_are_those_of_a_read_of_all(store: Path) -> None:
    rng = random.Random(9)
    for segment in sorted((store / "commitlog").iterdir()):
        data = bytearray(segment.read_bytes())
        for _ in range(3):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        segment.write_bytes(data)
    path = {"path": str(store), "partitionBytes": "1000"}
    whole = rows_of(CommitLogSource(path | {"columns": ",".join(NAMES)}))
    assert {row["crc_ok"] for row in whole} == {True, False}
    for name in NAMES:
        assert rows_of(CommitLogSource(path | {"columns": name})) == [{name: row[name]} for row in whole]


def test_columns_of_several_replicas_name_group_and_replica(group: Group, dledger_group: Group) -> None:
    for paths in (group(71), dledger_group(71)):
        whole = rows_of(CommitLogSource(options_of(paths)))
        names = "replica,group,entry_index,physical_offset"
        found = rows_of(CommitLogSource(options_of(paths, columns=names)))
        assert found == [{name: row[name] for name in names.split(",")} for row in whole]
        assert {row["replica"] for row in found} == {str(path) for path in paths}


def test_the_group_is_the_name_in_the_identity_file_or_the_option(group: Group) -> None:
    paths = group(71)
    names = {(paths[0] / "brokerIdentity").read_text().split("#")[1]}
    for source in (CommitLogSource, ConsumeQueueSource, IndexSource):
        assert {row["group"] for row in rows_of(source(options_of(paths, columns="group")))} == names
        assert {row["group"] for row in rows_of(source(options_of(paths, group="mine")))} == {"mine"}


def test_a_stated_schema_is_the_same_as_the_option_columns(group: Group) -> None:
    paths = group(71)
    for source, known in (
        (CommitLogSource, schemas.RECORD_COLUMNS),
        (ConsumeQueueSource, schemas.UNITS),
        (IndexSource, schemas.INDEX),
        (SummarySource, schemas.SUMMARY),
    ):
        names = list(reversed(known.names))[::2]
        of_option = rows_of(source(options_of(paths, columns=",".join(names))))
        stated = StructType([from_arrow_schema(known)[name] for name in names])
        assert rows_of(source(options_of(paths)), stated) == of_option
        assert of_option
        assert list(of_option[0]) == names


def test_a_body_is_read_if_a_column_a_schema_or_the_option_asks_for_it(store: Path) -> None:
    path = {"path": str(store)}
    stated = StructType([from_arrow_schema(schemas.RECORDS)["body"]])
    sizes = [row["body_size"] for row in rows_of(CommitLogSource(path))]

    def lengths(found: list[dict[str, Any]]) -> list[int | None]:
        return [None if row["body"] is None else len(row["body"]) for row in found]

    assert lengths(rows_of(CommitLogSource(path))) == [None] * len(sizes)
    assert lengths(rows_of(CommitLogSource(path | {"body": "TRUE"}))) == sizes
    assert lengths(rows_of(CommitLogSource(path | {"columns": "body"}))) == sizes
    assert lengths(rows_of(CommitLogSource(path), stated)) == sizes
    assert lengths(rows_of(CommitLogSource(path | {"columns": "body", "body": "false"}))) == [None] * len(
        sizes
    )


def test_a_message_of_the_send_path_has_its_keys(tmp_path: Path) -> None:
    opened = open_store(tmp_path)
    put(opened, Message(properties={"KEYS": "a b", "TAGS": "t", "UNIQ_KEY": "U"}))
    opened.stop()
    (row,) = rows_of(CommitLogSource({"path": str(tmp_path), "columns": "keys,tags,uniq_key,topic"}))
    assert row == {"keys": "a b", "tags": "t", "uniq_key": "U", "topic": "orders"}
