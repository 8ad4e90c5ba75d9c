# pure: bytes of state files to what is wrong with them
"""Checks the values of a broker's state files against what a broker can write.

Each check takes the bytes of a file and the present time in epoch ms, and returns what is wrong, at most
`FAULTS_MAX` texts. A file that is no document of its kind raises ValueError, TypeError or EpochMQError, which
say so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from epochmq_formats.index_file import ENTRY_BYTES, HEADER, HEADER_BYTES, HEADER_FIELDS, SLOT_BYTES
from epochmq_formats.timer_checkpoint import TimerCheckpoint
from epochmq_protocol import fastjson
from epochmq_protocol.epoch_entries import OFFSET_MAX
from epochmq_protocol.integers import INT_MAX, INT_MIN, LONG_MAX, LONG_MIN

FAULTS_MAX: Final = 10
TEXT_MAX: Final = 80  # characters of a wrong value that are shown
DIGITS_MAX: Final = 19  # of a long
DAY_MS: Final = 86_400_000
"""How far clocks of brokers may be ahead of that of the audit."""
LATEST_MIN: Final = 1_000_000_000_000  # epoch ms, in 2001
LATEST_MAX: Final = 100_000_000_000_000  # epoch ms, in 5138
PERM_MAX: Final = 15
Document = dict[str, Any]
StateCheck = Callable[[bytes, int], list[str]]


def topics_faults(data: bytes, now_ms: int) -> list[str]:
    """What is wrong with a topics.json."""
    return _table_faults(
        data,
        now_ms,
        "topicConfigTable",
        "topicName",
        {"readQueueNums": (0, INT_MAX), "writeQueueNums": (0, INT_MAX), "perm": (0, PERM_MAX)},
    )


def groups_faults(data: bytes, now_ms: int) -> list[str]:
    """What is wrong with a subscriptionGroup.json."""
    ranges = {
        "retryQueueNums": (0, INT_MAX),
        "retryMaxTimes": (INT_MIN, INT_MAX),
        "consumeTimeoutMinute": (INT_MIN, INT_MAX),
        "brokerId": (LONG_MIN, LONG_MAX),
        "whichBrokerWhenConsumeSlowly": (LONG_MIN, LONG_MAX),
    }
    return _table_faults(data, now_ms, "subscriptionGroupTable", "groupName", ranges)


def _table_faults(
    data: bytes, now_ms: int, table: str, name_field: str, ranges: Mapping[str, tuple[int, int]]
) -> list[str]:
    document = _document(data)
    entries = _object(document.get(table), table)

    def faults() -> Iterator[str]:
        yield from _version_faults(document, now_ms)
        for name, entry in entries.items():
            if not isinstance(entry, dict):
                yield f"{_shown(name)} is {_shown(entry)}, expected an object"
                continue
            if entry.get(name_field) != name:
                yield f"the entry {_shown(name)} names {_shown(entry.get(name_field))}"
            for field, (low, high) in ranges.items():
                if field in entry and integer(entry[field], low, high) is None:
                    yield _not_in_range(f"{field} of {_shown(name)}", entry[field], low, high)

    return _first(faults())


def delay_faults(data: bytes, now_ms: int) -> list[str]:
    """What is wrong with a delayOffset.json."""
    document = _document(data)
    table = _object(document.get("offsetTable"), "offsetTable")

    def faults() -> Iterator[str]:
        yield from _version_faults(document, now_ms)
        for level, offset in table.items():
            if integer(level, 1, INT_MAX) is None:
                yield _not_in_range("a delay level", level, 1, INT_MAX)
            elif integer(offset, 0, LONG_MAX) is None:
                yield _not_in_range(f"the offset of delay level {level}", offset, 0, LONG_MAX)

    return _first(faults())


def delay_offsets(data: bytes) -> dict[int, int]:
    """The valid offsets of a delayOffset.json by delay level. Raises ValueError or EpochMQError."""
    table = _object(_document(data).get("offsetTable"), "offsetTable")
    valid = ((integer(level, 1, INT_MAX), integer(at, 0, LONG_MAX)) for level, at in table.items())
    return {level: at for level, at in valid if level is not None and at is not None}


def counts_faults(table: str) -> StateCheck:
    """The check of `timermetrics` and `transactionMetrics`, whose counts are in this table. A count may be
    below 0: brokers add and subtract without a lock."""

    def check(data: bytes, now_ms: int) -> list[str]:
        document = _document(data)
        counts = _object(document.get(table), table)

        def faults() -> Iterator[str]:
            yield from _version_faults(document, now_ms)
            for topic, one in counts.items():
                entry = one if isinstance(one, dict) else {}
                if integer(entry.get("count"), LONG_MIN, LONG_MAX) is None:
                    count = _shown(entry.get("count", one))
                    yield f"the count of {_shown(topic)} is {count}, expected a number"
                if integer(entry.get("timeStamp", 0), 0, now_ms + DAY_MS) is None:
                    yield _not_in_range(
                        f"the time of {_shown(topic)}", entry["timeStamp"], 0, now_ms + DAY_MS
                    )

        return _first(faults())

    return check


def timer_checkpoint_faults(data: bytes, now_ms: int) -> list[str]:
    """What is wrong with a timercheck."""
    progress, latest = TimerCheckpoint.decode(data), now_ms + DAY_MS
    return [
        _not_in_range(name, value, 0, most)
        for name, value, most in (
            ("the delivered time", progress.read_time_ms, latest),
            ("the flushed position", progress.log_flushed, OFFSET_MAX),
            ("the queue offset", progress.queue_offset, LONG_MAX),
            ("the master's queue offset", progress.master_queue_offset, LONG_MAX),
            ("the time of its version", progress.data_version.timestamp, latest),
        )
        if not 0 <= value <= most
    ]


def positions_faults(data: bytes, now_ms: int) -> list[str]:
    """What is wrong with a position-checkpoint of compacted queues. A position of -1 is before the first
    message."""
    table = _object(_document(data).get("queueOffsetMap"), "queueOffsetMap")
    return _first(
        _not_in_range(f"the position of {_shown(name)}", offset, -1, LONG_MAX)
        for name, offset in table.items()
        if integer(offset, -1, LONG_MAX) is None
    )


def log_extent_faults(data: bytes, now_ms: int) -> list[str]:
    """What is wrong with a logExtent.json."""
    document = _document(data)

    def faults() -> Iterator[str]:
        for field, needed in (("first", True), ("lockModifiedNs", True), ("last", False)):
            value = document.get(field)
            most = OFFSET_MAX if field != "lockModifiedNs" else LONG_MAX
            if (needed or value is not None) and integer(value, 0, most) is None:
                yield _not_in_range(field, value, 0, most)
        first, last = (integer(document.get(field), 0, OFFSET_MAX) for field in ("first", "last"))
        if first is not None and last is not None and last < first:
            yield f"last {last} is before first {first}"

    return _first(faults())


def paths_faults(data: bytes, now_ms: int) -> list[str]:
    """What is wrong with a logPaths.json or dataPaths.json."""
    return [] if msgspec.json.decode(data, type=list[str]) else ["it names no directory"]


def clean_queues_faults(data: bytes, now_ms: int) -> list[str]:
    """What is wrong with a queues.clean."""
    text = data.decode("ascii", "replace").strip()
    return [] if integer(text, 0, LONG_MAX) is not None else [_not_in_range("the time", text, 0, LONG_MAX)]


def pending_identity_faults(data: bytes, now_ms: int) -> list[str]:
    """What is wrong with a brokerIdentity-temp: cluster#brokerName#brokerId#registerCheckCode."""
    parts = data.decode("utf-8", "replace").strip().split("#")
    if len(parts) == 4 and all(parts) and integer(parts[2], 0, LONG_MAX) is not None:
        return []
    shown = _shown("#".join(parts))
    return [f"it is {shown}, expected cluster#brokerName#brokerId#registerCheckCode"]


