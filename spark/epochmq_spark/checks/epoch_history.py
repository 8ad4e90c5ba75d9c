# pure: epochs and extents of a group
"""One group's epoch files against each other and against the logs' extents.

The rules are those of a handshake between replicas (`epochmq_protocol.epochs.truncation_point`): two logs
are one up to the end of the newest epoch that both have with the same start. An epoch without a byte is
nobody's history: a master that wrote nothing may leave its entry behind, which nobody else learns of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from epochmq_protocol.epochs import OFFSET_MAX, EpochEntry, truncation_point
from epochmq_spark.findings import finding

Row = dict[str, Any]
EpochStart = tuple[int, int]  # epoch, start offset


UNREAD = "unread"
"""Why a span ends of which nothing is known: its bytes cannot be read."""


@dataclass(frozen=True)
class LogSpan:
    """A run of records: [start, end), store times of the first and the last, why it ends."""

    start: int
    end: int
    first_time: int
    last_time: int
    stop: str


@dataclass
class ReplicaHistory:
    """What one replica's files say of its past."""

    name: str
    log_start: int  # where the first segment starts
    spans: list[LogSpan]
    entries: list[EpochStart] = field(default_factory=list)
    file_fault: str | None = None  # of the file that counts
    backup_used: bool = False
    has_file: bool = True
    confirmed: int = 0  # what the checkpoint says is confirmed, 0: nothing
    stopped: bool = True  # the broker ended in an orderly way
    unread: list[tuple[int, int]] = field(default_factory=list)  # ranges, set by `extent`
    holes: list[tuple[int, int]] = field(default_factory=list)  # the same
    start: int = 0  # extent of the log, set by `extent`
    end: int = 0

    @property
    def possible_end(self) -> int:
        """Up to where the log may go on: what cannot be read may be records."""
        return max([self.end, *(high for _, high in self.unread)])

    def written(self) -> list[EpochStart]:
        """The epochs in which a byte was written, by their start. A file whose entries are in another order
        has the same epochs."""
        ordered = sorted(self.entries, key=lambda entry: entry[1])
        ends = [start for _, start in ordered[1:]] + [OFFSET_MAX]
        return [
            (epoch, start)
            for (epoch, start), stop in zip(ordered, ends, strict=False)
            if max(start, self.start) < min(stop, self.end)
        ]


@dataclass(frozen=True)
class LogExtent:
    """Where a replica's log starts and ends, and up to where it is the group's history."""

    replica: str
    start: int
    end: int
    common: int
    leading: bool


def extent(group: str, history: ReplicaHistory) -> list[Row]:
    """Sets where the log starts and ends; findings about what is missing between. What cannot be read is told
    of elsewhere.

    Behind the end of a log may lie what was cut from it: records older than those before them."""
    found: list[Row] = []
    at = history.log_start
    history.start = at
    last_time = 0
    stop = "zeros"
    history.unread = [(span.start, span.end) for span in history.spans if span.stop == UNREAD]
    spans = [span for span in history.spans if span.stop != UNREAD]
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        if span.end == span.start:
            stop = span.stop if span.start == at else stop
            continue
        if span.start != at:
            if 0 < span.first_time < last_time:
                found.append(
                    finding(group, history.name, "log.remains", start_offset=span.start, end_offset=span.end)
                )
                continue
            kind = "log.hole" if stop == "zeros" else "log.broken-record"
            said = {
                "zeros": None,
                "magic": "no message's magic number",
                "offset": "a record that says it is elsewhere",
                "size": "sizes that do not add up",
            }.get(stop, "no record follows")
            history.holes.append((at, span.start))
            if not any(low < span.start and at < high for low, high in history.unread):
                found.append(
                    finding(group, history.name, kind, start_offset=at, end_offset=span.start, detail=said)
                )
        stop = span.stop
        at = max(at, span.end)
        last_time = span.last_time or last_time
    history.end = at
    if history.confirmed > history.possible_end:
        said = f"its checkpoint confirms {history.confirmed}"
        found.append(
            finding(
                group,
                history.name,
                "log.cut-below-confirmed",
                start_offset=history.end,
                end_offset=history.confirmed,
                detail=said,
            )
        )
    return found


