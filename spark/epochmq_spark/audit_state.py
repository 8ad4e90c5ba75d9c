"""Keeps what the driver knows of each audited group: directories, epochs and log extents. Its size depends on
the number of replicas, elections and segments, not on the size of the logs."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from epochmq_formats import abort_file, restored_store, store_checkpoint
from epochmq_formats.index_file import HEADER_BYTES
from epochmq_protocol.epoch_entries import OFFSET_MAX
from epochmq_spark import (
    drill_down,
    files,
    log_spans,
    saved_peer_state,
    shared_files,
    state_comparison,
    store_layout,
    topic_tables,
    verdict,
    volume_client,
)
from epochmq_spark.checks import controller_view, epoch_history
from epochmq_spark.checks.epoch_history import EpochStart, ReplicaHistory
from epochmq_spark.checks.log_extent import LogExtent, SavedPeerState
from epochmq_spark.checks.terms import TermEntries, set_terms
from epochmq_spark.decode.index_entries import index_header
from epochmq_spark.decode.state_values import DAY_MS
from epochmq_spark.decode.summary_rows import SummaryKind
from epochmq_spark.drill_down import EPOCH_WINDOW_BYTES, AuditedLog
from epochmq_spark.findings import finding

if TYPE_CHECKING:
    from pyspark import Broadcast
    from pyspark.sql import SparkSession

Row = dict[str, Any]
ReplicaKey = tuple[str, str]  # group, replica
ABORT_BYTES_MAX = 1 << 20
EPOCH_STARTS_MAX = 1000
REMAINS_COMPARED_MAX = 100  # runs of old records of a replica that are compared with other replicas
RECORD_HEAD_BYTES = 64  # of a record up to its store time: size, checksum, queue offset, born time and host


@dataclass
class SharedListings:
    """The listings of one audit. That of a large store takes as many requests as it has directories, so only
    the driver lists it; the tasks get the listings with `share`."""

    run_id: str = field(default_factory=lambda: uuid4().hex)
    listings: Broadcast[drill_down.Listings] | None = None

    def share(self, spark: SparkSession, listings: drill_down.Listings) -> None:
        """Gives the tasks the listings. The driver, which reads a few records itself, uses them, too."""
        self.listings = spark.sparkContext.broadcast(listings)
        drill_down.start_task(self.run_id, lambda: listings)

    def start_task(self) -> None:
        """Prepares a task. Tasks of one audit in one process share what they cache."""
        listings = self.listings
        drill_down.start_task(self.run_id, dict if listings is None else lambda: listings.value)

    def release(self) -> None:
        """Frees the listings in the executors, and in the driver what it has cached."""
        if self.listings is not None:
            self.listings.unpersist()
        drill_down.clear_caches()


@dataclass
class AuditState:
    """The replicas of all groups. A replica whose log cannot be read has no history and no extent."""

    replicas: dict[ReplicaKey, store_layout.AuditedReplica]
    contents: dict[ReplicaKey, store_layout.StoreContents]
    findings: list[Row] = field(default_factory=list)
    histories: dict[str, list[ReplicaHistory]] = field(default_factory=dict)
    extents: dict[ReplicaKey, LogExtent] = field(default_factory=dict)
    broker_ids: dict[ReplicaKey, int] = field(default_factory=dict)  # of brokerIdentity
    listings: SharedListings = field(default_factory=SharedListings)

    @property
    def batch_topics(self) -> frozenset[str]:
        """The topics of which a replica has batch consume queues."""
        return frozenset().union(*(contents.batch_topics for contents in self.contents.values()))

    def shortest_end(self, group: str) -> int:
        """Where the shortest log of a group ends."""
        return min(self.extents[group, one.name].end for one in self.histories[group])

    def logs_of(self, group: str) -> list[AuditedLog]:
        """The logs of one group that can be read."""
        with_epochs = any(one.has_file for one in self.histories[group])
        return [
            AuditedLog(
                self.replicas[group, one.name],
                self.extents[group, one.name],
                dispatched_end(one, with_epochs=with_epochs),
                tuple(one.holes + one.broken_runs),
                one.last_index,
                OFFSET_MAX if one.peer is None else one.confirmed,
                0 if one.stopped or one.frozen else claimed_end(self.replicas[group, one.name].location),
            )
            for one in self.histories[group]
        ]

    def logs_with_queues(self) -> dict[str, list[AuditedLog]]:
        """The logs that can be read of replicas with consume queues, by group."""
        return {
            group: [log for log in self.logs_of(group) if self.contents[group, log.replica.name].has_queues]
            for group in self.histories
        }

    def groups_with_queues(self) -> list[str]:
        """The groups of which a replica has consume queues. (A restored store has none before its first
        start.)"""
        return sorted({group for (group, _), contents in self.contents.items() if contents.queues})

    def topic_tables(self) -> dict[str, dict[str, frozenset[str]]]:
        """The tables of topics of the replicas with consume queues, by group and replica."""
        groups = self.logs_with_queues()
        return {
            group: topic_tables.read_tables(log.replica for log in logs) for group, logs in groups.items()
        }

    def logs(self) -> dict[ReplicaKey, AuditedLog]:
        """The logs of all groups that can be read."""
        return {(group, log.replica.name): log for group in self.histories for log in self.logs_of(group)}


def dispatched_end(history: ReplicaHistory, *, with_epochs: bool = True) -> int:
    """The offset up to which messages must be in their consume queues. For a broker that stopped cleanly it
    is the log's end; in a group under controllers the confirm offset of its checkpoint, and with DLedger the
    committed position. (Without controllers a start sets the confirm offset, and nothing changes it after
    that.) A broker that has just started may be far behind."""
    if history.stopped and not with_epochs:
        return history.end
    if not history.stopped or (history.peer is not None and not history.confirmed):
        return history.start
    return min(history.confirmed, history.end) if history.confirmed else history.end


def claimed_end(location: str) -> int:
    """The physical offset before which all messages were in the queues, by the file `abort` of EpochMQ's
    broker; 0 if it does not say so. A broker that was killed does not read them again at its start."""
    try:
        record = abort_file.decode(files.read(files.join(location, "abort"), ABORT_BYTES_MAX))
    except (OSError, ValueError):
        return 0
    return record.dispatched_until if 0 <= record.dispatched_until <= OFFSET_MAX else 0


def scan_replicas(replicas: Sequence[store_layout.AuditedReplica]) -> AuditState:
    """Lists the directories of all replicas."""
    state = AuditState({}, {})
    owners: dict[tuple[str, tuple[str, str, int]], str] = {}
    brokers: dict[ReplicaKey, str] = {}
    for replica in replicas:
        key = replica.group, replica.name
        state.replicas[key] = replica
        contents = state.contents[key] = store_layout.scan_store(replica.location)
        for fault in contents.faults:
            is_new = fault.kind == "directory.empty" and _is_new(replica.location, contents)
            kind = "log.no-record" if is_new else fault.kind
            state.findings.append(finding(*key, kind, file=fault.location, detail=fault.detail))
        try:
            identity = store_layout.parse_identity(replica.location) if contents.log else None
        except ValueError as error:
            file = files.join(replica.location, store_layout.IDENTITY_FILE)
            state.findings.append(finding(*key, "state.unreadable", file=file, detail=str(error)))
            continue
        if identity is None:
            continue
        state.broker_ids[key] = identity[2]
        brokers[key] = identity[1]
        if identity[1] != replica.group:
            detail = f"it belongs to replica {identity[2]} of {identity[1]}, expected one of {replica.group}"
            state.findings.append(
                finding(*key, "directory.other-group", file=replica.location, detail=detail)
            )
        owner = owners.setdefault((replica.group, identity), replica.name)
        if owner != replica.name:
            detail = f"this directory and {owner} both belong to {'#'.join(map(str, identity))}"
            state.findings.append(
                finding(*key, "directory.same-replica", file=replica.location, detail=detail)
            )
    state.findings += shared_files.find_shared(state.replicas, state.contents)
    _leave_out_strangers(state, brokers)
    _leave_out_misplaced(state)
    _compare_sizes(state)
    return state


def _is_new(location: str, contents: store_layout.StoreContents) -> bool:
    """Whether a store without a segment never had one: it has no unit and no index, and its checkpoint, which
    a broker writes when it stops, has no store time."""
    queues = (*contents.queues, *contents.batch_queues)
    if "checkpoint" not in contents.names or contents.index or any(queue.files for queue in queues):
        return False
    try:
        data = files.read(files.join(location, "checkpoint"))
    except OSError:
        return False
    return len(data) >= store_checkpoint.FIELDS.size and not any(data)


def _is_restored(location: str, contents: store_layout.StoreContents) -> bool:
    """Whether a store was restored from a backup and has not been started: the restored checkpoint has the
    store time of the log, and none of its queues."""
    if restored_store.FILE_NAME not in contents.names:
        return False
    try:
        data = files.read(files.join(location, "checkpoint"))
    except OSError:
        return False
    fields = store_checkpoint.FIELDS
    return len(data) >= fields.size and fields.unpack_from(data)[1] == 0


def _logs_by_header(
    state: AuditState,
) -> dict[tuple[str, int], dict[ReplicaKey, list[store_layout.DataFile]]]:
    """The files of the logs of each group: those of plain logs, and those of DLedger logs."""
    logs: dict[tuple[str, int], dict[ReplicaKey, list[store_layout.DataFile]]] = defaultdict(dict)
    for key, contents in state.contents.items():
        for header in {file.header_bytes for file in contents.log}:
            logs[key[0], header][key] = [file for file in contents.log if file.header_bytes == header]
    return logs


def _leave_out_misplaced(state: AuditState) -> None:
    """Leaves out files of logs that begin where no segment does in most files of the group. A log that has
    segments of another size than the group is left as it is: other findings name them."""
    for logs in _logs_by_header(state).values():
        size = store_layout.usual_size(logs.values())
        if not size or len(logs) < store_layout.STRAYS_MIN:
            continue
        places = Counter(file.start % size for log in logs.values() for file in log)
        (place, count), *_ = places.most_common()
        if 2 * count <= sum(places.values()):
            continue
        for key, log in logs.items():
            if store_layout.usual_size([log]) == size:
                misplaced = [file for file in log if file.start % size != place]
                state.findings += [
                    finding(
                        *key,
                        "file.foreign",
                        file=file.location,
                        detail=f"no segment of {size} bytes of the group begins at {file.start}",
                    )
                    for file in misplaced
                ]
                contents = state.contents[key]
                contents.log = [file for file in contents.log if file not in misplaced]


def _compare_sizes(state: AuditState) -> None:
    """Reports segments of another size than those of the group have."""
    logs = _logs_by_header(state)
    sizes = {key: store_layout.usual_size(of_group.values()) for key, of_group in logs.items()}
    for key, contents in state.contents.items():
        for file in contents.log:
            size = sizes[key[0], file.header_bytes]
            if file.size == size:
                continue
            kind = "file.short" if file.size < size else "file.wrong-size"
            detail = f"{file.size} bytes, expected {size} like the others"
            detail += ": copied in part, or truncated" if file.size < size else ""
            state.findings.append(finding(*key, kind, file=file.location, detail=detail))


def _leave_out_strangers(state: AuditState, brokers: Mapping[ReplicaKey, str]) -> None:
    """Leaves replicas out of the comparison that are of another mode, or of another group by their file
    `brokerIdentity`, than most replicas; all of them, if as many are of the one as of the other."""
    modes = {
        key: "DLedger" if contents.peer_folder is not None else "plain"
        for key, contents in state.contents.items()
        if contents.log
    }
    for group in sorted({group for group, _ in modes}):
        for of_replicas, kind, what in (
            (modes, "directory.other-mode", "it has a {} log"),
            (brokers, "directory.other-group", "it belongs to the group {}"),
        ):
            here = {key: value for key, value in of_replicas.items() if key[0] == group}
            counts = Counter(here.values()).most_common()
            if len(counts) < 2:
                continue
            usual = counts[0][0] if counts[0][1] > counts[1][1] else None
            for key, value in here.items():
                if value != usual:
                    detail = what.format(value) + ", unlike other replicas; it is not compared with them"
                    place = state.replicas[key].location
                    state.findings.append(finding(*key, kind, file=place, detail=detail))
                    state.contents[key].log = []
                    state.contents[key].index = []
                    state.contents[key].queues = []
                    state.contents[key].entry_index = []


def add_histories(
    state: AuditState,
    spans: Iterable[Mapping[str, Any]],
    epochs: Iterable[Mapping[str, Any]],
    terms: Iterable[Mapping[str, Any]] = (),
) -> None:
    """Adds histories, extents and their findings, from rows of the kinds span and term of the summary, and
    rows of the epoch files. Terms of several ranges of a log may have several rows."""
    histories: dict[ReplicaKey, ReplicaHistory] = {}
    for key, contents in state.contents.items():
        if contents.log:
            peer = saved_peer_state.read_saved_state(contents)
            location = state.replicas[key].location
            confirmed, fault = read_confirm_offset(location)
            if fault is not None:
                place = files.join(location, "checkpoint")
                state.findings.append(finding(*key, "state.unreadable", file=place, detail=fault))
            if peer is not None:
                confirmed = peer.committed_end
            histories[key] = ReplicaHistory(
                key[1],
                contents.log[0].start,
                [],
                has_file=contents.has_epochs or peer is not None,
                confirmed=confirmed,
                stopped=not contents.aborted,
                frozen=volume_client.is_remote(state.replicas[key].location),
                peer=peer,
            )
            state.findings += _faults_of_peer(key, peer)
    for row in spans:
        if (history := histories.get((row["group"], row["replica"]))) is not None:
            history.spans.append(log_spans.span_of_row(row))
    for history in histories.values():
        history.spans = log_spans.join_spans(history.spans)
    by_file: dict[ReplicaKey, dict[str, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in sorted(epochs, key=lambda row: row["line"]):
        by_file[row["group"], row["replica"]][row["file"]].append(row)
    for key, rows in by_file.items():
        if key in histories:
            _set_epochs(histories[key], rows)
    groups: dict[str, list[ReplicaHistory]] = defaultdict(list)
    for (group, _), history in histories.items():
        groups[group].append(history)
    state.histories = dict(groups)
    of_terms = _terms_by_replica(terms)
    for group, members in state.histories.items():
        _check_group(
            state, group, members, {one.name: of_terms.get((group, one.name), []) for one in members}
        )


def _faults_of_peer(key: ReplicaKey, peer: SavedPeerState | None) -> list[Row]:
    faults = peer.faults if peer is not None else ()
    return [finding(*key, "dledger.broken-state", file=file, detail=detail) for file, detail in faults]


def _terms_by_replica(rows: Iterable[Mapping[str, Any]]) -> dict[ReplicaKey, list[TermEntries]]:
    """The terms of each log, from its rows of the kind term."""
    found: dict[tuple[str, str, int], TermEntries] = {}
    for row in rows:
        key = row["group"], row["replica"], row["at"]
        before = found.get(key, TermEntries(row["at"], row["first"], row["end"], 0))
        start, end = min(before.start, row["first"]), max(before.end, row["end"])
        found[key] = TermEntries(row["at"], start, end, before.count + row["count"])
    by_replica: dict[ReplicaKey, list[TermEntries]] = defaultdict(list)
    for (group, replica, _), one in found.items():
        by_replica[group, replica].append(one)
    return by_replica


def _check_group(
    state: AuditState,
    group: str,
    members: Sequence[ReplicaHistory],
    terms: Mapping[str, Sequence[TermEntries]],
) -> None:
    of_extents = _find_extents(state, group, members)
    state.findings += set_terms(group, members, terms)
    others_have = any(one.has_file for one in members)
    first_start = min((start for one in members for _, start in one.entries), default=0)
    for one in members:
        state.findings += of_extents[one.name]
        state.findings += epoch_history.check_epoch_file(
            group, one, others_have=others_have, first_start=first_start
        )
        contents = state.contents[group, one.name]
        location = state.replicas[group, one.name].location
        if one.end > one.start and not contents.has_queues and not _is_restored(location, contents):
            place = files.join(location, "consumequeue")
            detail = "the directory consumequeue is missing"
            state.findings.append(finding(group, one.name, "directory.incomplete", file=place, detail=detail))
        if one.end > one.start and one.stopped and not contents.index and _has_index(state, group):
            place = files.join(state.replicas[group, one.name].location, "index")
            detail = "the directory index contains no file, but other replicas have index files"
            state.findings.append(finding(group, one.name, "directory.incomplete", file=place, detail=detail))
    state.findings += epoch_history.find_lost_logs(group, members)
    for name, extent in epoch_history.log_extents(members).items():
        state.extents[group, name] = extent
    # A log without a record may begin anywhere: its only segment may be one that was created in advance.
    end = max((one.end for one in members if one.end > one.start), default=0)
    state.findings += [
        finding(group, one.name, "log.behind", start_offset=one.end, end_offset=end)
        for one in members
        if one.end < end
    ]


def _find_extents(state: AuditState, group: str, members: Sequence[ReplicaHistory]) -> dict[str, list[Row]]:
    """Finds the extents of all logs of a group. Older records behind a gap are compared with the copies of
    other replicas, because a clock that was set back makes them look like those of a truncation."""
    findings = {one.name: epoch_history.find_extent(group, one) for one in members}
    copied: dict[str, frozenset[int]] = {one.name: frozenset() for one in members}
    for _ in members:  # the extent of a log may show that another one goes on, too
        changed = False
        for one in members:
            remains = [row["start_offset"] for row in findings[one.name] if row["kind"] == "log.remains"]
            found = frozenset(
                at
                for at in remains[:REMAINS_COMPARED_MAX]
                if any(
                    _is_same_record(state, (group, one.name), (group, other.name), at)
                    for other in epoch_history.holders_of(one, at, members)
                )
            )
            if found:
                copied[one.name] |= found
                findings[one.name] = epoch_history.find_extent(group, one, copied[one.name])
                changed = True
        if not changed:
            break
    return findings


def _is_same_record(state: AuditState, one: ReplicaKey, other: ReplicaKey, offset: int) -> bool:
    """Whether two logs have the same record at an offset, by its size, checksum, offsets and times."""
    ours, theirs = _record_head(state, one, offset), _record_head(state, other, offset)
    return len(ours) == RECORD_HEAD_BYTES and ours == theirs


def _record_head(state: AuditState, key: ReplicaKey, offset: int) -> bytes:
    for file in state.contents[key].log:
        at = offset - file.start
        if 0 <= at < file.size:
            try:
                return bytes(files.read_range(file.location, at, at + RECORD_HEAD_BYTES))
            except OSError:
                return b""  # another check reports it
    return b""


def _has_index(state: AuditState, group: str) -> bool:
    """Whether any index file of the group has an entry. RocketMQ creates an index file also for messages
    without keys; EpochMQ does not."""
    return any(
        _has_entries(file.location)
        for (name, _), contents in state.contents.items()
        if name == group
        for file in contents.index
    )


def _has_entries(location: str) -> bool:
    try:
        header = files.read_range(location, 0, HEADER_BYTES)
    except OSError:
        return False  # the pass over the index reports it
    return len(header) == HEADER_BYTES and index_header(header)[2] > 1


def _set_epochs(history: ReplicaHistory, by_file: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    main = by_file.get(store_layout.EPOCH_FILE, [])
    backup = by_file.get(f"{store_layout.EPOCH_FILE}.bak", [])
    history.file_fault = main[0]["fault"] if main else "missing"
    history.backup_used = bool(history.file_fault and backup and not backup[0]["fault"])
    rows = backup if history.backup_used else main
    history.entries = [(row["epoch"], row["start_offset"]) for row in rows if row["epoch"] is not None]


def read_confirm_offset(location: str) -> tuple[int, str | None]:
    """The confirm offset in a store's checkpoint (StoreCheckpoint), 0 if there is none; and what is wrong
    with the checkpoint. Then the offset is 0, too."""
    path = files.join(location, "checkpoint")
    try:
        data = files.read(path)
    except (FileNotFoundError, NotADirectoryError):
        return 0, None
    except OSError as error:
        return 0, str(error)
    fields = store_checkpoint.FIELDS
    if len(data) < fields.size:
        return 0, f"{len(data)} bytes, expected at least {fields.size}"
    *times, flushed, confirmed = fields.unpack_from(data)
    latest = time.time() * 1000 + DAY_MS
    for name, value, most in (
        *(("store time", value, latest) for value in times),
        ("masterFlushedOffset", flushed, OFFSET_MAX),
        ("confirmPhyOffset", confirmed, OFFSET_MAX),
    ):
        if not 0 <= value <= most:
            return 0, f"{name} {value}, expected 0 to {most:.0f}"
    return confirmed, None


def compare_replicas(state: AuditState, diverged: Mapping[str, set[str]], metadata: Any = None) -> list[Row]:
    """Findings of the epoch files, compared with each other and with the controllers' view. `diverged` are,
    by group, the replicas whose log has a tail that is not part of the group's history. Raises ValueError if
    the metadata are not a view."""
    views = controller_view.parse_views(metadata) if metadata is not None else {}
    findings = _check_replica_counts(state)
    findings += state_comparison.compare_state_files(state.replicas, state.contents, state.histories)
    for group in sorted({group for group, _ in state.replicas}):
        members = state.histories.get(group, [])
        ids = {name: state.broker_ids.get((group, name)) for of, name in state.replicas if of == group}
        view = views.get(group)
        findings += controller_view.find_replicas_not_supplied(group, ids, view)
        if members:
            findings += epoch_history.compare_epoch_files(group, members, frozenset(diverged.get(group, ())))
        if view is not None:
            highest = max((one.confirmed for one in members), default=0)
            findings += controller_view.compare_with_view(group, members, ids, view, highest)
    return findings


def find_no_index(state: AuditState, counts: Iterable[Mapping[str, Any]]) -> list[Row]:
    """A note for each group whose messages have keys, and of which no replica has an index file, although one
    was stopped cleanly. `counts` are rows of the summary, or sums of their column `count` by replica and
    kind."""
    keys: Counter[str] = Counter()
    for row in counts:
        if row["kind"] == SummaryKind.KEYS_BY_LOG:
            keys[row["group"]] += row["count"]
    with_index = {group for (group, _), contents in state.contents.items() if contents.index}
    stopped = {group for group, members in state.histories.items() if any(one.stopped for one in members)}
    detail = "messageIndexEnable is false, the store was restored and not started, or the indexes are lost"
    return [
        finding(group, "", "index.none", detail=f"{count} keys; {detail}")
        for group, count in sorted(keys.items())
        if count and group in stopped and group not in with_index
    ]


def _check_replica_counts(state: AuditState) -> list[Row]:
    """A finding for each group of which fewer than two replicas could be read."""
    findings = []
    for group in sorted({group for group, _ in state.replicas}):
        read = sum(one.is_readable for one in state.histories.get(group, ()))
        if read < verdict.REPLICAS_MIN:
            supplied = sum(of == group for of, _ in state.replicas)
            detail = f"{read} of {supplied}; no bytes could be compared with another replica's"
            findings.append(finding(group, "", "group.one-replica", detail=detail))
    return findings


def epoch_starts(state: AuditState) -> list[tuple[str, str, list[EpochStart]]]:
    """(group, leading replica, [(epoch, start) …]) of all epochs except the first one of each log, at most
    the last 1,000 of a group. Starts that are near each other form one row, so that the log is read once for
    them."""
    rows: list[tuple[str, str, list[EpochStart]]] = []
    for group, members in state.histories.items():
        leading = epoch_history.leading_replica(members)
        near: list[EpochStart] = []
        starts = [entry for entry in leading.written() if entry[1] > leading.start]
        for epoch, start in starts[-EPOCH_STARTS_MAX:]:
            if not near or start - near[0][1] > EPOCH_WINDOW_BYTES:
                near = []
                rows.append((group, leading.name, near))
            near.append((epoch, start))
    return rows
