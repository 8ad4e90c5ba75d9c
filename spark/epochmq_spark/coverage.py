# pure: what an audit compared
"""Describes what an audit compared, and what it left out and why.

The replicas' part (`ReplicaCoverage.document`) counts what was read of each replica, and names the range of
its log that was compared with another replica. `coverage_document` has the sums of all replicas, and the
list of what was left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from epochmq_spark.checks import controller_view
from epochmq_spark.decode.summary_rows import SummaryKind

if TYPE_CHECKING:
    from epochmq_spark.audit_state import AuditState, ReplicaKey

LEFT_OUT_MAX: Final = 1000  # entries that are listed; the summary has their number

COUNTED: Final = {
    SummaryKind.BLOCK: "bytes",
    SummaryKind.SPAN: "records",
    SummaryKind.UNITS_BY_QUEUE: "units",
    SummaryKind.KEYS_BY_INDEX: "indexEntries",
}
"""The kinds of summary rows whose counts are added up, and the names of the sums. `bytes` are those of the
records of the log. `records` includes the blank records at the ends of segments."""

Range = tuple[int, int]


@dataclass
class ReplicaCoverage:
    """What was read of one replica. The offset range [start, end) of its log was compared with at least one
    other replica; None if there is no other one that covers any of it."""

    counts: dict[str, int]
    compared: Range | None = None
    left_out: list[tuple[str, str]] = field(default_factory=list)  # (what, why)

    def document(self) -> dict[str, Any]:
        """The columns of the replica in the JSON summary."""
        return {**self.counts, "compared": list(self.compared) if self.compared else None}


def count_rows(rows: Iterable[Mapping[str, Any]]) -> dict[ReplicaKey, dict[str, int]]:
    """The sums of rows with `group`, `replica`, `kind` and `count`, by replica. Rows of other kinds have no
    effect."""
    sums: dict[ReplicaKey, dict[str, int]] = {}
    for row in rows:
        if (name := COUNTED.get(row["kind"])) is not None:
            of_replica = sums.setdefault((row["group"], row["replica"]), dict.fromkeys(COUNTED.values(), 0))
            of_replica[name] += row["count"]
    return sums


def coverage_of(
    state: AuditState, sums: Mapping[ReplicaKey, dict[str, int]]
) -> dict[ReplicaKey, ReplicaCoverage]:
    """The coverage of each replica."""
    covered = {}
    for key in state.replicas:
        one = ReplicaCoverage(dict(sums.get(key) or dict.fromkeys(COUNTED.values(), 0)))
        covered[key] = one
        _of_directory(state, key, one)
        if key in state.extents:
            _of_log(state, key, one)
    return covered


def _of_directory(state: AuditState, key: ReplicaKey, one: ReplicaCoverage) -> None:
    contents = state.contents[key]
    if not contents.log:
        faults = "; ".join(f"{fault.kind}: {fault.detail}" for fault in contents.faults)
        one.left_out.append(("the replica", faults or "its log has no segment"))
        return
    if not contents.has_queues:
        one.left_out.append(("consume queues", "the directory consumequeue is missing"))
    if contents.batch_topics:
        topics = ", ".join(sorted(contents.batch_topics)[:10])
        what = f"messages without a unit in the batch consume queues of {len(contents.batch_topics)} topics"
        one.left_out.append((what, f"not looked for where no replica has the unit: {topics}"))
    if not contents.index:
        one.left_out.append(("the index", "there is no index file"))
    if contents.aborted:
        why = "the broker did not stop cleanly, or runs: they may be behind the log"
        one.left_out.append(
            ("the ends of consume queues and index, and the timer's and the checkpoint's offsets", why)
        )


def _of_log(state: AuditState, key: ReplicaKey, one: ReplicaCoverage) -> None:
    extent = state.extents[key]
    history = next(member for member in state.histories[key[0]] if member.name == key[1])
    one.left_out += [
        (_offsets(low, high), "this part of the log cannot be read") for low, high in sorted(history.unread)
    ]
    one.left_out += [(_offsets(low, high), "no valid record") for low, high in history.holes]
    why = "more breaks than are listed, with no valid record in each"
    one.left_out += [(f"breaks in {_offsets(low, high)}", why) for low, high in history.broken_runs]
    if extent.end <= extent.start:
        return
    others = [
        state.extents[key[0], member.name]
        for member in state.histories[key[0]]
        if member is not history and member.is_readable
    ]
    ranges = [
        (max(extent.start, other.start), min(extent.common_end, other.common_end))
        for other in others
        if max(extent.start, other.start) < min(extent.common_end, other.common_end)
    ]
    if not ranges:
        why = "no other replica has this range" if others else "no other replica could be read"
        one.left_out.append((_offsets(extent.start, extent.end), f"{why}: checked in itself only"))
        return
    start, end = min(low for low, _ in ranges), max(high for _, high in ranges)
    one.compared = start, end
    if extent.start < start:
        why = "the other replicas' logs start later: checked in itself only"
        one.left_out.append((_offsets(extent.start, start), why))
    if end < extent.end:
        why = "no other replica has this range of the group's history: checked in itself only"
        one.left_out.append((_offsets(end, extent.end), why))


def _offsets(start: int, end: int) -> str:
    return f"log offsets {start} to {end}"


def left_out_of_groups(state: AuditState, metadata: Any) -> list[dict[str, Any]]:
    """What was left out of each group as a whole: the controllers' view."""
    views = controller_view.parse_views(metadata) if metadata is not None else {}
    listed = []
    for group in sorted({group for group, _ in state.replicas}):
        if group in views:
            continue
        members = state.histories.get(group, ())
        with_epochs = any(one.has_file and one.peer is None for one in members)
        if metadata is not None or with_epochs:
            why = "no metadata were supplied" if metadata is None else "the metadata do not list the group"
            listed.append({"group": group, "replica": "", "what": "the controllers' view", "why": why})
    return listed


def coverage_document(
    state: AuditState,
    covered: Mapping[ReplicaKey, ReplicaCoverage],
    of_groups: Sequence[Mapping[str, Any]],
    unreadable_files: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The entry `coverage` of the JSON summary. `of_groups` is from `left_out_of_groups`, `unreadable_files`
    have `group`, `replica` and `detail`."""
    left_out: list[Mapping[str, Any]] = list(of_groups)
    for (group, replica), one in covered.items():
        left_out += [
            {"group": group, "replica": replica, "what": what, "why": why} for what, why in one.left_out
        ]
    left_out += [
        {"group": row["group"], "replica": row["replica"], "what": "a file", "why": row["detail"]}
        for row in unreadable_files
    ]
    sums = {name: sum(one.counts[name] for one in covered.values()) for name in COUNTED.values()}
    compared = [one.compared for one in covered.values() if one.compared]
    return {
        "replicasSupplied": len(covered),
        "replicasRead": sum(one.is_readable for members in state.histories.values() for one in members),
        "replicasCompared": len(compared),
        **sums,
        "comparedBytes": sum(end - start for start, end in compared),
        "leftOut": [dict(one) for one in left_out[:LEFT_OUT_MAX]],
        "leftOutCount": len(left_out),
    }


def sentence(coverage: Mapping[str, Any]) -> str:
    """One line for people."""
    return (
        f"compared {coverage['replicasCompared']} of {coverage['replicasSupplied']} replicas: "
        f"{coverage['comparedBytes']:,} bytes of their logs with another replica; read "
        f"{coverage['records']:,} records ({coverage['bytes']:,} bytes), {coverage['units']:,} units of "
        f"consume queues, {coverage['indexEntries']:,} index entries; left out: {coverage['leftOutCount']}"
    )
