"""Keeps the compacted log of one queue of a compaction topic: appends keyed messages, removes all but the
newest of each key, and returns the messages from an offset on (CompactionLog).

The methods wait for the disk, so they run on worker threads: appends on one thread, compactions on another,
gets on several. `max_offset` and `min_offset` may be read on any thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from epochmq_broker.services.compaction.file_pairs import NO_MESSAGE, FilePair, FilePairs, FileSizes
from epochmq_broker.services.compaction.keyed_records import KeyedRecord, has_body, key_of
from epochmq_broker.services.compaction.newest_offsets import NewestOffsets
from epochmq_broker.services.compaction.pair_replacement import (
    COMPACTING,
    Replacement,
    discard_new_files,
    finish_replacement,
    replace_files,
)
from epochmq_broker.services.compaction.position_file import CompactionPositions
from epochmq_store.statuses import GetResult, GetStatus, StoreReadError

log = logging.getLogger(__name__)

GET_MAX: Final = 1024
"""Messages of one get at most; RocketMQ's clients get 32 at a time."""
BATCH_RECORDS: Final = 256
"""A compaction writes so many records at a time."""


class GetLimits(NamedTuple):
    """The limits of one get. A message further than `memory_bytes` from the end of the compacted log counts
    as one on the disk."""

    messages: int
    bytes: int
    memory_messages: int
    memory_read_bytes: int
    disk_messages: int
    disk_read_bytes: int
    memory_bytes: int


class CompactionOutcome(NamedTuple):
    """What a compaction has done."""

    messages_before: int
    messages_after: int


