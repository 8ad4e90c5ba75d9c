# pure: what an audit may find
"""Lists the kinds of findings with their severities, and formats a finding.

ERROR: the files of a replica contradict each other, or those of another replica. WARNING: something could not
be read, or is not as a broker leaves it. NOTE: information that needs no action; a healthy group may have
notes."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from epochmq_spark import schemas


class FindingSeverity(StrEnum):
    """How much a finding matters."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


SEVERITY_ORDER: Final = tuple(FindingSeverity)
"""The severities, the most serious first: the order of lists of findings."""

_LIMITS: Final = {
    name: 1 << (31 if name == "queue_id" else 63)
    for name in ("epoch", "start_offset", "end_offset", "queue_id", "queue_offset", "store_timestamp")
}
"""The range of each column with a number."""

_E, _W, _N = FindingSeverity.ERROR, FindingSeverity.WARNING, FindingSeverity.NOTE

KINDS: Final[dict[str, tuple[FindingSeverity, str]]] = {
    "directory.missing": (_W, "the directory does not exist"),
    "directory.empty": (_W, "the directory contains nothing to audit"),
    "directory.foreign": (_W, "the directory is not a broker's store"),
    "directory.unreadable": (_W, "the directory cannot be read"),
    "directory.other-group": (_W, "the directory belongs to a replica of another group"),
    "directory.other-mode": (_W, "the directory has a log of another mode than the other replicas"),
    "directory.incomplete": (_W, "a part of the store is missing"),
    "directory.same-replica": (_W, "two directories belong to the same replica"),
    "directory.same-files": (_W, "two replicas share files, so a comparison of them proves nothing"),
    "group.one-replica": (_W, "fewer than two replicas could be read, so no copies were compared"),
    "file.unreadable": (_W, "a file cannot be read"),
    "check.failed": (_W, "a check ended with an error, so what it would have found is missing"),
    "file.foreign": (_W, "no broker creates a file of this name here"),
    "file.wrong-size": (_E, "a file has a size that no broker gives it"),
    "file.short": (_E, "a file is shorter than it must be"),
    "epoch.file-missing": (_E, "the replica has no epoch file, but other replicas have one"),
    "epoch.file-broken": (_E, "the epoch file's count, checksum or lines are wrong"),
    "epoch.out-of-order": (_E, "an epoch number is not greater than the previous one"),
    "epoch.overlap": (_E, "an epoch starts at or before the start of the previous one"),
    "epoch.gap": (_E, "bytes of the log belong to no epoch, but other replicas have one for them"),
    "epoch.before-first": (_N, "the oldest bytes of the log have no epoch in any replica"),
    "epoch.beyond-log": (_E, "an epoch starts beyond the end of the log"),
    "epoch.inside-record": (_E, "an epoch starts inside a record"),
    "epoch.missing": (_E, "the replica has the bytes of an epoch but no entry for it"),
    "epoch.unknown": (_E, "the replica lists an epoch that no other replica with these bytes lists"),
    "epoch.two-masters": (_E, "one epoch starts at different offsets: two masters wrote in it"),
    "epoch.ahead-of-controller": (_E, "the replica has an epoch that the controller has not issued"),
    "epoch.behind-controller": (_W, "the master has no entry for the controller's epoch"),
    "controller.unknown-replica": (_E, "the controller does not know the replica"),
    "controller.not-supplied": (_W, "the controllers list a replica that was not audited"),
    "controller.not-in-sync": (_E, "a member of the SyncStateSet lacks confirmed messages"),
    "log.no-record": (_N, "the replica has copied no record yet"),
    "log.missing-segment": (_E, "a segment of the log is missing"),
    "log.hole": (_E, "bytes inside the log are zero"),
    "log.broken-record": (_E, "bytes inside the log are not a valid record"),
    "log.remains": (_N, "old records lie beyond the end of the log; a truncation left them"),
    "log.cut-below-confirmed": (_E, "the log ends before its own confirm offset"),
    "log.behind": (_N, "the log ends before that of another replica"),
    "log.diverged": (_E, "a record differs from the other replicas' copies"),
    "log.tail-not-common": (_E, "the tail of the log is not part of the group's history"),
    "log.unacknowledged-tail": (_N, "a broker that was killed truncates this tail at its next start"),
    "log.two-histories": (_E, "master and slave have different messages at the same offsets"),
    "dledger.gap": (_E, "the index of an entry is not the next one"),
    "dledger.term-order": (_E, "the term of an entry is lower than that of an earlier one"),
    "dledger.term-behind": (_E, "an entry has a term beyond the one that its peer has saved"),
    "dledger.missing-unit": (_E, "an entry has no unit in the index files"),
    "dledger.wrong-unit": (_E, "a unit of the index files does not match its entry"),
    "dledger.no-entry": (_E, "a unit of the index files belongs to no entry"),
    "dledger.broken-state": (_E, "the file currterm or checkpoint is not one that a peer writes"),
    "record.checksum": (_E, "a body does not match its checksum"),
    "record.store-time": (_W, "records have a store time that no broker writes"),
    "message.missing": (_E, "the replica lacks a message that other replicas have"),
    "message.one-sided": (_E, "the message is in one of two histories only"),
    "message.not-copied": (_W, "the message is beyond the end of another replica's log"),
    "message.in-both": (_N, "both histories have the message: it was sent again"),
    "queue.missing-unit": (_E, "a message has no unit in its consume queue"),
    "queue.wrong-unit": (_E, "a unit of a consume queue does not match its message"),
    "queue.no-record": (_E, "a unit of a consume queue points to no message of the queue"),
    "queue.not-repaired": (
        _W,
        "a killed broker says that a consume queue is whole, and messages have no unit there",
    ),
    "queue.behind": (_N, "a consume queue ends before the log; the broker repairs it at its start"),
    "queue.remains": (_N, "old units lie beyond the end of a consume queue; a truncation left them"),
    "queue-offset.duplicate": (_E, "two messages of a queue have the same offset"),
    "queue-offset.skipped": (_E, "a queue has no message at an offset between two messages"),
    "topic.deleted": (_N, "messages of a topic that was deleted are still in the log"),
    "topic.without-queues": (
        _W,
        "a topic has messages and no queue: it was made again, or its queues are lost",
    ),
    "topic.made-again": (_N, "messages from before their topic was deleted and made again"),
    "consumer-offset.ahead": (_E, "a consumer group's offset is beyond the end of its queue"),
    "consumer-offset.at-zero": (_N, "consumer groups are at 0 that are further in another replica"),
    "consumer-offset.no-queue": (_N, "a consumer group has an offset in a queue that no replica has"),
    "state.unreadable": (_W, "a state file cannot be read, or has a value that no broker writes"),
    "state.missing": (_W, "a state file is missing that another replica has"),
    "state.differs": (_W, "a table has the version of another replica's, and another content"),
    "delay-offset.ahead": (_E, "the offset of a delay level is beyond the end of its queue"),
    "index.missing-entry": (_E, "a key of a message is not in the index"),
    "index.missing-range": (_W, "keys of messages are outside the ranges of all index files"),
    "index.broken-header": (_E, "the header of an index file has values that no broker writes"),
    "index.wrong-time": (_E, "a search with an interval of time does not find an entry of the index"),
    "index.broken-chain": (_E, "a search does not reach an entry of the index"),
    "index.none": (_N, "messages have keys, and no replica has an index file"),
    "timer.broken-wheel": (_E, "the timer wheel has another size, or a slot at a wrong place"),
    "timer.wrong-slot": (_E, "a slot of the timer wheel does not lead to its last unit in the timer log"),
    "timer.broken-chain": (_E, "a unit of the timer log does not name the previous unit of its slot"),
    "timer.broken-unit": (_E, "a part of the timer log that was flushed is not a valid unit"),
    "timer.missing-file": (_E, "a file of the timer log is missing"),
    "timer.no-record": (_E, "a unit of the timer log points to no message of the timer topic"),
    "timer.missing-unit": (_E, "a timer message that is still to be delivered has no unit in the timer log"),
    "timer.checkpoint-ahead": (_E, "the timer's checkpoint lies beyond its log or its queue"),
    "transaction.broken-half": (_E, "a half message does not name its topic and queue"),
    "transaction.broken-op": (_E, "an op message does not list queue offsets"),
    "transaction.op-without-half": (_E, "an op message ends a half message that does not exist"),
    "transaction.unended": (_W, "the check has passed a half message without an op message or a copy"),
    "transaction.pending": (_N, "half messages wait for their end or for a check"),
    "pop.broken-record": (_E, "a record of the revive topic is neither checkpoint nor acknowledgement"),
    "pop.record-ahead": (_E, "a checkpoint or acknowledgement of POP is for messages beyond their queue"),
    "pop.broken-order": (_E, "an entry of ordered POP contradicts itself"),
    "pop.order-ahead": (_E, "ordered POP gave out a message beyond the end of its queue"),
    "batch-queue.no-record": (_E, "a unit of a batch consume queue points to no message"),
    "batch-queue.missing-unit": (_E, "a record has no unit in its batch consume queue"),
    "batch-queue.wrong-unit": (_E, "a unit of a batch consume queue does not match its record"),
    "compaction.missing-file": (_E, "a log file or a queue file of a compacted queue is missing"),
    "compaction.wrong-unit": (_E, "a unit of a compacted queue does not follow the unit before it"),
    "compaction.no-record": (_E, "a unit of a compacted queue points to no valid record"),
    "compaction.position-ahead": (_E, "a queue is said to be compacted beyond its end"),
    "extension.broken-unit": (_E, "a unit of a consume queue's extension is damaged"),
    "extension.wrong-unit": (_E, "a unit of a consume queue's extension does not match its message"),
    "extension.missing-unit": (_N, "an extension lacks units; brokers filter without them"),
    "extension.other-bit-map": (_N, "filter bit maps have another size than the registered filters"),
    "filter.broken-entry": (_E, "a registered filter contradicts itself"),
    "request-mode.broken-entry": (_E, "a message request mode names another topic or group"),
    "static-topic.broken-mapping": (_E, "the mapping of a static topic's queue contradicts itself"),
    "auth.broken-entry": (_E, "a user or an ACL is not one that a broker writes"),
    "auth.unknown-user": (_W, "an ACL is for a user that does not exist"),
    "message.duplicate": (_N, "a message was stored again after a change of master"),
    "more": (_W, "more findings of this kind, not listed one by one"),
}


