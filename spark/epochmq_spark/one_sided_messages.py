"""Summarises, with Spark, the messages that only one replica of a group without epochs has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochmq_spark import schemas
from epochmq_spark.checks.two_histories import OneSidedRange
from epochmq_spark.findings import KINDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def with_other_offsets(logs: DataFrame) -> DataFrame:
    """Marks messages that both histories have, stored at different times: the producer sent them again."""
    from pyspark.sql import functions as f

    kind, note = "message.in-both", KINDS["message.in-both"][0].value
    keys = ["group", "topic", "message_id"]
    one_sided = f.col("kind").isin("message.one-sided", "message.not-copied")
    again = (
        logs.where(one_sided)
        .groupBy(*keys)
        .agg(
            f.count_distinct("replica").alias("replicas"), f.count_distinct("store_timestamp").alias("copies")
        )
        .where("replicas > 1 and copies > 1")
        .select(*keys, f.lit(True).alias("again"))
    )
    is_again = f.coalesce("again", f.lit(False)) & one_sided
    return (
        logs.join(again, keys, "left")
        .withColumn("severity", f.when(is_again, note).otherwise(f.col("severity")))
        .withColumn("kind", f.when(is_again, kind).otherwise(f.col("kind")))
        .select(*schemas.FINDINGS.names)
    )


def ranges_of(logs: DataFrame) -> list[OneSidedRange]:
    """Where the replicas of each group have a history of their own."""
    from pyspark.sql import functions as f

    rows = (
        logs.where("kind = 'message.one-sided'")
        .groupBy("group", "replica")
        .agg(f.min("start_offset"), f.max("end_offset"), f.count("*"))
        .orderBy("group", "replica")
    )
    return [OneSidedRange(*row) for row in rows.collect()]
