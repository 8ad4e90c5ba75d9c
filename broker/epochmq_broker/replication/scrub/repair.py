"""Compares a unit of the log with the other replicas' copies, and repairs broken records from them.

A repair replaces only the bytes of the log file: queues and index hold positions, which stay. The new bytes
are checked before they are written, and read again from the disk afterwards. The bytes of a DLedger log are
replaced below the committed position, where its peer writes no more.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from epochmq_broker.replication.scrub.comparison import (
    Part,
    PeerChecksums,
    chosen,
    differing,
    differing_range,
    is_outvoted,
    majority,
    parts_of,
    sources,
)
from epochmq_broker.replication.scrub.paced_reads import PacedReads
from epochmq_broker.replication.scrub.peer_copies import PeerCopies
from epochmq_protocol.checksum import crc32
from epochmq_store.files.mapped_file import MappedFile
from epochmq_store.log.damaged_ranges import DamagedRange
from epochmq_store.log.record_checks import (
    ENTRIES,
    PlainRecords,
    check_records,
    only_headers_differ,
    record_bounds,
    shows_rot,
)
from epochmq_store.log.scanned_unit import ScannedUnit
from epochmq_store.message_store import MessageStore

log = logging.getLogger(__name__)

DIFFERING_MAX: Final = 8
"""The most differing parts of a unit that are looked at."""


class LogRepair:
    """Repairs the log of one broker."""

    def __init__(
        self, store: MessageStore, reads: PacedReads, peers: PeerCopies, *, limit: Callable[[], int]
    ) -> None:
        """`limit`: up to which offset the log may be repaired now."""
        self._store = store
        self._reads = reads
        self._peers = peers
        self._limit = limit
        self.repaired = 0
        """Repaired ranges since the start."""

    async def run(self, unit: ScannedUnit, file: MappedFile) -> list[DamagedRange] | None:
        """Compares and repairs a unit. Returns what remains damaged; None if no replica answered. Raises
        OSError if the log cannot be read."""
        parts = parts_of(unit)
        peers = await self._peers.checksums([(part.start, part.end) for part in parts]) if parts else {}
        if not peers:
            return None
        mended = set()
        for number, part in enumerate(parts):
            if part.crc is None and await self._repair(parts, number, peers, file):
                mended.add(part.start)
        remaining = [one for one in unit.damaged if one.start not in mended]
        for number in differing(parts, peers)[:DIFFERING_MAX]:
            found = await self._compare(parts[number], number, peers, file)
            if found is not None:
                remaining.append(found)
        return remaining

    # Broken records

    async def _repair(
        self, parts: Sequence[Part], number: int, peers: PeerChecksums, file: MappedFile
    ) -> bool:
        part = parts[number]
        whole: dict[str, bytes] = {}
        groups = []
        for group in sources(parts, number, peers):
            data = await self._whole_copy(group[0], part, peers[group[0]][number], file)
            if data is not None:
                whole[group[0]] = data
                groups.append(group)
        best = chosen(groups)
        if best is None:
            why = "have different records there" if groups else "have no whole records there"
            log.warning(
                "the log cannot be repaired from offset %d to %d: the other replicas that answered %s",
                part.start,
                part.end,
                why,
            )
            return False
        if not await self._write(part, whole[best[0]], file):
            return False
        self._note_repair(part, best[0])
        return True

    def _note_repair(self, part: Part, address: str) -> None:
        self.repaired += 1
        log.warning(
            "the log was repaired from offset %d to %d with the bytes of the replica at %s",
            part.start,
            part.end,
            address,
        )

    async def _whole_copy(self, address: str, part: Part, crc: int, file: MappedFile) -> bytes | None:
        """The bytes of a part at another replica; None if they are not whole records, or do not have the
        checksum that the replica sent before."""
        data = await self._peers.data(address, part.start, part.end)
        if data is None or crc32(data) != crc:
            return None
        fault = check_records(data, part.start, file.start + file.size, self._reads.records_of(file))
        if fault:
            log.warning(
                "the replica at %s is damaged, too, from offset %d to %d: %s",
                address,
                part.start,
                part.end,
                fault,
            )
            return None
        return data

    async def _write(self, part: Part, data: bytes, file: MappedFile) -> bool:
        """Writes the part durably, and reads it again from the disk. Returns whether it is whole then."""
        # On the event loop: the log cannot be truncated, nor the file expire, between check and write.
        if self._store.log.files.find(part.start) is not file or part.end > self._limit():
            return False
        at = part.start - file.start
        try:
            file.write(at, memoryview(data))
            await self._reads.on_thread(partial(_sync_and_drop, file.path, at, len(data)))
        except OSError as error:
            log.error("%s cannot be written at offset %d to repair it: %s", file.path, part.start, error)
            return False
        unit = await self._reads.scan(file, part.start, part.end, part.end)
        if unit.damaged:
            log.error("%s is still damaged at offset %d after its repair", file.path, part.start)
        return not unit.damaged

    # Whole records that differ

    async def _compare(
        self, part: Part, number: int, peers: PeerChecksums, file: MappedFile
    ) -> DamagedRange | None:
        """What the other copies of a part say, of which at least one differs. None unless this broker's may
        be the wrong one."""
        assert part.crc is not None
        copies: dict[int, bytes] = {}
        names: dict[int, str] = {}
        others = []
        for address, crcs in peers.items():
            crc = crcs[number]
            if crc != part.crc and crc not in copies:
                data = await self._whole_copy(address, part, crc, file)
                if data is None:
                    continue  # that replica repairs itself
                copies[crc], names[crc] = data, address
            others.append(crc)
        if not copies:
            return None
        own, records = await self._reads.data(part.start, part.end), self._reads.records_of(file)
        right = _proven(own, copies, majority(part.crc, others), records)
        if right is not None:
            return await self._replace(part, own, copies[right], names[right], file)
        crc, theirs = next(iter(copies.items()))
        bounds = record_bounds(own, part.start, records)
        found = differing_range(part.start, bounds, own, theirs, names[crc])
        if found is None or is_outvoted(part.crc, others):
            return found
        log.warning(
            "the replica at %s has other records than this one and a majority from offset %d to %d",
            names[crc],
            found.start,
            found.end,
        )
        return None

    async def _replace(
        self, part: Part, own: bytes, theirs: bytes, address: str, file: MappedFile
    ) -> DamagedRange | None:
        """Replaces whole records that are known to be wrong. Returns what stays."""
        bounds = record_bounds(own, part.start, self._reads.records_of(file))
        found = differing_range(part.start, bounds, own, theirs, address)
        if found is None:
            return None
        wrong = Part(found.start, found.end, None)
        data = theirs[wrong.start - part.start : wrong.end - part.start]
        if not await self._write(wrong, data, file):
            return found
        self._note_repair(wrong, address)
        return None


def _proven(
    own: bytes, copies: Mapping[int, bytes], outvoting: int | None, records: PlainRecords
) -> int | None:
    """The checksum of the copy that is right where this broker's differs, None if no copy is known to be:
    by the checksums of whole records; or by a majority, in the headers of entries of a DLedger log, on which
    Raft has the peers agree, and which say nothing of a message."""
    if outvoting is not None and records is ENTRIES and only_headers_differ(own, copies[outvoting]):
        return outvoting
    return next((crc for crc, theirs in copies.items() if shows_rot(own, theirs, records)), None)


def _sync_and_drop(path: Path, at: int, size: int) -> None:
    """Writes a file to the disk, and drops the bytes from the page cache, so that the next read comes from
    the disk; after a failure, too: the kernel then takes the lost pages for written. Raises OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fdatasync(fd)
    finally:
        os.posix_fadvise(fd, at, size, os.POSIX_FADV_DONTNEED)
        os.close(fd)
