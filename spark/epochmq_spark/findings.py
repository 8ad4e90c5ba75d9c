# pure: what an audit may find
"""The kinds of findings, how much each matters, and how one is written down.

ERROR: the replicas, or the files of one, do not tell one story. WARNING: something could not be read, or is
not as a broker leaves it. NOTE: worth knowing, and no reason to worry; a healthy group may have notes."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from epochmq_spark import schemas


class FindingSeverity(StrEnum):
    """How much a finding matters."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


_E, _W, _N = FindingSeverity.ERROR, FindingSeverity.WARNING, FindingSeverity.NOTE

KINDS: Final[dict[str, tuple[FindingSeverity, str]]] = {
    "directory.missing": (_W, "the directory is not there"),
    "directory.empty": (_W, "the directory holds nothing to audit"),
    "directory.foreign": (_W, "the directory is no broker's store"),
    "directory.unreadable": (_W, "the directory cannot be read"),
    "directory.other-group": (_W, "the directory is that of another group's replica"),
    "directory.incomplete": (_W, "a part of the store is not there"),
    "directory.same-replica": (_W, "two directories are those of one replica"),
    "file.unreadable": (_W, "a file cannot be read"),
    "file.foreign": (_W, "a file that no broker puts there"),
    "file.short": (_E, "a file is shorter than it must be"),
    "epoch.file-missing": (_E, "the replica has no epoch file, others have"),
    "epoch.file-broken": (_E, "the epoch file's count, checksum or lines are wrong"),
    "epoch.out-of-order": (_E, "an epoch's number is not above the one before"),
    "epoch.overlap": (_E, "an epoch starts at or before the start of the one before"),
    "epoch.gap": (_E, "bytes of the log belong to no epoch"),
    "epoch.beyond-log": (_E, "an epoch starts beyond the end of the log"),
    "epoch.inside-record": (_E, "an epoch starts inside a record"),
    "epoch.missing": (_E, "the replica lacks an epoch whose bytes it has"),
    "epoch.unknown": (_E, "the replica knows an epoch that no other replica knows, of bytes they have"),
    "epoch.two-masters": (_E, "one epoch starts at different places: two masters wrote in it"),
    "epoch.ahead-of-controller": (_E, "an epoch that the controller has not given yet"),
    "epoch.behind-controller": (_W, "the controller's epoch has no entry at its master"),
    "controller.unknown-replica": (_E, "a replica that the controller does not know"),
    "controller.not-in-sync": (_E, "a member of the SyncStateSet does not have what is confirmed"),
    "log.missing-segment": (_E, "a segment of the log is not there"),
    "log.hole": (_E, "bytes inside the log are zero"),
    "log.broken-record": (_E, "bytes inside the log are no record"),
    "log.remains": (_N, "behind the end of the log lies what was cut from it"),
    "log.cut-below-confirmed": (_E, "the log ends before what it had confirmed"),
    "log.behind": (_N, "the log ends before another replica's"),
    "log.diverged": (_E, "a record differs from the other replicas'"),
    "log.tail-not-common": (_E, "the end of the log is no part of the group's history"),
    "record.checksum": (_E, "a body does not fit its checksum"),
    "message.missing": (_E, "the replica lacks a message that others have"),
    "queue.missing-unit": (_E, "a message is not in its consume queue"),
    "queue.wrong-unit": (_E, "a consume queue's unit does not fit its message"),
    "queue.no-record": (_E, "a consume queue's unit leads to no message of the queue"),
    "queue.behind": (_N, "a consume queue ends before the log; the broker's start mends it"),
    "queue.remains": (_N, "behind the end of a consume queue lies what was cut from it"),
    "queue-offset.duplicate": (_E, "two messages of a queue have one offset"),
    "queue-offset.skipped": (_E, "a queue lacks an offset between two messages"),
    "consumer-offset.ahead": (_E, "a group's offset is beyond the end of its queue"),
    "state.unreadable": (_W, "a configuration file cannot be read"),
    "index.missing-entry": (_E, "a message's key is not in the index"),
    "index.broken-chain": (_E, "an index entry that a search does not find"),
    "message.duplicate": (_N, "a message was stored again after a switch"),
    "more": (_W, "more of the kind, not listed one by one"),
}


def finding(group: str, replica: str, kind: str, **fields: Any) -> dict[str, Any]:
    """A row of `tables.FINDINGS`; fields by the table's names, all optional. KeyError for an unknown kind."""
    row: dict[str, Any] = dict.fromkeys(schemas.FINDINGS.names)
    unknown = fields.keys() - row.keys()
    if unknown:
        raise KeyError(f"no such column of a finding: {sorted(unknown)}")
    return row | {"group": group, "replica": replica, "kind": kind, "severity": KINDS[kind][0].value} | fields


def sentence(row: dict[str, Any]) -> str:
    """A finding for people: severity, what, where, and of which message."""
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
