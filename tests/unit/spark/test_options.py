"""Tests that the options of the data sources are checked before anything is read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from epochmq_spark.sources.commitlog import CommitLogSource
from epochmq_spark.sources.consumequeue import ConsumeQueueSource
from epochmq_spark.sources.file_ranges import ReplicaDataSource
from epochmq_spark.sources.index import IndexReader, IndexSource

SIZES = ("partitionBytes", "taskBytes", "indexSlots")


@pytest.fixture
def path(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "commitlog").mkdir()
    return {"path": str(tmp_path)}


def check(source: ReplicaDataSource, error: str) -> None:
    """The error comes with the schema that Spark asks for, and with the reader if the user states one."""
    topic = StructType([StructField("topic", StringType())])
    for action in (source.schema, lambda: source.reader(topic)):
        with pytest.raises(ValueError, match=error):
            action()


@pytest.mark.parametrize("value", ["0", "-1", "64m", "1.5", ""])
@pytest.mark.parametrize("option", SIZES)
def test_an_invalid_size_is_rejected_with_the_name_of_its_option(option: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"option {option}: '{value}', expected a whole number, at least 1"):
        IndexReader([], {option: value})


def test_sizes_are_optional() -> None:
    assert len(IndexReader([], {}).partitions()) == 1
    assert len(IndexReader([], dict.fromkeys(SIZES, "4096")).partitions()) == 1


def test_an_unknown_option_is_an_error_that_lists_the_known_ones(path: dict[str, str]) -> None:
    check(
        CommitLogSource(path | {"bodyy": "true"}),
        "option bodyy: unknown, expected one of body, columns, .*mean body",
    )
    check(ConsumeQueueSource(path | {"body": "true"}), "option body: unknown, expected one of columns, group")
    check(CommitLogSource(path | {"indexslots": "7"}), "option indexslots: unknown")
    names = [*path, "INDEXSLOTS", "partitionbytes", "taskBytes", "Columns"]
    options = dict(zip(names, [path["path"], "7", "1", "1", "number"], strict=True))
    IndexSource(options).schema()


@pytest.mark.parametrize("option", ["body", "pushFilters"])
@pytest.mark.parametrize("value", ["yes", "1", "", "ture"])
def test_a_flag_is_true_or_false(option: str, value: str, path: dict[str, str]) -> None:
    source = CommitLogSource(path | {option: value})
    with pytest.raises(ValueError, match=f"option {option}: '{value}', expected true or false"):
        source.schema()


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        (
            "topic,bodies",
            "option columns: 'bodies' in 'topic,bodies' is no column, expected names .* of group, ",
        ),
        ("", "option columns: '' in '' is no column"),
        ("topic,,size", "option columns: '' in 'topic,,size' is no column"),
        ("topic, topic", "option columns: 'topic, topic' names a column twice"),
    ],
)
def test_columns_are_those_of_the_source(columns: str, error: str, path: dict[str, str]) -> None:
    check(CommitLogSource(path | {"columns": columns}), error)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        (
            [StructField("topics", StringType())],
            "schema: the source has no column 'topics', expected some of group, ",
        ),
        ([StructField("queue_id", LongType())], "schema: column queue_id is bigint, expected int"),
        ([StructField("topic", StringType(), False)], "schema: column topic is NOT NULL, expected"),
        ([], "schema: it has no column, expected at least one"),
        ([StructField("queue_id", IntegerType())] * 2, "has a column twice"),
    ],
)
def test_a_stated_schema_has_columns_of_the_source(
    fields: list[StructField], error: str, path: dict[str, str]
) -> None:
    with pytest.raises(ValueError, match=error):
        CommitLogSource(path).reader(StructType(fields))


def test_columns_and_a_schema_that_differ_are_an_error(path: dict[str, str]) -> None:
    source = CommitLogSource(path | {"columns": "topic,size"})
    with pytest.raises(
        ValueError, match=re.escape("option columns: 'topic,size', and a schema of other columns")
    ):
        source.reader(StructType([StructField("topic", StringType())]))


def test_names_are_compared_without_case(path: dict[str, str]) -> None:
    """As Spark passes them: in lower case, in a dictionary that finds them in any."""
    (Path(path["path"]) / "commitlog" / f"{0:020}").write_bytes(bytes(4096))
    options = CaseInsensitiveDict(path | {"partitionBytes": "1000", "taskBytes": "1", "BODY": "true"})
    source = CommitLogSource(options)
    assert len(source.reader(source.schema()).partitions()) == 5


@pytest.mark.parametrize("topics", ["", "a,,b", "a, "])
def test_topics_have_names(topics: str, path: dict[str, str]) -> None:
    check(
        CommitLogSource(path | {"topics": topics}),
        f"option topics: '{topics}', expected names separated by commas",
    )
