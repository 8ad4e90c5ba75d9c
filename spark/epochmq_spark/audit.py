"""Audits groups with Spark: one pass over all files, a comparison of digests, and a drill-down where they
differ."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from epochmq_spark import (
    audit_state,
    bounded_tables,
    compared_queues,
    differing_digests,
    drill_down,
    one_sided_messages,
    scan_progress,
    schemas,
    store_layout,
    volume_client,
)
from epochmq_spark.audit_state import AuditState
from epochmq_spark.checks.epoch_history import EpochStart
from epochmq_spark.checks.record_copies import TAIL_KINDS
from epochmq_spark.checks.two_histories import describe_histories
from epochmq_spark.decode.summary_rows import SummaryKind
from epochmq_spark.drill_down import AuditedLog
from epochmq_spark.features import FEATURES, check_feature
from epochmq_spark.features.index_times import INDEX_TIME_COLUMNS, compare_index_time
from epochmq_spark.findings import KINDS, finding
from epochmq_spark.sources.epochs import EpochsReader
from epochmq_spark.sources.file_ranges import OPEN_COST_BYTES, PARTITION_BYTES, FileRange
from epochmq_spark.sources.offsets import DELAY, ProgressReader
from epochmq_spark.sources.range_summaries import summarise_ranges
from epochmq_spark.sources.summary import SummaryReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

TASK_BYTES_MAX = 1 << 30
EPOCHS_TIMED_MAX = 1000  # epochs of a replica for which the report shows the time of the first message

Row = dict[str, Any]
Progress = Callable[[str], None]
RowCheck = Callable[[Row], list[Row]]


@dataclass
class AuditResult:
    """The result of an audit: a table of findings, the driver's state of the groups, the summary of their
    files, the sums of its column `count` by group, replica and kind, and the metadata that were supplied."""

    findings: DataFrame
    state: AuditState
    summary: DataFrame
    counts: list[Row]
    metadata: Any = None
    persisted: list[DataFrame] = field(default_factory=list)

    def release(self) -> None:
        """Frees what Spark keeps of the audit. The tables can be read afterwards, but are computed again."""
        for frame in (*self.persisted, self.findings):
            frame.unpersist()
        self.state.listings.release()


def run(
    spark: SparkSession,
    replicas: Sequence[store_layout.AuditedReplica],
    *,
    metadata: Any = None,
    progress: Progress = lambda text: None,
    partition_bytes: int | None = None,
) -> AuditResult:
    """Audits groups of replicas in any Spark session. The executors read the replicas' locations, and need
    this package. Damaged files are findings, not errors.
    Raises ValueError if the metadata are not a status, and the errors of Spark."""
    progress("listing the directories")
    state = audit_state.scan_replicas(replicas)
    listings = {state.replicas[key].location: contents for key, contents in state.contents.items()}
    state.listings.share(spark, listings)
    options = {"taskBytes": str(_task_bytes(spark, state))}
    if partition_bytes:
        options["partitionBytes"] = str(partition_bytes)
    progress("reading logs, consume queues and indexes")
    summary = _summary(spark, SummaryReader(replicas, options, listings)).persist()
    counts = _read_files(spark, state, replicas, summary)
    kinds = {row["kind"] for row in counts}
    progress("comparing the replicas' logs")
    blocks = differing_digests.differing_blocks(spark, state, summary)
    parts = differing_digests.differing_parts(summary)
    differing = differing_digests.count(blocks, parts)
    logs = _compare_blocks(state, blocks) if differing_digests.BLOCKS in differing else None
    of_driver = state.findings + audit_state.compare_replicas(state, _diverged(logs), metadata)
    of_driver += audit_state.find_no_index(state, counts)
    if logs is not None:
        of_driver += describe_histories(one_sided_messages.ranges_of(logs))
    progress("comparing consume queues and indexes with the logs")
    tables = [spark.createDataFrame(pa.Table.from_pylist(of_driver, schema=schemas.FINDINGS))]
    tables += [logs] if logs is not None else []
    tables += _rows_as_findings(summary, kinds)
    if SummaryKind.ODD_INDEX_TIME in kinds:
        tables.append(_compare_index_times(state, summary))
    compared = {
        differing_digests.QUEUES: _compare_queues,
        differing_digests.ENTRIES: _compare_entries,
        differing_digests.KEYS: _compare_keys,
    }
    # What is equal everywhere takes no part in the query: Spark would plan and compile it for nothing.
    tables += [
        compare(state, parts.where(f"what = '{what}'"), summary)
        for what, compare in compared.items()
        if what in differing
    ]
    tables.append(_compare_offsets(state, _read_offsets(spark, replicas), summary))
    if starts := audit_state.epoch_starts(state):
        tables.append(_check_epoch_starts(spark, state, starts))
    tables.append(_check_features(spark, state))
    findings = reduce(lambda one, other: one.unionByName(other), tables).persist()
    listed = _with_epochs(spark, state, bounded_tables.listed_findings(findings))
    persisted = [summary, findings] + ([logs] if logs is not None else [])
    return AuditResult(listed, state, summary, counts, metadata, persisted)


def _summary(spark: SparkSession, reader: SummaryReader) -> DataFrame:
    """The rows of `epochmq.summary`, one task for each partition of the reader. (As a data source Spark would
    list the stores again, in processes of its own.)"""
    from pyspark.sql.pandas.types import from_arrow_schema

    rows = [(msgspec.msgpack.encode(partition.ranges),) for partition in reader.partitions()]
    frame = spark.createDataFrame(
        spark.sparkContext.parallelize(rows, len(rows)), "ranges binary", verifySchema=False
    )

    def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for encoded in batch.column(0).to_pylist():
                yield from summarise_ranges(msgspec.msgpack.decode(encoded, type=tuple[FileRange, ...]))

    return frame.mapInArrow(each, from_arrow_schema(schemas.SUMMARY))


def _read_files(
    spark: SparkSession,
    state: AuditState,
    replicas: Sequence[store_layout.AuditedReplica],
    summary: DataFrame,
) -> list[Row]:
    """Makes the pass over all files, and adds the histories of the logs to the state. Returns the sums of the
    column `count` by group, replica and kind."""
    from pyspark.sql import functions as f

    with scan_progress.scan_progress(spark, sum(file.size for file in _files_of(state))):
        spans = bounded_tables.runs_of_logs(summary).collect()
    sums = summary.groupBy("group", "replica", "kind").agg(f.sum("count").alias("count")).collect()
    has_terms = any(row["kind"] == SummaryKind.TERM for row in sums)
    terms = bounded_tables.terms_of_logs(summary).collect() if has_terms else []
    epochs = EpochsReader(replicas, {})
    audit_state.add_histories(
        state,
        (row.asDict() for row in spans),
        (
            row
            for partition in epochs.partitions()
            for batch in epochs.read(partition)
            for row in batch.to_pylist()
        ),
        (row.asDict() for row in terms),
    )
    return [row.asDict() for row in sums]


def _diverged(logs: DataFrame | None) -> dict[str, set[str]]:
    """The replicas whose log has a tail that is not part of the group's history, by group."""
    from pyspark.sql import functions as f

    found: dict[str, set[str]] = defaultdict(set)
    if logs is not None:
        tails = logs.where(f.col("kind").isin(*TAIL_KINDS)).select("group", "replica").distinct()
        for row in tails.collect():
            found[row["group"]].add(row["replica"])
    return found


