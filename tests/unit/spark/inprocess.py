"""The audit without Spark: the same parts, with a closer look at everything, not only where sums differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from epochmq_spark import audit, audit_state, drill_down, store_layout
from epochmq_spark.findings import finding
from epochmq_spark.sources.epochs import EpochsReader
from epochmq_spark.sources.file_ranges import FileRangeReader
from epochmq_spark.sources.offsets import OffsetsReader
from epochmq_spark.sources.summary import SummaryReader

Row = dict[str, Any]


def rows(reader: FileRangeReader) -> list[Row]:
    """All rows of a data source."""
    return [
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def run(
    replicas: Sequence[store_layout.AuditedReplica], metadata: Any = None, partition_bytes: int = 1 << 26
) -> list[Row]:
    """The findings."""
    drill_down.forget()
    options = {"partitionBytes": str(partition_bytes)}
    summary = rows(SummaryReader(replicas, options))
    known = audit_state.look(replicas)
    by_kind: dict[str, list[Row]] = defaultdict(list)
    for row in summary:
        by_kind[row["kind"]].append(row)
    audit_state.take(known, by_kind["span"], rows(EpochsReader(replicas, options)))
    found = list(known.findings)
    torn: dict[str, set[str]] = defaultdict(set)
    for name in known.histories:
        for number in sorted({row["at"] for row in by_kind["block"] if row["group"] == name}):
            for one in drill_down.block(name, number, known.reaches(name)):
                found.append(one)
                if one["kind"] == "log.tail-not-common":
                    torn[name].add(one["replica"])
    found += audit_state.between(known, torn, metadata)
    for row in by_kind["bad"]:
        where = {"start_offset": row["at"], "end_offset": row["end"], "queue_offset": row["low"]}
        where |= {"topic": row["topic"], "queue_id": row["queue_id"], "message_id": row["detail"]}
        found.append(finding(row["group"], row["replica"], "record.checksum", **where))
    for row in by_kind["chain"]:
        found.append(finding(row["group"], row["replica"], "index.broken-chain", start_offset=row["end"]))
    for row in by_kind["file"]:
        found.append(finding(row["group"], row["replica"], "file.unreadable", detail=row["detail"]))
    facts = known.facts()
    found += _queues(known, facts, by_kind) + _keys(facts, by_kind)
    ends: dict[tuple[Any, ...], int] = {}
    for row in by_kind["queue"] + by_kind["unit"]:
        key = row["group"], row["topic"], row["queue_id"]
        ends[key] = max(ends.get(key, 0), row["high"] + 1)
    offsets = rows(OffsetsReader(replicas, options))
    for row in offsets:
        if row["consumer_group"] is None and not row["fault"]:
            key = row["group"], row["topic"], row["queue_id"]
            ends[key] = max(ends.get(key, 0), row["offset"])
    for row in offsets:
        if row["consumer_group"] is None and not row["fault"]:
            continue
        end = ends.get((row["group"], row["topic"], row["queue_id"]))
        if row["fault"] or (end is not None and row["offset"] > end):
            found += audit.offset_finding(row | {"queue_end": end})
    for name, replica, switches in audit_state.switches(known):
        found += _findings_per_row(facts[name, replica], drill_down.switch, switches)
    return found


def _findings_per_row(facts: drill_down.AuditedLog, look: Callable[..., list[Row]], *more: Any) -> list[Row]:
    replica = facts.reach.replica
    return audit.findings_or_unreadable(
        lambda _: look(facts, *more), {"group": replica.group, "replica": replica.name}
    )


def _queues(
    known: audit_state.AuditState,
    facts: dict[audit_state.Key, drill_down.AuditedLog],
    by_kind: dict[str, list[Row]],
) -> list[Row]:
    places: dict[tuple[Any, ...], list[tuple[int, int]]] = defaultdict(list)
    ends: dict[tuple[Any, ...], int] = defaultdict(int)
    for row in by_kind["queue"] + by_kind["unit"]:
        key = row["group"], row["replica"], row["topic"], row["queue_id"]
        bucket = places[*key, row["at"]]
        if row["kind"] == "queue":
            bucket.append((row["first"], row["end"]))
        else:
            ends[key] = max(ends[key], row["high"] + 1)
    found: list[Row] = []
    for (name, replica, topic, queue_id, number), where in places.items():
        if (name, replica) in facts and known.contents[name, replica].has_queues:
            end = ends[name, replica, topic, queue_id]
            wanted = drill_down.QueueRange(topic, queue_id, number, where, end)
            found += _findings_per_row(facts[name, replica], drill_down.queue, wanted)
    return found


def _keys(facts: dict[audit_state.Key, drill_down.AuditedLog], by_kind: dict[str, list[Row]]) -> list[Row]:
    covered: dict[audit_state.Key, tuple[int, int]] = {}
    for row in by_kind["index"]:
        low, high = covered.get((row["group"], row["replica"]), (row["at"], row["end"]))
        covered[row["group"], row["replica"]] = min(low, row["at"]), max(high, row["end"])
    found: list[Row] = []
    for key in sorted(covered):
        together = [where for other, where in covered.items() if other[0] == key[0]]
        group_low, group_high = min(low for low, _ in together), max(high for _, high in together)
        known = drill_down.IndexCoverage(*covered[key], group_low, group_high)
        blocks = {row["at"] for row in by_kind["block"] if (row["group"], row["replica"]) == key}
        for number in sorted(blocks):
            if key in facts:
                found += _findings_per_row(facts[key], drill_down.keys, number, known)
    return found


def replicas_of(paths: Sequence[Any], name: str = "group-a") -> list[store_layout.AuditedReplica]:
    """Directories as replicas of a group."""
    return [store_layout.AuditedReplica(name, path.name, str(path)) for path in paths]


def serious(found: Sequence[Row]) -> list[Row]:
    """Findings that are more than notes."""
    return [row for row in found if row["severity"] != "note"]
