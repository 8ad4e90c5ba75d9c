"""Compares, with Spark, the parts of consume queues that differ from the log.

Three steps, so that each part of a log is read at most once more, however many queues differ there: the units
of each bucket tell which messages must be read; the messages of all buckets are read, one part of a log after
the other; each bucket is compared with its messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from epochmq_spark import bounded_tables, queue_drill_down
from epochmq_spark.audit_state import AuditState, ReplicaKey
from epochmq_spark.checks.consume_queues import QueueMessage
from epochmq_spark.checks.former_topics import LoggedTopic, topics_without_units
from epochmq_spark.decode.summary_rows import SummaryKind
from epochmq_spark.drill_down import AuditedLog
from epochmq_spark.queue_drill_down import BucketPart, QueueRange, WantedMessages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WINDOW_BITS: Final = 26  # of a physical offset: messages in 64 MiB of a log are read together
QUEUE: Final = ("group", "replica", "topic", "queue_id")
BUCKET: Final = (*QUEUE, "at")
_KEY = [
    *((name, pa.string()) for name in ("group", "replica", "topic")),
    ("queue_id", pa.int32()),
    ("at", pa.int64()),
]
WANTED: Final = pa.schema([*_KEY, *((name, pa.int64()) for name in ("window", "first", "last"))])
MESSAGES: Final = pa.schema(
    [
        *_KEY,
        *((name, pa.int64()) for name in ("queue_offset", "physical", "size", "tags_code")),
        *((name, pa.string()) for name in ("message_id", "key")),
        ("store_time", pa.int64()),
        ("fault", pa.string()),
    ]
)
"""A message of a bucket; or only `fault`, why its part of the log cannot be read."""
MESSAGES_OF_BATCH: Final = 10_000
TOPICS_MAX: Final = 100_000  # topics without a unit that the driver compares with the tables of topics

Row = dict[str, Any]
Logs = Mapping[ReplicaKey, AuditedLog]
Batches = Iterator[pa.RecordBatch]
RowCheck = Callable[[Row], list[Row]]


def with_messages(state: AuditState, suspects: DataFrame, summary: DataFrame) -> DataFrame:
    """The buckets that differ, at most `bounded_tables.COMPARED_MAX` of a replica, with the columns
    `queue_end`, `new_topic`, `unlisted`, `log_parts`, and `messages`: those messages that their units do not
    describe."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.types import from_arrow_schema

    by_log, by_queue = SummaryKind.UNITS_BY_LOG.value, SummaryKind.UNITS_BY_QUEUE.value
    is_unit = f.col("kind") == by_queue
    high_of_queue = f.max(f.when(is_unit, f.col("high")))
    first_in_log, first_in_queue = (
        f.min(f.when(~is_unit, f.col("first"))),
        f.min(f.when(is_unit, f.col("first"))),
    )
    starts_anew = (f.min(f.when(is_unit, f.col("low"))) == 0) & (first_in_log < first_in_queue)
    ends = (
        summary.where(f.col("kind").isin(by_log, by_queue))
        .groupBy(*QUEUE)
        .agg(
            (f.coalesce(high_of_queue, f.lit(-1)) + 1).alias("queue_end"),
            f.coalesce(starts_anew, f.lit(False)).alias("starts_anew"),
        )
        .withColumn("new_topic", f.max("starts_anew").over(Window.partitionBy("group", "replica", "topic")))
        .drop("starts_anew")
    )
    with_ends = suspects.select(*BUCKET).join(ends, [*QUEUE])
    first = bounded_tables.first_of_each(with_ends, ["group", "replica"], ["topic", "queue_id", "at"])
    buckets = bounded_tables.with_parts(first, summary.where(f.col("kind") == by_log), BUCKET)
    wanted = buckets.where("unlisted = 0").mapInArrow(_wanted_of(state), from_arrow_schema(WANTED))
    tasks = bounded_tables.TASKS_PER_CORE * suspects.sparkSession.sparkContext.defaultParallelism
    windows = (
        wanted.groupBy("group", "replica", "window")
        .agg(f.collect_list(f.struct("topic", "queue_id", "at", "first", "last")).alias("wanted"))
        .repartition(tasks)
    )
    columns = [name for name in MESSAGES.names if name not in BUCKET]
    messages = (
        windows.mapInArrow(_messages_of(state), from_arrow_schema(MESSAGES))
        .groupBy(*BUCKET)
        .agg(f.collect_list(f.struct(*columns)).alias("messages"))
    )
    return buckets.join(messages, [*BUCKET], "left").repartition(tasks)


def check_of(state: AuditState) -> RowCheck:
    """The check of a row of `with_messages`."""
    logs = _logs_with_queues(state)
    groups = state.logs_with_queues()

    def check(row: Row) -> list[Row]:
        log = logs.get((row["group"], row["replica"]))
        if log is None:
            return []
        if row["unlisted"]:
            return bounded_tables.not_compared(row, "the parts of consume queues that differ from the log")
        read = row["messages"] or ()
        if faults := sorted({one["fault"] for one in read if one["fault"]}):
            raise OSError(faults[0])
        messages = [
            QueueMessage(**{name: value for name, value in one.items() if name != "fault"}) for one in read
        ]
        return queue_drill_down.compare_messages(log, _range_of(row), messages, groups[row["group"]])

    return check


