"""Checks the timer's files: the wheel against its log, the log against the commit log, and whether every
pending message of the timer topic has a unit (TimerMessageStore)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from epochmq_formats.store_checkpoint import FIELD, PHYSIC_MSG_TIMESTAMP_AT
from epochmq_formats.timer_log import MAGIC_DELETE, NO_UNIT, UNIT_BYTES, units_end
from epochmq_formats.timer_wheel import SLOTS, WHEEL_BYTES
from epochmq_protocol.message import MessageExt, parse_properties
from epochmq_protocol.message_const import (
    BLANK_MAGIC,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_DEL_UNIQKEY,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
)
from epochmq_protocol.topics import TIMER_TOPIC
from epochmq_spark import files
from epochmq_spark.decode import timer_files as t
from epochmq_spark.features.replica_reader import QueueReader, ReplicaReader
from epochmq_spark.store_layout import DataFile

CHECKPOINT: Final = "config/timercheck"
CHUNK_UNITS: Final = 1 << 17
WHEEL_CHUNK_BYTES: Final = 1 << 20
MARGIN_MS: Final = 10_000
"""A message that was due so shortly after the last delivery may have been delivered without a unit."""
MISSING_READ_MAX: Final = 1 << 18
"""Messages without a unit that are read; more are old ones that were due before they reached the wheel."""

Array = Any


def check_timer(reader: ReplicaReader) -> None:
    """Reports damage to wheel, log and checkpoint. What a running broker is about to write is not compared.
    Raises OSError."""
    progress = _read_progress(reader)
    queue = reader.queue(TIMER_TOPIC, 0)
    known = None if queue is None else _TimerQueue(reader, queue)
    wheel = _read_wheel(reader)
    chains: t.SlotChains | None = None
    log = _LogReader(reader, progress)
    chains_from = last_due_ms = 0
    for positions, units in log.chunks():
        last_due_ms = max(last_due_ms, int(t.due_times(units).max()))
        if wheel is not None and chains is None:
            precision = _precision(wheel, units)
            if precision is not None:
                chains, chains_from = t.SlotChains(precision), int(positions[0])
        if chains is not None:
            _report_chains(reader, positions, units, chains.add(positions, units), chains_from)
        if known is not None:
            known.mark(positions, units)
    if progress is None:
        return
    _check_progress(reader, progress, log, queue)
    if not reader.stopped or log.is_broken:
        return
    if wheel is not None and chains is not None:
        _compare_wheel(reader, wheel, chains, progress)
    elif wheel is not None:
        _report_unrelated(reader, wheel, progress, last_due_ms)
    if known is not None:
        known.report_missing(progress)


def _read_progress(reader: ReplicaReader) -> t.TimerProgress | None:
    data = reader.small_file(CHECKPOINT)
    if data is None:
        return None
    try:
        return t.decode_progress(data)
    except ValueError:
        return None  # the check of state files reports it


def _check_progress(
    reader: ReplicaReader, progress: t.TimerProgress, log: _LogReader, queue: QueueReader | None
) -> None:
    where = {"file": reader.path(CHECKPOINT)}
    if not reader.stopped:
        return
    if progress.log_flushed > log.end and not log.is_broken:
        detail = f"the timer log is flushed up to {progress.log_flushed}, and ends at {log.end}"
        reader.report("timer.checkpoint-ahead", **where, detail=detail)
    end = 0 if queue is None else queue.end
    if progress.queue_offset > end:
        detail = f"message {progress.queue_offset} of the timer topic, whose queue ends at {end}"
        reader.report("timer.checkpoint-ahead", **where, queue_offset=progress.queue_offset, detail=detail)


class _LogReader:
    """Reads the units of the timer log in their order."""

    def __init__(self, reader: ReplicaReader, progress: t.TimerProgress | None) -> None:
        self._reader = reader
        self._parts = sorted(reader.contents.timer_log, key=lambda part: part.start)
        self._flushed = progress.log_flushed if progress else 0
        self.first = self._parts[0].start if self._parts else 0
        self.end = self.first
        self.is_broken = False
        """Whether a unit or a file is missing before the end."""

    def chunks(self) -> Iterator[tuple[Array, Array]]:
        """(positions, units) of the valid units. Raises OSError."""
        for part in self._parts:
            if part.start != self.end:
                detail = f"no file has [{self.end}, {part.start})"
                self._break("timer.missing-file", part.location, detail)
                return
            at, limit = 0, units_end(part.size)
            while at < limit:
                stop = min(at + CHUNK_UNITS * UNIT_BYTES, limit)
                units = t.decode_units(files.read_range(part.location, at, stop))
                count = t.valid_count(units)
                if count:
                    yield part.start + at + np.arange(count, dtype=np.int64) * UNIT_BYTES, units[:count]
                at += count * UNIT_BYTES
                self.end = part.start + at
                if count < len(units):
                    if int(units["magic"][count]) == BLANK_MAGIC:
                        break
                    self._check_end(part, units[count:])
                    return
                if not len(units):  # the file is shorter than listed
                    return
            self.end = part.start + part.size

    def _check_end(self, part: DataFile, rest: Array) -> None:
        """Whether the log may end here. `rest` are the units of the file from the first invalid one on."""
        is_end = part is self._parts[-1] and not np.any(rest["bytes"] != 0)
        if self._reader.stopped and self.end < self._flushed and not is_end:
            found = f"a unit of {rest['bytes'][0]} bytes, magic {rest['magic'][0]}, size {rest['size'][0]}"
            detail = f"position {self.end}: {found}; the log is flushed up to {self._flushed}"
            self._break("timer.broken-unit", part.location, detail)

    def _break(self, kind: str, location: str, detail: str) -> None:
        self.is_broken = True
        self._reader.report(kind, file=location, detail=detail)


def _report_chains(
    reader: ReplicaReader, positions: Array, units: Array, wrong: tuple[Array, Array], start: int
) -> None:
    for number, expected in zip(*(one.tolist() for one in wrong), strict=True):
        named = int(units["previous"][number])
        if expected == NO_UNIT and named < start:
            continue  # its file has expired, or all slots of that time were used again
        detail = f"unit at {int(positions[number])} names {named} as the one before it, expected {expected}"
        reader.report("timer.broken-chain", start_offset=int(units["physical"][number]), detail=detail)


def _read_wheel(reader: ReplicaReader) -> Array | None:
    """The slots; None without a wheel, and for a broker that runs, which changes it in place."""
    entry = reader.contents.timer_wheel
    if entry is None or not reader.stopped:
        return None
    if entry.size != WHEEL_BYTES:
        detail = f"{entry.size} bytes, expected {WHEEL_BYTES}"
        reader.report("timer.broken-wheel", file=entry.location, detail=detail)
        return None
    wheel = np.zeros(SLOTS, [("time", np.int64), ("last", np.int64)])
    for at in range(0, WHEEL_BYTES, WHEEL_CHUNK_BYTES):
        data = files.read_range(entry.location, at, min(at + WHEEL_CHUNK_BYTES, WHEEL_BYTES))
        slots = np.frombuffer(data, t.SLOT)
        first = at // t.SLOT.itemsize
        wheel["time"][first : first + len(slots)] = slots["time"]
        wheel["last"][first : first + len(slots)] = slots["last"]
    used = np.flatnonzero(wheel["time"] > 0)
    for number in used[wheel["time"][used] % SLOTS != used].tolist():
        detail = f"slot {number} has the time {wheel['time'][number]}"
        reader.report("timer.broken-wheel", file=entry.location, detail=detail)
        wheel["time"][number] = 0
    return wheel


def _precision(wheel: Array, units: Array) -> int | None:
    """The precision with which wheel and log were written, from units that slots name."""
    due = t.due_times(units)
    for precision in t.PRECISIONS_MS:
        times = due // precision
        if np.any(wheel["time"][times % SLOTS] == times):
            return precision
    return None


def _compare_wheel(
    reader: ReplicaReader, wheel: Array, chains: t.SlotChains, progress: t.TimerProgress
) -> None:
    """Compares the last unit of each slot that is still to be delivered."""
    precision = chains.precision_ms
    first = progress.read_time_ms // precision
    in_log = np.where(chains.times > first, chains.last, NO_UNIT)
    in_wheel = np.where(wheel["time"] > first, wheel["last"], NO_UNIT)
    for number in np.flatnonzero(in_log != in_wheel).tolist():
        time = int(max(chains.times[number], wheel["time"][number]))
        detail = (
            f"{time * precision} ms: the wheel names unit {int(in_wheel[number])} as the last one, the "
            f"timer log has {int(in_log[number])}"
        )
        reader.report("timer.wrong-slot", file=_wheel_path(reader), detail=detail)


def _report_unrelated(
    reader: ReplicaReader, wheel: Array, progress: t.TimerProgress, last_due_ms: int
) -> None:
    """Reports pending messages of a wheel and a log that have no slot in common."""
    slots = sum(_slots_ahead(wheel, precision, progress) for precision in t.PRECISIONS_MS)
    if slots:
        detail = f"{slots} slots are in use, the timer log has no unit of theirs"
        reader.report("timer.wrong-slot", file=_wheel_path(reader), detail=detail)
    elif last_due_ms > progress.read_time_ms + MARGIN_MS:
        detail = (
            f"the timer log has messages that are due until {last_due_ms}, the wheel has no slot of theirs"
        )
        reader.report("timer.wrong-slot", file=_wheel_path(reader), detail=detail)


def _slots_ahead(wheel: Array, precision_ms: int, progress: t.TimerProgress) -> int:
    """The number of slots that are still to be delivered if the wheel has this precision."""
    ahead_ms = wheel["time"] * precision_ms - progress.read_time_ms
    return int(np.count_nonzero((ahead_ms > precision_ms) & (ahead_ms < SLOTS * precision_ms)))


def _wheel_path(reader: ReplicaReader) -> str:
    return reader.path("timerwheel")


@dataclass(frozen=True)
class _QueueBlock:
    """A part of the timer topic's queue, and where its first record lies."""

    offset: int
    physical: int


