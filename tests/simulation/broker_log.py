"""Simulates a broker's log: its bytes, its epochs, its doubt, and the disk below. The decisions are
production's (`ha.log_doubt`, `store.tail_state`).
"""

from __future__ import annotations

import contextlib
import zlib
from typing import TYPE_CHECKING

import msgspec

from epochmq_broker.replication.ha import log_doubt
from epochmq_broker.replication.ha.checksum_comparison import LogComparison, LogRange, may_truncate
from epochmq_broker.replication.ha.epochs import Epochs, HADivergedError, common_prefix_end
from epochmq_broker.replication.ha.log_doubt import LogDoubt
from epochmq_protocol.epoch_entries import EpochEntry
from tests.simulation.broker_disks import BrokerDisk
from tests.simulation.clockwork import Host
from tests.simulation.records import QueueOffsetError, RecordLog

if TYPE_CHECKING:
    from tests.simulation.group_world import GroupWorld


FILE_BYTES = 1024
"""The size of a log file. Recovery reads the log from the start of the file that holds the flushed offset."""


class SimulatedLogHost(Host):
    """A host with a commit log."""

    world: GroupWorld

    def __init__(self, world: GroupWorld, group: str, number: int) -> None:
        super().__init__(world, f"{group}{number}")
        self.group = group
        # On disk.
        self.log = RecordLog()
        self.disk = BrokerDisk(
            world,
            self.name,
            sync_flush=world.wanted.options.get("sync_flush", False),
            lies=world.wanted.options.get("liar") == self.name,
        )
        self.epochs = Epochs()
        self.doubt = self.doubt_kept = LogDoubt()
        """What the log may lack, in memory and on disk."""
        self.confirmed_kept = 0

    def forget(self) -> None:
        """Forgets what is in memory only."""
        self.confirmed = 0
        self.verified = 0
        """Up to which offset the log is known to be equal to the master's."""
        self.shown: int | None = 0
        """The offset up to which consumers see the log; None: all of it."""
        self.flushing = False
        self.cuts = 0
        """How often the log was truncated since the start."""

    def open_log(self) -> None:
        """Recovers the log, and determines what it may lack (`MessageStore.load`, `HAService.load`)."""
        if self.disk.failed:
            self.disk.forget_failed_pages(self.log, self.world.random)
            self.world.shorten(self.group, [self])
        recovery_start = self.disk.flushed - self.disk.flushed % FILE_BYTES
        tail = self.disk.open(self.log)
        doubt = log_doubt.doubt_after_start(
            self.doubt_kept,
            tail.state,
            may_lack_acknowledged=tail.may_lack_acknowledged,
            confirmed=self.confirmed_kept,
            end=self.log.end,
            recovery_start=recovery_start,
        )
        self.epochs.truncate_suffix(self.log.end + 1)
        with contextlib.suppress(OSError):
            self.keep_doubt(doubt)
            self.disk.clear_log_doubt()
        self.confirmed = min(self.confirmed_kept, self.log.end)
        self.verified = log_doubt.verified_until(self.doubt, self.confirmed, self.log.end)

    @property
    def written_epoch(self) -> int:
        """The epoch of the log's last byte."""
        return log_doubt.written_epoch(self.epochs.entries, self.log.end)

    @property
    def may_lack_acknowledged(self) -> bool:
        """Whether the log is in doubt now, or will be after a restart."""
        return self.doubt.in_doubt or self.disk.failed

    def lose_power(self, share: float | None = None) -> int:
        """The machine loses power; returns how many bytes of its log are lost."""
        return self.disk.lose_power(self.log, self.world.random, share)

    def keep_doubt(self, doubt: LogDoubt) -> None:
        """Changes the doubt in memory and on disk. OSError if it could be changed in memory only."""
        self.doubt = doubt
        if doubt != self.doubt_kept:
            self.disk.check("keep what is known of the log")
            self.doubt_kept = doubt

    def settle_doubt(self) -> None:
        """Ends the doubt. If that cannot be saved, the log is in doubt again after the next start."""
        if self.doubt == LogDoubt():
            return
        with contextlib.suppress(OSError):
            self.keep_doubt(log_doubt.no_doubt())
            self.disk.clear_log_doubt()
        self.world.count_event("doubts settled")

    def _end_whole(self) -> None:
        end = self.log.sound_end()
        if end < self.log.end:
            self.world.count_event("torn records")
            self.disk.truncate(self.log, end)
        self.confirmed = min(self.confirmed, self.log.end)

    def is_flushed(self, end: int) -> bool:
        """Whether the log is flushed up to `end`; with ASYNC_FLUSH no flush is required."""
        return not self.disk.sync_flush or end <= self.disk.flushed

    def flush(self) -> None:
        """Starts a flush of the present log, unless one is under way."""
        if self.flushing or self.disk.failed or self.disk.flushed >= self.log.end:
            return
        self.flushing = True
        self.later(self.disk.flush_ms(), self._flushed, self.log.end, self.cuts)

    def _flushed(self, end: int, cuts: int) -> None:
        """A flush has ended."""
        raise NotImplementedError

    def reported_end(self) -> int:
        """The end offset that a replica reports; -1: its disk has failed."""
        if self.disk.failed:
            return -1
        disk = self.disk
        return log_doubt.reported_end(sync_flush=disk.sync_flush, flushed=disk.flushed, end=self.log.end)

    def dispatch(self, limit: int) -> None:
        """Dispatches records up to this offset to their queues."""
        try:
            self.log.dispatch(limit)
        except QueueOffsetError as error:
            self.world.fail(f"{self.name}: queue offsets are not dense: {error}")

    def agree(self, theirs: list[EpochEntry], master_end: int, master: SimulatedLogHost) -> bool:
        """Truncates the log where it differs from the master's, by epochs and content; False if only an
        administrator could decide it. (The two logs are compared at one instant: meanwhile they only
        grow.)"""
        end, known = self.log.end, self.epochs.entries
        try:
            point = common_prefix_end(known, 0, end, theirs, master_end)
        except HADivergedError as error:
            self.world.diverged(self, str(error))
            return False
        if not known and end > 0:
            point, self.verified = min(end, master_end), 0
        difference = None
        if self.world.compares_logs:
            difference = first_difference(self.verified, point, self.log.data, master.log.data)
        if difference is not None:
            self.world.count_event("contents that differ")
            self.world.note(f"{self.name} differs from {master.name} at {difference}")
            if not may_truncate(difference, log_doubt.protected_until(self.doubt, self.confirmed)):
                self.doubt = msgspec.structs.replace(self.doubt, in_doubt=True)
                self.world.diverged(self, f"its log differs at {difference}, below {self.confirmed}")
                return False
            point = self.log.start_of_record(difference)
        self.verified = point
        if point < log_doubt.protected_until(self.doubt, self.confirmed) and point < end:
            self.world.diverged(self, f"the master ends at {point}, and {self.confirmed} are acknowledged")
            return False
        if point < end:
            self.world.count_event("truncations")
            self.world.note(f"{self.name} cuts its log from {end} to {point}")
            self.world.check_cut(self, point)
            self.disk.truncate(self.log, point)
            self.cuts += 1
            self.confirmed = min(self.confirmed, point)
            self.shown = self.confirmed
        self.epochs.truncate_suffix(point)
        return True


def first_difference(verified: int, end: int, own: bytearray, theirs: bytearray) -> int | None:
    """The offset of the first byte before `end` that differs in two logs (`HAClient._find_difference`)."""
    comparison = LogComparison(0, verified, end)
    while (wanted := comparison.next_range()) is not None:
        comparison.add_checksums(checksums(own, wanted), checksums(theirs, wanted))
    return comparison.difference


def checksums(data: bytearray, wanted: LogRange) -> bytes:
    """The CRC-32 of each chunk (`ha.log_checksums`)."""
    ends = range(wanted.start, wanted.end, wanted.chunk)
    return b"".join(
        zlib.crc32(data[at : min(at + wanted.chunk, wanted.end)]).to_bytes(4, "big") for at in ends
    )