def without_topics_without_units(
    state: AuditState, suspects: DataFrame, summary: DataFrame
) -> tuple[list[Row], DataFrame]:
    """Findings about topics that were deleted with their queues, or may have been, and the suspects without
    them. So what a large topic leaves is not compared bucket by bucket."""
    from pyspark.sql import functions as f

    tables = state.topic_tables()
    if not any(tables.values()):
        return [], suspects
    place = ["group", "replica", "topic"]
    by_log, by_queue = SummaryKind.UNITS_BY_LOG.value, SummaryKind.UNITS_BY_QUEUE.value
    is_log = f.col("kind") == by_log
    logged = (
        summary.where(f.col("kind").isin(by_log, by_queue))
        .join(suspects.select(*place).distinct(), place, "left_semi")
        .groupBy(*place)
        .agg(
            f.sum(f.when(is_log, f.col("count")).otherwise(0)).alias("count"),
            f.min(f.when(is_log, f.col("first"))).alias("first"),
            f.max(f.when(is_log, f.col("end"))).alias("last"),
            f.max(f.col("kind") == by_queue).alias("has_units"),
        )
        .where("not has_units")
        .drop("has_units")
        .limit(TOPICS_MAX)
    )
    dispatched = {
        group: {log.replica.name: log.dispatched_end for log in logs}
        for group, logs in state.logs_with_queues().items()
    }
    topics = (LoggedTopic(**row.asDict()) for row in logged.collect())
    notes, keys = topics_without_units(topics, tables, dispatched)
    if not keys:
        return [], suspects
    found = suspects.sparkSession.createDataFrame(keys, "group string, replica string, topic string")
    return notes, suspects.join(f.broadcast(found), place, "left_anti")


def _logs_with_queues(state: AuditState) -> Logs:
    groups = state.logs_with_queues()
    return {(group, log.replica.name): log for group, logs in groups.items() for log in logs}


def _range_of(row: Row) -> QueueRange:
    parts = [
        BucketPart(one["first"], one["end"], one["count"], one["digest"]) for one in row["log_parts"] or ()
    ]
    return QueueRange(
        row["topic"], row["queue_id"], row["at"], parts, row["queue_end"], is_of_new_topic=row["new_topic"]
    )


def _wanted_of(state: AuditState) -> Callable[[Batches], Batches]:
    """Finds the messages that must be read, of rows of buckets. A bucket whose units cannot be read has none:
    its comparison reports that."""
    listings, logs = state.listings, _logs_with_queues(state)

    def wanted_of_row(row: Row) -> list[Row]:
        log = logs.get((row["group"], row["replica"]))
        if log is None:
            return []
        try:
            wanted = queue_drill_down.wanted_messages(log, _range_of(row))
        except OSError:
            return []
        key = {name: row[name] for name in BUCKET}
        return [
            key | {"window": one.first >> WINDOW_BITS, "first": one.first, "last": one.last} for one in wanted
        ]

    def each(batches: Batches) -> Batches:
        listings.start_task()
        for batch in batches:
            for row in batch.to_pylist():
                yield pa.RecordBatch.from_pylist(wanted_of_row(row), schema=WANTED)

    return each


def _messages_of(state: AuditState) -> Callable[[Batches], Batches]:
    """Reads the messages that are wanted of parts of logs."""
    listings, logs = state.listings, _logs_with_queues(state)

    def each(batches: Batches) -> Batches:
        listings.start_task()
        for batch in batches:
            for row in batch.to_pylist():
                yield from _read_window(logs[row["group"], row["replica"]], row)

    return each


def _read_window(log: AuditedLog, row: Row) -> Batches:
    """The rows of `MESSAGES` of one part of a log."""
    who = {"group": row["group"], "replica": row["replica"]}
    wanted = [
        WantedMessages(one["topic"], one["queue_id"], one["at"], one["first"], one["last"])
        for one in row["wanted"]
    ]
    rows: list[Row] = []
    try:
        for one, message in queue_drill_down.read_wanted(log, wanted):
            rows.append(who | _bucket(one) | vars(message))
            if len(rows) >= MESSAGES_OF_BATCH:
                yield pa.RecordBatch.from_pylist(rows, schema=MESSAGES)
                rows = []
    except OSError as error:
        rows += [who | _bucket(one) | {"fault": str(error)} for one in wanted]
    yield pa.RecordBatch.from_pylist(rows, schema=MESSAGES)


def _bucket(wanted: WantedMessages) -> Row:
    return {"topic": wanted.topic, "queue_id": wanted.queue_id, "at": wanted.bucket}