def finding(group: str, replica: str, kind: str, **fields: Any) -> dict[str, Any]:
    """A row of `schemas.FINDINGS`. `fields` are named after its columns; all are optional. Raises KeyError
    for an unknown kind or column."""
    row: dict[str, Any] = dict.fromkeys(schemas.FINDINGS.names)
    unknown = fields.keys() - row.keys()
    if unknown:
        raise KeyError(f"no such column of a finding: {sorted(unknown)}")
    row |= {"group": group, "replica": replica, "kind": kind, "severity": KINDS[kind][0].value} | fields
    return _that_fits(row)


def _that_fits(row: dict[str, Any]) -> dict[str, Any]:
    """The row without what a table cannot hold: a number beyond the range of its column moves to the detail,
    bytes that are not UTF-8 are escaped. Damaged files have any number and any name."""
    for name, limit in _LIMITS.items():
        value = row[name]
        if value is not None and not -limit <= value < limit:
            row[name] = None
            row["detail"] = f"{row['detail'] or ''} ({name} {value})".strip()
    for name, value in row.items():
        if isinstance(value, str) and not value.isascii():
            row[name] = value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return row


def sentence(row: dict[str, Any]) -> str:
    """One line for people: severity, kind, meaning, position and message."""
    where = [f"replica {row['replica']}"] if row["replica"] else []
    if row["epoch"] is not None:
        where.append(f"epoch {row['epoch']}")
    if row["start_offset"] is not None:
        end = row["end_offset"]
        where.append(f"offset {row['start_offset']}" + ("" if end is None else f" to {end}"))
    if row["topic"] is not None:
        where.append(f"queue {row['topic']}/{row['queue_id']}")
        if row["queue_offset"] is not None:
            where.append(f"message {row['queue_offset']}")
    if row["message_id"]:
        where.append(f"id {row['message_id']}")
    if row["key"]:
        where.append(f"key {row['key']}")
    text = f"{row['severity']}: {row['kind']}: {KINDS[row['kind']][1]}: {', '.join(where)}"
    if row["detail"]:
        text += f": {row['detail']}"
    return text + (f" ({row['file']})" if row["file"] else "")
