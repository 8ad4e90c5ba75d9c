"""The audit of groups: one pass over every file, sums compared, and a closer look where they differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from epochmq_spark import audit_state, drill_down, schemas, store_layout
from epochmq_spark.audit_state import AuditState
from epochmq_spark.findings import KINDS, finding
from epochmq_spark.sources import register
from epochmq_spark.sources.file_ranges import PARTITION_BYTES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TASKS_PER_CORE = 4
TASK_BYTES_MAX = 1 << 30
EPOCHS_TIMED_MAX = 1000  # epochs of a replica whose first message's time is looked up for the report

Row = dict[str, Any]
Progress = Callable[[str], None]
Look = Callable[[Row], list[Row]]


@dataclass
class AuditResult:
    """What an audit found: a table of findings, small or large, and what the driver knows of the groups."""

    findings: DataFrame
    known: AuditState
    tables: dict[str, DataFrame] = field(default_factory=dict)


def run(
    spark: SparkSession,
    replicas: Sequence[store_layout.AuditedReplica],
    *,
    metadata: Any = None,
    progress: Progress = lambda text: None,
    partition_bytes: int | None = None,
) -> AuditResult:
    """Audits groups of replicas. What is wrong with files is among the findings. Raises ValueError for
    metadata that are none, and what Spark raises when it cannot run."""
    register(spark)
    options = {"replicas": store_layout.encode(replicas)}
    if partition_bytes:
        options["partitionBytes"] = str(partition_bytes)

    def load(name: str) -> DataFrame:
        return spark.read.format(name).options(**options).load()

    progress("looking at the directories")
    known = audit_state.look(replicas)
    options["taskBytes"] = str(_task_bytes(spark, known))
    progress("reading logs, queues and indexes")
    summary = load("epochmq.summary").persist()
    spans = summary.where("kind = 'span'").select("group", "replica", "at", "end", "low", "high", "detail")
    epochs = load("epochmq.epochs")
    audit_state.take(
        known,
        (row.asDict() for row in spans.collect()),
        (row.asDict() for row in epochs.collect()),
    )
    progress("comparing the replicas' logs")
    logs = _compare_blocks(spark, known, summary).persist()
    torn: dict[str, set[str]] = defaultdict(set)
    for row in logs.where("kind = 'log.tail-not-common'").select("group", "replica").distinct().collect():
        torn[row["group"]].add(row["replica"])
    small = known.findings + audit_state.between(known, torn, metadata)
    progress("comparing queues and indexes with the logs")
    findings = spark.createDataFrame(pa.Table.from_pylist(small, schema=schemas.FINDINGS))
    for more in (
        logs,
        _rows_as_findings(summary),
        _compare_queues(known, summary),
        _compare_keys(known, summary),
        _compare_offsets(load("epochmq.offsets"), summary),
        _find_resent_messages(spark, known),
    ):
        findings = findings.unionByName(more)
    findings = _with_epochs(spark, known, findings)
    return AuditResult(findings, known, {"summary": summary, "epochs": epochs})


def _task_bytes(spark: SparkSession, known: AuditState) -> int:
    """How much a task reads. A task costs about as much as 100 MB of the pass; each core gets some."""
    total = sum(file.size for there in known.contents.values() for file in there.log)
    share = total // (TASKS_PER_CORE * spark.sparkContext.defaultParallelism)
    return min(max(share, PARTITION_BYTES), TASK_BYTES_MAX)


def _with_epochs(spark: SparkSession, known: AuditState, findings: DataFrame) -> DataFrame:
    """Findings that have a place in the log, with the epoch it belongs to."""
    from pyspark.sql import functions as f

    rows = []
    for name, members in known.histories.items():
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


def _findings_per_row(frame: DataFrame, look: Look) -> DataFrame:
    """The findings of a closer look at each row; that a file cannot be read any more is one."""
    from pyspark.sql.pandas.types import from_arrow_schema

    def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        drill_down.forget()
        told: set[tuple[str, str, str]] = set()
        for batch in batches:
            for row in batch.to_pylist():
                found = without_reported(findings_or_unreadable(look, row), told)
                yield pa.RecordBatch.from_pylist(found, schema=schemas.FINDINGS)

    return frame.mapInArrow(each, from_arrow_schema(schemas.FINDINGS))


def findings_or_unreadable(look: Look, row: Row) -> list[Row]:
    """The findings of a closer look, or the one that there is nothing to look at."""
    try:
        return look(row)
    except OSError as error:
        return [finding(row["group"], row["replica"], "file.unreadable", detail=str(error))]


def without_reported(found: list[Row], told: set[tuple[str, str, str]]) -> list[Row]:
    """Findings without those of files that cannot be read which were `told` already: a large file is looked
    at many times."""
    kept = []
    for one in found:
        if one["kind"] == "file.unreadable":
            key = one["group"], one["replica"], one["detail"]
            if key in told:
                continue
            told.add(key)
        kept.append(one)
    return kept


def _compare_blocks(spark: SparkSession, known: AuditState, summary: DataFrame) -> DataFrame:
    """Blocks whose sums differ between the replicas that should have them, and then their records."""
    from pyspark.sql import functions as f

    rows = [(key[0], key[1], one.start, one.end, one.common) for key, one in known.extents.items()]
    reach = spark.createDataFrame(
        rows, "group string, replica string, log_start long, log_end long, common long"
    )
    size = drill_down.BLOCK_BYTES
    sums = (
        summary.where("kind = 'block'")
        .groupBy("group", "replica", "at")
        .agg(f.sum("count").alias("bytes"), f.bit_xor("digest").alias("digest"))
    )
    expected = (
        sums.select("group", "at")
        .distinct()
        .join(f.broadcast(reach), "group")
        .where((f.col("log_start") < (f.col("at") + 1) * size) & (f.col("log_end") > f.col("at") * size))
    )
    version = f.struct(f.coalesce("bytes", f.lit(0)), f.coalesce("digest", f.lit(0)))
    suspects = (
        expected.join(sums, ["group", "replica", "at"], "left")
        .groupBy("group", "at")
        .agg(
            f.count_distinct(version).alias("versions"),
            f.min(f.col("common") - f.least("log_end", (f.col("at") + 1) * size)).alias("owned"),
        )
        .where("versions > 1 or owned < 0")
        .select("group", "at")
    )
    reaches = {name: known.reaches(name) for name in known.histories}
    return _findings_per_row(
        suspects, lambda row: drill_down.block(row["group"], row["at"], reaches[row["group"]])
    )


def _rows_as_findings(summary: DataFrame) -> DataFrame:
    """Rows of the summary that are findings as they stand: bodies that do not fit their checksum, index
    entries that cannot be reached, files that cannot be read."""
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = from_arrow_schema(schemas.FINDINGS)

    def of(kind: str, name: str, **given: str) -> DataFrame:
        columns = {column.name: f.lit(None).cast(column.dataType) for column in schema}
        columns |= {column: f.col(source) for column, source in given.items()}
        columns |= {"group": f.col("group"), "replica": f.col("replica")}
        columns |= {"kind": f.lit(name), "severity": f.lit(KINDS[name][0].value)}
        chosen = [columns[column.name].alias(column.name) for column in schema]
        return summary.where(f.col("kind") == kind).select(*chosen)

    bad = of(
        "bad",
        "record.checksum",
        start_offset="at",
        end_offset="end",
        topic="topic",
        queue_id="queue_id",
        queue_offset="low",
        message_id="detail",
        store_timestamp="high",
    )
    chains = of("chain", "index.broken-chain", start_offset="end", file="detail")
    return bad.unionByName(chains).unionByName(of("file", "file.unreadable", detail="detail"))


def _compare_queues(known: AuditState, summary: DataFrame) -> DataFrame:
    """Buckets of queue offsets whose sums differ between log and queue, and then message by message."""
    from pyspark.sql import functions as f

    keys = ["group", "replica", "topic", "queue_id"]
    both = summary.where("kind in ('queue', 'unit')")

    def only(kind: str, column: str) -> Any:
        return f.when(f.col("kind") == kind, f.col(column))

    ends = both.groupBy(*keys).agg(
        (f.coalesce(f.max(only("unit", "high")), f.lit(-1)) + 1).alias("queue_end")
    )
    suspects = (
        both.groupBy(*keys, "at")
        .agg(
            f.coalesce(f.bit_xor(only("queue", "digest")), f.lit(0)).alias("ours"),
            f.coalesce(f.bit_xor(only("unit", "digest")), f.lit(0)).alias("theirs"),
            f.coalesce(f.sum(only("queue", "count")), f.lit(0)).alias("messages"),
            f.coalesce(f.sum(only("unit", "count")), f.lit(0)).alias("units"),
            f.collect_list(f.when(f.col("kind") == "queue", f.struct("first", "end"))).alias("places"),
        )
        .where("ours != theirs or messages != units")
        .join(ends, keys)
        .select(*keys, "at", "places", "queue_end")
    )
    facts = known.facts()
    with_queues = {key for key, there in known.contents.items() if there.has_queues}

    def look(row: Row) -> list[Row]:
        key = row["group"], row["replica"]
        if key not in facts or key not in with_queues:
            return []
        places = [(place["first"], place["end"]) for place in row["places"]]
        wanted = drill_down.QueueRange(row["topic"], row["queue_id"], row["at"], places, row["queue_end"])
        return drill_down.queue(facts[key], wanted)

    return _findings_per_row(suspects, look)


def _compare_keys(known: AuditState, summary: DataFrame) -> DataFrame:
    """Blocks whose sums of keys differ between log and index, and then key by key."""
    from pyspark.sql import functions as f

    indexes = summary.where("kind = 'index'")
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
        summary.where("kind in ('keys', 'entry')")
        .groupBy("group", "replica", "at")
        .agg(
            only("keys", "digest").alias("ours"),
            only("entry", "digest").alias("theirs"),
            number("keys").alias("expected"),
            number("entry").alias("there"),
        )
        .where("ours != theirs or expected != there")
        .join(f.broadcast(covered), ["group", "replica"])
        .where((f.col("at") * size <= f.col("group_high")) & ((f.col("at") + 1) * size > f.col("group_low")))
        .select("group", "replica", "at", "low", "high", "group_low", "group_high")
    )
    facts = known.facts()

    def look(row: Row) -> list[Row]:
        one = facts.get((row["group"], row["replica"]))
        covered = drill_down.IndexCoverage(row["low"], row["high"], row["group_low"], row["group_high"])
        return drill_down.keys(one, row["at"], covered) if one else []

    return _findings_per_row(suspects, look)


def _compare_offsets(offsets: DataFrame, summary: DataFrame) -> DataFrame:
    """Consumer groups beyond the end that any replica of the group gives their queue. Of volumes in use that
    is the end by now: consumers go on."""
    from pyspark.sql import functions as f

    keys = ["group", "topic", "queue_id"]
    now = offsets.where("consumer_group is null and fault is null")
    ends = (
        summary.where("kind in ('queue', 'unit')")
        .select(*keys, (f.col("high") + 1).alias("end"))
        .unionByName(now.select(*keys, f.col("offset").alias("end")))
        .groupBy(*keys)
        .agg(f.max("end").alias("queue_end"))
    )
    ahead = (
        offsets.where("consumer_group is not null or fault is not null")
        .join(ends, keys, "left")
        .where(f.col("fault").isNotNull() | (f.col("offset") > f.col("queue_end")))
        .select("group", "replica", "consumer_group", "topic", "queue_id", "offset", "queue_end", "fault")
    )
    return _findings_per_row(ahead, offset_finding)


def offset_finding(row: Row) -> list[Row]:
    """The finding of an offset that is beyond its queue's end, or of a file that cannot be read."""
    if row["fault"]:
        return [finding(row["group"], row["replica"], "state.unreadable", detail=row["fault"])]
    said = f"group {row['consumer_group']} is at {row['offset']}, the queue ends at {row['queue_end']}"
    where = {"topic": row["topic"], "queue_id": row["queue_id"], "queue_offset": row["offset"]}
    return [finding(row["group"], row["replica"], "consumer-offset.ahead", **where, detail=said)]


