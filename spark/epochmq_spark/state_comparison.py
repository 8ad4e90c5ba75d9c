"""Compares what the replicas of a group have beside their logs: directories, state files, and tables that
the slaves copy from the master."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from epochmq_formats import restored_store, store_checkpoint
from epochmq_formats.extension_unit import is_address
from epochmq_formats.queue_unit import UNIT_BYTES
from epochmq_protocol import fastjson
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.topics import (
    FILTERSRV_CONSUMER_GROUP,
    SELF_TEST_CONSUMER_GROUP,
    TOOLS_CONSUMER_GROUP,
    is_system_topic,
)
from epochmq_spark import files
from epochmq_spark.checks.epoch_history import ReplicaHistory
from epochmq_spark.decode.unit_columns import decode_units
from epochmq_spark.findings import finding
from epochmq_spark.sources.offsets import parse_offsets
from epochmq_spark.store_layout import IDENTITY_FILE, AuditedReplica, ConsumeQueueFiles, StoreContents

Row = dict[str, Any]
ReplicaKey = tuple[str, str]  # group, replica
NAMED_MAX: Final = 10  # entries of a table that are named
ALWAYS_WRITTEN: Final = ("consumerOffset.json", "subscriptionGroup.json", "topics.json")
"""Files of `config` that every broker has written when it has stopped."""
CONSUMER_OFFSETS: Final = "config/consumerOffset.json"
CHECKPOINT_FILE: Final = "checkpoint"
QUEUES_READ_MAX: Final = 100
"""Queues that are read to find out whether their replica had extensions."""
UNITS_READ: Final = 4096
"""Units of each of them that are read."""
GROUPS_OF_BROKERS: Final = (
    "CID_",
    FILTERSRV_CONSUMER_GROUP,
    SELF_TEST_CONSUMER_GROUP,
    TOOLS_CONSUMER_GROUP,
)
"""How the names of groups begin that a broker makes at its start."""


@dataclass(frozen=True)
class _Table:
    """A table that slaves copy from the master together with its version."""

    name: str
    field: str
    compared: tuple[str, ...]

    def is_own(self, name: str) -> bool:
        """Whether each broker makes this entry by itself, so that it has no version."""
        return is_system_topic(name) or name.startswith(GROUPS_OF_BROKERS)


TABLES: Final = (
    _Table("config/topics.json", "topicConfigTable", ("readQueueNums", "writeQueueNums", "perm")),
    _Table(
        "config/subscriptionGroup.json",
        "subscriptionGroupTable",
        (
            "consumeEnable",
            "consumeFromMinEnable",
            "consumeBroadcastEnable",
            "retryMaxTimes",
            "retryQueueNums",
        ),
    ),
)
_Entries = dict[str, tuple[Any, ...]]


def compare_state_files(
    replicas: Mapping[ReplicaKey, AuditedReplica],
    stores: Mapping[ReplicaKey, StoreContents],
    by_group: Mapping[str, Sequence[ReplicaHistory]],
) -> list[Row]:
    """A finding for each directory and state file that a replica with a log lacks although others have it,
    or its own files demand it; and for each table that has the version of another replica's, and another
    content."""
    rows: list[Row] = []
    for group, histories in by_group.items():
        members = {one.name: stores[group, one.name] for one in histories if one.end > one.start}
        stopped = {one.name for one in histories if one.stopped}
        is_indexed = any(_has_indexed(replicas[group, name].location) for name in members)
        for name, contents in members.items():
            others = [other for of, other in members.items() if of != name]
            location = replicas[group, name].location
            missing = [*_missing_directories(contents, others)] if name in stopped else []
            if "config" not in contents.names and any(other.config for other in others):
                missing.insert(0, ("config", "the directory config is missing, and another replica has it"))
            if name in stopped and is_indexed and not any(one.index for one in members.values()):
                detail = "no index file is there, and the checkpoint says that messages were indexed"
                missing.append(("index", detail))
            for file, detail in missing:
                place = files.join(location, file)
                rows.append(finding(group, name, "directory.incomplete", file=place, detail=detail))
            for file in _missing_files(contents, others, stopped=name in stopped):
                detail = f"{file} is missing, and another replica has it"
                place = files.join(location, *file.split("/"))
                rows.append(finding(group, name, "state.missing", file=place, detail=detail))
            is_plain = contents.peer_folder is None
            if name in stopped and is_plain and contents.queues and _is_empty_checkpoint(location):
                detail = "checkpoint has no store time and no offset, and the log has messages"
                place = files.join(location, CHECKPOINT_FILE)
                rows.append(finding(group, name, "state.unreadable", file=place, detail=detail))
        locations = {name: replicas[group, name].location for name in members}
        with_messages = frozenset(queue.topic for one in members.values() for queue in one.queues)
        for table in TABLES:
            rows += _compare_tables(group, table, locations, with_messages)
        rows += _offsets_at_zero(group, {name: locations[name] for name in locations if name in stopped})
    return rows


def _offsets_at_zero(group: str, locations: Mapping[str, str]) -> Iterator[Row]:
    """A note for each replica in which consumer groups are at 0 that are further in another replica: they
    were reset, the replica has not copied them yet, or they were lost. The files do not tell which."""
    tables: dict[str, dict[tuple[str, object], int]] = {}
    for name, location in locations.items():
        try:
            rows = parse_offsets(files.read(files.join(location, *CONSUMER_OFFSETS.split("/"))))
        except (OSError, EpochMQError, ValueError):
            continue  # another check reports it
        tables[name] = {
            (f"{row['topic']}@{row['consumer_group']}", row["queue_id"]): int(str(row["offset"]))
            for row in rows
            if "fault" not in row
        }
    for name, table in tables.items():
        further = [
            (key, max(other.get(key, 0) for other in tables.values()))
            for key, offset in sorted(table.items(), key=str)
            if offset == 0
        ]
        behind = [f"{key} queue {queue} is at 0, not {most}" for (key, queue), most in further if most]
        if behind:
            shown = "; ".join(behind[:NAMED_MAX])
            more = f"; {len(behind) - NAMED_MAX} more" if len(behind) > NAMED_MAX else ""
            place = files.join(locations[name], *CONSUMER_OFFSETS.split("/"))
            yield finding(group, name, "consumer-offset.at-zero", file=place, detail=shown + more)


def _missing_directories(
    contents: StoreContents, others: Sequence[StoreContents]
) -> Iterator[tuple[str, str]]:
    """(name, what is wrong) of each directory or file of features that is missing after a clean stop."""
    for name, is_used in (
        ("batchconsumequeue", any(queue.files for other in others for queue in other.batch_queues)),
        ("compaction", any(queue.files for other in others for queue in other.compaction_logs)),
        ("timerlog", any(other.timer_log for other in others)),
    ):
        if is_used and name not in contents.names:
            yield name, f"the directory {name} is missing, and another replica has it"
    if "consumequeue_ext" not in contents.names:
        extended = {(one.topic, one.queue_id) for other in others for one in other.extensions if one.files}
        queues = [one for one in contents.queues if (one.topic, one.queue_id) in extended]
        if any(_has_addresses(queue) for queue in queues[:QUEUES_READ_MAX]):
            name = "consumequeue_ext"
            yield name, f"the directory {name} is missing, and consume queues lead into it"
    if contents.timer_wheel is None and (contents.timer_log or "timercheck" in contents.config):
        has_snapshot = any(name.startswith("timerwheel.") for name in contents.names)
        if not has_snapshot:
            evidence = "the timer log" if contents.timer_log else "config/timercheck"
            yield "timerwheel", f"the file timerwheel is missing, and {evidence} is there"


def _has_addresses(queue: ConsumeQueueFiles) -> bool:
    """Whether one of the first units of a queue has the address of a unit of its extension."""
    by_start = sorted(queue.files, key=lambda one: one.start)
    for file in (*by_start[:1], *by_start[1:][-1:]):
        try:
            data = files.read_range(file.location, 0, min(file.size, UNITS_READ * UNIT_BYTES))
        except OSError:
            continue  # another check reports it
        units = decode_units(data, file.start // UNIT_BYTES)
        if any(is_address(int(code)) for code in units.tags.tolist()):
            return True
    return False


def _has_indexed(location: str) -> bool:
    """Whether the checkpoint has a time up to which the index was written."""
    fields = store_checkpoint.FIELDS
    try:
        data = files.read(files.join(location, "checkpoint"))
    except OSError:
        return False
    return len(data) >= fields.size and fields.unpack_from(data)[2] > 0


def _is_empty_checkpoint(location: str) -> bool:
    """Whether the checkpoint consists of zeros. A broker has written store times when it has stopped."""
    try:
        data = files.read(files.join(location, CHECKPOINT_FILE))
    except OSError:
        return False  # another check reports it
    return len(data) >= store_checkpoint.FIELDS.size and not any(data)


def _missing_files(
    contents: StoreContents, others: Sequence[StoreContents], *, stopped: bool
) -> Iterator[str]:
    """The files that a replica lacks. Under controllers a replica has an identity before it has a record, but
    a store that was restored gets one at its first start."""
    if (
        IDENTITY_FILE not in contents.names
        and restored_store.FILE_NAME not in contents.names
        and any(IDENTITY_FILE in other.names for other in others)
    ):
        yield IDENTITY_FILE
    if not stopped:
        return
    if "checkpoint" not in contents.names and any("checkpoint" in other.names for other in others):
        yield "checkpoint"
    if "config" in contents.names:
        for name in ALWAYS_WRITTEN:
            if name not in contents.config and any(name in other.config for other in others):
                yield f"config/{name}"


def _compare_tables(
    group: str, table: _Table, locations: Mapping[str, str], with_messages: frozenset[str]
) -> Iterator[Row]:
    """Compares the tables of those replicas that have one of the same version: a slave copies both. Their
    majority is right; without one, all that differ are named."""
    by_version: dict[tuple[int, ...], dict[str, _Entries]] = {}
    for name, location in locations.items():
        if (read := _read_table(location, table)) is not None:
            by_version.setdefault(read[0], {})[name] = read[1]
    for tables in by_version.values():
        contents = Counter(tuple(sorted(entries.items())) for entries in tables.values())
        if len(contents) < 2:
            continue
        (common, most), *others = contents.most_common()
        has_majority = others[0][1] < most
        for name, entries in tables.items():
            if has_majority and tuple(sorted(entries.items())) == common:
                continue
            expected = (
                dict(common) if has_majority else next(one for one in tables.values() if one != entries)
            )
            wrong = list(_differences(table, entries, expected, with_messages))
            if not wrong:
                continue
            shown = "; ".join(wrong[:NAMED_MAX])
            if len(wrong) > NAMED_MAX:
                shown += f"; {len(wrong) - NAMED_MAX} more"
            whose = "most replicas" if has_majority else "another replica, and nothing tells which is right"
            place = files.join(locations[name], *table.name.split("/"))
            detail = f"{shown}; unlike the table of the same version of {whose}"
            yield finding(group, name, "state.differs", file=place, detail=detail)


def _differences(
    table: _Table, entries: _Entries, expected: _Entries, with_messages: frozenset[str]
) -> Iterator[str]:
    is_of_topics = table is TABLES[0]
    for name in sorted(entries.keys() | expected.keys()):
        ours, theirs = entries.get(name), expected.get(name)
        if ours == theirs:
            continue
        if ours is None or theirs is None:
            # Brokers make further topics at their start, by their settings.
            if not is_of_topics or name in with_messages:
                yield f"{name!r} is {'missing' if ours is None else 'there'}"
            continue
        for field, one, other in zip(table.compared, ours, theirs, strict=True):
            if one != other:
                yield f"{field} of {name!r} is {one!r}, not {other!r}"


def _read_table(location: str, table: _Table) -> tuple[tuple[int, ...], _Entries] | None:
    """The version and the entries of a table; None if it cannot be read, which another check reports, or was
    never changed."""
    try:
        document: Any = fastjson.loads(files.read(files.join(location, *table.name.split("/"))))
        version = document["dataVersion"]
        key = tuple(int(version[name]) for name in ("counter", "stateVersion", "timestamp"))
        entries = {
            str(name): tuple(repr(entry.get(field)) for field in table.compared)
            for name, entry in document[table.field].items()
            if not table.is_own(str(name))
        }
    except (OSError, EpochMQError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return (key, entries) if key[0] > 0 else None
