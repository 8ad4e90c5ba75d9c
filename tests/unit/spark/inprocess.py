"""Runs the audit without Spark, with a drill-down into everything, not only where digests differ."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from epochmq_spark import (
    audit,
    audit_state,
    coverage,
    drill_down,
    plan_inputs,
    queue_drill_down,
    store_layout,
)
from epochmq_spark.audit_state import AuditState, ReplicaKey
from epochmq_spark.checks import former_topics, two_histories
from epochmq_spark.checks.record_copies import TAIL_KINDS
from epochmq_spark.drill_down import AuditedLog
from epochmq_spark.features import FEATURES, check_feature
from epochmq_spark.features.index_times import compare_index_time
from epochmq_spark.findings import finding
from epochmq_spark.sources.epochs import EpochsReader
from epochmq_spark.sources.file_ranges import FileRangeReader
from epochmq_spark.sources.offsets import ProgressReader
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
    drill_down.clear_caches()
    options = {"partitionBytes": str(partition_bytes)}
    summary = rows(SummaryReader(replicas, options))
    state = audit_state.scan_replicas(replicas)
    by_kind: dict[str, list[Row]] = defaultdict(list)
    for row in summary:
        by_kind[row["kind"]].append(row)
    audit_state.add_histories(state, by_kind["span"], rows(EpochsReader(replicas, options)), by_kind["term"])
    findings = list(state.findings)
    diverged: dict[str, set[str]] = defaultdict(set)
    for group in state.histories:
        for number in sorted({row["at"] for row in by_kind["block"] if row["group"] == group}):
            for row in drill_down.compare_block(group, number, state.logs_of(group)):
                findings.append(row)
                if row["kind"] in TAIL_KINDS:
                    diverged[group].add(row["replica"])
    findings += two_histories.describe_histories(_one_sided_ranges(findings))
    findings += audit_state.compare_replicas(state, diverged, metadata)
    findings += audit_state.find_no_index(state, summary)
    for row in by_kind["bad"]:
        columns = {"start_offset": row["at"], "end_offset": row["end"], "queue_offset": row["low"]}
        columns |= {"topic": row["topic"], "queue_id": row["queue_id"], "message_id": row["detail"]}
        findings.append(finding(row["group"], row["replica"], "record.checksum", **columns))
    for row in by_kind["bad-time"]:
        columns = {"start_offset": row["at"], "end_offset": row["end"], "store_timestamp": row["low"]}
        columns |= {"detail": row["detail"]}
        findings.append(finding(row["group"], row["replica"], "record.store-time", **columns))
    logs = state.logs()
    for row in by_kind["chain"]:
        of_chain = {"start_offset": row["end"], "file": row["detail"]}
        findings.append(finding(row["group"], row["replica"], "index.broken-chain", **of_chain))
    for row in by_kind["index-time"]:
        if (log := logs.get((row["group"], row["replica"]))) is not None:
            findings += _checked(log, compare_index_time, row)
    for row in by_kind["file"]:
        findings.append(finding(row["group"], row["replica"], "file.unreadable", detail=row["detail"]))
    findings += _compare_queues(state, logs, by_kind) + _compare_keys(logs, by_kind)
    findings += _compare_entries(logs, by_kind)
    ends: dict[tuple[Any, ...], int] = {}
    for row in by_kind["queue"] + by_kind["unit"]:
        key = row["group"], row["topic"], row["queue_id"]
        ends[key] = max(ends.get(key, 0), row["high"] + 1)
    offsets = rows(ProgressReader(replicas, options))
    for row in offsets:
        if row["consumer_group"] is None and not row["fault"]:
            key = row["group"], row["topic"], row["queue_id"]
            ends[key] = max(ends.get(key, 0), row["offset"])
    for row in offsets:
        if (row["consumer_group"] is None and not row["fault"]) or row["topic"] in state.batch_topics:
            continue
        end = ends.get((row["group"], row["topic"], row["queue_id"]))
        is_without = end is None and not row["fault"] and row["group"] in state.groups_with_queues()
        if row["fault"] or (row["offset"] > 0 if is_without else end is not None and row["offset"] > end):
            findings += audit.offset_finding(row | {"queue_end": end})
    for (group, _), log in logs.items():
        others = [one for key, one in logs.items() if key[0] == group]
        for name in FEATURES:
            findings += _checked(
                log, lambda log, name, others: check_feature(name, log, others), name, others
            )
    for group, replica, starts in audit_state.epoch_starts(state):
        findings += _checked(logs[group, replica], drill_down.check_epoch_starts, starts)
    return findings


def plan_of(
    replicas: Sequence[store_layout.AuditedReplica],
    findings: Sequence[Row],
    origin: plan_inputs.StoreOrigin | None = None,
) -> list[Row]:
    """The steps that repair these findings."""
    options = {"partitionBytes": str(1 << 26)}
    state = audit_state.scan_replicas(replicas)
    spans = [row for row in rows(SummaryReader(replicas, options)) if row["kind"] == "span"]
    audit_state.add_histories(state, spans, rows(EpochsReader(replicas, options)))
    found: dict[tuple[str, str, str], Row] = {}
    for row in findings:
        key = row["group"], row["replica"], row["kind"]
        names = dict(zip(("group", "replica", "kind"), key, strict=True))
        one = found.setdefault(key, {**names, "count": 0, "files": set()})
        one["count"] += 1
        one["files"] |= {row["file"]} - {None}
    return plan_inputs.plan_of(state, found.values(), time.time(), origin)


def coverage_of(
    replicas: Sequence[store_layout.AuditedReplica], metadata: Any = None
) -> tuple[dict[ReplicaKey, Row], Row]:
    """What the audit compares: the columns of each replica, and the entry `coverage` of the summary."""
    drill_down.clear_caches()
    options = {"partitionBytes": str(1 << 26)}
    summary = rows(SummaryReader(replicas, options))
    state = audit_state.scan_replicas(replicas)
    spans = [row for row in summary if row["kind"] == "span"]
    terms = [row for row in summary if row["kind"] == "term"]
    audit_state.add_histories(state, spans, rows(EpochsReader(replicas, options)), terms)
    covered = coverage.coverage_of(state, coverage.count_rows(summary))
    unreadable = [row for row in summary if row["kind"] == "file"]
    of_groups = coverage.left_out_of_groups(state, metadata)
    document = coverage.coverage_document(state, covered, of_groups, unreadable)
    return {key: one.document() for key, one in covered.items()}, document


def _one_sided_ranges(findings: Sequence[Row]) -> list[two_histories.OneSidedRange]:
    by_replica: dict[ReplicaKey, list[Row]] = defaultdict(list)
    for row in findings:
        if row["kind"] == "message.one-sided":
            by_replica[row["group"], row["replica"]].append(row)
    return [
        two_histories.OneSidedRange(
            *key,
            min(row["start_offset"] for row in found),
            max(row["end_offset"] for row in found),
            len(found),
        )
        for key, found in sorted(by_replica.items())
    ]


def _checked(log: AuditedLog, check: Callable[..., list[Row]], *more: Any) -> list[Row]:
    row = {"group": log.replica.group, "replica": log.replica.name}
    return audit.findings_or_unreadable(lambda _: check(log, *more), row)


def _compare_queues(
    state: AuditState, logs: dict[ReplicaKey, AuditedLog], by_kind: dict[str, list[Row]]
) -> list[Row]:
    log_ranges: dict[tuple[Any, ...], list[tuple[int, int]]] = defaultdict(list)
    ends: dict[tuple[Any, ...], int] = defaultdict(int)
    for row in by_kind["queue"] + by_kind["unit"]:
        key = row["group"], row["replica"], row["topic"], row["queue_id"]
        bucket = log_ranges[*key, row["at"]]
        if row["kind"] == "queue":
            bucket.append((row["first"], row["end"]))
        else:
            ends[key] = max(ends[key], row["high"] + 1)
    groups = state.logs_with_queues()
    findings, without_units = _topics_without_units(state, by_kind)
    new_topics = _new_topics(by_kind)
    for (group, replica, topic, queue_id, number), ranges in log_ranges.items():
        if (group, replica, topic) in without_units:
            continue
        is_new = (group, replica, topic) in new_topics
        if (group, replica) in logs and state.contents[group, replica].has_queues:
            end = ends[group, replica, topic, queue_id]
            parts = [queue_drill_down.BucketPart(*one) for one in ranges]
            queue = queue_drill_down.QueueRange(topic, queue_id, number, parts, end, is_of_new_topic=is_new)
            check = queue_drill_down.compare_queue_range
            findings += _checked(logs[group, replica], check, queue, groups[group])
    return findings


def _topics_without_units(
    state: AuditState, by_kind: dict[str, list[Row]]
) -> tuple[list[Row], list[tuple[str, str, str]]]:
    with_units = {(row["group"], row["replica"], row["topic"]) for row in by_kind["unit"]}
    by_topic: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in by_kind["queue"]:
        by_topic[row["group"], row["replica"], row["topic"]].append(row)
    logged = [
        former_topics.LoggedTopic(
            *key,
            sum(row["count"] for row in found),
            min(row["first"] for row in found),
            max(row["end"] for row in found),
        )
        for key, found in by_topic.items()
        if key not in with_units
    ]
    dispatched = {
        group: {log.replica.name: log.dispatched_end for log in logs}
        for group, logs in state.logs_with_queues().items()
    }
    return former_topics.topics_without_units(logged, state.topic_tables(), dispatched)


def _new_topics(by_kind: dict[str, list[Row]]) -> set[tuple[str, str, str]]:
    """The topics of which a queue starts anew behind older messages."""
    of_log: dict[tuple[Any, ...], int] = {}
    of_queue: dict[tuple[Any, ...], tuple[int, int]] = {}
    for row in by_kind["queue"]:
        key = row["group"], row["replica"], row["topic"], row["queue_id"]
        of_log[key] = min(of_log.get(key, row["first"]), row["first"])
    for row in by_kind["unit"]:
        key = row["group"], row["replica"], row["topic"], row["queue_id"]
        low, first = of_queue.get(key, (row["low"], row["first"]))
        of_queue[key] = min(low, row["low"]), min(first, row["first"])
    return {key[:3] for key, (low, first) in of_queue.items() if low == 0 and of_log.get(key, first) < first}


def _compare_entries(logs: dict[ReplicaKey, AuditedLog], by_kind: dict[str, list[Row]]) -> list[Row]:
    ranges: dict[tuple[str, str, int], list[tuple[int, int]]] = defaultdict(list)
    for row in by_kind["entries"] + by_kind["entry-unit"]:
        bucket = ranges[row["group"], row["replica"], row["at"]]
        if row["kind"] == "entries":
            bucket.append((row["first"], row["end"]))
    findings: list[Row] = []
    for (group, replica, number), found in ranges.items():
        if (group, replica) in logs:
            findings += _checked(logs[group, replica], drill_down.compare_entry_bucket, number, found)
    return findings


def _compare_keys(logs: dict[ReplicaKey, AuditedLog], by_kind: dict[str, list[Row]]) -> list[Row]:
    covered: dict[ReplicaKey, tuple[int, int]] = {}
    for row in by_kind["index"]:
        low, high = covered.get((row["group"], row["replica"]), (row["at"], row["end"]))
        covered[row["group"], row["replica"]] = min(low, row["at"]), max(high, row["end"])
    findings: list[Row] = []
    for key in sorted(covered):
        of_group = [one for other, one in covered.items() if other[0] == key[0]]
        group_low, group_high = min(low for low, _ in of_group), max(high for _, high in of_group)
        coverage = drill_down.IndexCoverage(*covered[key], group_low, group_high)
        blocks = {row["at"] for row in by_kind["block"] if (row["group"], row["replica"]) == key}
        for number in sorted(blocks):
            if key in logs:
                findings += _checked(logs[key], drill_down.compare_index_block, number, coverage)
    return findings


def replicas_of(paths: Sequence[Any], name: str = "group-a") -> list[store_layout.AuditedReplica]:
    """Directories as replicas of a group."""
    return [store_layout.AuditedReplica(name, path.name, str(path)) for path in paths]


def without_notes(findings: Sequence[Row]) -> list[Row]:
    """The errors and warnings."""
    return [row for row in findings if row["severity"] != "note"]


def of_one_replica(findings: Sequence[Row]) -> list[Row]:
    """The findings of an audit of a single directory, without the one that says that it is the only one."""
    kept = [row for row in findings if row["kind"] != "group.one-replica"]
    assert len(kept) == len(findings) - 1
    return kept
