"""Keeps wheel, timer log and checkpoint consistent with each other and with the commit log.

Every message in the wheel has a unit in the timer log. The unit names its record in the commit log, and the
previous unit of the same slot; the slot names its last unit. Units are in the order of the timer topic's
queue. So the newest messages can be taken back exactly: `remove_from` removes the last units, and sets their
slots to the units before. That is needed when the commit log is truncated, as other records may follow at the
same offsets, and when messages enter the wheel again.

A flush writes the timer log first, then the wheel, then the checkpoint. `load` accordingly adds the units to
the wheel that lie behind the checkpoint. It then continues at the checkpoint's offset in the timer topic's
queue, and takes back the units of later messages: each message has one unit, whatever a kill interrupted.
RocketMQ continues behind the last unit. It does not look at the commit log, and delivers whatever record it
finds at a unit's offset.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from epochmq_broker.config.broker_config import BrokerConfig
from epochmq_broker.services.timer.timer_checkpoint import read_checkpoint, write_checkpoint
from epochmq_broker.services.timer.timer_log import TimerLog, Unit
from epochmq_broker.services.timer.wheel import Slot, TimerWheel
from epochmq_formats.timer_checkpoint import FILE_NAME, TimerCheckpoint
from epochmq_formats.timer_log import (
    MAGIC_DEFAULT,
    MAGIC_DELETE,
    MAGIC_ROLL,
    NO_UNIT,
    UNIT,
    UNIT_BYTES,
)
from epochmq_formats.timer_wheel import WINDOW_SLOTS
from epochmq_protocol.durable_files import make_directory
from epochmq_protocol.topics import TIMER_TOPIC
from epochmq_store.files.mapped_file import DiskFullError, MappedFile
from epochmq_store.message_store import MessageStore
from epochmq_store.queues.consume_queue import ConsumeQueue

log = logging.getLogger(__name__)

NewUnit = tuple[int, int, int, int]
"""A message to add to the wheel: time of its slot in epoch ms, physical offset and size of its record, hash
code of its topic."""

FOLLOWED_SLOTS: Final = 1000
BLANK_SLOTS: Final = 60
"""Slots between the oldest time that the wheel may still hold and the newest."""


@dataclass(frozen=True, slots=True)
class TimerFlush:
    """What one flush writes: the state of one moment."""

    files: list[tuple[MappedFile, int]]
    log_end: int
    pages: list[tuple[int, bytes]]
    checkpoint: bytes


class TimerStore:
    """The files of one store. All methods run on the event loop, except `write`.

    `queue_offset` is the offset in the timer topic's queue up to which messages have units; the next one is
    added there. Slots before `write_time_ms` may be delivered, and get no more messages; those before
    `read_time_ms` were delivered. `pending` is the number of messages that are due at `read_time_ms` or
    later."""

    @classmethod
    def of(cls, config: BrokerConfig) -> TimerStore:
        """The files that these settings name; nothing is opened before `load`."""
        return cls(
            root=config.root_dir,
            config_dir=config.config_dir,
            file_size=config.mapped_file_size_timer_log,
            precision_ms=config.timer_precision,
        )

    def __init__(self, *, root: Path, config_dir: Path, file_size: int, precision_ms: int) -> None:
        self.wheel = TimerWheel(root / "timerwheel", precision_ms)
        self.log = TimerLog(root / "timerlog", file_size)
        self.checkpoint = TimerCheckpoint()
        self.queue_offset = 0
        self.read_time_ms = 0
        self.write_time_ms = 0
        self.pending = 0
        self._path = config_dir / FILE_NAME
        self._precision_ms = precision_ms

    # Recovery

    def load(self, store: MessageStore, present_ms: int) -> None:
        """Opens and repairs the files. The store is recovered. Raises StoreDamagedError or OSError."""
        make_directory(self._path.parent)
        self.checkpoint = checkpoint = read_checkpoint(self._path)
        complete = self.wheel.load()
        self.log.load()
        self.log.recover(checkpoint.log_flushed if complete else 0, self._add_recovered)
        self._repair_slots()
        self._check_wheel()
        self.queue_offset = self._first_offset_to_add(store)
        self.remove_from(self._physical_offset(store))
        checkpoint.queue_offset = self.queue_offset
        self._write_repairs()
        self.set_read_time(checkpoint.read_time_ms, present_ms)
        log.info(
            "the timer wheel has %d pending messages and continues at offset %d of its queue",
            self.pending,
            self.queue_offset,
        )

    def _write_repairs(self) -> None:
        """Writes what a recovery or a truncation has changed. A full disk does not prevent a start: a later
        flush writes it, or the next start repairs it again."""
        flush = self.prepare_flush()
        try:
            self.write(flush)
            self.flushed(flush)
        except OSError as error:
            log.error("the timer's files could not be written: %s", error)
            self.not_flushed(flush)

    def set_read_time(self, time_ms: int, present_ms: int) -> None:
        """Sets the time of the next slot to deliver; not later than the present time, and not so early that
        its slot may have been overwritten."""
        present = self.floor(present_ms)
        oldest = present - (WINDOW_SLOTS - BLANK_SLOTS) * self._precision_ms
        self.read_time_ms = min(max(self.floor(time_ms), oldest), present)
        if self.wheel.is_empty:
            self.read_time_ms = present
        self.pending = self.wheel.count_from(self.read_time_ms)

    def move_write_time(self, present_ms: int) -> None:
        """Moves the write time to the present time; never back."""
        self.write_time_ms = max(self.write_time_ms, self.floor(present_ms))

    def follow_read_time(self, time_ms: int, present_ms: int) -> None:
        """Sets the read time to the master's, which is usually a little later than the present one."""
        time_ms = self.floor(time_ms)
        if 0 <= time_ms - self.read_time_ms <= FOLLOWED_SLOTS * self._precision_ms:
            while self.read_time_ms < time_ms:
                self.pass_slot(self.read_time_ms)
        else:
            self.set_read_time(time_ms, present_ms)

    def floor(self, time_ms: int) -> int:
        """The time rounded down to the precision."""
        return time_ms - time_ms % self._precision_ms

    def _add_recovered(self, unit: Unit) -> None:
        """Adds a unit to its slot, unless the slot has it."""
        slot = self.wheel.slot(unit.time_ms)
        if slot is None:
            self.wheel.put(unit.time_ms, Slot(unit.position, unit.position, unit.weight, 0))
        elif unit.position > slot.last:
            self.wheel.put(unit.time_ms, Slot(slot.first, unit.position, slot.num + unit.weight, slot.magic))

    def _repair_slots(self) -> None:
        """Rebuilds the slots that name units which the log has lost."""
        broken = dict(self.wheel.linked_after(self.log.end))
        if not broken:
            return
        log.warning("%d slots of the timer wheel named lost units of the timer log", len(broken))
        start = min(slot.first for slot in broken.values())
        for time_ms in broken:
            self.wheel.clear(time_ms)
        if start < self.log.end:
            self.log.recover(
                start, lambda unit: self._add_recovered(unit) if unit.time_ms in broken else None
            )

    def _check_wheel(self) -> None:
        """Rebuilds the wheel if it does not lead to the last unit: it is another one's, or was made with
        another precision."""
        last = next(self.log.units_backwards(), None)
        if last is None:
            return
        slot = self.wheel.slot(last.time_ms)
        if slot is None or slot.last != last.position:
            log.warning("the timer wheel does not fit the timer log, and is rebuilt")
            self.wheel.clear_all()
            self.log.recover(0, self._add_recovered)

    def _first_offset_to_add(self, store: MessageStore) -> int:
        checkpoint = self.checkpoint
        queue = timer_queue(store)
        first, end = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
        offset = checkpoint.queue_offset
        if self.log.end < checkpoint.log_flushed:
            log.error("the timer log ends at %d, before %d", self.log.end, checkpoint.log_flushed)
            last = next(self.log.units_backwards(), None)
            offset = first if last is None or queue is None else offset_after(queue, last.offset)
        return min(max(min(offset, checkpoint.master_queue_offset), first), end)

    def _physical_offset(self, store: MessageStore) -> int:
        """The physical offset of the record at `queue_offset`; the end of the log without one."""
        queue = timer_queue(store)
        unit = None if queue is None else queue.unit(self.queue_offset)
        return store.max_phy_offset if unit is None else unit[0]

    # Messages

    def add(self, time_ms: int, enter_ms: int, offset: int, size: int, topic_hash: int, *, rolls: bool,
            deletes: bool) -> None:  # fmt: skip
        """Adds a message to the slot of this time. It entered the wheel at `enter_ms`; its record is at this
        physical offset. Raises DiskFullError or OSError; nothing has changed then."""
        slot = self.wheel.slot(time_ms) or Slot(NO_UNIT, NO_UNIT, 0, 0)
        magic = MAGIC_DEFAULT | (MAGIC_ROLL if rolls else 0) | (MAGIC_DELETE if deletes else 0)
        position = self.log.append(slot.last, magic, enter_ms, time_ms - enter_ms, offset, size, topic_hash)
        first = position if slot.first == NO_UNIT else slot.first
        weight = -1 if deletes else 1
        self.wheel.put(time_ms, Slot(first, position, slot.num + weight, slot.magic))
        if time_ms >= self.read_time_ms:
            self.pending += weight

    def room(self, count: int) -> int:
        """For how many of so many messages `add_all` has room now."""
        try:
            return self.log.reserve(count)
        except (DiskFullError, OSError):
            return 0  # `add` reports it

    def add_all(self, entries: Sequence[NewUnit]) -> None:
        """Adds messages that neither roll nor delete others, as `add` does, at the present write time. `room`
        has said that they fit."""
        precision_ms, enter_ms, read_time_ms = self._precision_ms, self.write_time_ms, self.read_time_ms
        pack, position = UNIT.pack, self.log.end
        slots: dict[int, list[int]] = {}
        units = []
        for time_ms, physical, size, topic_hash in entries:
            key = time_ms // precision_ms
            slot = slots.get(key)
            if slot is None:
                first, last, num, magic = self.wheel.slot(time_ms) or (NO_UNIT, NO_UNIT, 0, 0)
                slot = slots[key] = [position if first == NO_UNIT else first, last, num, magic]
            units.append(
                pack(
                    UNIT_BYTES,
                    slot[1],
                    MAGIC_DEFAULT,
                    enter_ms,
                    time_ms - enter_ms,
                    physical,
                    size,
                    topic_hash,
                    0,
                )
            )
            slot[1] = position
            slot[2] += 1
            position += UNIT_BYTES
            if time_ms >= read_time_ms:
                self.pending += 1
        self.log.append_packed(b"".join(units))
        for key, (first, last, num, magic) in slots.items():
            self.wheel.put(key * precision_ms, Slot(first, last, num, magic))

    def remove_from(self, physical: int) -> int:
        """Takes back the last units while their records lie at or after this physical offset; `queue_offset`
        is already where the messages enter again. Returns their number. No thread flushes meanwhile. Raises
        OSError."""
        end, removed = self.log.end, 0
        for unit in self.log.units_backwards():
            if unit.offset < physical:
                break
            time_ms = unit.time_ms
            slot = self.wheel.slot(time_ms)
            if slot is not None and slot.last == unit.position:
                if unit.previous == NO_UNIT:
                    self.wheel.clear(time_ms)
                else:
                    num = slot.num - unit.weight
                    self.wheel.put(time_ms, Slot(slot.first, unit.previous, num, slot.magic))
                if time_ms >= self.read_time_ms:
                    self.pending -= unit.weight
            end = unit.position
            removed += 1
        self.log.truncate(end)
        if end < self.checkpoint.log_flushed:
            # Other units will be at these positions: slots and checkpoint must not name them after a kill.
            self.checkpoint.queue_offset = min(self.checkpoint.queue_offset, self.queue_offset)
            self._write_repairs()
        return removed

    def remove_from_queue_offset(self, store: MessageStore, offset: int) -> None:
        """Takes back the messages from this offset of the timer topic's queue on, so that they enter the
        wheel again. Raises OSError."""
        queue = timer_queue(store)
        end = 0 if queue is None else queue.max_offset
        self.queue_offset = min(self.queue_offset, offset, end)
        self.remove_from(self._physical_offset(store))

    def pass_slot(self, time_ms: int) -> None:
        """Moves the read time behind this slot."""
        self.pending -= self.wheel.num(time_ms)
        self.read_time_ms = time_ms + self._precision_ms

    # Flush and expiry

    def prepare_flush(self) -> TimerFlush:
        """Takes what has to be written now. `write`, then `flushed` or `not_flushed` must follow."""
        end = self.log.end
        self.checkpoint.log_flushed = end
        return TimerFlush(self.log.unflushed(), end, self.wheel.take_dirty(), self.checkpoint.encode())

    def write(self, flush: TimerFlush) -> None:
        """Makes it durable, in this order: log, wheel, checkpoint. On any thread. Raises OSError."""
        for file, _ in flush.files:
            file.flush()
        self.wheel.write(flush.pages)
        write_checkpoint(self._path, flush.checkpoint)

    def flushed(self, flush: TimerFlush) -> None:
        """Notes that a flush has succeeded."""
        for file, wrote in flush.files:
            file.flushed = max(file.flushed, min(wrote, file.wrote))

    def not_flushed(self, flush: TimerFlush) -> None:
        """Notes that a flush has failed; the next one writes the same again."""
        self.wheel.return_dirty(flush.pages)

    def close(self) -> None:
        """Closes the files."""
        self.wheel.close()
        self.log.close()


def timer_queue(store: MessageStore) -> ConsumeQueue | None:
    """The queue of the timer topic, None before its first message."""
    return store.lookup.existing_queue(TIMER_TOPIC, 0)


def offset_after(queue: ConsumeQueue, physical: int) -> int:
    """The offset in the queue of the first message behind the record at this physical offset."""
    return queue.first_at_or_after(physical + 1, queue.min_offset, queue.max_offset)
