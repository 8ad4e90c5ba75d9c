"""Simulates the disk of a broker: what is written, what is flushed, and what survives a power loss.

The commit log is the records' bytes (`records.RecordLog`). A power loss keeps an arbitrary subset of the
pages that were written and not flushed. The others hold zeros, and recovery truncates the log at the first
record that is not complete and valid. Small files (identity, epochs, doubt) are replaced durably, as by
`epochmq_protocol.durable_files.replace_file`. The checkpoint and the consumer offsets may be older versions.

Faults are drawn by the seed. A full disk accepts a part of a write and no new file (ENOSPC). A broken disk
fails every call (EIO). A flush fails once; after it none of its pages may be on disk, and later flushes prove
nothing. A lying disk reports flushes that never happened."""

from __future__ import annotations

import errno
import random
from typing import TYPE_CHECKING

import msgspec

from epochmq_formats.abort_file import AbortRecord, TailState
from epochmq_store.state_files.tail_state import LogTail, assess_tail
from tests.simulation.records import RecordLog

if TYPE_CHECKING:
    from tests.simulation.clockwork import World

PAGE = 64
"""Bytes that reach the disk together. Records have 15 to 75 bytes, so that a page holds several or a part of
one."""
SHARES = (0.0, 0.1, 0.5, 0.9, 1.0)
"""The shares of unflushed pages that power losses keep; each loss draws one of them."""


STUCK_MS = 600_000.0


class BrokerDisk:
    """The disk of one broker. The broker takes the log to be on disk up to `flushed`; it is up to
    `durable`."""

    def __init__(self, world: World, name: str, *, sync_flush: bool, lies: bool = False) -> None:
        self.world = world
        self.name = name
        self.sync_flush = sync_flush
        self.lies = lies
        self.flushed = 0
        self.durable = 0
        self.full_until = self.broken_until = self.slow_until = 0.0
        self.stuck = False
        """Whether flushes never end."""
        self.fails_next = False
        """Whether the next flush fails."""
        self.failed = False
        """Whether a flush has failed since the broker started."""
        self.boot = 1
        self.abort: AbortRecord | None = None
        """The content of the abort file."""
        self.damaged = False
        """Whether flushed bytes are lost by a fault of the disk: it lied, or a bit changed."""

    # Calls --------------------------------------------------------------------------------------------------

    def check(self, what: str) -> None:
        """Raises OSError while the disk accepts no writes."""
        now = self.world.now
        if self.world.quiet:
            return
        if self.broken_until > now:
            self.world.count_event("broker calls failed (EIO)")
            raise OSError(errno.EIO, f"{self.name}: {what}: I/O error")
        if self.full_until > now:
            self.world.count_event("broker calls failed (ENOSPC)")
            raise OSError(errno.ENOSPC, f"{self.name}: {what}: no space left")

    def append(self, log: RecordLog, data: bytes) -> None:
        """Appends bytes. While the disk is full or broken it writes a part of them and raises OSError."""
        try:
            self.check("append")
        except OSError:
            log.data += data[: self.world.random.randint(0, max(len(data) - 1, 0))]
            raise
        log.data += data

    def truncate(self, log: RecordLog, offset: int) -> None:
        """Truncates durably. Raises OSError, with nothing changed, while the disk is broken."""
        if self.broken_until > self.world.now:
            self.check("truncate")
        log.truncate(offset)
        self.flushed = min(self.flushed, offset)
        self.durable = min(self.durable, offset)

    def flush_ms(self) -> float:
        """How long the next flush takes."""
        if self.stuck and not self.world.quiet:
            return STUCK_MS
        slow = self.slow_until > self.world.now and not self.world.quiet
        return self.world.random.random() * (600.0 if slow else 12.0)

    def flush_ended(self, end: int) -> bool:
        """Ends a flush that started when the log ended at `end`; whether it succeeded."""
        if self.failed:
            return False
        breaks = self.fails_next or self.broken_until > self.world.now
        if breaks and not self.world.quiet:
            self.fails_next = False
            self.fail()
            return False
        self.flushed = max(self.flushed, end)
        if not self.lies:
            self.durable = max(self.durable, end)
        return True

    def fail(self) -> None:
        """Fails a flush, and records that in the abort file."""
        self.failed = True
        if self.abort is not None:
            self.abort = msgspec.structs.replace(self.abort, flush_failed=True)
        self.world.count_event("broker flushes failed")

    # Faults of it ----------------------------------------------------------------------------------------

    def lose_power(self, log: RecordLog, rng: random.Random, share: float | None = None) -> int:
        """The power fails: a share of the unflushed pages survives, drawn or given. Returns how many bytes
        are lost. The log then ends before the first invalid record."""
        before = log.end
        self.boot += 1
        self._drop_pages(log.data, self.durable, rng, share)
        log.recover()
        if log.end < self.flushed:
            self.damaged = True
            self.world.count_event("flushed bytes lost by a lying disk")
        return before - log.end

    def _drop_pages(self, data: bytearray, at: int, rng: random.Random, share: float | None) -> None:
        """Drops all pages from `at` on but a share of them, drawn or given."""
        share = rng.choice(SHARES) if share is None else share
        end = len(data)
        while at < end:
            until = min(at - at % PAGE + PAGE, end)
            if rng.random() >= share:
                data[at:until] = bytes(until - at)
                self.world.event_counts["broker pages lost"] += 1
            at = until

    def forget_failed_pages(self, log: RecordLog, rng: random.Random, share: float | None = None) -> None:
        """The process ends after a failed flush: the kernel has marked the pages clean, and may have dropped
        them. A disk that lied about earlier flushes still has in its own memory what they wrote."""
        self._drop_pages(log.data, self.flushed, rng, share)
        log.recover()

    def replaced(self) -> None:
        """Replaces the disk by an empty one."""
        self.flushed = self.durable = 0
        self.failed = self.damaged = False
        self.abort = None

    def rot(self, log: RecordLog, rng: random.Random) -> bool:
        """Changes one bit of the log; False if the log is empty."""
        if not log.data:
            return False
        at = max(0, len(log.data) - 1 - int(rng.expovariate(1 / 600)))
        log.data[at] ^= 1 << rng.randrange(8)
        self.damaged = True
        return True

    def open(self, log: RecordLog) -> LogTail:
        """A start determines the state of the log's tail, recovers the log, and flushes it, because a killed
        process may have left bytes in the page cache only (`store.abort_file`, `MessageStore.load`)."""
        boot_id = f"boot {self.boot}"
        tail = assess_tail(self.abort, boot_id, None)
        lost_unflushed = tail.acknowledged_unflushed and tail.state is not TailState.INTACT
        self.abort = AbortRecord(
            boot_id=boot_id,
            identity=None,
            acknowledged_unflushed=not self.sync_flush or lost_unflushed,
            inherited=tail.state,
        )
        log.recover()
        self.failed = self.stuck = False
        self.flushed = log.end
        self.durable = min(self.durable, log.end) if self.lies else log.end
        return tail

    def clear_log_doubt(self) -> None:
        """Clears the inherited tail state: the log has everything again."""
        if self.abort is not None:
            self.abort = msgspec.structs.replace(self.abort, inherited=TailState.INTACT)
