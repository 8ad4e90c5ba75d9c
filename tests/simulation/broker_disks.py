"""The disk of a simulated broker: what is written, what is flushed, and what a power loss leaves of the rest.

The commit log is the records' bytes (`records.RecordLog`). A power loss keeps an arbitrary subset of the
pages that were written and not flushed; the others hold zeros, and recovery truncates the log at the first
record that is not whole and sound. Small files (identity, epochs, doubt) are replaced durably, as
`epochmq_protocol.durable_files.replace_file` does it; the checkpoint and the consumers' offsets are older
states of themselves.

Faults, each by the seed: a full disk takes a part of a write and no new file (ENOSPC); a broken disk fails
every call (EIO); a flush fails, once, after which none of the pages that it should have written may be on
disk, and later flushes prove nothing; a lying disk reports flushes that never happened.
"""

from __future__ import annotations

import errno
import random
from typing import TYPE_CHECKING

import msgspec

from epochmq_broker.store.tail_state import AbortRecord, LogTail, TailState, assess_tail
from tests.simulation.records import RecordLog

if TYPE_CHECKING:
    from tests.simulation.clockwork import World

PAGE = 64
"""Bytes that reach the disk together. Records have 15 to 75, so that a page holds several or a part of
one."""
SHARES = (0.0, 0.1, 0.5, 0.9, 1.0)
"""The shares of unflushed pages that power losses keep; each loss draws one of them."""


STUCK_MS = 600_000.0


class BrokerDisk:
    """One broker's disk. `flushed` is how far the broker believes the log to be on disk, `durable` how far it
    is."""

    def __init__(self, world: World, name: str, *, sync_flush: bool, lies: bool = False) -> None:
        self.world = world
        self.name = name
        self.sync_flush = sync_flush
        self.lies = lies
        self.flushed = 0
        self.durable = 0
        self.full_until = self.broken_until = self.slow_until = 0.0
        self.stuck = False
        """Whether flushes do not end."""
        self.fails_next = False
        """Whether the next flush fails."""
        self.failed = False
        """Whether a flush has failed since the broker started."""
        self.boot = 1
        self.abort: AbortRecord | None = None
        """What the abort file says."""
        self.damaged = False
        """Whether flushed bytes are gone by the disk's own fault: it lied, or bytes rotted."""

    # Calls --------------------------------------------------------------------------------------------------

    def check(self, what: str) -> None:
        """OSError while the disk takes nothing new."""
        now = self.world.now
        if self.world.quiet:
            return
        if self.broken_until > now:
            self.world.happened("broker calls failed (EIO)")
            raise OSError(errno.EIO, f"{self.name}: {what}: I/O error")
        if self.full_until > now:
            self.world.happened("broker calls failed (ENOSPC)")
            raise OSError(errno.ENOSPC, f"{self.name}: {what}: no space left")

    def append(self, log: RecordLog, data: bytes) -> None:
        """Appends bytes. OSError, with a part of them written, while the disk is full or broken."""
        try:
            self.check("append")
        except OSError:
            log.data += data[: self.world.random.randint(0, max(len(data) - 1, 0))]
            raise
        log.data += data

    def truncate(self, log: RecordLog, offset: int) -> None:
        """Truncates durably. OSError, and nothing changed, while the disk is broken."""
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
        """A flush that began when the log ended at `end` has returned; whether it succeeded."""
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
        """A flush has failed, and the abort file says so."""
        self.failed = True
        if self.abort is not None:
            self.abort = msgspec.structs.replace(self.abort, flush_failed=True)
        self.world.happened("broker flushes failed")

    # What befalls it ----------------------------------------------------------------------------------------

    def lose_power(self, log: RecordLog, rng: random.Random, share: float | None = None) -> int:
        """The power fails: of the pages that were not flushed some are there, by chance or by the share of
        them that is told. Returns how many bytes are lost. The log ends with the last record in front of the
        first one that is not sound."""
        before = log.end
        self.boot += 1
        self._drop_pages(log.data, rng, rng.choice(SHARES) if share is None else share)
        log.recover()
        if log.end < self.flushed:
            self.damaged = True
            self.world.happened("flushed bytes lost by a lying disk")
        return before - log.end

    def _drop_pages(self, data: bytearray, rng: random.Random, share: float) -> None:
        end, at = len(data), self.durable
        while at < end:
            until = min(at - at % PAGE + PAGE, end)
            if rng.random() >= share:
                data[at:until] = bytes(until - at)
                self.world.happenings["broker pages lost"] += 1
            at = until

    def forget_failed_pages(self, log: RecordLog, rng: random.Random, share: float | None = None) -> None:
        """The process ends after a failed flush: the kernel has taken the pages for clean, and may have
        dropped them."""
        self._drop_pages(log.data, rng, rng.choice(SHARES) if share is None else share)
        log.recover()

    def replaced(self) -> None:
        """An empty disk takes its place."""
        self.flushed = self.durable = 0
        self.failed = self.damaged = False
        self.abort = None

    def rot(self, log: RecordLog, rng: random.Random) -> bool:
        """One bit of a file at rest changes; False for an empty log."""
        if not log.data:
            return False
        at = max(0, len(log.data) - 1 - int(rng.expovariate(1 / 600)))
        log.data[at] ^= 1 << rng.randrange(8)
        self.damaged = True
        return True

    def open(self, log: RecordLog) -> LogTail:
        """A start judges the end of the log, recovers it, and flushes what it found: a killed process may
        have left it in memory only (`store.abort_file`, `MessageStore.load`)."""
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
        """What the log lacked is there again."""
        if self.abort is not None:
            self.abort = msgspec.structs.replace(self.abort, inherited=TailState.INTACT)
