"""Finds, with Spark, what an audit must read again: blocks of logs whose digests differ between replicas, and
parts of files whose digests differ from those of their log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from epochmq_protocol.epoch_entries import OFFSET_MAX
from epochmq_spark.audit_state import AuditState
from epochmq_spark.checks.two_histories import LISTED_BYTES_MAX
from epochmq_spark.decode.log_digests import BLOCK_BITS
from epochmq_spark.decode.summary_rows import SummaryKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BLOCKS: Final = "blocks"
QUEUES: Final = "queues"
ENTRIES: Final = "entries"
KEYS: Final = "keys"
PAIRS: Final = {
    QUEUES: (SummaryKind.UNITS_BY_LOG, SummaryKind.UNITS_BY_QUEUE),
    ENTRIES: (SummaryKind.ENTRIES_BY_LOG, SummaryKind.ENTRIES_BY_INDEX),
    KEYS: (SummaryKind.KEYS_BY_LOG, SummaryKind.KEYS_BY_INDEX),
}
"""The kinds of summary rows that describe the same thing by the log and by another file."""
_PLACE: Final = ("group", "replica", "topic", "queue_id", "at")


def differing_parts(summary: DataFrame) -> DataFrame:
    """Buckets of queues, of entry indexes and blocks with keys whose digests differ between log and file:
    `what` (a key of `PAIRS`), `group`, `replica`, `topic`, `queue_id`, `at`."""
    from pyspark.sql import functions as f

    what, sign = f.lit(None).cast("string"), f.lit(0)
    for name, (by_log, by_file) in PAIRS.items():
        is_log, is_file = f.col("kind") == by_log.value, f.col("kind") == by_file.value
        what = f.when(is_log | is_file, name).otherwise(what)
        sign = f.when(is_log, 1).when(is_file, -1).otherwise(sign)
    kinds = [kind.value for pair in PAIRS.values() for kind in pair]
    return (
        summary.where(f.col("kind").isin(kinds))
        .groupBy(what.alias("what"), *_PLACE)
        # The digests of a pair of equal sets cancel out.
        .agg(f.bit_xor("digest").alias("difference"), f.sum(f.col("count") * sign).alias("more"))
        .where("difference != 0 or more != 0")
        .select("what", *_PLACE)
    )


def differing_blocks(spark: SparkSession, state: AuditState, summary: DataFrame) -> DataFrame:
    """Blocks of logs whose digests differ between the replicas that must have them, or that lie beyond the
    common end of one: `group`, `at`."""
    from pyspark.sql import functions as f

    size = 1 << BLOCK_BITS
    extents: dict[str, list[tuple[str, int, int, int, int]]] = {}
    for (group, replica), one in state.extents.items():
        shortest = state.shortest_end(group)
        # Without epochs each message beyond the end of the shortest log is named, up to a bound.
        common, listed = (
            (one.common_end, OFFSET_MAX) if one.with_epochs else (shortest, shortest + LISTED_BYTES_MAX)
        )
        extents.setdefault(group, []).append((replica, one.start, one.end, common, listed))
    of_replica = "replica: string, log_start: long, log_end: long, common_end: long, listed_end: long"
    of_groups = spark.createDataFrame(
        list(extents.items()), f"group string, extents array<struct<{of_replica}>>"
    )
    start, end = f.col("at") * size, (f.col("at") + 1) * size
    covering = f.filter("extents", lambda one: (one["log_start"] < end) & (one["log_end"] > start))
    none = f.struct(f.lit(0).cast("long").alias("bytes"), f.lit(0).cast("long").alias("digest"))

    def version(extent: Any) -> Any:
        return f.coalesce(f.element_at("found", extent["replica"]), none)

    return (
        summary.where(f.col("kind") == SummaryKind.BLOCK.value)
        .repartition("group", "at")  # both groupings, and the last one, need no other exchange
        .groupBy("group", "at", "replica")
        .agg(f.sum("count").alias("bytes"), f.bit_xor("digest").alias("digest"))
        .groupBy("group", "at")
        .agg(
            f.map_from_entries(
                f.collect_list(f.struct("replica", f.struct("bytes", "digest").alias("version")))
            ).alias("found")
        )
        .join(f.broadcast(of_groups), "group")
        .withColumn("covering", covering)
        .select(
            "group",
            "at",
            f.size(f.array_distinct(f.transform("covering", version))).alias("versions"),
            f.array_min(
                f.transform("covering", lambda one: one["common_end"] - f.least(one["log_end"], end))
            ).alias("beyond_common"),
            f.array_min(f.transform("covering", lambda one: one["listed_end"] - start)).alias(
                "before_listed_end"
            ),
        )
        .where("versions > 1 or (beyond_common < 0 and before_listed_end > 0)")
        .select("group", "at")
    )


def count(blocks: DataFrame, parts: DataFrame) -> dict[str, int]:
    """How many there are of each: `BLOCKS`, and the keys of `PAIRS`. What is not in the result is equal
    everywhere."""
    from pyspark.sql import functions as f

    names = blocks.select(f.lit(BLOCKS).alias("what")).unionByName(parts.select("what"))
    return {row["what"]: row["count"] for row in names.groupBy("what").count().collect()}