def incarnations_faults(data: bytes, now_ms: int) -> list[str]:
    """What is wrong with a brokerIdentity-incarnations: names of processes, the newest first."""
    text = data.decode("utf-8", "replace")
    is_list = all(name.isascii() and name.isprintable() and name.strip() for name in text.strip().split(","))
    return [] if is_list else [f"it is {_shown(text)}, expected names, separated by commas"]


def restored_faults(data: bytes, now_ms: int) -> list[str]:
    """What is wrong with a restoredFrom.json."""
    document = _document(data)

    def faults() -> Iterator[str]:
        for field in ("backup", "brokerName", "mode"):
            value = document.get(field)
            if not isinstance(value, str) or not value:
                yield f"{field} is {_shown(value)}, expected a name"
        start, end = (integer(document.get(field), 0, OFFSET_MAX) for field in ("logStart", "logEnd"))
        if start is None or end is None or end < start:
            ends = f"{_shown(document.get('logStart'))} to {_shown(document.get('logEnd'))}"
            yield f"it has the log from {ends}, expected two offsets"

    return _first(faults())


def doubt_faults(data: bytes, now_ms: int) -> list[str]:
    """What is wrong with a logDoubt.json."""
    return _first(
        f"{name} is {_shown(value)}, expected true, false, or a number of at least 0"
        for name, value in _document(data).items()
        if value is not None and not isinstance(value, bool) and integer(value, 0, LONG_MAX) is None
    )


