"""What the driver knows of each group: its replicas' directories, epochs and extents. Its size follows from
the number of replicas, elections and segments, not from the log's."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from epochmq_spark import drill_down, files, store_layout
from epochmq_spark.checks import controller_view, epoch_history
from epochmq_spark.checks.epoch_history import LogExtent, LogSpan, ReplicaHistory
from epochmq_spark.decode.queue_units import INDEX_HEADER_BYTES, index_header
from epochmq_spark.findings import finding

Row = dict[str, Any]
Key = tuple[str, str]  # group, replica
SWITCHES_MAX = 1000


@dataclass
class AuditState:
    """Replicas, by group and name; those whose log could not be read have no history."""

    replicas: dict[Key, store_layout.AuditedReplica]
    contents: dict[Key, store_layout.StoreContents]
    findings: list[Row] = field(default_factory=list)
    histories: dict[str, list[ReplicaHistory]] = field(default_factory=dict)
    extents: dict[Key, LogExtent] = field(default_factory=dict)

    def reaches(self, group: str) -> list[drill_down.ReplicaExtent]:
        """The replicas of a group, with their extents."""
        return [
            drill_down.ReplicaExtent(self.replicas[key], one.start, one.end, one.common, one.leading)
            for key, one in self.extents.items()
            if key[0] == group
        ]

    def facts(self) -> dict[Key, drill_down.AuditedLog]:
        """What the closer look needs of each replica."""
        found = {}
        for group, members in self.histories.items():
            for one in members:
                key = group, one.name
                extent = self.extents[key]
                reach = drill_down.ReplicaExtent(
                    self.replicas[key], extent.start, extent.end, extent.common, extent.leading
                )
                found[key] = drill_down.AuditedLog(reach, dispatched(one), tuple(one.holes))
        return found


def dispatched(one: ReplicaHistory) -> int:
    """Up to where messages must be in their queues: what is confirmed, or the whole log where no checkpoint
    says that, of a broker that ended in an orderly way. One that started a moment ago may be far behind."""
    if not one.stopped:
        return one.start
    return min(one.confirmed, one.end) if one.confirmed else one.end


def look(replicas: Sequence[store_layout.AuditedReplica]) -> AuditState:
    """Lists the directories."""
    known = AuditState({}, {})
    seen: dict[tuple[str, tuple[str, str, int]], str] = {}
    for replica in replicas:
        key = replica.group, replica.name
        known.replicas[key] = replica
        there = known.contents[key] = store_layout.contents(replica.place)
        for fault in there.faults:
            known.findings.append(
                finding(replica.group, replica.name, fault.kind, file=fault.place, detail=fault.detail)
            )
        identity = store_layout.identity(replica.place) if there.log else None
        if identity is None:
            continue
        if identity[1] != replica.group:
            said = f"it is replica {identity[2]} of {identity[1]}, expected one of {replica.group}"
            known.findings.append(finding(*key, "directory.other-group", file=replica.place, detail=said))
        other = seen.setdefault((replica.group, identity), replica.name)
        if other != replica.name:
            said = f"it and {other} are both {'#'.join(map(str, identity))}"
            known.findings.append(finding(*key, "directory.same-replica", file=replica.place, detail=said))
    _compare_sizes(known)
    return known


def _compare_sizes(known: AuditState) -> None:
    """A segment that another replica of the group has in a larger file was copied in part, or cut."""
    sizes: dict[tuple[str, int], int] = {}
    for (name, _), there in known.contents.items():
        for file in there.log:
            sizes[name, file.start] = max(sizes.get((name, file.start), 0), file.size)
    reported = {row["file"] for row in known.findings if row["kind"] == "file.short"}
    for key, there in known.contents.items():
        for file in there.log:
            size = sizes[key[0], file.start]
            if file.size < size and file.place not in reported:
                said = f"{file.size} bytes, {size} at another replica"
                known.findings.append(finding(*key, "file.short", file=file.place, detail=said))


def take(known: AuditState, spans: Iterable[Mapping[str, Any]], epochs: Iterable[Mapping[str, Any]]) -> None:
    """Takes what a pass over the files left: span rows of the summary, rows of the epoch files. Sets
    histories and extents, and adds findings."""
    made: dict[Key, ReplicaHistory] = {}
    for key, there in known.contents.items():
        if there.log:
            made[key] = ReplicaHistory(
                key[1],
                there.log[0].start,
                [],
                has_file=there.has_epochs,
                confirmed=confirmed(known.replicas[key].place),
                stopped=not there.aborted,
            )
    for row in spans:
        if (one := made.get((row["group"], row["replica"]))) is not None:
            one.spans.append(LogSpan(row["at"], row["end"], row["low"], row["high"], row["detail"]))
    by_file: dict[Key, dict[str, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in sorted(epochs, key=lambda row: row["line"]):
        by_file[row["group"], row["replica"]][row["file"]].append(row)
    for key, found in by_file.items():
        if key in made:
            _take_epochs(made[key], found)
    groups: dict[str, list[ReplicaHistory]] = defaultdict(list)
    for (group, _), one in made.items():
        groups[group].append(one)
    known.histories = dict(groups)
    for group, members in known.histories.items():
        others_have = any(one.has_file for one in members)
        for one in members:
            known.findings += epoch_history.extent(group, one)
            known.findings += epoch_history.check_epoch_file(group, one, others_have=others_have)
            there = known.contents[group, one.name]
            if one.end > one.start and not there.has_queues:
                known.findings.append(
                    finding(group, one.name, "directory.incomplete", detail="there is no consumequeue")
                )
            if one.end > one.start and one.stopped and not there.index and _indexed(known, group):
                said = "there is no file in index, others have some"
                known.findings.append(finding(group, one.name, "directory.incomplete", detail=said))
        known.findings += epoch_history.beyond(group, members)
        for extent in epoch_history.extents(members):
            known.extents[group, extent.replica] = extent
        end = max(one.end for one in members)
        known.findings += [
            finding(group, one.name, "log.behind", start_offset=one.end, end_offset=end)
            for one in members
            if one.end < end
        ]


def _indexed(known: AuditState, group: str) -> bool:
    """Whether any replica's index has an entry. RocketMQ makes an index file for messages without keys, too;
    ours does not."""
    return any(
        _has_entries(file.place)
        for (name, _), there in known.contents.items()
        if name == group
        for file in there.index
    )


def _has_entries(place: str) -> bool:
    try:
        header = files.window(place, 0, INDEX_HEADER_BYTES)
    except OSError:
        return False  # told of where its entries are read
    return len(header) == INDEX_HEADER_BYTES and index_header(header)[2] > 1


def _take_epochs(one: ReplicaHistory, by_file: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    main, backup = by_file.get(store_layout.EPOCH_FILE, []), by_file.get(f"{store_layout.EPOCH_FILE}.bak", [])
    one.file_fault = main[0]["fault"] if main else "not there"
    one.backup_used = bool(one.file_fault and backup and not backup[0]["fault"])
    rows = backup if one.backup_used else main
    one.entries = [(row["epoch"], row["start_offset"]) for row in rows if row["epoch"] is not None]


def confirmed(place: str) -> int:
    """What the checkpoint says is confirmed (StoreCheckpoint: a long at 32), 0 when it says nothing."""
    try:
        data = files.read(files.join(place, "checkpoint"))
    except OSError:
        return 0
    return int(struct.unpack_from(">q", data, 32)[0]) if len(data) >= 40 else 0


def between(known: AuditState, torn: Mapping[str, set[str]], metadata: Any = None) -> list[Row]:
    """Epoch files against each other, and against the controllers' view. `torn` are the replicas, by group,
    whose log is no part of the group's history at its end. ValueError for a view that is none."""
    views = controller_view.views(metadata) if metadata is not None else {}
    found = []
    for group, members in known.histories.items():
        found += epoch_history.between(group, members, frozenset(torn.get(group, ())))
        if (view := views.get(group)) is not None:
            ids = {}
            for one in members:
                identity = store_layout.identity(known.replicas[group, one.name].place)
                ids[one.name] = identity[2] if identity else None
            highest = max((one.confirmed for one in members), default=0)
            found += controller_view.compare(group, members, ids, view, highest)
    return found


def switches(known: AuditState) -> list[tuple[str, str, list[epoch_history.EpochStart]]]:
    """(group, leading replica, [(epoch, start) …]) of every epoch that was not a log's first, at most the
    last 1,000 of a group. Those that are near each other are together: the log is read once for them."""
    found: list[tuple[str, str, list[epoch_history.EpochStart]]] = []
    for group, members in known.histories.items():
        one = epoch_history.leading_replica(members)
        near: list[epoch_history.EpochStart] = []
        for epoch, start in [entry for entry in one.written() if entry[1] > one.start][-SWITCHES_MAX:]:
            if not near or start - near[0][1] > drill_down.SWITCH_BYTES:
                near = []
                found.append((group, one.name, near))
            near.append((epoch, start))
    return found
