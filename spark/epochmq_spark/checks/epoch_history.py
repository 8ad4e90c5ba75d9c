# pure: epochs and extents of a group
"""Compares the epoch files of one group with each other and with the extents of the logs.

The terms of a DLedger log take the place of epochs. They are in the log itself (`checks.terms`).

The rule is the one of a handshake between replicas (`truncation_point`): two logs are equal up to the end of
the newest epoch that both list with the same start. An epoch without a byte does not count: a master that
wrote nothing may leave its entry behind, and no other replica learns of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from epochmq_protocol.epoch_entries import OFFSET_MAX, EpochEntry, truncation_point
from epochmq_spark.checks.log_extent import LogExtent, SavedPeerState
from epochmq_spark.findings import finding
from epochmq_spark.log_spans import UNREAD, LogSpan

Row = dict[str, Any]
EpochStart = tuple[int, int]  # epoch, start offset


_NO_RECORD = {
    "magic": "no valid magic number",
    "offset": "the record's own physical offset is another one",
    "size": "the sizes in the record contradict each other",
}
"""What is wrong with the bytes behind a run of records, by why the run ends."""


@dataclass
class ReplicaHistory:
    """The epochs and the log of one replica, as its files show them. Ranges are physical offsets."""

    name: str
    log_start: int  # where the first segment starts
    spans: list[LogSpan]
    entries: list[EpochStart] = field(default_factory=list)
    file_fault: str | None = None  # what is wrong with epochFileCheckpoint
    backup_used: bool = False
    has_file: bool = True
    confirmed: int = 0  # the confirm offset of the checkpoint; 0: none
    stopped: bool = True  # the broker stopped cleanly
    frozen: bool = False  # a view of a volume at a cut: the broker may run
    peer: SavedPeerState | None = None  # of a DLedger log
    last_index: int = -1  # of the last entry of a DLedger log; set by `find_extent`
    unread: list[tuple[int, int]] = field(default_factory=list)  # set by `find_extent`
    holes: list[tuple[int, int]] = field(default_factory=list)  # set by `find_extent`
    broken_runs: list[tuple[int, int]] = field(default_factory=list)
    """Ranges with more breaks than are listed; set by `find_extent`."""
    start: int = 0  # set by `find_extent`
    end: int = 0  # set by `find_extent`

    @property
    def possible_end(self) -> int:
        """The highest offset at which the log may end: a range that cannot be read may contain records."""
        return max([self.end, *(high for _, high in self.unread)])

    @property
    def is_readable(self) -> bool:
        """Whether any part of the log could be read. A log without a record can be read."""
        return self.end > self.start or not self.unread

    def written(self) -> list[EpochStart]:
        """The epochs that contain at least one byte, ordered by start. The order of the entries in the file
        makes no difference."""
        ordered = sorted(self.entries, key=lambda entry: entry[1])
        ends = [start for _, start in ordered[1:]] + [OFFSET_MAX]
        return [
            (epoch, start)
            for (epoch, start), stop in zip(ordered, ends, strict=False)
            if max(start, self.start) < min(stop, self.end)
        ]


def find_extent(group: str, history: ReplicaHistory, copied: frozenset[int] = frozenset()) -> list[Row]:
    """Sets `start`, `end`, `unread`, `holes` and `broken_runs` of a history; returns findings about gaps
    between its spans. Ranges that cannot be read are reported by another check.

    Records beyond the end of the log that are older than those before them were left by a truncation. But
    records behind a damaged one are older, too, if the clock was set back between them. They belong to the
    log if another replica has the same record in the same epoch: `copied` are the offsets of such
    records."""
    findings: list[Row] = []
    history.start = log_end = history.log_start
    history.holes, history.broken_runs, history.last_index = [], [], -1
    last_time, last_term, next_index = 0, -1, -1
    term_max = OFFSET_MAX if history.peer is None or history.peer.term is None else history.peer.term
    stop = "zeros"
    history.unread = [(span.start, span.end) for span in history.spans if span.stop == UNREAD]
    spans = [span for span in history.spans if span.stop != UNREAD]
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        columns = {"start_offset": span.start, "end_offset": span.end}
        if span.end == span.start:
            stop = span.stop if span.start == log_end else stop
            continue
        is_next = min(next_index, span.first_index) < 0 or (
            span.first_index == next_index and span.first_term >= last_term
        )
        is_old = span.is_older(last_time, last_term) and span.start not in copied
        is_old |= span.is_blank and span.start > log_end
        if is_old and not (span.start == log_end and is_next):
            findings.append(finding(group, history.name, "log.remains", **columns))
            continue
        if span.start != log_end:
            findings += _hole(group, history, log_end, span.start, stop)
        elif not is_next:
            kind = "dledger.gap" if span.first_index != next_index else "dledger.term-order"
            detail = f"entry {span.first_index} of term {span.first_term} follows entry {next_index - 1}"
            findings.append(finding(group, history.name, kind, start_offset=log_end, detail=detail))
        if span.breaks:
            history.broken_runs.append((span.start, span.end))
            detail = f"{span.breaks} of log.broken-record or log.hole"
            findings.append(finding(group, history.name, "more", **columns, detail=detail))
        if span.last_index >= 0:
            # A damaged header may name any index and term. The next entries tell.
            in_place = span.start == log_end and next_index >= 0 and not span.breaks
            next_index = next_index + span.records if in_place else span.last_index + 1
            history.last_index = next_index - 1
            last_term = max(last_term, span.last_term) if span.last_term <= term_max else last_term
        stop = span.stop
        log_end = max(log_end, span.end)
        last_time = span.last_time or last_time
    history.end = log_end
    if stop in _NO_RECORD and not findings:
        detail = f"behind the last record are bytes that are none: {_NO_RECORD[stop]}"
        findings.append(finding(group, history.name, "log.remains", start_offset=log_end, detail=detail))
    return findings + _confirmed_part_missing(group, history)


def _hole(group: str, history: ReplicaHistory, start: int, end: int, stop: str) -> list[Row]:
    """Adds a hole to a history; the finding about it, unless a part of it could not be read. `stop`: why the
    span before it ends."""
    history.holes.append((start, end))
    if any(low < end and start < high for low, high in history.unread):
        return []
    reason = None if stop == "zeros" else _NO_RECORD.get(stop, "no record follows")
    kind = "log.hole" if stop == "zeros" else "log.broken-record"
    columns = {"start_offset": start, "end_offset": end}
    return [finding(group, history.name, kind, **columns, detail=reason)]


def _confirmed_part_missing(group: str, history: ReplicaHistory) -> list[Row]:
    """A finding if the log ends before what it has confirmed, by the replica's own files."""
    name, peer, end = history.name, history.peer, history.end
    if peer is not None and peer.committed_index is not None:
        if history.last_index >= peer.committed_index or history.unread:
            return []
        detail = (
            f"entry {peer.committed_index} is committed by its checkpoint, {history.last_index} is the last"
        )
        return [finding(group, name, "log.cut-below-confirmed", start_offset=end, detail=detail)]
    if history.confirmed <= history.possible_end:
        return []
    columns = {"start_offset": end, "end_offset": history.confirmed}
    detail = f"the confirm offset in its checkpoint is {history.confirmed}"
    return [finding(group, name, "log.cut-below-confirmed", **columns, detail=detail)]


