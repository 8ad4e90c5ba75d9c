"""The production log store alone, under random histories of appends, truncations, syncs, kills and power
failures."""

from __future__ import annotations

import random

from epochmq_dledger.core.raft_log import make_entry
from epochmq_dledger.store.segments import UnsyncedFiles, sync_and_close
from epochmq_protocol.dledger import DLedgerEntry
from tests.simulation import fault_plan
from tests.simulation.clockwork import Network, World
from tests.simulation.fault_plan import Plan
from tests.simulation.simulated_files import SimulatedOs
from tests.simulation.simulated_logs import StoredLog

FILE_SIZE = 4096
UNSYNCED_MAX = 12
"""Entries that are written and not synced. They lie in two data files at most, as in production."""


def plan(seed: int) -> Plan:
    """Plans a seed's history. Most entries have one size, so that an entry begins where a truncated one may
    have begun."""
    rng = random.Random(f"store {seed}")
    found = Plan(seed, Network(), options={"size": rng.choice((16, 16, 80, None))}, quiet_ms=0)
    rates = {
        "append": 240.0,
        "sync": rng.choice((60.0, 240.0)),
        "cut": rng.choice((0.0, 15.0, 60.0)),
        "kill": rng.choice((0.0, 15.0)),
        "power": rng.choice((2.0, 15.0, 60.0)),
        "reset": rng.choice((0.0, 0.0, 2.0)),
    }
    makers: dict[str, fault_plan.Make] = {
        "append": lambda r: (r.choice((1, 1, 3, 9)), r.random()),
        "sync": lambda r: (r.choice((0, 0, 100, 600)),),
        "cut": lambda r: (r.choice((1, 2, 5, 9)), r.choice((1, 3)), r.random()),
        "kill": lambda r: (),
        "power": lambda r: (),
        "reset": lambda r: (r.randint(0, 500), r.randint(0, 20_000)),
    }
    streams = [
        fault_plan.stream(rng, kind, rate, found.faults_ms, makers[kind]) for kind, rate in rates.items()
    ]
    found.events = fault_plan.sequence(streams)
    return found


class StoreWorld(World):
    """One log on one disk. `model` is what it must hold, `term` the newest term so far."""

    flush_async = False

    def __init__(self, plan: Plan, *, verbose: bool = False) -> None:
        super().__init__(plan.seed, plan.network, verbose=verbose)
        self.wanted = plan
        self.size: int | None = plan.options["size"]
        self.machine = SimulatedOs()
        self.written: dict[tuple[int, int], tuple[DLedgerEntry, int]] = {}
        self.committed: list[DLedgerEntry] = []
        self.log = StoredLog(self, "the store", FILE_SIZE)
        self.model: list[DLedgerEntry] = []
        self.term = 1
        self.serial = 0
        self.life = 0
        self.syncing = -1
        """The life in which a sync runs."""

    def live(self) -> None:
        """Runs the history, and checks the log."""
        with self.machine.installed():
            self.plan(self.wanted.events)
            self.run(self.wanted.faults_ms)
            self.check()

    def check(self) -> None:
        """Checks that the store equals the model."""
        self.steps += 1
        if self.log.entries != self.model:
            self.fail(f"the store holds {brief(self.log.entries)}, not {brief(self.model)}")

    def do_append(self, count: int, luck: float) -> None:
        """Appends entries of one term in one write."""
        if self.log.end_index - self.log.durable_end > UNSYNCED_MAX:
            return
        last = self.model[-1] if self.model else None
        index = last.index if last is not None else -1
        pos = last.pos + last.size if last is not None else 0
        self.term = max(self.term, last.term if last is not None else 0)
        entries = []
        for _ in range(count):
            self.serial += 1
            size = self.size if self.size is not None else int(luck * 200)
            index += 1
            body = b"%d" % self.serial
            entry = make_entry(index, self.term, body.ljust(size, b"."), pos, FILE_SIZE)
            pos = entry.pos + entry.size
            entries.append(entry)
        self.log.append(entries)
        self.model.extend(entries)

    def do_cut(  # type: ignore[override]  # it has no network; here a cut truncates the log
        self, count: int, more: int, luck: float
    ) -> None:
        """Truncates the last entries and appends others. Their term lies between that of the last entry left
        and a new one."""
        if len(self.model) <= count:
            return
        kept = self.model[:-count]
        self.count_event("cuts")
        self.log.truncate(kept[-1].index)
        self.lose(kept, luck)
        self.erase()
        self.do_append(more, luck)

    def erase(self) -> None:
        """Erases dropped entries."""
        self.log.take_erasure()()
        self.log.on_erasure_completed()

    def lose(self, kept: list[DLedgerEntry], luck: float) -> None:
        """Drops all entries but these from the model. The entries that follow may be of an older term."""
        newest = self.model[-1].term if self.model else self.term
        oldest = kept[-1].term if kept else 1
        self.term = oldest + int(luck * (newest + 2 - oldest))
        self.model = kept
        of_model = set(kept)
        self.written = {key: one for key, one in self.written.items() if one[0] in of_model}

    def do_reset(self, index: int, pos: int) -> None:
        """Resets the log to an entry in the middle of the group's log."""
        self.term += 1
        self.written.clear()
        entry = make_entry(index, self.term, b"anew".ljust(self.size or 30, b"."), pos, FILE_SIZE)
        self.log.reset(entry)
        self.erase()
        sync_and_close(self.log.sync_begins())
        self.log.mark_synced(entry.index, entry.term)
        self.model = [entry]
        self.life += 1
        self.log.durable_end = index
        self.count_event("resets")

    def do_sync(self, took_ms: float) -> None:
        """Syncs all entries, which takes a while; one sync at a time."""
        if self.syncing == self.life:
            return
        self.syncing = self.life
        begun = self.log.sync_begins()
        self.at(took_ms, self._synced, self.life, begun, self.model[-1] if self.model else None)

    def _synced(self, life: int, begun: UnsyncedFiles, last: DLedgerEntry | None) -> None:
        if life != self.life:
            return
        self.syncing = -1
        self.log.sync_ends(begun)
        if last is not None and last in self.model:
            self.log.mark_synced(last.index, last.term)

    def do_kill(self) -> None:
        """Kills the process (kill -9)."""
        self.stop(None)

    def do_power(self) -> None:
        """Cuts the power."""
        self.stop(0)

    def stop(self, kept: int | None) -> None:
        self.life += 1
        self.count_event("power failures" if kept is not None else "kills")
        end = self.log.crash(kept)
        self.lose([entry for entry in self.model if entry.index <= end], self.random.random())
        self.check()
        self.log.restart()


def brief(entries: list[DLedgerEntry]) -> str:
    """Describes the end of a log in a few words."""
    shown = ", ".join(f"{e.index} of term {e.term} {e.body[:8]!r}" for e in entries[-4:])
    return f"{len(entries)} entries [… {shown}]"
