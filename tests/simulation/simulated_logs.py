"""The logs of simulated peers: in memory, where a kill drops entries from the end, or the production store on
a simulated disk, where a kill drops sectors (see `simulated_files`). Both check log matching: an entry of an
index and a term is always the same, after the same entry.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from epochmq_dledger.core.raft_log import LogFullError, MemoryLog
from epochmq_dledger.store.file_log import FileLog
from epochmq_dledger.store.segments import UnsyncedFiles, sync_and_close
from epochmq_protocol.dledger import DLedgerEntry
from tests.simulation import simulated_files
from tests.simulation.simulated_files import SimulatedFolder

if TYPE_CHECKING:
    from tests.simulation.raft_world import RaftWorld
    from tests.simulation.store_world import StoreWorld

INDEX_FILE_SIZE = 32 * 64


class LogChecker:
    """Checks one peer's log."""

    def __init__(self, world: RaftWorld | StoreWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.full_until = 0.0

    def check_room(self) -> None:
        """LogFullError while the disk is full."""
        if self.full_until > self.world.now and not self.world.quiet:
            self.world.count_event("writes to a full disk")
            raise LogFullError(f"the disk of {self.name} is full")

    def appending(self, before: int, entries: list[DLedgerEntry]) -> None:
        """Checks log matching. `before` is the term of the entry that the new ones follow."""
        written = self.world.written
        for entry in entries:
            first = written.setdefault((entry.index, entry.term), (entry, before))
            if first[1] != before or (first[0] is not entry and first[0] != entry):
                self.world.fail(
                    f"log matching: {self.name} has {entry} after term {before}, "
                    f"but {first[0]} after term {first[1]} was written there"
                )
            before = entry.term

    def cutting(self, end_index: int, log: MemoryLog | FileLog) -> None:
        """Checks that no committed entry is truncated."""
        committed = self.world.committed
        cut = end_index + 1
        if cut <= log.end_index and cut < len(committed) and log.entry(cut) == committed[cut]:
            self.world.fail(f"{self.name} truncates entry {cut}, which is committed")

    def resetting(self, log: MemoryLog | FileLog) -> None:
        """Checks that no log with committed entries is reset."""
        if log.end_index >= 0 and self.world.committed:
            self.world.fail(f"{self.name} resets its log, which has committed entries")


class MemoryLogHost(MemoryLog):
    """A log in memory whose entries up to `durable_end` survive a kill."""

    body_log = None

    def __init__(self, world: RaftWorld, name: str) -> None:
        super().__init__()
        self.world = world
        self.checker = LogChecker(world, name)
        self.durable_end = -1

    def append(self, entries: list[DLedgerEntry]) -> None:
        self.checker.check_room()
        self.checker.appending(self.end_term, entries)
        super().append(entries)

    def truncate(self, end_index: int) -> None:
        self.checker.cutting(end_index, self)
        super().truncate(end_index)
        self.durable_end = min(self.durable_end, end_index)

    def reset(self, entry: DLedgerEntry) -> None:
        self.checker.resetting(self)
        super().reset(entry)
        self.durable_end = -1

    def sync_begins(self) -> UnsyncedFiles:
        """Starts a sync of all written entries."""
        return UnsyncedFiles()

    def sync_ends(self, begun: UnsyncedFiles) -> None:
        """Completes a sync."""

    def mark_synced(self, index: int, term: int) -> None:
        """Marks the log as durable up to this entry."""
        if self.term(index) == term:
            self.durable_end = max(self.durable_end, index)

    def take_erasure(self) -> Callable[[], None]:
        """The job that erases dropped entries: nothing, they are gone already."""
        return lambda: None

    def on_erasure_completed(self) -> None:
        """The erasure is complete."""

    def crash(self, kept: int | None) -> int:
        """Stops the machine: entries after `kept` are lost, by default after a random index behind the synced
        entries. Returns the end of the log."""
        end, durable = self.end_index, self.durable_end
        if kept is None:
            kept = self.world.random.randint(durable, end) if end > durable else end
        if kept < end:
            self.world.count_event("unsynced entries lost", end - kept)
        super().truncate(kept)
        self.durable_end = min(self.durable_end, kept)
        return kept

    def restart(self) -> None:
        """Starts the machine: all entries left are durable."""
        self.durable_end = self.end_index


class StoredLog:
    """The production store. `crash` drops unsynced pages, unless it is a kill -9."""

    def __init__(self, world: RaftWorld | StoreWorld, name: str, file_size: int) -> None:
        self.world = world
        self.checker = LogChecker(world, name)
        self.file_size = file_size
        self.disk = simulated_files.DiskState()
        self.folders = (SimulatedFolder(self.disk), SimulatedFolder(self.disk), SimulatedFolder(self.disk))
        self.durable_end = -1
        self.committed = -1
        """The committed index of the peer's checkpoint. A new directory has one with -1."""
        self.rots = False
        """A bit flips while the machine is off."""
        self.damaged = False
        """The last start has found lost entries."""
        self.power_failed = False
        """The last stop was a power failure."""
        self.lost_without_trace = False
        """Entries are lost without a trace on the disk."""
        self.durable_at: dict[int, int] = {}
        """The durable index when each entry was written."""
        self.erasing: Callable[[], None] | None = None
        self.last_entries: dict[int, DLedgerEntry] = {}
        """The durable entries before the last loss, by index."""
        with world.machine.installed():
            self.store = self.opened()

    def opened(self) -> FileLog:
        """Opens the store, which recovers."""
        store = self.make_store()
        store._files.data.folder, store._files.index.folder, store._mark.folder = (
            cast(Path, folder) for folder in self.folders
        )
        store.open(self.committed)
        self.check_readable(store)
        self.damaged = store.damage is not None
        if store.damage is not None:
            self.world.note(f"{self.checker.name}: {store.damage.text}")
            store.erase_after_end()
        return store

    def make_store(self) -> FileLog:
        """The store of this kind of log."""
        return FileLog(Path("/nowhere"), self.file_size, INDEX_FILE_SIZE)

    def check_readable(self, store: FileLog) -> None:
        """Reads all entries, as `PeerRecovery` does when it replays the log."""
        for index in range(max(store.begin_index, 0), store.end_index + 1):
            if store.entry(index) is None:
                store.mark_unreadable(index)
                break

    @property
    def body_log(self) -> StoredLog | None:
        """This log, if it takes bodies and blocks."""
        return None

    # The interface of a log ---------------------------------------------------------------------------------

    @property
    def begin_index(self) -> int:
        return self.store.begin_index

    @property
    def end_index(self) -> int:
        return self.store.end_index

    @property
    def end_term(self) -> int:
        return self.store.end_term

    @property
    def end_pos(self) -> int:
        return self.store.end_pos

    def entry(self, index: int) -> DLedgerEntry | None:
        return self.store.entry(index)

    def term(self, index: int) -> int:
        return self.store.term(index)

    def position(self, index: int) -> int:
        return self.store.position(index)

    def append(self, entries: list[DLedgerEntry]) -> None:
        self.checker.check_room()
        before = self.end_term
        try:
            self.store.append(entries)
        except LogFullError:
            self._check_rejected()
            raise
        self.checking(before, entries)

    def checking(self, before: int, entries: list[DLedgerEntry]) -> None:
        """Checks entries that were written after one of the term `before`."""
        self.checker.appending(before, entries)
        for entry in entries:
            self.durable_at[entry.index] = self.durable_end

    def _check_rejected(self) -> None:
        """Checks that bytes of rejected entries will be erased."""
        self.world.count_event("appends rejected half-way" if not self.is_writable else "appends rejected")
        base = self.end_pos - self.end_pos % self.file_size
        inode = self.folders[0].names.get(f"{base:020d}")
        if self.is_writable and inode is not None and any(inode.data[self.end_pos - base :]):
            self.world.fail(f"{self.checker.name} leaves bytes of rejected entries")

    def truncate(self, end_index: int) -> None:
        self.checker.cutting(end_index, self.store)
        self.world.count_event("truncations of a stored log")
        self.store.truncate(end_index)
        self.durable_end = min(self.durable_end, end_index)

    def reset(self, entry: DLedgerEntry) -> None:
        self.checker.resetting(self.store)
        self.store.reset(entry)
        self.durable_end = -1

    @property
    def is_writable(self) -> bool:
        return self.store.is_writable

    def take_erasure(self) -> Callable[[], None]:
        erase = self.erasing = self.store.take_erasure()

        def once() -> None:
            self.erasing = None
            erase()

        return once

    def on_erasure_completed(self) -> None:
        self.erasing = None
        self.store.on_erasure_completed()

    # The interface for the world ----------------------------------------------------------------------------

    @property
    def entries(self) -> list[DLedgerEntry]:
        """All entries."""
        if self.end_index < 0:
            return []
        found = [self.store.entry(index) for index in range(self.begin_index, self.end_index + 1)]
        if None in found:
            self.world.fail(f"{self.checker.name} cannot read entry {found.index(None) + self.begin_index}")
        return cast(list[DLedgerEntry], found)

    def sync_begins(self) -> UnsyncedFiles:
        """Starts a sync of all written entries."""
        return self.store.take_unsynced()

    def sync_ends(self, begun: UnsyncedFiles) -> None:
        """Completes a sync."""
        sync_and_close(begun)

    def mark_synced(self, index: int, term: int) -> None:
        """Marks the log as durable up to this entry."""
        self.store.mark_synced(index, term)
        if self.term(index) == term:
            self.durable_end = max(self.durable_end, index)

    def crash(self, kept: int | None) -> int:
        """Stops the machine. With `kept`, or by chance, its power fails. Returns the end of the log after
        recovery."""
        world, name = self.world, self.checker.name
        before, durable = self.end_index, self.durable_end
        lied, self.disk.lies = self.disk.lies, False
        written = {entry.index: entry.term for entry in self.entries} if lied else {}
        if world.flush_async:
            self.last_entries |= {entry.index: entry for entry in self.entries}
        elif self.rots or lied:
            self.last_entries = {entry.index: entry for entry in self.entries if entry.index <= durable}
        failed = bool(self.disk.failed)
        self.disk.room, self.disk.failing, self.disk.failed = None, {}, []
        power = self.power_failed = kept is not None or world.random.random() < 0.5
        # Dropped bytes that are not erased yet may come back, and a reset may not have happened.
        exact = not power and not failed and self.is_writable
        self._stop_erasing()
        self.store.close()
        if power:
            for folder in self.folders:
                lost, torn = folder.crash(world.random)
                world.count_event("sectors lost", lost)
                world.count_event("torn writes", torn)
        rotten = self._rot(durable) if self.rots else None
        self.rots = False
        self.store = self.opened()
        entries, end = self.entries, self.end_index
        self.check_recovered(entries)
        if self.damaged and rotten is None and not lied and not self.may_look_damaged():
            world.fail(f"{name} takes an undamaged log for damaged")
        whole = rotten is None and not lied and not self.damaged
        if whole and (end < durable or (exact and end != before)):
            world.fail(f"{name} recovers entries up to {end} of {before}, of which {durable} were durable")
        if rotten is not None:
            self._check_noticed(rotten, end, durable)
        # A disk that lies may also bring erased entries back where later ones were lost.
        stale = lied and any(written.get(entry.index) != entry.term for entry in entries)
        self.lost_without_trace = (end < durable or stale) and not self.damaged
        world.count_event("unsynced entries lost", before - end)
        self.durable_end = min(durable, end)
        return end

    def _stop_erasing(self) -> None:
        """Completes a running erasure in part."""
        erase, self.erasing = self.erasing, None
        if erase is not None and self.world.random.random() < 0.7:
            self.disk.failing = {"fsync": self.world.random.randint(0, 3)}
            with contextlib.suppress(OSError):
                erase()
                self.world.count_event("erasures that ended")
            self.world.count_event("erasures stopped")
            self.disk.failing, self.disk.failed = {}, []

    def _rot(self, durable: int) -> int | None:
        """Flips a bit of a durable entry. Returns its index."""
        world = self.world
        found = [entry for entry in self.last_entries.values() if entry.index <= durable]
        if not found:
            return None
        entry = world.random.choice(found)
        base = entry.pos - entry.pos % self.file_size
        inode = self.folders[0].names.get(f"{base:020d}")
        at = world.random.randrange(entry.size)
        if not self.may_rot(entry, at):
            return None
        at += entry.pos - base
        if inode is None or at >= len(inode.data):
            return None
        inode.data[at] ^= 1 << world.random.randrange(8)
        inode.durable = bytes(inode.data)
        world.count_event("bits rotten")
        world.note(f"{self.checker.name}: a bit of entry {entry.index} flips")
        return entry.index

    def may_rot(self, entry: DLedgerEntry, at: int) -> bool:
        """Whether byte `at` of an entry is one in which the next start can see a flipped bit."""
        return True

    def is_proven(self, rotten: int, durable: int) -> bool:
        """Whether the disk proves that this entry was durable, in a log that was so up to `durable`."""
        later = range(rotten + 1, durable + 1)
        return rotten <= self.committed or any(self.durable_at.get(i, -1) >= rotten for i in later)

    def may_look_damaged(self) -> bool:
        """Whether a torn write may look like damage."""
        return False

    def check_recovered(self, entries: list[DLedgerEntry]) -> None:
        """Checks the entries of a recovered log."""
        self.checker.appending(-1, entries)

    def _check_noticed(self, rotten: int, end: int, durable: int) -> None:
        """Checks that a loss is noticed. The checkpoint proves it, or a later durable entry that was written
        when the lost one was durable."""
        if self.is_proven(rotten, durable) and not self.damaged:
            self.world.fail(
                f"{self.checker.name} does not notice the loss of entry {rotten}; its log ends at {end}"
            )
        if self.damaged:
            self.world.count_event("damage noticed")

    def restart(self) -> None:
        """Starts the machine: syncs the recovered entries first."""
        sync_and_close(self.store.take_unsynced())
        self.durable_end = self.store.durable_index = self.end_index