def epoch_at(history: ReplicaHistory, offset: int) -> EpochStart | None:
    """The epoch that contains an offset of a log; None without epochs, or before the first one."""
    return max(
        (entry for entry in history.entries if entry[1] <= offset), key=lambda entry: entry[1], default=None
    )


def holders_of(
    history: ReplicaHistory, offset: int, members: Sequence[ReplicaHistory]
) -> list[ReplicaHistory]:
    """The other replicas whose log covers an offset of this one's, in the same epoch."""
    epoch = epoch_at(history, offset)
    return [
        one
        for one in members
        if one is not history
        and one.start <= offset < one.end
        and not any(start <= offset < end for start, end in one.holes + one.broken_runs)
        and epoch_at(one, offset) == epoch
    ]


def check_epoch_file(
    group: str, history: ReplicaHistory, *, others_have: bool, first_start: int = 0
) -> list[Row]:
    """Checks one epoch file in itself and against its own log. `others_have`: another replica has a file.
    `first_start`: the lowest start of an epoch in any replica's file.

    Bytes before the group's first epoch are older than its epochs: a group that had masters and slaves before
    it had controllers, gets its first epoch at the end of its log (`AutoSwitchHAService.changeToMaster`)."""
    findings: list[Row] = []

    def add(kind: str, epoch: int | None = None, start: int | None = None, **more: Any) -> None:
        findings.append(finding(group, history.name, kind, epoch=epoch, start_offset=start, **more))

    if history.peer is not None:
        return findings
    if not history.has_file:
        if others_have and history.end > history.start:
            add("epoch.file-missing")
        return findings
    if history.file_fault:
        add(
            "epoch.file-broken",
            detail=history.file_fault + ("; its .bak is valid and was used" if history.backup_used else ""),
        )
    for (before, before_start), (epoch, start) in pairwise(history.entries):
        if epoch <= before:
            add("epoch.out-of-order", epoch, start, detail=f"follows epoch {before}")
        if start <= before_start:
            add("epoch.overlap", epoch, start, detail=f"epoch {before} starts at {before_start}")
    for epoch, start in history.entries:
        if start > history.possible_end:
            add("epoch.beyond-log", epoch, start, detail=f"the log ends at {history.end}")
    if history.entries and history.end > history.start:
        first = min(start for _, start in history.entries)
        if first > history.start:
            kind = "epoch.gap" if first_start < first else "epoch.before-first"
            add(kind, None, history.start, end_offset=min(first, history.end))
    return findings


