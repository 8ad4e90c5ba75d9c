"""Audits groups with Spark: one pass over all files, a comparison of digests, and a drill-down where they
differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from epochmq_protocol.epoch_entries import OFFSET_MAX
from epochmq_spark import (
    audit_state,
    bounded_tables,
    drill_down,
    one_sided_messages,
    scan_progress,
    schemas,
    store_layout,
)
from epochmq_spark.audit_state import AuditState
from epochmq_spark.checks.record_copies import TAIL_KINDS
from epochmq_spark.checks.two_histories import LISTED_BYTES_MAX, describe_histories
from epochmq_spark.decode.summary_rows import SummaryKind
from epochmq_spark.features import FEATURES, check_feature
from epochmq_spark.findings import KINDS, finding
from epochmq_spark.sources import register
from epochmq_spark.sources.file_ranges import PARTITION_BYTES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TASK_BYTES_MAX = 1 << 30
EPOCHS_TIMED_MAX = 1000  # epochs of a replica for which the report shows the time of the first message

Row = dict[str, Any]
Progress = Callable[[str], None]
RowCheck = Callable[[Row], list[Row]]


@dataclass
class AuditResult:
    """The result of an audit: a table of findings, the driver's state of the groups, the tables `summary` and
    `epochs`, and the metadata that were supplied."""

    findings: DataFrame
    state: AuditState
    tables: dict[str, DataFrame] = field(default_factory=dict)
    metadata: Any = None
    persisted: list[DataFrame] = field(default_factory=list)

    def release(self) -> None:
        """Frees what Spark keeps of the audit. The tables can be read afterwards, but are computed again."""
        for frame in (*self.persisted, self.findings):
            frame.unpersist()


def run(
    spark: SparkSession,
    replicas: Sequence[store_layout.AuditedReplica],
    *,
    metadata: Any = None,
    progress: Progress = lambda text: None,
    partition_bytes: int | None = None,
) -> AuditResult:
    """Audits groups of replicas in any Spark session. The executors read the replicas' locations, and need
    this package. Damaged files are findings, not errors. The findings are computed when they are first used.
    Raises ValueError if the metadata are not a status, and the errors of Spark."""
    from pyspark.sql import functions as f

    register(spark)
    options = {"replicas": store_layout.encode_replicas(replicas)}
    if partition_bytes:
        options["partitionBytes"] = str(partition_bytes)

    def load(name: str) -> DataFrame:
        return spark.read.format(name).options(**options).load()

    progress("listing the directories")
    state = audit_state.scan_replicas(replicas)
    options["taskBytes"] = str(_task_bytes(spark, state))
    progress("reading logs, consume queues and indexes")
    summary = load("epochmq.summary").persist()
    spans = bounded_tables.runs_of_logs(summary)
    epochs = load("epochmq.epochs")
    with scan_progress.scan_progress(spark, _total_bytes(state)):
        collected = spans.collect()
    audit_state.add_histories(
        state,
        (row.asDict() for row in collected),
        (row.asDict() for row in epochs.collect()),
        (row.asDict() for row in bounded_tables.terms_of_logs(summary).collect()),
    )
    progress("comparing the replicas' logs")
    logs = one_sided_messages.with_other_offsets(_compare_blocks(spark, state, summary)).persist()
    diverged: dict[str, set[str]] = defaultdict(set)
    for row in logs.where(f.col("kind").isin(*TAIL_KINDS)).select("group", "replica").distinct().collect():
        diverged[row["group"]].add(row["replica"])
    of_driver = state.findings + audit_state.compare_replicas(state, diverged, metadata)
    of_driver += describe_histories(one_sided_messages.ranges_of(logs))
    progress("comparing consume queues and indexes with the logs")
    findings = spark.createDataFrame(pa.Table.from_pylist(of_driver, schema=schemas.FINDINGS))
    for more in (
        logs,
        _rows_as_findings(summary),
        _compare_queues(state, summary),
        _compare_keys(state, summary),
        _compare_entries(state, summary),
        _compare_offsets(state, load("epochmq.offsets"), summary),
        _check_epoch_starts(spark, state),
        _check_features(spark, state),
    ):
        findings = findings.unionByName(more)
    findings = findings.persist()
    listed = _with_epochs(spark, state, bounded_tables.listed_findings(findings))
    tables = {"summary": summary, "epochs": epochs}
    return AuditResult(listed, state, tables, metadata, [summary, logs, findings])


def _total_bytes(state: AuditState) -> int:
    """The bytes that the pass over all files reads."""
    return sum(
        file.size
        for contents in state.contents.values()
        for files in (
            contents.log,
            contents.index,
            contents.entry_index,
            *(queue.files for queue in contents.queues),
        )
        for file in files
    )


def _task_bytes(spark: SparkSession, state: AuditState) -> int:
    """The bytes that one task reads. Starting a task costs as much as reading about 100 MB; each core gets a
    few tasks."""
    total = sum(file.size for contents in state.contents.values() for file in contents.log)
    share = total // (bounded_tables.TASKS_PER_CORE * spark.sparkContext.defaultParallelism)
    return min(max(share, PARTITION_BYTES), TASK_BYTES_MAX)


def _with_epochs(spark: SparkSession, state: AuditState, findings: DataFrame) -> DataFrame:
    """Adds the epoch to findings that have an offset in the log."""
    from pyspark.sql import functions as f

    rows = []
    for name, members in state.histories.items():
        for one in members:
            written = one.written()
            ends = [start for _, start in written[1:]] + [one.end]
            for (epoch, start), end in zip(written, ends, strict=False):
                rows.append((name, one.name, epoch, start, end))
    ranges = spark.createDataFrame(
        rows, "of_group string, of_replica string, of_epoch long, from_offset long, to_offset long"
    )
    inside = (
        (f.col("group") == f.col("of_group"))
        & (f.col("replica") == f.col("of_replica"))
        & (f.col("start_offset") >= f.col("from_offset"))
        & (f.col("start_offset") < f.col("to_offset"))
    )
    joined = findings.join(f.broadcast(ranges), inside, "left")
    return joined.withColumn("epoch", f.coalesce("epoch", "of_epoch")).select(*schemas.FINDINGS.names)


def _findings_per_row(state: AuditState, frame: DataFrame, check: RowCheck) -> DataFrame:
    """The findings of a check of each row. A file that cannot be read any more is a finding, too."""
    from pyspark.sql.pandas.types import from_arrow_schema

    run_id = state.run_id

    def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        drill_down.start_task(run_id)
        reported: set[tuple[str, str, str]] = set()
        for batch in batches:
            for row in batch.to_pylist():
                findings = without_reported(findings_or_unreadable(check, row), reported)
                yield pa.RecordBatch.from_pylist(findings, schema=schemas.FINDINGS)

    return frame.mapInArrow(each, from_arrow_schema(schemas.FINDINGS))


def findings_or_unreadable(check: RowCheck, row: Row) -> list[Row]:
    """The findings of a check of one row; a single one if a file cannot be read."""
    try:
        return check(row)
    except OSError as error:
        return [finding(row["group"], row["replica"], "file.unreadable", detail=str(error))]


def without_reported(findings: list[Row], reported: set[tuple[str, str, str]]) -> list[Row]:
    """Removes findings of unreadable files that were reported already, and adds the others to `reported`:
    many checks read the same large file."""
    kept = []
    for row in findings:
        if row["kind"] == "file.unreadable":
            key = row["group"], row["replica"], row["detail"]
            if key in reported:
                continue
            reported.add(key)
        kept.append(row)
    return kept


def _compare_blocks(spark: SparkSession, state: AuditState, summary: DataFrame) -> DataFrame:
    """Finds blocks whose digests differ between the replicas that must have them, and compares their
    records."""
    from pyspark.sql import functions as f

    size = drill_down.BLOCK_BYTES
    rows = []
    for key, one in state.extents.items():
        shortest = state.shortest_end(key[0])
        # Without epochs each message beyond the end of the shortest log is named, up to a bound.
        common, listed = (
            (one.common_end, OFFSET_MAX) if one.with_epochs else (shortest, shortest + LISTED_BYTES_MAX)
        )
        rows.append((*key, one.start, one.end, common, listed))
    extents = spark.createDataFrame(
        rows,
        "group string, replica string, log_start long, log_end long, common_end long, listed_end long",
    )
    digests = (
        summary.where(f"kind = '{SummaryKind.BLOCK}'")
        .groupBy("group", "replica", "at")
        .agg(f.sum("count").alias("bytes"), f.bit_xor("digest").alias("digest"))
    )
    expected = (
        digests.select("group", "at")
        .distinct()
        .join(f.broadcast(extents), "group")
        .where((f.col("log_start") < (f.col("at") + 1) * size) & (f.col("log_end") > f.col("at") * size))
    )
    version = f.struct(f.coalesce("bytes", f.lit(0)), f.coalesce("digest", f.lit(0)))
    suspects = (
        expected.join(digests, ["group", "replica", "at"], "left")
        .groupBy("group", "at")
        .agg(
            f.count_distinct(version).alias("versions"),
            f.min(f.col("common_end") - f.least("log_end", (f.col("at") + 1) * size)).alias("beyond_common"),
            f.min(f.col("listed_end") - f.col("at") * size).alias("before_listed_end"),
        )
        .where("versions > 1 or (beyond_common < 0 and before_listed_end > 0)")
        .select("group", "at")
    )
    logs = {group: state.logs_of(group) for group in state.histories}

    def check(row: Row) -> list[Row]:
        if row["unlisted"]:
            return bounded_tables.not_compared(row, "the blocks of the logs that differ", row["at"] * size)
        return drill_down.compare_block(row["group"], row["at"], logs[row["group"]])

    first = bounded_tables.first_of_each(suspects, ["group"], ["at"])
    return _findings_per_row(state, first, check)


def _rows_as_findings(summary: DataFrame) -> DataFrame:
    """Rows of the summary that need no comparison: bodies that do not match their checksum, index entries
    that a search does not reach, files that cannot be read."""
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = from_arrow_schema(schemas.FINDINGS)

    def of(kind: SummaryKind, name: str, **given: str) -> DataFrame:
        columns = {column.name: f.lit(None).cast(column.dataType) for column in schema}
        columns |= {column: f.col(source) for column, source in given.items()}
        columns |= {"group": f.col("group"), "replica": f.col("replica")}
        columns |= {"kind": f.lit(name), "severity": f.lit(KINDS[name][0].value)}
        chosen = [columns[column.name].alias(column.name) for column in schema]
        return summary.where(f.col("kind") == kind.value).select(*chosen)

    bad = of(
        SummaryKind.BAD_RECORD,
        "record.checksum",
        start_offset="at",
        end_offset="end",
        topic="topic",
        queue_id="queue_id",
        queue_offset="low",
        message_id="detail",
        store_timestamp="high",
    )
    more_bad = of(SummaryKind.MORE_BAD_RECORDS, "more", start_offset="at", detail="detail")
    chains = of(SummaryKind.BROKEN_CHAIN, "index.broken-chain", start_offset="end", file="detail")
    unreadable = of(SummaryKind.UNREADABLE_FILE, "file.unreadable", detail="detail")
    return bad.unionByName(more_bad).unionByName(chains).unionByName(unreadable)


def _compare_queues(state: AuditState, summary: DataFrame) -> DataFrame:
    """Finds buckets of queue offsets whose digests differ between log and consume queue, and compares their
    messages."""
    from pyspark.sql import functions as f

    keys = ["group", "replica", "topic", "queue_id"]
    by_log, by_queue = SummaryKind.UNITS_BY_LOG.value, SummaryKind.UNITS_BY_QUEUE.value
    both = summary.where(f.col("kind").isin(by_log, by_queue))

    def only(kind: str, column: str) -> Any:
        return f.when(f.col("kind") == kind, f.col(column))

    ends = both.groupBy(*keys).agg(
        (f.coalesce(f.max(only(by_queue, "high")), f.lit(-1)) + 1).alias("queue_end")
    )
    suspects = (
        both.groupBy(*keys, "at")
        .agg(
            f.coalesce(f.bit_xor(only(by_log, "digest")), f.lit(0)).alias("log_digest"),
            f.coalesce(f.bit_xor(only(by_queue, "digest")), f.lit(0)).alias("queue_digest"),
            f.coalesce(f.sum(only(by_log, "count")), f.lit(0)).alias("messages"),
            f.coalesce(f.sum(only(by_queue, "count")), f.lit(0)).alias("units"),
        )
        .where("log_digest != queue_digest or messages != units")
        .join(ends, keys)
        .select(*keys, "at", "queue_end")
    )
    logs = state.logs()
    with_queues = {key for key, contents in state.contents.items() if contents.has_queues}

    def check(row: Row) -> list[Row]:
        key = row["group"], row["replica"]
        if key not in logs or key not in with_queues:
            return []
        if row["unlisted"]:
            return bounded_tables.not_compared(row, "the parts of consume queues that differ from the log")
        parts = [
            drill_down.BucketPart(one["first"], one["end"], one["count"], one["digest"])
            for one in row["log_parts"]
        ]
        queue = drill_down.QueueRange(row["topic"], row["queue_id"], row["at"], parts, row["queue_end"])
        return drill_down.compare_queue_range(logs[key], queue)

    first = bounded_tables.first_of_each(suspects, ["group", "replica"], ["topic", "queue_id", "at"])
    parts_of_log = both.where(f.col("kind") == by_log)
    return _findings_per_row(state, bounded_tables.with_parts(first, parts_of_log, [*keys, "at"]), check)


def _compare_entries(state: AuditState, summary: DataFrame) -> DataFrame:
    """Finds buckets of entry indexes whose digests differ between a DLedger log and its index files, and
    compares their entries with their units."""
    from pyspark.sql import functions as f

    keys = ["group", "replica", "at"]
    by_log, by_index = SummaryKind.ENTRIES_BY_LOG.value, SummaryKind.ENTRIES_BY_INDEX.value
    is_log = f.col("kind") == by_log
    suspects = (
        summary.where(f.col("kind").isin(by_log, by_index))
        .groupBy(*keys)
        .agg(
            f.bit_xor("digest").alias("difference"),  # of the log and the index: 0 if both are equal
            f.sum(f.when(is_log, f.col("count")).otherwise(-f.col("count"))).alias("more"),
        )
        .where("difference != 0 or more != 0")
        .select(*keys)
    )
    logs = state.logs()

    def check(row: Row) -> list[Row]:
        log = logs.get((row["group"], row["replica"]))
        if row["unlisted"]:
            return bounded_tables.not_compared(
                row, "the parts of the index of entries that differ from the log"
            )
        ranges = [(one["first"], one["end"]) for one in row["log_parts"]]
        return drill_down.compare_entry_bucket(log, row["at"], ranges) if log else []

    first = bounded_tables.first_of_each(suspects, ["group", "replica"], ["at"])
    return _findings_per_row(state, bounded_tables.with_parts(first, summary.where(is_log), keys), check)


def _compare_keys(state: AuditState, summary: DataFrame) -> DataFrame:
    """Finds blocks whose digests of keys differ between log and index, and compares their keys."""
    from pyspark.sql import functions as f

    by_log, by_index = SummaryKind.KEYS_BY_LOG.value, SummaryKind.KEYS_BY_INDEX.value
    indexes = summary.where(f.col("kind") == SummaryKind.INDEX_FILE.value)
    covered = (
        indexes.groupBy("group", "replica")
        .agg(f.min("at").alias("low"), f.max("end").alias("high"))
        .join(
            indexes.groupBy("group").agg(f.min("at").alias("group_low"), f.max("end").alias("group_high")),
            "group",
        )
    )

    def only(kind: str, column: str) -> Any:
        return f.coalesce(f.bit_xor(f.when(f.col("kind") == kind, f.col(column))), f.lit(0))

    def number(kind: str) -> Any:
        return f.coalesce(f.sum(f.when(f.col("kind") == kind, f.col("count"))), f.lit(0))

    size = drill_down.BLOCK_BYTES
    suspects = (
        summary.where(f.col("kind").isin(by_log, by_index))
        .groupBy("group", "replica", "at")
        .agg(
            only(by_log, "digest").alias("log_digest"),
            only(by_index, "digest").alias("index_digest"),
            number(by_log).alias("expected"),
            number(by_index).alias("present"),
        )
        .where("log_digest != index_digest or expected != present")
        .join(f.broadcast(covered), ["group", "replica"])
        .where((f.col("at") * size <= f.col("group_high")) & ((f.col("at") + 1) * size > f.col("group_low")))
        .select("group", "replica", "at", "low", "high", "group_low", "group_high")
    )
    logs = state.logs()

    def check(row: Row) -> list[Row]:
        log = logs.get((row["group"], row["replica"]))
        if row["unlisted"]:
            return bounded_tables.not_compared(
                row, "the parts of the index that differ from the log", row["at"] * size
            )
        coverage = drill_down.IndexCoverage(row["low"], row["high"], row["group_low"], row["group_high"])
        return drill_down.compare_index_block(log, row["at"], coverage) if log else []

    first = bounded_tables.first_of_each(suspects, ["group", "replica"], ["at"])
    return _findings_per_row(state, first, check)


def _compare_offsets(state: AuditState, offsets: DataFrame, summary: DataFrame) -> DataFrame:
    """Finds consumer offsets beyond the end that any replica has for the queue, but for topics with batch
    consume queues. For frozen volumes this is the present end, because consumers keep consuming after the
    cut."""
    from pyspark.sql import functions as f

    keys = ["group", "topic", "queue_id"]
    now = offsets.where("consumer_group is null and fault is null")
    ends = (
        summary.where(f.col("kind").isin(SummaryKind.UNITS_BY_LOG.value, SummaryKind.UNITS_BY_QUEUE.value))
        .select(*keys, (f.col("high") + 1).alias("end"))
        .unionByName(now.select(*keys, f.col("offset").alias("end")))
        .groupBy(*keys)
        .agg(f.max("end").alias("queue_end"))
    )
    ahead = (
        offsets.where("consumer_group is not null or fault is not null")
        .join(ends, keys, "left")
        .where(f.col("topic").isNull() | ~f.col("topic").isin(*state.batch_topics))
        .where(f.col("fault").isNotNull() | (f.col("offset") > f.col("queue_end")))
        .select("group", "replica", "consumer_group", "topic", "queue_id", "offset", "queue_end", "fault")
    )
    return _findings_per_row(state, ahead, offset_finding)


def offset_finding(row: Row) -> list[Row]:
    """The finding of an offset beyond the end of its queue, or of a file of offsets that cannot be read."""
    if row["fault"]:
        return [finding(row["group"], row["replica"], "state.unreadable", detail=row["fault"])]
    detail = f"group {row['consumer_group']} is at {row['offset']}, the queue ends at {row['queue_end']}"
    columns = {"topic": row["topic"], "queue_id": row["queue_id"], "queue_offset": row["offset"]}
    return [finding(row["group"], row["replica"], "consumer-offset.ahead", **columns, detail=detail)]


def _check_epoch_starts(spark: SparkSession, state: AuditState) -> DataFrame:
    """Checks the log around the starts of epochs, by the leading replica of each group."""
    starts = "array<struct<epoch: long, start: long>>"
    frame = spark.createDataFrame(
        audit_state.epoch_starts(state), f"group string, replica string, epoch_starts {starts}"
    )
    logs = state.logs()

    def check(row: Row) -> list[Row]:
        near = [(one["epoch"], one["start"]) for one in row["epoch_starts"]]
        return drill_down.check_epoch_starts(logs[row["group"], row["replica"]], near)

    return _findings_per_row(state, frame, check)


def _check_features(spark: SparkSession, state: AuditState) -> DataFrame:
    """Checks the files and system topics of the broker's features: one task for each replica and feature."""
    logs = state.logs()
    rows = [(*key, name) for key in logs for name in FEATURES]
    frame = spark.createDataFrame(rows, "group string, replica string, feature string")

    def check(row: Row) -> list[Row]:
        return check_feature(row["feature"], logs[row["group"], row["replica"]])

    tasks = max(min(len(rows), bounded_tables.TASKS_PER_CORE * spark.sparkContext.defaultParallelism), 1)
    return _findings_per_row(state, frame.repartition(tasks), check)


def replica_rows(result: AuditResult) -> list[Row]:
    """The replicas' part of the JSON summary. The extent is null if a log could not be read."""
    state = result.state
    histories = {(group, one.name): one for group, members in state.histories.items() for one in members}
    logs = state.logs()
    rows = []
    for key, replica in state.replicas.items():
        extent = state.extents.get(key)
        rows.append(
            {
                "group": replica.group,
                "replica": replica.name,
                "place": replica.location,
                "logStart": extent.start if extent else None,
                "logEnd": extent.end if extent else None,
                "commonEnd": extent.common_end if extent else None,
                "confirmOffset": histories[key].confirmed if extent else None,
                "leading": bool(extent and extent.leading),
                "epochs": [list(entry) for entry in histories[key].entries] if extent else [],
                "epochTimes": [
                    [epoch, drill_down.store_time(logs[key], max(start, histories[key].start))]
                    for epoch, start in histories[key].written()[-EPOCHS_TIMED_MAX:]
                ]
                if extent
                else [],
                "lastTime": max((span.last_time for span in histories[key].spans), default=0)
                if extent
                else 0,
            }
        )
    return rows