def steering_faults(data: bytes, now_ms: int) -> list[str]:
    """What is wrong with a steering.json."""
    return _first(
        f"{name} is {_shown(value)}, expected true or false"
        for name, value in _document(data).items()
        if not isinstance(value, bool)
    )


def index_header_faults(header: bytes, size: int, slots: int, now_ms: int) -> list[str]:
    """What is wrong with the header of an index file of this size. A file without an entry has an empty
    one."""
    if len(header) < HEADER_BYTES:
        return [f"{len(header)} bytes, expected a header of {HEADER_BYTES}"]
    values = dict(zip((name for name, _ in HEADER_FIELDS), HEADER.unpack(header), strict=True))
    entries = (size - HEADER_BYTES - slots * SLOT_BYTES) // ENTRY_BYTES
    ranges = {
        "begin_timestamp": (0, now_ms + DAY_MS),
        "end_timestamp": (0, now_ms + DAY_MS),
        "begin_physical": (0, OFFSET_MAX),
        "end_physical": (0, OFFSET_MAX),
        "slots_used": (0, min(slots, entries)),
        "count": (0, entries),
    }
    found = [
        _not_in_range(name, values[name], low, high)
        for name, (low, high) in ranges.items()
        if not low <= values[name] <= high
    ]
    if not found and values["end_physical"] < values["begin_physical"]:
        ends = values["begin_physical"], values["end_physical"]
        found.append(f"its first message is at {ends[0]}, behind the last one at {ends[1]}")
    return found


STATE_VALUES: Final[Mapping[str, StateCheck]] = {
    "brokerIdentity-incarnations": incarnations_faults,
    "brokerIdentity-temp": pending_identity_faults,
    "dataPaths.json": paths_faults,
    "logDoubt.json": doubt_faults,
    "logExtent.json": log_extent_faults,
    "logPaths.json": paths_faults,
    "queues.clean": clean_queues_faults,
    "restoredFrom.json": restored_faults,
    "compaction/position-checkpoint": positions_faults,
    "config/delayOffset.json": delay_faults,
    "config/steering.json": steering_faults,
    "config/subscriptionGroup.json": groups_faults,
    "config/timercheck": timer_checkpoint_faults,
    "config/timermetrics": counts_faults("timingCount"),
    "config/topics.json": topics_faults,
    "config/transactionMetrics": counts_faults("transactionCount"),
}
"""The check of each state file, by its path in the store."""


def integer(value: object, low: int, high: int) -> int | None:
    """A number of a document, where a key may be a text; None if it is not one of `low` to `high`."""
    if isinstance(value, str) and value.removeprefix("-").isdecimal() and len(value) <= DIGITS_MAX + 1:
        value = int(value)
    return value if type(value) is int and low <= value <= high else None


def _not_in_range(name: str, value: object, low: int, high: int) -> str:
    most = "tomorrow" if LATEST_MIN < high < LATEST_MAX else high
    return f"{name} is {_shown(value)}, expected {low} to {most}"


def _version_faults(document: Document, now_ms: int) -> Iterator[str]:
    """What is wrong with the data version of a document; old brokers write none."""
    version = document.get("dataVersion")
    if version is None:
        return
    if not isinstance(version, dict):
        yield f"dataVersion is {_shown(version)}, expected an object"
        return
    for field, most in (
        ("timestamp", now_ms + DAY_MS),
        ("counter", LONG_MAX),
        ("stateVersion", LONG_MAX),
    ):
        if field in version and integer(version[field], 0, most) is None:
            yield _not_in_range(f"{field} of dataVersion", version[field], 0, most)


def _document(data: bytes) -> Document:
    if not data.strip():
        raise ValueError("it is empty")
    return _object(fastjson.loads(data), "the file")


def _object(value: object, name: str) -> Document:
    if not isinstance(value, dict):
        raise ValueError(f"{name}: expected an object")
    return value


def _shown(value: object) -> str:
    return repr(value)[:TEXT_MAX]


def _first(faults: Iterable[str]) -> list[str]:
    """The first faults, and the number of the others."""
    every = list(faults)
    more = len(every) - FAULTS_MAX
    return every[:FAULTS_MAX] + ([f"{more} more such values"] if more > 0 else [])