def may_truncate(history: ReplicaHistory) -> bool:
    """Whether the replica may truncate what it has not confirmed. A DLedger peer does so when it follows a
    leader, however it was stopped."""
    return history.peer is not None or not (history.stopped or history.frozen)


def leading_replica(histories: Sequence[ReplicaHistory]) -> ReplicaHistory:
    """The replica that an election would prefer: the newest epoch, then the longest log."""
    return max(
        histories, key=lambda one: (max((epoch for epoch, _ in one.written()), default=-1), one.end, one.name)
    )


def common_end(local: ReplicaHistory, leading: ReplicaHistory) -> int:
    """The offset up to which a replica's log must equal the leading replica's, by their epochs. If one of the
    two has no epochs, it is the end of the shorter log, because nothing contradicts the comparison. If they
    share no epoch, it is the higher of the two starts."""
    if local is leading:
        return local.end
    ours, theirs = local.written(), leading.written()
    if not ours or not theirs:
        return min(local.end, leading.end)
    point = truncation_point(_epoch_entries(ours), local.end, _epoch_entries(theirs), leading.end)
    return min(local.end, leading.end, max(local.start, leading.start)) if point is None else point


def _epoch_entries(starts: Sequence[EpochStart]) -> list[EpochEntry]:
    return [EpochEntry(*start) for start in starts]


def find_lost_logs(group: str, histories: Sequence[ReplicaHistory]) -> list[Row]:
    """Replicas without a message whose log starts beyond the end of all others: their segments are
    missing."""
    end = max((one.end for one in histories if one.end > one.start), default=None)
    return [
        finding(
            group,
            one.name,
            "log.missing-segment",
            start_offset=one.start,
            detail=f"the longest other log ends at {end}",
        )
        for one in histories
        if end is not None and one.start == one.end and one.start > end
    ]


