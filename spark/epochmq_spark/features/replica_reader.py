"""Reads the queues, the records and the state files of one replica, a bounded part at a time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Final

from epochmq_formats.queue_unit import UNIT_BYTES
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.message import MessageExt, decode_record
from epochmq_protocol.record_layout import SIZE_AND_MAGIC
from epochmq_spark import files, store_layout
from epochmq_spark.decode.queue_units import QueueUnits
from epochmq_spark.decode.unit_columns import decode_units
from epochmq_spark.drill_down import AuditedLog, scan_store
from epochmq_spark.findings import finding

BLOCK_UNITS: Final = 1 << 16
WINDOW_BYTES: Final = 4 << 20
RECORD_BYTES_MAX: Final = 8 << 20
LISTED_MAX: Final = 200
"""Findings of one kind that are listed for a replica."""

Row = dict[str, Any]


class QueueReader:
    """The units of one consume queue. `first` and `end` are queue offsets."""

    def __init__(self, queue: store_layout.ConsumeQueueFiles) -> None:
        """Finds the end. Raises OSError."""
        self.topic, self.queue_id = queue.topic, queue.queue_id
        self._parts = sorted(queue.files, key=lambda one: one.start)
        self.first = self._parts[0].start // UNIT_BYTES if self._parts else 0
        self.end = self.first
        for part in reversed(self._parts):
            used = max(
                (units.offsets[-1] for units in self._blocks(part, 0) if len(units.offsets)), default=-1
            )
            if used >= 0:
                self.end = int(used) + 1
                break

    def units(self, offset: int = 0) -> Iterator[QueueUnits]:
        """The units from a queue offset on, some thousand at a time. Raises OSError."""
        for part in self._parts:
            if part.start + part.size > offset * UNIT_BYTES:
                yield from self._blocks(part, max(offset * UNIT_BYTES - part.start, 0))

    def _blocks(self, part: store_layout.DataFile, begin: int) -> Iterator[QueueUnits]:
        for at in range(begin, part.size, BLOCK_UNITS * UNIT_BYTES):
            data = files.read_range(part.location, at, min(at + BLOCK_UNITS * UNIT_BYTES, part.size))
            units = decode_units(data, (part.start + at) // UNIT_BYTES)
            if len(units.offsets):
                yield units


class FileWindow:
    """Reads pieces of files whose names are the offsets of their first bytes. Keeps one window in memory:
    pieces that follow each other are read together."""

    def __init__(self, parts: Sequence[store_layout.DataFile]) -> None:
        self._parts = sorted(parts, key=lambda one: one.start)
        self._starts = [one.start for one in self._parts]
        self._window_start = 0
        self._window = b""

    def read(self, offset: int, size: int) -> bytes | None:
        """The bytes, fewer at the end of a file; None if no file has this offset. Raises OSError."""
        at = bisect_right(self._starts, offset) - 1
        if at < 0 or offset >= self._parts[at].start + self._parts[at].size:
            return None
        begin = offset - self._window_start
        if not 0 <= begin <= begin + size <= len(self._window):
            part = self._parts[at]
            inside = offset - part.start
            stop = min(inside + max(size, WINDOW_BYTES), part.size)
            self._window = bytes(files.read_range(part.location, inside, stop))
            self._window_start, begin = offset, 0
        return self._window[begin : begin + size]


class ReplicaReader:
    """One replica with its files. Its findings are counted: of each kind, `LISTED_MAX` are listed."""

    def __init__(self, log: AuditedLog, others: Sequence[AuditedLog] = ()) -> None:
        """Lists the directory. `others` are the logs of the other replicas of the group. Raises OSError."""
        self.log, self.others = log, others
        self.location = log.replica.location
        self.contents = scan_store(self.location)
        self.findings: list[Row] = []
        self._counts: dict[str, int] = {}
        self._records = FileWindow(self.contents.log)

    @property
    def stopped(self) -> bool:
        """Whether the broker stopped cleanly: all its files belong together then."""
        return not self.contents.aborted

    def report(self, kind: str, **columns: Any) -> None:
        """Adds a finding."""
        self._counts[kind] = count = self._counts.get(kind, 0) + 1
        if count <= LISTED_MAX:
            self.findings.append(finding(self.log.replica.group, self.log.replica.name, kind, **columns))

    def all_findings(self) -> list[Row]:
        """The findings, with one of kind `more` for each kind that is not listed completely."""
        more = [
            finding(
                self.log.replica.group,
                self.log.replica.name,
                "more",
                detail=f"{count - LISTED_MAX} of {kind}",
            )
            for kind, count in sorted(self._counts.items())
            if count > LISTED_MAX
        ]
        return self.findings + more

    def queue(self, topic: str, queue_id: int) -> QueueReader | None:
        """A consume queue; None if the replica has none. Raises OSError."""
        for one in self.contents.queues:
            if (one.topic, one.queue_id) == (topic, queue_id):
                return QueueReader(one)
        return None

    def queues_of(self, prefix: str) -> list[QueueReader]:
        """The consume queues of the topics with this prefix. Raises OSError."""
        return [QueueReader(one) for one in self.contents.queues if one.topic.startswith(prefix)]

    def has_record(self, physical: int, size: int) -> bool:
        """Whether a record of this size lies inside the readable log."""
        extent = self.log.extent
        return 0 < size <= RECORD_BYTES_MAX and extent.start <= physical and physical + size <= extent.end

    def message(self, physical: int, size: int, *, check_crc: bool = True) -> MessageExt | None:
        """The message in a record; None if no valid one lies there, which the checks of the log report.
        Raises OSError. `check_crc`: a body that does not match its checksum is not valid."""
        if not self.has_record(physical, size):
            return None
        data = self._records.read(physical, size)
        try:
            return None if data is None else decode_record(data, check_crc=check_crc)
        except EpochMQError:
            return None

    def message_at(self, physical: int) -> MessageExt | None:
        """The message that starts at an offset of the log; None if no valid one does. Raises OSError."""
        if not self.log.extent.start <= physical < self.log.extent.end:
            return None
        start = self._records.read(physical, SIZE_AND_MAGIC.size) or b""
        if len(start) < SIZE_AND_MAGIC.size:
            return None
        size, _ = SIZE_AND_MAGIC.unpack(start[: SIZE_AND_MAGIC.size])
        message = self.message(physical, size, check_crc=False)
        return message if message is not None and message.physical_offset == physical else None

    def messages(self, queue: QueueReader, offset: int = 0) -> Iterator[tuple[int, MessageExt]]:
        """(queue offset, message) of the queue's messages from an offset on. Raises OSError."""
        for units in queue.units(offset):
            for number, physical, size in zip(
                units.offsets.tolist(), units.physical.tolist(), units.sizes.tolist(), strict=True
            ):
                if (message := self.message(physical, size)) is not None:
                    yield number, message

    def small_file(self, name: str) -> bytes | None:
        """The content of a state file, by its path in the store; None without one. Raises OSError."""
        try:
            return files.read(files.join(self.location, name))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def path(self, name: str) -> str:
        """The location of a file of the store."""
        return files.join(self.location, name)
