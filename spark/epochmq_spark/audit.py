"""The audit of groups: one pass over every file, sums compared, and a closer look where they differ."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from epochmq_spark import drill, files, layout, tables
from epochmq_spark.audits import history
from epochmq_spark.audits.history import Extent, History, Span
from epochmq_spark.findings import finding
from epochmq_spark.sources import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = dict[str, Any]
Progress = Callable[[str], None]


@dataclass
class Result:
    """What an audit found. `findings` is small or large; `extents` has a row for each replica."""

    findings: DataFrame
    extents: list[tuple[str, Extent]]
    histories: dict[str, list[History]]
    tables: dict[str, DataFrame] = field(default_factory=dict)


def run(
    spark: SparkSession,
    replicas: Sequence[layout.Replica],
    *,
    metadata: Any = None,
    progress: Progress = lambda text: None,
    partition_bytes: int | None = None,
) -> Result:
    """Audits groups of replicas. Raises what Spark raises when it cannot run; what is wrong with files is
    among the findings."""
    register(spark)
    options = {"replicas": layout.encode(replicas)}
    if partition_bytes:
        options["partitionBytes"] = str(partition_bytes)

    def load(name: str) -> DataFrame:
        return spark.read.format(name).options(**options).load()

    progress("looking at the directories")
    found = list(_faults(replicas))
    progress("reading logs")
    summary = load("epochmq.summary").persist()
    histories = _histories(replicas, load("epochmq.epochs"), summary)
    extents: list[tuple[str, Extent]] = []
    for group, members in histories.items():
        others_have = any(one.has_file for one in members)
        for one in members:
            found += history.extent(group, one)
            found += history.own_epochs(group, one, others_have=others_have)
        extents += [(group, extent) for extent in history.extents(members)]
    progress("comparing the replicas' logs")
    differing = _compare_blocks(spark, replicas, extents, summary).persist()
    torn = defaultdict(set)
    for row in (
        differing.where("kind = 'log.tail-not-common'").select("group", "replica").distinct().collect()
    ):
        torn[row["group"]].add(row["replica"])
    for group, members in histories.items():
        found += history.between(group, members, frozenset(torn[group]))
    bad = _bad_records(summary)
    small = spark.createDataFrame(pa.Table.from_pylist(found, schema=tables.FINDINGS))
    findings = small.unionByName(differing).unionByName(bad)
    return Result(findings, extents, histories, {"summary": summary})


def _faults(replicas: Sequence[layout.Replica]) -> Iterator[Row]:
    for replica in replicas:
        for fault in layout.contents(replica.place).faults:
            yield finding(replica.group, replica.name, fault.kind, file=fault.place, detail=fault.detail)


def _histories(
    replicas: Sequence[layout.Replica], epochs: DataFrame, summary: DataFrame
) -> dict[str, list[History]]:
    """What grows with the number of elections and of segments, on the driver: epochs and runs of records."""
    made: dict[tuple[str, str], History] = {}
    for replica in replicas:
        there = layout.contents(replica.place)
        if not there.log:
            continue
        made[replica.group, replica.name] = History(
            replica.name,
            there.log[0].start,
            [],
            has_file=there.has_epochs,
            confirmed=_confirmed(replica.place),
        )
    spans = summary.where("kind = 'span'").select("group", "replica", "at", "end", "low", "high", "detail")
    for group, name, *span in spans.collect():
        if (one := made.get((group, name))) is not None:
            one.spans.append(Span(*span))
    files_of: dict[tuple[str, str], dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for row in epochs.orderBy("group", "replica", "file", "line").collect():
        files_of[row["group"], row["replica"]][row["file"]].append(row)
    for key, by_file in files_of.items():
        if key in made:
            _take_epochs(made[key], by_file)
    groups: dict[str, list[History]] = defaultdict(list)
    for (group, _), one in made.items():
        groups[group].append(one)
    return dict(groups)


def _take_epochs(one: History, by_file: dict[str, list[Any]]) -> None:
    main, backup = by_file.get(layout.EPOCH_FILE, []), by_file.get(f"{layout.EPOCH_FILE}.bak", [])
    fault = main[0]["fault"] if main else "not there"
    one.file_fault = fault
    one.backup_used = bool(fault and backup and not backup[0]["fault"])
    rows = backup if one.backup_used else main
    one.entries = [(row["epoch"], row["start_offset"]) for row in rows if row["epoch"] is not None]


def _confirmed(place: str) -> int:
    """What the checkpoint says is confirmed (StoreCheckpoint: a long at 32), 0 when it says nothing."""
    try:
        data = files.read(files.join(place, "checkpoint"))
    except OSError:
        return 0
    return int(struct.unpack_from(">q", data, 32)[0]) if len(data) >= 40 else 0


def _reaches(
    replicas: Sequence[layout.Replica], extents: Iterable[tuple[str, Extent]]
) -> dict[str, list[drill.Reach]]:
    known = {(replica.group, replica.name): replica for replica in replicas}
    found: dict[str, list[drill.Reach]] = defaultdict(list)
    for group, one in extents:
        replica = known[group, one.replica]
        found[group].append(drill.Reach(replica, one.start, one.end, one.common, one.leading))
    return dict(found)


def _compare_blocks(
    spark: SparkSession,
    replicas: Sequence[layout.Replica],
    extents: Sequence[tuple[str, Extent]],
    summary: DataFrame,
) -> DataFrame:
    """Blocks whose sums differ between the replicas that should have them, and then their records."""
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.types import from_arrow_schema

    reach = spark.createDataFrame(
        [(group, one.replica, one.start, one.end, one.common) for group, one in extents],
        "group string, replica string, log_start long, log_end long, common long",
    )
    size = drill.BLOCK_BYTES
    sums = (
        summary.where("kind = 'block'")
        .groupBy("group", "replica", "at")
        .agg(f.sum("count").alias("bytes"), f.bit_xor("digest").alias("digest"))
    )
    members = f.broadcast(reach)
    blocks = sums.select("group", "at").distinct()
    expected = blocks.join(members, "group").where(
        (f.col("log_start") < (f.col("at") + 1) * size) & (f.col("log_end") > f.col("at") * size)
    )
    suspects = (
        expected.join(sums, ["group", "replica", "at"], "left")
        .groupBy("group", "at")
        .agg(
            f.count_distinct(f.struct(f.coalesce("bytes", f.lit(0)), f.coalesce("digest", f.lit(0)))).alias(
                "versions"
            ),
            f.min(f.col("common") - f.least("log_end", (f.col("at") + 1) * size)).alias("owned"),
        )
        .where("versions > 1 or owned < 0")
        .select("group", "at")
    )
    reaches = _reaches(replicas, extents)

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                rows = drill.block(row["group"], row["at"], reaches[row["group"]])
                yield pa.RecordBatch.from_pylist(rows, schema=tables.FINDINGS)

    return suspects.mapInArrow(look, from_arrow_schema(tables.FINDINGS))


def _bad_records(summary: DataFrame) -> DataFrame:
    """Records whose body does not fit its checksum."""
    from pyspark.sql import functions as f

    bad = summary.where("kind = 'bad'")
    given = {
        "group": f.col("group"),
        "replica": f.col("replica"),
        "kind": f.lit("record.checksum"),
        "severity": f.lit("error"),
        "start_offset": f.col("at"),
        "end_offset": f.col("end"),
        "topic": f.col("topic"),
        "queue_id": f.col("queue_id"),
        "queue_offset": f.col("low"),
        "message_id": f.col("detail"),
        "store_timestamp": f.col("high"),
    }
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = from_arrow_schema(tables.FINDINGS)
    return bad.select(
        *[given.get(column.name, f.lit(None)).cast(column.dataType).alias(column.name) for column in schema]
    )


def replica_rows(replicas: Sequence[layout.Replica], result: Result) -> list[Row]:
    """What the summary says of each replica; its extent is null when its log was not read."""
    extents = {(group, one.replica): one for group, one in result.extents}
    entries = {(group, one.name): one.entries for group, many in result.histories.items() for one in many}
    rows = []
    for replica in replicas:
        one = extents.get((replica.group, replica.name))
        rows.append(
            {
                "group": replica.group,
                "replica": replica.name,
                "place": replica.place,
                "logStart": one and one.start,
                "logEnd": one and one.end,
                "commonEnd": one and one.common,
                "leading": bool(one and one.leading),
                "epochs": [list(entry) for entry in entries.get((replica.group, replica.name), [])],
            }
        )
    return rows