def _files_of(state: AuditState) -> Iterator[store_layout.DataFile]:
    """The files that the pass over all files reads."""
    for contents in state.contents.values():
        yield from (*contents.log, *contents.index, *contents.entry_index)
        for queue in contents.queues:
            yield from queue.files


def _task_bytes(spark: SparkSession, state: AuditState) -> int:
    """The bytes that one task reads. Starting a task costs as much as reading about 100 MB, and each stage
    that follows starts as many; each core gets a few tasks."""
    total = sum(file.size + OPEN_COST_BYTES for file in _files_of(state))
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
    if not rows:
        return findings
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

    listings = state.listings

    def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        listings.start_task()
        reported: set[tuple[str, str, str]] = set()
        for batch in batches:
            for row in batch.to_pylist():
                findings = without_reported(findings_or_unreadable(check, row), reported)
                yield pa.RecordBatch.from_pylist(findings, schema=schemas.FINDINGS)

    return frame.mapInArrow(each, from_arrow_schema(schemas.FINDINGS))


def findings_or_unreadable(check: RowCheck, row: Row) -> list[Row]:
    """The findings of a check of one row; a single one if a file cannot be read, or if the check fails over
    what it reads: damage may have any shape, and the other checks go on."""
    who = row["group"], row.get("replica") or ""
    try:
        return check(row)
    except OSError as error:
        return [finding(*who, "file.unreadable", detail=str(error))]
    except Exception as error:
        log.exception("a check of replica %r of group %s failed", who[1], who[0])
        place = {name: row[name] for name in ("topic", "queue_id") if row.get(name) is not None}
        return [finding(*who, "check.failed", **place, detail=f"{type(error).__name__}: {error}")]


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


