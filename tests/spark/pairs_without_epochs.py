"""Creates the directories of a master and a slave that replicate asynchronously, without controllers: their
logs have no epochs, and may have two histories."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from epochmq_protocol import message
from epochmq_store.statuses import PutStatus
from tests.spark.damage_kit import Record, overwrite, records, segments
from tests.unit.store.support import LOG_FILE, Message, open_store, put

COMMON = 30


@dataclass(frozen=True)
class SlavePair:
    """The directories of a master and its slave."""

    master: Path
    slave: Path


def create_pair(root: Path, master: Sequence[str], slave: Sequence[str]) -> SlavePair:
    """A master and a slave whose logs have 30 messages in common, and then these, by the producer's id; the
    slave's are the older ones. Both were stopped cleanly."""
    pair = SlavePair(root / "master", root / "slave")
    _append(pair.master, [f"COMMON{number:04}" for number in range(COMMON)])
    shutil.copytree(pair.master, pair.slave)
    _append(pair.slave, slave)
    _append(pair.master, master)
    return pair


def continue_from_master(pair: SlavePair) -> int:
    """Appends the master's bytes behind the end of the slave's longer history, as HA does it without epochs
    as soon as the master's log is longer. Returns the offset from which the logs are equal again."""
    last = records(pair.slave)[-1]
    end = last.offset + last.size
    for path in segments(pair.master):
        data = path.read_bytes()
        at = min(max(end - int(path.name), 0), len(data))
        target = pair.slave / "commitlog" / path.name
        if not target.exists():
            target.write_bytes(bytes(LOG_FILE))
        overwrite(target, at, data[at:])
    shutil.rmtree(pair.slave / "consumequeue")
    shutil.copytree(pair.master / "consumequeue", pair.slave / "consumequeue")
    return next(one.offset for one in records(pair.master) if one.offset >= end)


def _append(directory: Path, ids: Sequence[str]) -> None:
    store = open_store(directory, max_hash_slot_num=100, max_index_num=400)
    try:
        for one in ids:
            sent = Message(queue_id=len(one) % 2, body=one.encode() * 20, properties={"UNIQ_KEY": one})
            status, *_ = put(store, sent)
            assert status is PutStatus.PUT_OK, status
    finally:
        store.stop()


def id_of(record: Record) -> str:
    """The producer's id of a message."""
    return message.parse_properties(record.message.properties)["UNIQ_KEY"]