def check_epoch_file(group: str, history: ReplicaHistory, *, others_have: bool) -> list[Row]:
    """What is wrong with one epoch file in itself, and against its own log."""
    found: list[Row] = []

    def add(kind: str, epoch: int | None = None, start: int | None = None, **more: Any) -> None:
        found.append(finding(group, history.name, kind, epoch=epoch, start_offset=start, **more))

    if not history.has_file:
        if others_have and history.end > history.start:
            add("epoch.file-missing")
        return found
    if history.file_fault:
        said = history.file_fault + ("; the .bak beside it is sound" if history.backup_used else "")
        add("epoch.file-broken", detail=said)
    for (before, before_start), (epoch, start) in pairwise(history.entries):
        if epoch <= before:
            add("epoch.out-of-order", epoch, start, detail=f"behind epoch {before}")
        if start <= before_start:
            add("epoch.overlap", epoch, start, detail=f"epoch {before} starts at {before_start}")
    for epoch, start in history.entries:
        if start > history.possible_end:
            add("epoch.beyond-log", epoch, start, detail=f"the log ends at {history.end}")
    if history.entries and history.end > history.start:
        first = min(start for _, start in history.entries)
        if first > history.start:
            add("epoch.gap", None, history.start, end_offset=min(first, history.end))
    return found


def leading_replica(histories: Sequence[ReplicaHistory]) -> ReplicaHistory:
    """The replica that an election would prefer: the newest epoch, then the longest log."""
    return max(
        histories, key=lambda one: (max((epoch for epoch, _ in one.written()), default=-1), one.end, one.name)
    )


def common_end(local: ReplicaHistory, leading: ReplicaHistory) -> int:
    """Up to where a replica's log is the leading one's, by their epochs; its whole extent when one of the two
    has no epochs, because nothing speaks against it. Without a common epoch, where both start."""
    if local is leading:
        return local.end
    ours, theirs = local.written(), leading.written()
    if not ours or not theirs:
        return min(local.end, leading.end)
    point = truncation_point(_epochs(ours), local.end, _epochs(theirs), leading.end)
    return min(local.end, leading.end, max(local.start, leading.start)) if point is None else point


def _epochs(entries: Sequence[EpochStart]) -> list[EpochEntry]:
    return [EpochEntry(*entry) for entry in entries]


def beyond(group: str, histories: Sequence[ReplicaHistory]) -> list[Row]:
    """Replicas without a message whose log starts behind the end of all others: its segments are gone."""
    end = max((one.end for one in histories if one.end > one.start), default=None)
    return [
        finding(
            group, one.name, "log.missing-segment", start_offset=one.start, detail=f"other logs end at {end}"
        )
        for one in histories
        if end is not None and one.start == one.end and one.start > end
    ]


def extents(histories: Sequence[ReplicaHistory]) -> list[LogExtent]:
    """Every replica's extent, and what of it must be the leading one's."""
    leading = leading_replica(histories)
    return [
        LogExtent(one.name, one.start, one.end, common_end(one, leading), one is leading) for one in histories
    ]


def between(group: str, histories: Sequence[ReplicaHistory], torn: frozenset[str]) -> list[Row]:
    """Epoch file against epoch file. `torn` are the replicas whose log differs from the leading one's behind
    their common end: what they lack from there on is no fault of their epoch file."""
    found: list[Row] = []
    leading = leading_replica(histories)
    limits = {
        one.name: common_end(one, leading) if one.name in torn else min(one.end, leading.end)
        for one in histories
    }
    limits[leading.name] = leading.end
    entries = {one.name: set(one.written()) for one in histories}
    skipped: set[EpochStart] = set()
    starts: dict[int, dict[int, list[str]]] = {}
    for one in histories:
        for epoch, start in entries[one.name]:
            if start < limits[one.name]:
                starts.setdefault(epoch, {}).setdefault(start, []).append(one.name)
    for epoch, places in sorted(starts.items()):
        if len(places) < 2:
            continue
        ranked = sorted(places, key=lambda start: (-len(places[start]), leading.name not in places[start]))
        for start in ranked[1:]:
            skipped.add((epoch, start))
            for name in places[start]:
                said = f"at {ranked[0]} says {', '.join(places[ranked[0]])}"
                found.append(
                    finding(group, name, "epoch.two-masters", epoch=epoch, start_offset=start, detail=said)
                )
    every = sorted({entry for known in entries.values() for entry in known} - skipped)
    for epoch, start in every:
        holders = [one.name for one in histories if (epoch, start) in entries[one.name]]
        if all(start >= limits[name] for name in holders):
            continue
        end = min(_end_of((epoch, start), one) for one in histories if one.name in holders)
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
        if not lacking:
            continue
        if len(lacking) > len(holders):
            found.extend(
                finding(group, name, "epoch.unknown", epoch=epoch, start_offset=start, end_offset=end)
                for name in holders
            )
        else:
            said = f"{', '.join(holders)} has it" if len(holders) == 1 else f"{', '.join(holders)} have it"
            found.extend(
                finding(
                    group,
                    one.name,
                    "epoch.missing",
                    epoch=epoch,
                    start_offset=start,
                    end_offset=end,
                    detail=said,
                )
                for one in lacking
            )
    return found


def _end_of(entry: EpochStart, history: ReplicaHistory) -> int:
    later = [start for _, start in history.written() if start > entry[1]]
    return min(later, default=history.end)
