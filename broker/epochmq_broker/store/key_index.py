"""The index files of a store and the messages that wait to be put into them (IndexService).

Dispatch to the index is deferred: the append path only notes what it has in hand, and `build` turns the
notes into entries when there are enough of them, before a query, and at every tick of the flusher. The
files are the same bytes as if every message had been dispatched alone.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from epochmq_broker.store.index_file import IndexEntry, IndexFile
from epochmq_broker.store.key_hash import MASK, POWER_2, POWER_4, KeyHasher, heads, pairs
from epochmq_broker.store.mapped_file import DiskFullError, StoreDamagedError
from epochmq_broker.store.page_residency import PageResidency
from epochmq_broker.store.record import TRANSACTION_MASK, TRANSACTION_ROLLBACK, DispatchRequest
from epochmq_protocol import javahash

UNIQ_KEY_SIZE: Final = 32  # of a client with an IPv4 address
BUILD_THRESHOLD: Final = 256  # messages that wait before they are put into the file
BUILD_BATCH_MAX: Final = 8192  # messages put into the file at a time: what an error makes be hashed again
INDEX_BACKLOG_MAX: Final = 100_000  # messages that may wait while the index fails; then puts are refused

# (hasher of the topic, unique key, KEYS, physical offset, store time in epoch ms)
UnindexedMessage = tuple[KeyHasher, str | None, str | None, int, int]


def index_file_name(now_ms: int) -> str:
    """Name of an index file: local time to the millisecond (UtilAll.timeMillisToHumanString)."""
    return time.strftime("%Y%m%d%H%M%S", time.localtime(now_ms // 1000)) + f"{now_ms % 1000:03d}"


class KeyIndex:
    """The index files, oldest first. `waiting` is appended to directly by the append path."""

    def __init__(self, directory: Path, slots: int, capacity: int) -> None:
        self.directory = directory
        self.files: list[IndexFile] = []
        self.waiting: list[UnindexedMessage] = []
        # Called with a file that has just become full; the store flushes it and moves the checkpoint.
        self.on_full: Callable[[IndexFile], None] | None = None
        self._slots = slots
        self._capacity = capacity
        self._hashers: dict[str, KeyHasher] = {}
        # The last build failed: only a tick or a query tries again, not each message.
        self.failing = False

    def load(self, *, trusted_until: int | None, killed: bool = False) -> None:
        """Opens the files. After a crash of the machine (`trusted_until` given, epoch ms) files with newer
        messages are removed: what recovery reads is entered again. When only the process was `killed`, what
        it wrote is all there, and is kept. Raises StoreDamagedError or OSError."""
        if not self.directory.is_dir():
            return
        for path in sorted(path for path in self.directory.iterdir() if path.is_file()):
            if path.stat().st_size == 0:
                path.unlink()
                continue
            try:
                file = IndexFile(path, self._slots, self._capacity)
            except StoreDamagedError:
                if trusted_until is None and not killed:
                    raise
                path.unlink()
                continue
            if trusted_until is not None and file.end_timestamp > trusted_until:
                file.delete()
            else:
                self.files.append(file)
        if killed and self.files:
            self.files[-1].undo_unfinished_put()

    @property
    def end_physical(self) -> int:
        """Physical offset of the newest message in the files, 0 when there is none."""
        return self.files[-1].end_physical if self.files else 0

    def hasher(self, topic: str) -> KeyHasher:
        """The topic's hasher, made once."""
        hasher = self._hashers.get(topic)
        if hasher is None:
            hasher = self._hashers[topic] = KeyHasher(javahash.topic_seed(topic))
        return hasher

    def dispatch(self, message: DispatchRequest) -> None:
        """Takes a message parsed from the log; one the files have already is skipped. When the index
        cannot be written, messages wait. Raises DiskFullError or OSError when INDEX_BACKLOG_MAX do."""
        if message.physical_offset < self.end_physical:
            return
        if message.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
            return
        if message.uniq_key is None and message.keys is None:
            return
        self.waiting.append(
            (
                self.hasher(message.topic),
                message.uniq_key,
                message.keys,
                message.physical_offset,
                message.store_timestamp,
            )
        )
        waiting = len(self.waiting)
        if waiting < (INDEX_BACKLOG_MAX if self.failing else BUILD_THRESHOLD):
            return
        try:
            self.build()
        except (DiskFullError, OSError):
            if waiting >= INDEX_BACKLOG_MAX:
                raise

    def build(self, most: int | None = None) -> None:
        """Puts what waits into the files, at most so many messages (in steps of BUILD_BATCH_MAX). Raises
        DiskFullError or OSError; what was not put still waits then."""
        waiting = self.waiting
        count = 0
        self.failing = bool(waiting)
        while waiting and (most is None or count < most):
            part = waiting[:BUILD_BATCH_MAX]
            self._build(part)
            del waiting[: len(part)]
            count += len(part)
        self.failing = len(waiting) >= BUILD_THRESHOLD

    def _build(self, waiting: list[UnindexedMessage]) -> None:
        """Puts these messages into the files; after an error `self.waiting` begins with the first that is
        not."""
        entries: list[IndexEntry] = []
        add = entries.append
        for hasher, uniq_key, keys, physical, timestamp in waiting:
            if uniq_key:
                if len(uniq_key) == UNIQ_KEY_SIZE and uniq_key.isascii():
                    # What the hasher does, without the call: this is most of the work there is.
                    value = (
                        hasher[UNIQ_KEY_SIZE]
                        + heads[uniq_key[:28]] * POWER_4
                        + pairs[uniq_key[28:30]] * POWER_2
                        + pairs[uniq_key[30:]]
                    ) & MASK
                    add((value if value < 0x8000_0000 else -value & 0x7FFF_FFFF, physical, timestamp))
                else:
                    add((hasher(uniq_key), physical, timestamp))
            if keys:
                for key in keys.split(" "):
                    if key:
                        add((hasher(key), physical, timestamp))
        done = 0
        try:
            while done < len(entries):
                file = self.files[-1] if self.files else None
                if file is None or file.full:
                    file = self._next(file)
                done = file.put(entries, done)
                if file.full and self.on_full is not None:
                    self.on_full(file)
        except (DiskFullError, OSError):
            # A message is entered whole or again: a key may then be found twice, never not at all.
            behind = entries[done][1]
            del self.waiting[: next(at for at, note in enumerate(waiting) if note[3] >= behind)]
            raise

    def _next(self, full: IndexFile | None) -> IndexFile:
        self.directory.mkdir(parents=True, exist_ok=True)
        now_ms = time.time_ns() // 1_000_000
        while (path := self.directory / index_file_name(now_ms)).exists():
            now_ms += 1
        try:
            file = IndexFile(path, self._slots, self._capacity)
        except DiskFullError:
            path.unlink(missing_ok=True)
            raise
        if full is not None:
            file.begin(full.end_physical, full.end_timestamp)
        self.files.append(file)
        return file

    def find(
        self,
        topic: str,
        key: str,
        limit: int,
        begin_ms: int,
        end_ms: int,
        residency: PageResidency | None = None,
    ) -> list[int]:
        """Physical offsets of messages of a topic with this key (or unique key), newest file first. Some
        may have another key with the same hash. What waits is entered first; on a full disk it is not
        found. With `residency`, nothing is read from the disk: raises NotResidentError."""
        with contextlib.suppress(DiskFullError, OSError):
            self.build()
        hashed = self.hasher(topic)(key)
        found: list[int] = []
        for file in reversed(self.files):
            if file.covers(begin_ms, end_ms):
                file.find(hashed, begin_ms, end_ms, found, limit, residency)
            if len(found) >= limit or file.begin_timestamp < begin_ms:
                break
        return found

    def expire(self, min_physical: int) -> list[IndexFile]:
        """Takes out files all of whose messages the log has lost, never the last one; the caller deletes
        them."""
        expired = []
        while len(self.files) > 1 and self.files[0].end_physical < min_physical:
            expired.append(self.files.pop(0))
        return expired

    def truncate(self, physical: int) -> None:
        """Forgets what waits and lies behind the cut. Entries in the files stay, as in Java: a reader finds
        no record for them, or another message, which it tells apart by its key. The files' ends are pulled
        back, so that what the log gets in their place is entered (Java would skip it)."""
        self.waiting[:] = [note for note in self.waiting if note[3] < physical]
        for file in self.files:
            if file.end_physical > physical:
                file.end_physical = physical
                file.store_header()

    def close(self) -> None:
        """Enters what waits, flushes and closes all files. Raises DiskFullError or OSError."""
        try:
            self.build()
            for file in self.files:
                file.flush()
        finally:
            for file in self.files:
                file.close()
            self.files = []