def log_extents(histories: Sequence[ReplicaHistory]) -> dict[str, LogExtent]:
    """The extent of every replica's log, by replica."""
    leading = leading_replica(histories)
    with_epochs = any(one.has_file for one in histories)
    return {
        one.name: LogExtent(
            one.start,
            one.end,
            common := common_end(one, leading),
            one is leading,
            one.possible_end,
            with_epochs,
            truncates_tail=one is not leading and may_truncate(one) and one.confirmed <= common,
        )
        for one in histories
    }


def compare_epoch_files(
    group: str, histories: Sequence[ReplicaHistory], diverged: frozenset[str]
) -> list[Row]:
    """Compares the epoch files of a group. `diverged` are the replicas whose log differs from the leading
    replica's beyond their common end: they need not list epochs beyond it."""
    if any(one.peer is not None for one in histories):
        return []  # terms are in the logs, whose entries are compared
    leading = leading_replica(histories)
    limits = {
        one.name: common_end(one, leading) if one.name in diverged else min(one.end, leading.end)
        for one in histories
    }
    limits[leading.name] = leading.end
    entries = {one.name: set(one.written()) for one in histories}
    two_masters, minority = _two_masters(group, leading.name, entries, limits)
    return two_masters + _missing_entries(group, histories, entries, limits, minority)


def _two_masters(
    group: str, leading: str, entries: Mapping[str, set[EpochStart]], limits: Mapping[str, int]
) -> tuple[list[Row], set[EpochStart]]:
    """Findings for epochs that start at different offsets, and the entries that a minority has."""
    findings: list[Row] = []
    minority: set[EpochStart] = set()
    starts: dict[int, dict[int, list[str]]] = {}
    for name, own in entries.items():
        for epoch, start in own:
            if start < limits[name]:
                starts.setdefault(epoch, {}).setdefault(start, []).append(name)
    for epoch, holders in sorted(starts.items()):
        if len(holders) < 2:
            continue
        ranked = sorted(holders, key=lambda start: (-len(holders[start]), leading not in holders[start]))
        for start in ranked[1:]:
            minority.add((epoch, start))
            for name in holders[start]:
                detail = f"it starts at {ranked[0]} at {', '.join(holders[ranked[0]])}"
                findings.append(
                    finding(group, name, "epoch.two-masters", epoch=epoch, start_offset=start, detail=detail)
                )
    return findings, minority


def _missing_entries(
    group: str,
    histories: Sequence[ReplicaHistory],
    entries: Mapping[str, set[EpochStart]],
    limits: Mapping[str, int],
    minority: set[EpochStart],
) -> list[Row]:
    """Findings for entries that some replicas have and others lack although they have the bytes."""
    findings: list[Row] = []
    for epoch, start in sorted({entry for own in entries.values() for entry in own} - minority):
        holders = [one.name for one in histories if (epoch, start) in entries[one.name]]
        if all(start >= limits[name] for name in holders):
            continue
        end = min(_end_of_epoch((epoch, start), one) for one in histories if one.name in holders)
        lacking = [
            one
            for one in histories
            if one.name not in holders
            and one.has_file
            and one.entries
            and start < limits[one.name]
            and end > one.start
            and not any(known == epoch for known, _ in entries[one.name])
        ]
        columns = {"epoch": epoch, "start_offset": start, "end_offset": end}
        if len(lacking) > len(holders):
            findings += [finding(group, name, "epoch.unknown", **columns) for name in holders]
        else:
            verb = "has" if len(holders) == 1 else "have"
            detail = f"{', '.join(holders)} {verb} it"
            findings += [
                finding(group, one.name, "epoch.missing", **columns, detail=detail) for one in lacking
            ]
    return findings


def _end_of_epoch(entry: EpochStart, history: ReplicaHistory) -> int:
    later = [start for _, start in history.written() if start > entry[1]]
    return min(later, default=history.end)
