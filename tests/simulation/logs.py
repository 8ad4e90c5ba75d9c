"""The logs of simulated peers: in memory, where a kill takes entries from the end, or the production store on
a simulated disk, where it takes sectors (see `disks`). Both watch over log matching: whatever is written at
an index in a term is what was first written there, after the same entry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from epochmq_dledger.core.log import LogFullError, MemoryLog
from epochmq_dledger.store.file_log import FileLog
from epochmq_dledger.store.segments import Unsynced, sync_and_close
from epochmq_protocol.dledger import DLedgerEntry
from tests.simulation import disks
from tests.simulation.disks import Folder

if TYPE_CHECKING:
    from tests.simulation.raft import RaftWorld
    from tests.simulation.store_world import StoreWorld

INDEX_FILE_SIZE = 32 * 64


class Watcher:
    """One peer's log as the world checks it."""

    def __init__(self, world: RaftWorld | StoreWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.full_until = 0.0

    def check_room(self) -> None:
        """LogFullError while the disk is full."""
        if self.full_until > self.world.now and not self.world.quiet:
            self.world.happened("writes to a full disk")
            raise LogFullError(f"the disk of {self.name} is full")

    def appending(self, before: int, entries: list[DLedgerEntry]) -> None:
        """Log matching. `before` is the term of the entry that they follow."""
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
        """What is committed is never cut."""
        committed = self.world.committed
        cut = end_index + 1
        if cut <= log.end_index and cut < len(committed) and log.entry(cut) == committed[cut]:
            self.world.fail(f"{self.name} cuts entry {cut}, which is committed")

    def resetting(self, log: MemoryLog | FileLog) -> None:
        """Nor is it dropped with the whole log."""
        if log.end_index >= 0 and self.world.committed:
            self.world.fail(f"{self.name} drops its log, which has committed entries")


class Disk(MemoryLog):
    """A log in memory whose entries up to `durable_end` survive a kill."""

    def __init__(self, world: RaftWorld, name: str) -> None:
        super().__init__()
        self.world = world
        self.watcher = Watcher(world, name)
        self.durable_end = -1

    def append(self, entries: list[DLedgerEntry]) -> None:
        self.watcher.check_room()
        self.watcher.appending(self.end_term, entries)
        super().append(entries)

    def truncate(self, end_index: int) -> None:
        self.watcher.cutting(end_index, self)
        super().truncate(end_index)
        self.durable_end = min(self.durable_end, end_index)

    def reset(self, entry: DLedgerEntry) -> None:
        self.watcher.resetting(self)
        super().reset(entry)
        self.durable_end = -1

    def sync_begins(self) -> Unsynced:
        """A sync of what is written now begins."""
        return Unsynced()

    def sync_ends(self, begun: Unsynced) -> None:
        """It has ended."""

    def synced(self, index: int, term: int) -> None:
        """What was written when the log ended with this entry is durable."""
        if self.term(index) == term:
            self.durable_end = max(self.durable_end, index)

    def take_erasure(self) -> Callable[[], None]:
        """What erases what was cut: here it is gone already."""
        return lambda: None

    def settled(self) -> None:
        """It is done."""

    def crash(self, kept: int | None) -> int:
        """The machine stops: entries after `kept` are gone, by default after a random one that is synced.
        Returns the log's end."""
        end, durable = self.end_index, self.durable_end
        if kept is None:
            kept = self.world.random.randint(durable, end) if end > durable else end
        if kept < end:
            self.world.happened("unsynced entries lost", end - kept)
        super().truncate(kept)
        self.durable_end = min(self.durable_end, kept)
        return kept

    def restart(self) -> None:
        """The machine starts: what is there is durable."""
        self.durable_end = self.end_index


class StoredDisk:
    """The production store. `crash` takes pages unless it is a mere kill -9, which takes none."""

    def __init__(self, world: RaftWorld | StoreWorld, name: str, file_size: int) -> None:
        self.world = world
        self.watcher = Watcher(world, name)
        self.file_size = file_size
        self.disk = disks.Disk()
        self.folders = (Folder(self.disk), Folder(self.disk), Folder(self.disk))
        self.durable_end = -1
        with world.machine.installed():
            self.store = self.opened()

    def opened(self) -> FileLog:
        """The store as it recovers."""
        store = FileLog(Path("/nowhere"), self.file_size, INDEX_FILE_SIZE)
        store._data.folder, store._index.folder, store._mark.folder = (
            cast(Path, folder) for folder in self.folders
        )
        store.open()
        return store

    # What the core asks of a log ----------------------------------------------------------------------------

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

    def append(self, entries: list[DLedgerEntry]) -> None:
        self.watcher.check_room()
        self.watcher.appending(self.end_term, entries)
        self.store.append(entries)

    def truncate(self, end_index: int) -> None:
        self.watcher.cutting(end_index, self.store)
        self.world.happened("cuts of a stored log")
        self.store.truncate(end_index)
        self.durable_end = min(self.durable_end, end_index)

    def reset(self, entry: DLedgerEntry) -> None:
        self.watcher.resetting(self.store)
        self.store.reset(entry)
        self.durable_end = -1

    @property
    def is_settled(self) -> bool:
        return self.store.is_settled

    def take_erasure(self) -> Callable[[], None]:
        return self.store.take_erasure()

    def settled(self) -> None:
        self.store.settled()

    # What the world asks ------------------------------------------------------------------------------------

    @property
    def entries(self) -> list[DLedgerEntry]:
        """All of them."""
        if self.end_index < 0:
            return []
        found = [self.store.entry(index) for index in range(self.begin_index, self.end_index + 1)]
        if None in found:
            self.world.fail(f"{self.watcher.name} cannot read entry {found.index(None) + self.begin_index}")
        return cast(list[DLedgerEntry], found)

    def sync_begins(self) -> Unsynced:
        """A sync of what is written now begins."""
        return self.store.take_dirty()

    def sync_ends(self, begun: Unsynced) -> None:
        """It has ended."""
        sync_and_close(begun)

    def synced(self, index: int, term: int) -> None:
        """What was written when the log ended with this entry is durable."""
        self.store.synced(index, term)
        if self.term(index) == term:
            self.durable_end = max(self.durable_end, index)

    def crash(self, kept: int | None) -> int:
        """The machine stops. With `kept`, or by chance, it is the power that fails. Returns the log's end
        after recovery."""
        world, name = self.world, self.watcher.name
        before, durable = self.end_index, self.durable_end
        self.store.close()
        power = kept is not None or world.random.random() < 0.5
        if power:
            for folder in self.folders:
                lost, torn = folder.crash(world.random)
                world.happened("sectors lost", lost)
                world.happened("torn writes", torn)
        self.store = self.opened()
        entries, end = self.entries, self.end_index
        self.watcher.appending(-1, entries)
        if end < durable or (not power and end != before):
            world.fail(f"{name} recovers entries up to {end} of {before}, of which {durable} were durable")
        world.happened("unsynced entries lost", before - end)
        self.durable_end = durable
        return end

    def restart(self) -> None:
        """The machine starts: what it has found is made durable first."""
        sync_and_close(self.store.take_dirty())
        self.durable_end = self.store.durable_index = self.end_index