def _find_resent_messages(spark: SparkSession, known: AuditState) -> DataFrame:
    """Messages that were stored again after a switch."""
    switches = "array<struct<epoch: long, start: long>>"
    frame = spark.createDataFrame(
        audit_state.switches(known), f"group string, replica string, switches {switches}"
    )
    facts = known.facts()

    def look(row: Row) -> list[Row]:
        near = [(one["epoch"], one["start"]) for one in row["switches"]]
        return drill_down.switch(facts[row["group"], row["replica"]], near)

    return _findings_per_row(frame, look)


def replica_rows(result: AuditResult) -> list[Row]:
    """What the summary says of each replica; its extent is null when its log was not read."""
    known = result.known
    histories = {(name, one.name): one for name, many in known.histories.items() for one in many}
    facts = known.facts()
    rows = []
    for key, replica in known.replicas.items():
        one = known.extents.get(key)
        rows.append(
            {
                "group": replica.group,
                "replica": replica.name,
                "place": replica.place,
                "logStart": one.start if one else None,
                "logEnd": one.end if one else None,
                "commonEnd": one.common if one else None,
                "leading": bool(one and one.leading),
                "epochs": [list(entry) for entry in histories[key].entries] if one else [],
                "epochTimes": [
                    [epoch, drill_down.store_time(facts[key], max(start, histories[key].start))]
                    for epoch, start in histories[key].written()[-EPOCHS_TIMED_MAX:]
                ]
                if one
                else [],
                "lastTime": max((span.last_time for span in histories[key].spans), default=0) if one else 0,
            }
        )
    return rows