class CompactedQueue:
    """The compacted log of one queue. `pause` is called often during a compaction; it may sleep, or raise to
    end the compaction."""

    def __init__(
        self,
        *,
        topic: str,
        queue_id: int,
        directory: Path,
        sizes: FileSizes,
        positions: CompactionPositions,
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        """`directory` is the store's directory `compaction`."""
        self.topic = topic
        self.queue_id = queue_id
        self.min_offset = NO_MESSAGE
        self.max_offset = 0
        self.deleted = False
        self._failed = False  # an exchange of files was neither completed nor dropped
        self._positions = positions
        self._pause = pause
        self._files = FilePairs(
            directory / "compactionLog" / topic / str(queue_id),
            directory / "compactionCq" / topic / str(queue_id),
            sizes,
        )
        self._lock = threading.Lock()  # held while files are read, written or exchanged

    def __str__(self) -> str:
        return f"{self.topic}-{self.queue_id}"

    @property
    def is_new(self) -> bool:
        """Whether the topic has no directory yet, so that there is nothing to open."""
        folders = self._files.log_directory.parent, self._files.queue_directory.parent
        return not any(folder.exists() for folder in folders)

    def load(self, *, trusted: bool) -> None:
        """Opens the files, see `FilePairs.load`; completes a compaction that was interrupted."""
        finish_replacement(self._files.log_directory, self._files.queue_directory)
        self._files.load(trusted=trusted)
        self._update_limits()

    def _update_limits(self) -> None:
        self.min_offset, self.max_offset = self._files.min_offset, self._files.max_offset

    def append(self, records: Iterable[KeyedRecord]) -> None:
        """Adds messages; those that the queue has already are skipped."""
        with self._lock:
            if self.deleted:
                return
            self._require_whole_files()
            try:
                self._files.append(records)
            finally:
                self._update_limits()

    def sync(self) -> None:
        """Makes the appended messages durable."""
        with self._lock:
            if not self.deleted:
                self._files.sync()

    def truncate_to(self, offset: int) -> None:
        """Removes the messages at and after this queue offset, because the commit log has lost them."""
        with self._lock:
            if offset >= self.max_offset:
                return
            self._files.truncate_to(offset)
            self._files.sync()
            if self._positions.get(self.topic, self.queue_id) >= offset:
                self._positions.set(self.topic, self.queue_id, offset - 1)
            self._update_limits()

    def delete(self) -> None:
        """Deletes the files, because the topic was deleted."""
        with self._lock:
            self.deleted = True
            self._files.delete_all()
            finish_replacement(self._files.log_directory, self._files.queue_directory)
            for directory in (self._files.log_directory, self._files.queue_directory):
                for path in (directory, directory.parent):
                    if path.is_dir() and not any(path.iterdir()):
                        path.rmdir()
            self._positions.remove(self.topic, self.queue_id)
            self._update_limits()

    def _require_whole_files(self) -> None:
        if self._failed:
            raise StoreReadError(
                f"the files of {self} could not be exchanged after a compaction: free space in "
                f"{self._files.log_directory} and restart the broker"
            )

    # Reading

    def result_without_reads(self, offset: int) -> GetResult | None:
        """The result of a get that finds nothing (CompactionLog.getMessage); None if it has to read. Offsets
        before the first message lead to it."""
        minimum, maximum = self.min_offset, self.max_offset
        if maximum == 0:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, minimum, maximum)
        if offset == maximum:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, minimum, maximum)
        if offset > maximum:
            next_offset = maximum if minimum else minimum
            return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, next_offset, minimum, maximum)
        return None

    def get(self, offset: int, limits: GetLimits) -> GetResult:
        """The messages at and after this offset, from one file. The first message is returned whatever its
        size."""
        with self._lock:
            found = self.result_without_reads(offset)
            if found is not None:
                return found
            self._require_whole_files()
            minimum, maximum = self.min_offset, self.max_offset
            place = self._files.find(offset)
            if place is None:
                return GetResult(GetStatus.OFFSET_FOUND_NULL, 0, minimum, maximum)
            pair, number = place
            count_max = min(limits.messages, GET_MAX)
            start = end = -1
            count, last = 0, offset - 1
            for unit in self._files.units(pair, number, min(pair.units - number, max(count_max, 1))):
                if count and self._is_full(unit.physical, count, end - start + unit.size, limits):
                    break
                if start < 0:
                    start = unit.physical
                end = unit.physical + unit.size
                last = unit.base
                count += 1
            data = self._files.read(pair, start - pair.start, end - start)
            return GetResult(
                GetStatus.FOUND, last + 1, minimum, maximum, (data,), len(data), count, physical_end=-1
            )

    def _is_full(self, physical: int, count: int, size: int, limits: GetLimits) -> bool:
        if count >= limits.messages or size > limits.bytes:
            return True
        if self._files.max_physical - physical > limits.memory_bytes:
            return size > limits.disk_read_bytes or count >= limits.disk_messages
        return size > limits.memory_read_bytes or count >= limits.memory_messages

    # Compaction

    def compact(self, table_bytes: int) -> CompactionOutcome | None:
        """Removes the messages of complete pairs that a newer one with the same key follows there, and those
        without a body (CompactionLog.doCompaction). Returns None without a new complete pair.

        The keys of new messages go into a table of `table_bytes`. When it is full, the messages after the
        last key wait for the next compaction; RocketMQ gives up then. As in RocketMQ a compaction that would
        leave no message changes nothing."""
        with self._lock:
            if self.deleted:
                return None
            complete = self._files.pairs[:-1]
        position = self._positions.get(self.topic, self.queue_id)
        new = [pair for pair in complete if pair.units and pair.last > position]
        if not new:
            return None
        newest = self._newest_offsets(new, position, table_bytes)
        log_directory, queue_directory = self._files.log_directory, self._files.queue_directory
        discard_new_files(log_directory, queue_directory)
        compacting = FilePairs(log_directory / COMPACTING, queue_directory / COMPACTING, self._files.sizes)
        try:
            self._write_newest(complete, newest, compacting)
            compacting.sync()
            is_exchanged = bool(compacting.pairs) and self._exchange(complete, compacting)
        except BaseException:
            if not self._failed:
                discard_new_files(log_directory, queue_directory)
            raise
        if not is_exchanged:
            discard_new_files(log_directory, queue_directory)
            return None
        self._positions.set(self.topic, self.queue_id, newest.last_offset)
        self._positions.write()
        return CompactionOutcome(
            sum(pair.units for pair in complete), sum(pair.units for pair in compacting.pairs)
        )

    def _newest_offsets(self, pairs: list[FilePair], position: int, table_bytes: int) -> NewestOffsets:
        newest = NewestOffsets(table_bytes)
        for pair in pairs:
            for unit, data in self._files.records(pair):
                self._pause()
                if unit.base > position and not newest.put(key_of(data), unit.base):
                    log.warning(
                        "the keys of %s do not fit into maxOffsetMapSize (%d bytes): this compaction ends at "
                        "queue offset %d",
                        self,
                        table_bytes,
                        newest.last_offset,
                    )
                    return newest
        return newest

    def _write_newest(self, pairs: list[FilePair], newest: NewestOffsets, target: FilePairs) -> None:
        batch: list[KeyedRecord] = []
        for pair in pairs:
            for unit, data in self._files.records(pair):
                self._pause()
                if unit.base > newest.last_offset or (
                    has_body(data) and unit.base >= newest.get(key_of(data))
                ):
                    batch.append(KeyedRecord(data, unit.base, unit.tags_code, unit.store_timestamp))
                    if len(batch) >= BATCH_RECORDS:
                        target.append(batch)
                        batch = []
        target.append(batch)

    def _exchange(self, complete: list[FilePair], compacted: FilePairs) -> bool:
        """Exchanges the pairs. False if they have changed meanwhile, by a truncation or deletion."""
        files = self._files
        plan = Replacement([pair.name for pair in complete], [pair.name for pair in compacted.pairs])
        with self._lock:
            unchanged = not self.deleted and files.pairs[: len(complete)] == complete
            if not unchanged or len(files.pairs) == len(complete):
                return False
            try:
                replace_files(files.log_directory, files.queue_directory, plan)
            except OSError:
                self._failed = True
                finish_replacement(files.log_directory, files.queue_directory)
                files.load(trusted=True)
                self._failed = False
                raise
            files.forget_unsynced(complete)
            files.pairs[: len(complete)] = compacted.pairs
            self._update_limits()
        return True
