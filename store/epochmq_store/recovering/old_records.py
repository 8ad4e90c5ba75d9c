"""Reads old records of the log on behind a broken one, because consume queues lack units.

A broken record ends the log only where the log may have ended in a crash. Here it is damage, as for the
scrub: it is logged and counted, the reading continues behind it, and another replica repairs it later. If its
place in a queue can still be read, the queue gets its unit. Otherwise units that lead into the damaged range
stand for it, so that later messages keep their offsets. The scrub replaces them when the record is repaired.
"""

from __future__ import annotations

import logging
from collections.abc import Set
from typing import Final, Protocol

from epochmq_protocol.record_layout import HEAD_V4, SIZE_AND_MAGIC
from epochmq_store import record
from epochmq_store.appending.expected_units import places_of
from epochmq_store.log.commit_log import CommitLog
from epochmq_store.log.damaged_ranges import DamagedRange, DamagedRanges
from epochmq_store.log.record_checks import ENTRIES, PLAIN
from epochmq_store.log.record_scan import RecordScan
from epochmq_store.queues.batch_consume_queue import BatchConsumeQueue
from epochmq_store.queues.consume_queue import ConsumeQueue
from epochmq_store.queues.consume_queues import ConsumeQueues

log = logging.getLogger(__name__)

RECORD_BYTES_MIN: Final = HEAD_V4.size + 3
RECORD_BYTES_MAX: Final = 64 << 20
"""A damaged record that claims to be larger is not read."""
PLACEHOLDER_BYTES: Final = 1
"""The size in the unit of a message of which only the offset is known."""


class Dispatch(Protocol):
    """Where records go."""

    def dispatch(self, message: record.DispatchRequest) -> None:
        """Dispatches a record to queues and index."""

    def queues_of(self, message: record.DispatchRequest) -> Set[ConsumeQueue] | None:
        """The queues that may get units of a record; None for all."""


class OldRecords:
    """Reads old records of a file with damage in the order of the log, and hands them on."""

    def __init__(
        self,
        log_files: CommitLog,
        queues: ConsumeQueues,
        damage: DamagedRanges,
        delays_ms: tuple[int, ...],
        target: Dispatch,
    ) -> None:
        """`damage` gets what is damaged. `target` gets each record whose fields can be read."""
        self._log = log_files
        self._queues = queues
        self._damage = damage
        self._delays_ms = delays_ms
        self._target = target
        self._until = 0
        self._seen_damage = 0  # the end of the last damaged range that was looked at
        self._scan: RecordScan | None = None
        self.records = 0
        self.last_record = -1  # physical offset
        self.found_damage = False

    def read_file(self, start: int, until: int) -> int:
        """Reads the records from `start`, where one begins or is expected (in a DLedger log, an entry), up to
        `until` or the end of the file. Returns where this file ends. Raises OSError if the file cannot be
        opened, or DiskFullError."""
        file = self._log.files.find(start)
        assert file is not None
        self._until, self._seen_damage = until, start
        end = file.start + file.size
        records = ENTRIES if self._log.header_bytes_at(file.start) else PLAIN
        scan = self._scan = RecordScan(
            file.path, file.start, file.size, start, min(until, end), records, on_record=self._take
        )
        try:
            while scan.step() is None:
                pass
        finally:
            scan.close()
        self._note_damage(scan)
        return end

    def _take(self, buffer: bytes, position: int, size: int, offset: int) -> None:
        assert self._scan is not None
        self._note_damage(self._scan)
        header = self._log.header_bytes_at(offset)
        at, physical = position + header, offset + header
        parsed = record.parse(buffer, at, position + size, physical, self._delays_ms, check_crc=False)
        if isinstance(parsed, record.DispatchRequest) and offset < self._until:
            self._put(parsed, record.properties_at(buffer, at, parsed.size))

    def _put(self, message: record.DispatchRequest, properties: bytes) -> None:
        self.records += 1
        self.last_record = message.physical_offset
        self.fill_gaps(message, properties)
        self._target.dispatch(message)

    def fill_gaps(self, message: record.DispatchRequest, properties: bytes) -> None:
        """Adds units for records that were lost before this one, which has these stored properties."""
        allowed = self._target.queues_of(message)
        for topic, queue_id, offset in places_of(message, properties):
            queue = self._queues.get((topic, queue_id))
            if queue is not None and (allowed is None or queue in allowed):
                self._fill_gap(queue, offset, message.physical_offset)

    def _fill_gap(self, queue: ConsumeQueue, offset: int, physical: int) -> None:
        """Adds units up to this offset if the queue lacks some, and damage between its last record and the
        one at `physical` can be the reason."""
        missing = offset - queue.max_offset
        if missing <= 0 or queue.max_physical < 0 or isinstance(queue, BatchConsumeQueue):
            return
        lost = [one for one in self._damage.ranges if queue.max_physical <= one.start and one.end <= physical]
        if missing * RECORD_BYTES_MIN > sum(one.size for one in lost):
            return
        # At the end of the range, so that the scrub can replace them in order: units ascend.
        first = lost[-1].end - missing
        for number in range(missing):
            queue.put(queue.max_offset, first + number, PLACEHOLDER_BYTES, 0)
        log.error(
            "the consume queue %s-%d lost its units %d to %d, and their records are damaged",
            queue.topic,
            queue.queue_id,
            offset - missing,
            offset - 1,
        )

    def _note_damage(self, scan: RecordScan) -> None:
        """Handles the damage before the present record of the scan."""
        found = scan.newest_damage
        if found is None or found.end <= self._seen_damage:
            return
        start, self._seen_damage = max(found.start, self._seen_damage), found.end
        self.found_damage = True
        self._damage.replace_within(found.start, found.end, [found])
        log.error(
            "the log is damaged from %d to %d: %s; the start read past it, and the scrub repairs it if "
            "another replica has these records",
            found.start,
            found.end,
            found.fault,
        )
        self._dispatch_readable(DamagedRange(start, found.end, found.fault))

    def _dispatch_readable(self, damaged: DamagedRange) -> None:
        """Dispatches the damaged records whose fields can be read, as if only a body was wrong."""
        file = self._log.files.find(damaged.start)
        start = damaged.start
        while file is not None and start < min(damaged.end, self._until):
            header = self._log.header_bytes_at(start)
            at = start - file.start + header
            try:
                size, _ = SIZE_AND_MAGIC.unpack(file.pread(at, SIZE_AND_MAGIC.size))
                if not RECORD_BYTES_MIN <= size <= min(damaged.end - start - header, RECORD_BYTES_MAX):
                    return
                data = file.pread(at, size)
            except OSError:
                return
            parsed = record.parse(data, 0, size, start + header, self._delays_ms, check_crc=False)
            if not isinstance(parsed, record.DispatchRequest):
                return
            self._put(parsed, record.properties_at(data, 0, parsed.size))
            start += header + parsed.size
