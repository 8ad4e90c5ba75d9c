"""Compares the units in the files of consume queues with the records of the log, and rewrites those that
differ. No checksum covers a unit; the records have one, and say which unit they have.

`runs_of` and `rewrite` belong to the event loop's thread, everything else may wait for the disk. The files
are read without an effect on the page cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from epochmq_formats.extension_unit import ADDRESS_ZERO, HEAD, is_address
from epochmq_formats.queue_unit import PRE_BLANK_SIZE, UNIT, UNIT_BYTES
from epochmq_protocol import record_layout
from epochmq_store import record
from epochmq_store.appending.expected_units import ExpectedUnit, places_of
from epochmq_store.files.mapped_file import MappedFile
from epochmq_store.files.queue_files import QueueFile
from epochmq_store.log.quiet_reader import QuietReader
from epochmq_store.queues.batch_consume_queue import BatchConsumeQueue
from epochmq_store.queues.consume_queue import ConsumeQueue

RECORD_BYTES_MAX: Final = 64 << 20
"""A larger record at a position that a unit says is not read."""

StoredUnit = tuple[int, int, int]
"""Physical offset, size and tag code, as they are in a file."""


class ExtensionFiles(NamedTuple):
    """The files of a queue's extension at one moment, and the offset up to which they had its units."""

    files: list[QueueFile]
    written: int


class UnitRun(NamedTuple):
    """Units with consecutive offsets, all in one file of a queue when the run was made."""

    queue: ConsumeQueue
    file: QueueFile
    extension: ExtensionFiles | None
    units: list[ExpectedUnit]

    @property
    def size(self) -> int:
        """Bytes of the units."""
        return len(self.units) * UNIT_BYTES


def runs_of(queue: ConsumeQueue | None, units: Sequence[ExpectedUnit]) -> Iterator[UnitRun]:
    """The units that files of a queue hold now, of those that the records say. A queue that is gone, batch
    consume queues, and units that expired or are not written yet are left out."""
    if queue is None or isinstance(queue, BatchConsumeQueue):
        return
    run: UnitRun | None = None
    following = end = -1  # the offset after the run, and where its file's units end
    for unit in units:
        if run is not None and unit.offset == following < end:
            run.units.append(unit)
            following += 1
            continue
        if run is not None:
            yield run
            run = None
        file = written_file(queue, unit.offset)
        if file is not None:
            run = UnitRun(queue, file, _extension_files(queue), [unit])
            following, end = unit.offset + 1, min(file.end // UNIT_BYTES, queue.max_offset)
    if run is not None:
        yield run


def written_file(queue: ConsumeQueue, offset: int) -> QueueFile | None:
    """The file that holds the unit at this offset; None if none does, or if its message has expired."""
    at = offset * UNIT_BYTES
    if not queue.min_offset <= offset < queue.max_offset or at + UNIT_BYTES > queue.written_end:
        return None
    file = queue.files.find(at)
    return file if file is not None and at + UNIT_BYTES <= file.end else None


def _extension_files(queue: ConsumeQueue) -> ExtensionFiles | None:
    if queue.extension is None:
        return None
    files = list(queue.extension.files.files)
    return ExtensionFiles(files, files[-1].end if files else 0)


def differing(run: UnitRun) -> list[ExpectedUnit]:
    """The units of a run that are not in the file as the records say. Raises OSError."""
    reader = QuietReader(run.file.path)
    try:
        data = reader.read(run.units[0].offset * UNIT_BYTES - run.file.start, run.size)
    finally:
        reader.close()
    stored = UNIT.iter_unpack(data)
    return [unit for unit, found in zip(run.units, stored, strict=True) if not _agrees(run, unit, found)]


def _agrees(run: UnitRun, unit: ExpectedUnit, stored: StoredUnit) -> bool:
    physical, size, code = stored
    if physical != unit.physical or size != unit.size:
        return False
    if code == unit.tags_code or run.queue.is_schedule:
        return True  # a delivery time follows from the delay levels of the time when it was computed
    return run.extension is not None and is_address(code) and _is_extended(run.extension, unit, code)


def _is_extended(extension: ExtensionFiles, unit: ExpectedUnit, address: int) -> bool:
    """Whether the extension has the unit of this record at the address. It may lack units at its start; a
    reader then does without."""
    offset = address - ADDRESS_ZERO
    files = extension.files
    if not files or offset < files[0].start:
        return True
    number = (offset - files[0].start) // files[0].size
    if offset + HEAD.size > extension.written or number >= len(files):
        return False
    reader = QuietReader(files[number].path)
    try:
        _, code, stored, _ = HEAD.unpack(reader.read(offset - files[number].start, HEAD.size))
    finally:
        reader.close()
    return bool(code == unit.tags_code and stored == unit.store_timestamp)


def stored_unit(file: QueueFile, offset: int) -> StoredUnit:
    """The unit at this offset of a queue, of which the file holds it. Raises OSError."""
    found: StoredUnit = UNIT.unpack(file.pread(offset * UNIT_BYTES - file.start, UNIT_BYTES))
    return found


def is_between(physical: int, neighbour: StoredUnit, *, is_next: bool) -> bool:
    """Whether a unit with this physical offset may stand beside its neighbour: units ascend."""
    if neighbour[1] == PRE_BLANK_SIZE:
        return True
    return neighbour[0] > physical if is_next else neighbour[0] < physical


def places_of_record(
    file: MappedFile, physical: int, delays_ms: tuple[int, ...]
) -> list[tuple[str, int, int]]:
    """(topic, queue id, offset) of each unit of the record at this physical offset, which is in this file of
    the log; empty if no record is there. Raises OSError."""
    reader = QuietReader(file.path)
    at, left = physical - file.start, file.start + file.size - physical
    if left < record_layout.HEAD_V4.size:
        return []
    try:
        size, _ = record_layout.SIZE_AND_MAGIC.unpack(reader.read(at, record_layout.SIZE_AND_MAGIC.size))
        if not record_layout.HEAD_V4.size < size <= min(left, RECORD_BYTES_MAX):
            return []
        data = reader.read(at, size)
    finally:
        reader.close()
    parsed = record.parse(data, 0, size, physical, delays_ms, check_crc=False)
    if not isinstance(parsed, record.DispatchRequest):
        return []
    return list(places_of(parsed, record.properties_at(data, 0, size)))


def rewrite(run: UnitRun, unit: ExpectedUnit, seen: StoredUnit) -> bool:
    """Writes the unit of a record into its queue's file, unless the queue has changed since it was read as
    `seen`. Returns whether it did; `run.file` is then to be synced. Raises OSError."""
    # On the event loop: no other unit can get this place between check and write.
    if written_file(run.queue, unit.offset) is not run.file or stored_unit(run.file, unit.offset) != seen:
        return False
    data = UNIT.pack(unit.physical, unit.size, unit.tags_code)
    run.file.overwrite(unit.offset * UNIT_BYTES - run.file.start, data)
    if unit.offset == run.queue.max_offset - 1:
        run.queue.max_physical = unit.physical + unit.size
    return True