def _compare_blocks(state: AuditState, differing: DataFrame) -> DataFrame:
    """Compares the records of blocks whose digests differ between replicas. The findings are kept."""
    logs = {group: state.logs_of(group) for group in state.histories}

    def check(row: Row) -> list[Row]:
        if row["unlisted"]:
            start = row["at"] * drill_down.BLOCK_BYTES
            return bounded_tables.not_compared(row, "the blocks of the logs that differ", start)
        return drill_down.compare_block(row["group"], row["at"], logs[row["group"]])

    first = bounded_tables.first_of_each(differing, ["group"], ["at"])
    return one_sided_messages.with_other_offsets(_findings_per_row(state, first, check)).persist()


def _rows_as_findings(summary: DataFrame, kinds: Set[str]) -> list[DataFrame]:
    """Rows of the summary, which has these kinds, that need no comparison: bodies that do not match their
    checksum, index entries that a search does not reach, files that cannot be read."""
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = from_arrow_schema(schemas.FINDINGS)

    def of(kind: SummaryKind, name: str, given: Mapping[str, str]) -> DataFrame:
        columns = {column.name: f.lit(None).cast(column.dataType) for column in schema}
        columns |= {column: f.col(source) for column, source in given.items()}
        columns |= {"group": f.col("group"), "replica": f.col("replica")}
        columns |= {"kind": f.lit(name), "severity": f.lit(KINDS[name][0].value)}
        chosen = [columns[column.name].alias(column.name) for column in schema]
        return summary.where(f.col("kind") == kind.value).select(*chosen)

    given: dict[SummaryKind, tuple[str, dict[str, str]]] = {
        SummaryKind.BAD_RECORD: (
            "record.checksum",
            {
                "start_offset": "at",
                "end_offset": "end",
                "topic": "topic",
                "queue_id": "queue_id",
                "queue_offset": "low",
                "message_id": "detail",
                "store_timestamp": "high",
            },
        ),
        SummaryKind.BAD_TIME: (
            "record.store-time",
            {"start_offset": "at", "end_offset": "end", "store_timestamp": "low", "detail": "detail"},
        ),
        SummaryKind.MORE_BAD_RECORDS: ("more", {"start_offset": "at", "detail": "detail"}),
        SummaryKind.BROKEN_CHAIN: ("index.broken-chain", {"start_offset": "end", "file": "detail"}),
        SummaryKind.UNREADABLE_FILE: ("file.unreadable", {"detail": "detail"}),
    }
    return [of(kind, name, columns) for kind, (name, columns) in given.items() if kind.value in kinds]


def _compare_queues(state: AuditState, differing: DataFrame, summary: DataFrame) -> DataFrame:
    """Compares the buckets of queue offsets whose digests differ between log and consume queue."""
    notes, present = compared_queues.without_topics_without_units(state, differing, summary)
    rows = compared_queues.with_messages(state, present, summary)
    found = _findings_per_row(state, rows, compared_queues.check_of(state))
    if not notes:
        return found
    table = pa.Table.from_pylist(notes, schema=schemas.FINDINGS)
    return found.unionByName(summary.sparkSession.createDataFrame(table))


def _compare_entries(state: AuditState, differing: DataFrame, summary: DataFrame) -> DataFrame:
    """Compares the buckets of entry indexes whose digests differ between a DLedger log and its index files,
    entry by entry."""
    from pyspark.sql import functions as f

    keys = ["group", "replica", "at"]
    logs = state.logs()

    def check(row: Row) -> list[Row]:
        log = logs.get((row["group"], row["replica"]))
        if row["unlisted"]:
            return bounded_tables.not_compared(
                row, "the parts of the index of entries that differ from the log"
            )
        ranges = [(one["first"], one["end"]) for one in row["log_parts"]]
        return drill_down.compare_entry_bucket(log, row["at"], ranges) if log else []

    first = bounded_tables.first_of_each(differing.select(*keys), ["group", "replica"], ["at"])
    of_log = summary.where(f.col("kind") == SummaryKind.ENTRIES_BY_LOG.value)
    return _findings_per_row(state, bounded_tables.with_parts(first, of_log, keys), check)


