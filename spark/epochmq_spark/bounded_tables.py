"""Bounds, with Spark, what a wrecked group costs: the rows that reach the driver, the ranges of which all
records are compared, and the rows of the table of findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from epochmq_spark import schemas
from epochmq_spark.decode.summary_rows import SummaryKind
from epochmq_spark.findings import KINDS, finding
from epochmq_spark.log_spans import ENTRY_COLUMNS, LogSpan, join_spans, row_of_span, span_of_row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LISTED_MAX: Final = 10_000
"""Findings of one kind that are listed for a replica. One finding `more` has the number of the others."""

COMPARED_MAX: Final = 4096
"""Blocks of a group's logs, buckets of a replica's queues, and blocks of its index that are compared one by
one, the lowest offsets first. One finding `more` has the number of the others."""

TERMS_MAX: Final = 100_000
"""Terms of DLedger logs in the memory of the driver."""

TASKS_PER_CORE: Final = 4
JOINED_AT: Final = 100_000  # spans of a log that a task holds before it joins them
_COUNTED: Final = r"^(\d+) of (.*)$"  # the detail of a finding `more`

SPANS: Final = pa.schema(
    [
        *((name, schemas.SUMMARY.field(name).type) for name in ("group", "replica")),
        *((name, pa.int64()) for name in ("at", "end", "count", "low", "high", "first")),
        ("detail", pa.string()),
        *((name, pa.int64()) for name in ENTRY_COLUMNS),
    ]
)

Row = dict[str, Any]


def runs_of_logs(summary: DataFrame) -> DataFrame:
    """The spans of each log, joined by one task for each replica: at most `log_spans.RUNS_MAX` rows and two,
    and as many for ranges that cannot be read."""
    from pyspark.sql.pandas.types import from_arrow_schema

    spans = summary.where(f"kind = '{SummaryKind.SPAN}'").select(*SPANS.names)
    together = spans.repartition("group", "replica").sortWithinPartitions("group", "replica", "at", "end")
    return together.mapInArrow(_join_rows, from_arrow_schema(SPANS))


def terms_of_logs(summary: DataFrame) -> DataFrame:
    """The rows of the kind term, joined: one for each term of each log, the newest `TERMS_MAX` of all."""
    from pyspark.sql import functions as f

    terms = summary.where(f"kind = '{SummaryKind.TERM}'").groupBy("group", "replica", "at")
    joined = terms.agg(
        f.min("first").alias("first"), f.max("end").alias("end"), f.sum("count").alias("count")
    )
    return joined.orderBy(f.desc("at")).limit(TERMS_MAX)


def _join_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Joins the spans of one replica after the other; `batches` are ordered by group and replica."""
    for (group, replica), rows in groupby(_rows(batches), key=lambda row: (row["group"], row["replica"])):
        runs: list[LogSpan] = []
        for row in rows:
            runs.append(span_of_row(row))
            if len(runs) >= JOINED_AT:
                runs = join_spans(runs)
        who = {"group": group, "replica": replica}
        joined = [who | row_of_span(one) for one in join_spans(runs)]
        yield pa.RecordBatch.from_pylist(joined, schema=SPANS)


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[Row]:
    for batch in batches:
        yield from batch.to_pylist()


def first_of_each(
    suspects: DataFrame, keys: Sequence[str], order: Sequence[str], rows_max: int = COMPARED_MAX
) -> DataFrame:
    """The first `rows_max` rows of each key, spread over all tasks, and one more, whose column `unlisted` is
    the number of the rows from it on; it is 0 in all others."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    of_key = Window.partitionBy(*keys)
    tasks = TASKS_PER_CORE * suspects.sparkSession.sparkContext.defaultParallelism
    last = f.col("number") > rows_max
    return (
        suspects.withColumn("number", f.row_number().over(of_key.orderBy(*order)))
        .withColumn("total", f.count("*").over(of_key))
        .where(f.col("number") <= rows_max + 1)
        .withColumn("unlisted", f.when(last, f.col("total") - rows_max).otherwise(0))
        .drop("number", "total")
        # Otherwise Spark makes one task of what follows: it knows the sizes of the rows, not what they cost.
        .repartition(tasks)
    )


def with_parts(suspects: DataFrame, of_log: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The suspects of `first_of_each` with a column `log_parts`: what the rows of the log with the same keys
    say. Lists are made for suspects only, of which there are few."""
    from pyspark.sql import functions as f

    parts = of_log.select(*keys, f.struct("first", "end", "count", "digest").alias("part"))
    columns = [name for name in suspects.columns if name not in keys]
    listed = (
        suspects.join(parts, [*keys], "left")
        .groupBy(*keys)
        .agg(*(f.first(name).alias(name) for name in columns), f.collect_list("part").alias("log_parts"))
    )
    tasks = TASKS_PER_CORE * suspects.sparkSession.sparkContext.defaultParallelism
    return listed.repartition(tasks)


def not_compared(row: Row, what: str, start: int | None = None) -> list[Row]:
    """The finding about the rows that `first_of_each` counted and left out."""
    detail = f"{row['unlisted']} of {what}"
    return [finding(row["group"], row.get("replica") or "", "more", start_offset=start, detail=detail)]


def listed_findings(findings: DataFrame, rows_max: int = LISTED_MAX) -> DataFrame:
    """The findings, at most `rows_max` of a kind and replica, those with the lowest offsets; and one of the
    kind `more` for each replica and kind of which there are more. `findings` are counted at once, and read
    three times if there are too many."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    who = ("group", "replica")
    counts = findings.groupBy(*who, "kind").count().collect()
    if all(row["count"] <= rows_max and row["kind"] != "more" for row in counts):
        return findings
    is_more = f.col("kind") == "more"
    order = ("start_offset", "topic", "queue_id", "queue_offset", "key", "detail")
    number = f.row_number().over(Window.partitionBy(*who, "kind").orderBy(*order))
    listed = findings.where(~is_more).withColumn("number", number).where(f.col("number") <= rows_max)
    unlisted = (
        findings.where(~is_more)
        .groupBy(*who, f.col("kind").alias("what"))
        .agg(
            (f.count("*") - rows_max).alias("count"),
            f.lit(None).cast("long").alias("start"),
            f.lit(None).cast("long").alias("end"),
        )
        .where("count > 0")
    )
    counted = findings.where(is_more).select(
        *who,
        f.regexp_extract("detail", _COUNTED, 2).alias("what"),
        f.regexp_extract("detail", _COUNTED, 1).cast("long").alias("count"),
        f.col("start_offset").alias("start"),
        f.col("end_offset").alias("end"),
    )
    more = (
        unlisted.unionByName(counted)
        .groupBy(*who, "what")
        .agg(f.sum("count").alias("count"), f.min("start").alias("start"), f.max("end").alias("end"))
    )
    of_schema = findings.schema
    columns = {field.name: f.lit(None).cast(field.dataType) for field in of_schema}
    columns |= {name: f.col(name) for name in who}
    columns |= {"kind": f.lit("more"), "severity": f.lit(KINDS["more"][0].value)}
    columns |= {"start_offset": f.col("start"), "end_offset": f.col("end")}
    columns["detail"] = f.concat_ws(" of ", f.col("count").cast("string"), "what")
    rows_of_more = more.select(*(columns[name].alias(name) for name in of_schema.names))
    return listed.select(*of_schema.names).unionByName(rows_of_more)