class _TimerQueue:
    """The timer topic's queue. `mark` notes which of its messages have units; one byte for each message."""

    def __init__(self, reader: ReplicaReader, queue: QueueReader) -> None:
        self._reader, self._queue = reader, queue
        self._blocks = [_QueueBlock(int(units.offsets[0]), int(units.physical[0])) for units in queue.units()]
        self._starts = np.array([block.physical for block in self._blocks], np.int64)
        self._seen = np.zeros(max(queue.end - queue.first, 0), bool)
        self._cached: tuple[int, Any] = (-1, None)
        self._deletions_left = MISSING_READ_MAX

    def mark(self, positions: Array, units: Array) -> None:
        """Notes the records of units, and reports units without a record."""
        physical, sizes = units["physical"].astype(np.int64), units["size"].astype(np.int64)
        live = np.flatnonzero(physical >= self._reader.log.extent.start)
        block_numbers = np.searchsorted(self._starts, physical[live], "right") - 1
        for number in np.unique(block_numbers).tolist():
            chosen = live[block_numbers == number]
            found = np.zeros(len(chosen), bool)
            if number >= 0:
                block = self._block(number)
                at = np.minimum(np.searchsorted(block.physical, physical[chosen]), len(block.physical) - 1)
                found = (block.physical[at] == physical[chosen]) & (block.sizes[at] == sizes[chosen])
                self._seen[block.offsets[at[found]] - self._queue.first] = True
                self._check_deletions(positions, units, chosen[found])
            for one in chosen[~found].tolist():
                self._report_no_record(int(positions[one]), int(physical[one]), int(sizes[one]))

    def _check_deletions(self, positions: Array, units: Array, chosen: Array) -> None:
        """Reports units that delete another message although their record does not ask for it: the message of
        such a unit is never delivered."""
        deleting = chosen[units["magic"][chosen] & MAGIC_DELETE != 0][: self._deletions_left]
        self._deletions_left -= len(deleting)
        for one in deleting.tolist():
            physical, position = int(units["physical"][one]), int(positions[one])
            message = self._reader.message(physical, int(units["size"][one]))
            if message is None or PROPERTY_TIMER_DEL_UNIQKEY in parse_properties(message.properties):
                continue
            parts = (part for part in self._reader.contents.timer_log if part.holds(position))
            file = next((part.location for part in parts), None)
            detail = f"unit at {position} deletes a message, its record has no {PROPERTY_TIMER_DEL_UNIQKEY}"
            self._reader.report("timer.broken-unit", file=file, start_offset=physical, detail=detail)

    def _report_no_record(self, position: int, physical: int, size: int) -> None:
        if not self._reader.stopped and physical + size > self._reader.log.dispatched_end:
            return  # the queue may not have it yet
        detail = f"unit at {position}: no message of the timer topic with {size} bytes starts there"
        self._reader.report("timer.no-record", topic=TIMER_TOPIC, start_offset=physical, detail=detail)

    def _block(self, number: int) -> Any:
        if self._cached[0] != number:
            self._cached = number, next(iter(self._queue.units(self._blocks[number].offset)))
        return self._cached[1]

    def report_missing(self, progress: t.TimerProgress) -> None:
        """Reports messages that are still to be delivered and have no unit. Raises OSError."""
        queue = self._queue
        delivered_ms = max(progress.read_time_ms, _last_store_time(self._reader)) + MARGIN_MS
        end, left = min(progress.queue_offset, queue.end), MISSING_READ_MAX
        for units in queue.units():
            unseen = (units.offsets < end) & ~self._seen[units.offsets - queue.first]
            for index in np.flatnonzero(unseen)[:left].tolist():
                left -= 1
                message = self._reader.message(int(units.physical[index]), int(units.sizes[index]))
                if message is not None:
                    self._check_delivered(int(units.offsets[index]), message, delivered_ms)

    def _check_delivered(self, offset: int, message: MessageExt, delivered_ms: int) -> None:
        properties = parse_properties(message.properties)
        due = properties.get(PROPERTY_TIMER_OUT_MS, "")
        if due.isdecimal() and int(due) >= delivered_ms and PROPERTY_REAL_TOPIC in properties:
            self._reader.report(
                "timer.missing-unit",
                topic=TIMER_TOPIC,
                queue_id=0,
                queue_offset=offset,
                start_offset=message.physical_offset,
                message_id=properties.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX),
                store_timestamp=message.store_timestamp,
                detail=f"due at {due} for {properties[PROPERTY_REAL_TOPIC]}",
            )


def _last_store_time(reader: ReplicaReader) -> int:
    """The store time of the newest message that the store's checkpoint knows, epoch ms."""
    data = reader.small_file("checkpoint") or b""
    end = PHYSIC_MSG_TIMESTAMP_AT + FIELD.size
    return int(FIELD.unpack_from(data, PHYSIC_MSG_TIMESTAMP_AT)[0]) if len(data) >= end else 0