def _compare_keys(state: AuditState, differing: DataFrame, summary: DataFrame) -> DataFrame:
    """Compares the keys of the blocks whose digests of keys differ between log and index."""
    from pyspark.sql import functions as f

    indexes = summary.where(f.col("kind") == SummaryKind.INDEX_FILE.value)
    covered = (
        indexes.groupBy("group", "replica")
        .agg(f.min("at").alias("low"), f.max("end").alias("high"))
        .join(
            indexes.groupBy("group").agg(f.min("at").alias("group_low"), f.max("end").alias("group_high")),
            "group",
        )
    )
    size = drill_down.BLOCK_BYTES
    inside = (
        differing.join(f.broadcast(covered), ["group", "replica"])
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

    first = bounded_tables.first_of_each(inside, ["group", "replica"], ["at"])
    return _findings_per_row(state, first, check)


def _compare_index_times(state: AuditState, summary: DataFrame) -> DataFrame:
    """Compares the times of index entries that are out of order with those of their messages."""
    logs = state.logs()

    def check(row: Row) -> list[Row]:
        log = logs.get((row["group"], row["replica"]))
        return compare_index_time(log, row) if log else []

    odd = summary.where(f"kind = '{SummaryKind.ODD_INDEX_TIME}'")
    return _findings_per_row(state, odd.select("group", "replica", *INDEX_TIME_COLUMNS), check)


def _read_offsets(spark: SparkSession, replicas: Sequence[store_layout.AuditedReplica]) -> DataFrame:
    """The rows of `epochmq.offsets`. Spark plans a data source in processes of its own, which takes
    longer than to read these small files; so each task reads those of some replicas."""
    from pyspark.sql.pandas.types import from_arrow_schema

    chosen = list(replicas)

    def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                reader = ProgressReader([chosen[number]], {})
                for partition in reader.partitions():
                    yield from reader.read(partition)

    numbers = spark.createDataFrame([(number,) for number in range(len(chosen))], "number int")
    return numbers.mapInArrow(each, from_arrow_schema(schemas.OFFSETS))


def _compare_offsets(state: AuditState, offsets: DataFrame, summary: DataFrame) -> DataFrame:
    """Finds offsets beyond the end that any replica has for the queue, and offsets in queues that no replica
    has, but for topics with batch consume queues. For frozen volumes the end is the present one, because
    consumers keep consuming after the cut."""
    from pyspark.sql import functions as f

    keys = ["group", "topic", "queue_id"]
    ends = summary.where(
        f.col("kind").isin(SummaryKind.UNITS_BY_LOG.value, SummaryKind.UNITS_BY_QUEUE.value)
    ).select(*keys, (f.col("high") + 1).alias("end"))
    if any(volume_client.is_remote(replica.location) for replica in state.replicas.values()):
        now = offsets.where("consumer_group is null and fault is null")
        ends = ends.unionByName(now.select(*keys, f.col("offset").alias("end")))
    ends = ends.groupBy(*keys).agg(f.max("end").alias("queue_end"))
    without_queue = f.col("queue_end").isNull() & f.col("group").isin(*state.groups_with_queues())
    ahead = (
        offsets.where("consumer_group is not null or fault is not null")
        .join(ends, keys, "left")
        .where(f.col("topic").isNull() | ~f.col("topic").isin(*state.batch_topics))
        .where(
            f.col("fault").isNotNull()
            | (f.col("offset") > f.col("queue_end"))
            | (without_queue & (f.col("offset") > 0))
        )
        .select("group", "replica", "consumer_group", "topic", "queue_id", "offset", "queue_end", "fault")
    )
    return _findings_per_row(state, ahead, offset_finding)


def offset_finding(row: Row) -> list[Row]:
    """The finding of an offset beyond the end of its queue, or of a file of offsets that cannot be read."""
    if row["fault"]:
        place, _, _ = row["fault"].partition(": ")
        return [finding(row["group"], row["replica"], "state.unreadable", file=place, detail=row["fault"])]
    columns = {"topic": row["topic"], "queue_id": row["queue_id"], "queue_offset": row["offset"]}
    is_level, end = row["consumer_group"] == DELAY, row["queue_end"]
    who = f"level {row['queue_id'] + 1}" if is_level else f"group {row['consumer_group']}"
    ends = "no replica has the queue" if end is None else f"the queue ends at {end}"
    kind = "delay-offset.ahead" if is_level else "consumer-offset.ahead"
    if end is None and not is_level:
        kind = "consumer-offset.no-queue"
    detail = f"{who} is at {row['offset']}, {ends}"
    return [finding(row["group"], row["replica"], kind, **columns, detail=detail)]


def _check_epoch_starts(
    spark: SparkSession, state: AuditState, rows: Sequence[tuple[str, str, list[EpochStart]]]
) -> DataFrame:
    """Checks the log around the starts of epochs, by the leading replica of each group. `rows` are those of
    `audit_state.epoch_starts`."""
    starts = "array<struct<epoch: long, start: long>>"
    frame = spark.createDataFrame(rows, f"group string, replica string, epoch_starts {starts}")
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

    groups: dict[str, list[AuditedLog]] = defaultdict(list)
    for (group, _), log in logs.items():
        groups[group].append(log)

    def check(row: Row) -> list[Row]:
        return check_feature(row["feature"], logs[row["group"], row["replica"]], groups[row["group"]])

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
