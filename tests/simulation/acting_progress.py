"""The log, the progress of deliveries, and the tables of a simulated broker in a group with an acting master.

Every message is due a fixed time after the master has stored it. Whoever runs the special services delivers
what is due, in order. Progress has a data version, as delay offsets have: it changes with every
`VERSION_STEP`th delivery. Slaves copy log and progress; a kill loses the progress since the last write.
Production's code is what a returning master adopts (`table_merge`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochmq_broker.membership.acting.table_merge import merge
from epochmq_protocol.topics import DataVersion

if TYPE_CHECKING:
    from tests.simulation.acting_group import BrokerHost

STEP_MS = 100
"""How often a broker copies the log and delivers."""
MESSAGE_MS = 200
DUE_MS = 25_000
"""How long after it was stored a message is due."""
COPIES_MAX = 20
"""Messages that a slave copies in a step."""
TABLES_MS = 1000
"""How often a slave copies its master's tables."""
WRITE_MS = 10_000
"""How often progress is written to disk (flushDelayOffsetInterval)."""
VERSION_STEP = 50
LEVEL = 1

Tables = tuple[dict[int, int], DataVersion]


class Deliveries:
    """The messages of a group: when each is due, and when it was delivered, by whom."""

    def __init__(self) -> None:
        self.due_ms: list[float] = []
        self.delivered: list[list[tuple[float, str]]] = []

    def store(self, now_ms: float) -> int:
        """A further message; returns the length of the log."""
        self.due_ms.append(now_ms + DUE_MS)
        self.delivered.append([])
        return len(self.due_ms)

    def repeated_since(self, since_ms: float) -> int:
        """How often a message was delivered that had been delivered before, since then."""
        return sum(
            len([at for at, _ in times[1:] if at > since_ms]) for times in self.delivered if len(times) > 1
        )

    def missing(self, until_ms: float) -> list[int]:
        """The messages that were due by then and never delivered."""
        return [
            number
            for number, times in enumerate(self.delivered)
            if not times and self.due_ms[number] <= until_ms
        ]


class BrokerProgress:
    """The log and the tables of one broker. `stored` is the length of its log."""

    def __init__(self, broker: BrokerHost) -> None:
        self._broker = broker
        self._deliveries = broker.world.deliveries
        self.stored = 0
        self.offsets: dict[int, int] = {LEVEL: 0}
        self.version = DataVersion()
        self._disk: Tables = dict(self.offsets), self.version
        self.connected = False
        """Whether a slave's HA connection exists."""
        self.known_slaves: set[str] = set()
        """The slaves whose HA connection has arrived since this broker started."""

    def start(self) -> None:
        """The broker starts, with what is on disk."""
        offsets, self.version = self._disk
        self.offsets = dict(offsets)
        self.connected = False
        self.known_slaves.clear()
        self._broker.later(STEP_MS, self._step)
        self._broker.later(MESSAGE_MS, self._store)
        self._broker.later(TABLES_MS, self._copy_tables)
        self._broker.later(WRITE_MS, self._write)

    @property
    def tables(self) -> Tables:
        """The tables as another broker gets them."""
        return dict(self.offsets), self.version

    @property
    def delivered(self) -> int:
        """The first message that is not delivered."""
        return self.offsets[LEVEL]

    def take_back(self, theirs: Tables) -> None:
        """Adopts what a slave has, on a returning master."""
        self.offsets, self.version = merge(self.offsets, self.version, *theirs)

    # Steps

    def _store(self) -> None:
        self._broker.later(MESSAGE_MS, self._store)
        if self._broker.broker_id == 0 and self._broker.in_service:
            self.stored = self._deliveries.store(self._broker.world.now)

    def _step(self) -> None:
        self._broker.later(STEP_MS, self._step)
        self._copy_log()
        self._deliver()

    def _copy_log(self) -> None:
        world, followed = self._broker.world, self._broker.followed_ha
        self.connected = False
        if followed is None:
            return
        master = world.ha_server(followed)
        if not master.up or master.paused or world.is_cut(self._broker, master):
            return
        if world.is_cut(master, self._broker):
            return
        self.connected = True
        master.progress.known_slaves.add(self._broker.name)
        self.stored = min(self.stored + COPIES_MAX, max(master.progress.stored, self.stored))

    def _deliver(self) -> None:
        if not self._broker.group.runs_special_services:
            return
        now_ms, due_ms = self._broker.world.now, self._deliveries.due_ms
        while self.delivered < self.stored and due_ms[self.delivered] <= now_ms:
            self._deliveries.delivered[self.delivered].append((now_ms, self._broker.name))
            self.offsets[LEVEL] += 1
            if self.delivered % VERSION_STEP == 0:
                self.version = self.version.next(self._broker.clock())

    def _copy_tables(self) -> None:
        self._broker.later(TABLES_MS, self._copy_tables)
        followed, world = self._broker.followed, self._broker.world
        if followed is None:
            return

        def done(theirs: Tables | None) -> None:
            if theirs is not None and self._broker.followed == followed:
                self.offsets, self.version = dict(theirs[0]), theirs[1]

        master = world.broker(followed)
        world.call(self._broker, master, master.tell_tables, done)

    def _write(self) -> None:
        self._broker.later(WRITE_MS, self._write)
        self._disk = self.tables
