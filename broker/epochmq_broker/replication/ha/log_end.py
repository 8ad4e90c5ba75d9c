"""Scans and completes the end of the log: truncates a torn tail, and dispatches the rest."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from epochmq_protocol.errors import EpochMQError
from epochmq_store import record
from epochmq_store.message_store import MessageStore

log = logging.getLogger(__name__)

DISPATCH_BATCH_RECORDS: Final = 256
"""How many records are scanned or dispatched before the event loop serves other work."""


async def find_sound_end(store: MessageStore) -> int:
    """The offset where the last complete and valid record ends. The event loop serves other work
    meanwhile."""
    position = store.replica_log.dispatched_offset
    if position >= store.max_phy_offset:
        return store.max_phy_offset
    while True:
        position, over = store.replica_log.scan_valid_records(position, DISPATCH_BATCH_RECORDS)
        if over:
            return position
        await asyncio.sleep(0)


async def find_record_start(store: MessageStore, offset: int) -> int:
    """The start offset of the record that holds the byte at `offset`. The event loop serves other work
    meanwhile."""
    commit_log = store.log
    file = commit_log.files.find(offset)
    if file is None:
        raise ValueError(f"the log has no byte at offset {offset}")
    position = file.start
    while True:
        for _ in range(DISPATCH_BATCH_RECORDS):
            found = commit_log.parse(position, (), check_crc=False)
            if not isinstance(found, record.DispatchRequest) or position + found.size > offset:
                return position
            position += found.size
        await asyncio.sleep(0)


class DamagedLogError(EpochMQError):
    """The log is damaged at `offset`, below the confirmed offset."""

    def __init__(self, offset: int, confirmed: int) -> None:
        super().__init__(f"the log is damaged at offset {offset}, below the confirmed offset {confirmed}")
        self.offset = offset


async def truncate_torn_tail(store: MessageStore, confirmed: int) -> None:
    """Makes the log end with a complete record, at an offset where the next one may start. Raises
    DamagedLogError if that would remove records before `confirmed`: only a part of one may be removed."""
    store.replica_log.complete_blank_record()
    store.note_replicated_bytes()
    end = await find_sound_end(store)
    if end < confirmed and store.replica_log.is_damaged_at(end):
        raise DamagedLogError(end, confirmed)
    if end < store.max_phy_offset:
        log.warning(
            "the log ends at %d with an incomplete record: it is truncated to %d", store.max_phy_offset, end
        )
        store.truncate(end, torn=True)


async def dispatch_rest(store: MessageStore, limit: int | None = None) -> None:
    """Dispatches the complete records of the log, or those that end at or before `limit`, to queues and
    index."""
    more = store.replica_log.has_undispatched
    while more:
        end = store.max_phy_offset if limit is None else limit
        more = store.replica_log.dispatch(end, DISPATCH_BATCH_RECORDS)
        await asyncio.sleep(0)  # the event loop serves other work
    store.replica_log.complete_blank_record()
    store.note_replicated_bytes()
