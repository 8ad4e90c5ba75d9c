"""Indexes messages by key: the index files of a store, and the backlog of messages that are not in them yet
(IndexService).

Indexing is deferred: the append path only adds a message's keys to the backlog. `build` enters the backlog
into the files when it is long enough, before a query, and at every tick of the log flusher. The files are the
same bytes as if each message were entered alone.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from epochmq_protocol import javahash
from epochmq_protocol.message_const import TRANSACTION_ROLLBACK_TYPE
from epochmq_store.files.mapped_file import DiskFullError, StoreDamagedError
from epochmq_store.files.page_residency import PageResidency
from epochmq_store.index.index_file import IndexEntry, IndexFile
from epochmq_store.index.key_hash import MASK, POWER_2, POWER_4, KeyHasher, pair_hashes, prefix_hashes
from epochmq_store.record import DispatchRequest

UNIQ_KEY_SIZE: Final = 32  # characters, of a client with an IPv4 address
BUILD_THRESHOLD: Final = 256  # messages; a backlog of this length is entered into the files
BUILD_BATCH_MAX: Final = 8192  # messages entered at a time; after an error so many are hashed again
INDEX_BACKLOG_MAX: Final = 100_000  # messages; while the index fails, a longer backlog rejects puts

# (hasher of the topic, UNIQ_KEY, KEYS, physical offset, store time in epoch ms)
UnindexedMessage = tuple[KeyHasher, str | None, str | None, int, int]


def index_file_name(now_ms: int) -> str:
    """The name of an index file: local time with milliseconds (UtilAll.timeMillisToHumanString)."""
    return time.strftime("%Y%m%d%H%M%S", time.localtime(now_ms // 1000)) + f"{now_ms % 1000:03d}"


class KeyIndex:
    """The index files, oldest first. The append path appends to `backlog` directly."""

    def __init__(self, directory: Path, slots: int, capacity: int) -> None:
        self.directory = directory
        self.files: list[IndexFile] = []
        self.backlog: list[UnindexedMessage] = []
        self._on_file_full: Callable[[IndexFile], None] | None = None
        self._slots = slots
        self._capacity = capacity
        self._hashers: dict[str, KeyHasher] = {}
        # The last build failed. Ticks and queries retry, single messages do not.
        self.failing = False

    def report_full_files(self, on_file_full: Callable[[IndexFile], None] | None) -> None:
        """Calls `on_file_full` with each file that becomes full from now on; None: no call. The store flushes
        the file and moves the checkpoint."""
        self._on_file_full = on_file_full

    def load(self, *, trusted_until: int | None, killed: bool = False) -> None:
        """Opens the files. After a crash of the machine, `trusted_until` (epoch ms) is set: files with newer
        messages are deleted, and recovery enters their messages again. If only the process was `killed`, all
        its writes exist, and the files are kept. Raises StoreDamagedError or OSError."""
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
        """Physical offset of the newest message in the files, 0 without one."""
        return self.files[-1].end_physical if self.files else 0

    def hasher(self, topic: str) -> KeyHasher:
        """The topic's hasher, created once."""
        hasher = self._hashers.get(topic)
        if hasher is None:
            hasher = self._hashers[topic] = KeyHasher(javahash.topic_seed(topic))
        return hasher

    def dispatch(self, message: DispatchRequest) -> None:
        """Adds a message that was parsed from the log; skips one that the files have already. While the index
        cannot be written, the backlog grows. Raises DiskFullError or OSError at INDEX_BACKLOG_MAX."""
        if message.physical_offset < self.end_physical:
            return
        if message.sys_flag & TRANSACTION_ROLLBACK_TYPE == TRANSACTION_ROLLBACK_TYPE:
            return
        if message.uniq_key is None and message.keys is None:
            return
        self.backlog.append(
            (
                self.hasher(message.topic),
                message.uniq_key,
                message.keys,
                message.physical_offset,
                message.store_timestamp,
            )
        )
        size = len(self.backlog)
        if size < (INDEX_BACKLOG_MAX if self.failing else BUILD_THRESHOLD):
            return
        try:
            self.build()
        except (DiskFullError, OSError):
            if size >= INDEX_BACKLOG_MAX:
                raise

    def build(self, max_messages: int | None = None) -> None:
        """Enters the backlog into the files, at most `max_messages` (in steps of BUILD_BATCH_MAX). Raises
        DiskFullError or OSError; messages that were not entered stay in the backlog."""
        backlog = self.backlog
        count = 0
        self.failing = bool(backlog)
        while backlog and (max_messages is None or count < max_messages):
            batch = backlog[:BUILD_BATCH_MAX]
            self._build(batch)
            del backlog[: len(batch)]
            count += len(batch)
        self.failing = len(backlog) >= BUILD_THRESHOLD

    def _build(self, messages: list[UnindexedMessage]) -> None:
        """Enters these messages, the first of the backlog, into the files. After an error the backlog starts
        with the first message that was not entered."""
        entries: list[IndexEntry] = []
        add = entries.append
        for hasher, uniq_key, keys, physical, timestamp in messages:
            if uniq_key:
                if len(uniq_key) == UNIQ_KEY_SIZE and uniq_key.isascii():
                    # The hasher's computation inlined, because it is most of the work here.
                    value = (
                        hasher[UNIQ_KEY_SIZE]
                        + prefix_hashes[uniq_key[:28]] * POWER_4
                        + pair_hashes[uniq_key[28:30]] * POWER_2
                        + pair_hashes[uniq_key[30:]]
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
                    file = self._add_file(file)
                done = file.put(entries, done)
                if file.full and self._on_file_full is not None:
                    self._on_file_full(file)
        except (DiskFullError, OSError):
            # A message with only some of its keys entered is entered again as a whole: a query may find it
            # twice, but never misses it.
            first_missing = entries[done][1]
            del self.backlog[: next(at for at, one in enumerate(messages) if one[3] >= first_missing)]
            raise

    def _add_file(self, full: IndexFile | None) -> IndexFile:
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
            file.continue_from(full.end_physical, full.end_timestamp)
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
        """Physical offsets of the topic's messages with this key or unique key, newest file first. Messages
        of other keys with the same hash are among them. Enters the backlog first; on a full disk its messages
        are not found. With `residency`, raises NotResidentError instead of reading from the disk."""
        with contextlib.suppress(DiskFullError, OSError):
            self.build()
        hashed = self.hasher(topic)(key)
        offsets: list[int] = []
        for file in reversed(self.files):
            if file.covers(begin_ms, end_ms):
                file.find(hashed, begin_ms, end_ms, offsets, limit, residency)
            if len(offsets) >= limit or file.begin_timestamp < begin_ms:
                break
        return offsets

    def expire(self, min_physical: int) -> list[IndexFile]:
        """Removes and returns the files without any message left in the log, except the last file. The caller
        deletes them."""
        expired = []
        while len(self.files) > 1 and self.files[0].end_physical < min_physical:
            expired.append(self.files.pop(0))
        return expired

    def truncate(self, physical: int) -> None:
        """Removes messages at or after this offset from the backlog. Their entries in the files stay, as in
        RocketMQ: a query finds no record there, or another message, whose key differs. The ends in the files'
        headers are lowered, so that new messages at these offsets are entered (RocketMQ skips them)."""
        self.backlog[:] = [one for one in self.backlog if one[3] < physical]
        for file in self.files:
            if file.end_physical > physical:
                file.end_physical = physical
                file.store_header()

    def close_files(self) -> None:
        """Closes the files without a flush, and drops the backlog."""
        for file in self.files:
            file.close()
        self.files = []
        self.backlog.clear()

    def close(self) -> None:
        """Enters the backlog, flushes and closes all files. Raises DiskFullError or OSError."""
        try:
            self.build()
            for file in self.files:
                file.flush()
        finally:
            for file in self.files:
                file.close()
            self.files = []
