"""Runs rounds of faults, and checks afterwards that everything acknowledged is there."""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.integration.ack_checks import Ack, check_masters, check_seen, check_stored
from tests.integration.chaos.faults import Act, ChaosFault, ChaosFaultPlan
from tests.integration.chaos.group import FIRST, ChaosGroup, ClientsUnderFaults
from tests.integration.chaos.journals import SEND_OK, number_of
from tests.integration.replica_rounds import Producer
from tests.support.cluster import Value
from tests.support.group_processes import Member
from tests.support.group_traffic import QUEUES, read_queue
from tests.support.process import wait_until

HEAL_S = 180.0
"""How long a busy machine may take after a fault until all replicas are in sync and messages are
acknowledged."""
CONSUME_S = 180.0
TRIES = 3
"""RocketMQ's producer sends a message once and, when that fails, twice more."""
DIRECT_PRODUCERS = 2


@dataclass(frozen=True)
class FaultRecord:
    """One fault, and when it began, ended and was healed (s, monotonic)."""

    what: str
    began_s: float
    ended_s: float
    healed_s: float


def applied(some: list[ChaosFault], chance: random.Random) -> str:
    """Applies all of them, each for a drawn time, one beginning after the other. Returns what they were."""
    now_s, plan = 0.0, list[tuple[float, Act]]()
    for one in some:
        plan.append((now_s, one.begin))
        plan.append((now_s + chance.uniform(0.5, 7.0), one.end))
        now_s += chance.uniform(0.0, 2.0)
    began_s = time.monotonic()
    for at_s, act in sorted(plan, key=lambda step: step[0]):
        time.sleep(max(0.0, began_s + at_s - time.monotonic()))
        act()
    return " and ".join(one.what for one in some)


@dataclass
class ChaosRounds:
    """`with ChaosRounds(folder, seed) as rounds: rounds.run(60)`.

    The Java producer knows one master at a time. So that two masters would be noticed, direct producers also
    try every broker, from a namespace whose links are never cut. `settings` override the brokers' own;
    without `java` only the direct producers send."""

    directory: Path
    seed: int
    settings: dict[str, Value] = field(default_factory=dict)
    java: bool = True
    fault_records: list[FaultRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        flush = self.random.choice(("SYNC_FLUSH", "ASYNC_FLUSH"))
        self.settings = {"flushDiskType": flush, **self.settings}
        self.group, self.fault_plan = self._made()
        addresses = [member.address for member in self.group.brokers]
        self.direct_producers = [
            Producer(queue, addresses, self.seed, pause_s=0.03) for queue in range(DIRECT_PRODUCERS)
        ]

    def _made(self) -> tuple[ClientsUnderFaults, ChaosFaultPlan]:
        """The group, and what draws its faults."""
        group = ChaosGroup(self.directory, self.settings, java=self.java)
        return group, ChaosFaultPlan(group, self.random)

    def __enter__(self) -> Self:
        self.group.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(self.history())
        self.group.__exit__(kind, error, trace)

    # Faults -------------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Applies faults for `seconds`, then checks."""
        self.begin()
        over = time.monotonic() + seconds
        while time.monotonic() < over:
            self.apply_faults(self.fault_plan.draw_some())
        self.end()

    def begin(self) -> None:
        """Starts to send messages."""
        for producer in self.direct_producers:
            producer.start()
        self.wait_direct_acks(0)

    def end(self) -> None:
        """Stops sending, and checks."""
        for producer in self.direct_producers:
            producer.finish()
        self.group.end_clients()
        self.check()

    def apply_faults(self, some: list[ChaosFault]) -> None:
        """Applies all of them, and waits until they are healed."""
        began_s = time.monotonic()
        what = applied(some, self.random)
        ended_s = time.monotonic()
        self._restart_after_full_disk(what)
        try:
            self._heal_after(what)
        finally:
            self.fault_records.append(FaultRecord(what, began_s, ended_s, time.monotonic()))

    def _restart_after_full_disk(self, what: str) -> bool:
        """A broker that is started on a full disk may report that and end. Returns whether one did."""
        found = False
        for member in self.group.brokers:
            status = member.process.status
            if status is not None and status > 0 and f"disk of {member.name} full" in what:
                member.start()
                found = True
        return found

    def _heal_after(self, what: str) -> None:
        """Heals; once more if a broker has ended only now, on the disk that was full when it started."""
        try:
            self._heal()
        except AssertionError:
            if not self._restart_after_full_disk(what):
                raise
            self._heal()

    def _heal(self) -> None:
        """Waits until all replicas are in sync and messages are acknowledged."""
        self.group.producer_journal.read()
        acks = len(self.group.producer_journal.acks)
        direct_acks = self.direct_acks()
        self.group.wait_in_sync(3, timeout_s=HEAL_S)
        self.group.wait_clients(acks=acks, timeout_s=HEAL_S)
        self.wait_direct_acks(direct_acks)

    def wait_direct_acks(self, acks: int) -> None:
        """Waits until the direct producers were acknowledged more than `acks` times."""
        wait_until(
            lambda: self.direct_acks() > acks, timeout_s=HEAL_S, what="the direct producers are acknowledged"
        )

    def direct_acks(self) -> int:
        """How often the direct producers were acknowledged."""
        return sum(len(one.acks) for one in self.direct_producers)

    # The checks ---------------------------------------------------------------------------------------------

    @property
    def acks(self) -> list[Ack]:
        """Everything that any broker acknowledged."""
        return [
            *self.group.producer_journal.acks,
            *(ack for one in self.direct_producers for ack in one.acks),
        ]

    def check(self) -> None:
        """Asserts that everything acknowledged is at its place as it was sent, that nothing else is stored,
        that no two masters wrote at a time, that the consumers saw everything, and that the replicas are
        equal."""
        self.group.wait_in_sync(3, timeout_s=HEAL_S)
        self.group.producer_journal.read()
        master = self.group.wait_settled()
        queues = [read_queue(master, queue_id) for queue_id in range(QUEUES)]
        check_stored(queues, self.acks, self._copies_max)
        check_masters(self.group.leaderships(master), self.acks)
        if self.java:
            self._check_consumed(master)
        self.group.check_equal()

    def _copies_max(self, body: bytes) -> int:
        if body == FIRST:
            return TRIES
        number = number_of(body)
        if number is not None:
            return TRIES if number <= self.group.producer_journal.last else 0
        queue_id, sent = map(int, body.split(b"-")[:2])
        return 1 if sent <= self.direct_producers[queue_id].sent else 0

    def _check_consumed(self, master: Member) -> None:
        consumer_journal = self.group.consumer_journal
        wanted = {(ack.queue_id, ack.queue_offset) for ack in self.acks}

        def all_seen() -> bool:
            consumer_journal.read()
            return all(wanted <= seen.keys() for seen in consumer_journal.seen.values())

        try:
            wait_until(all_seen, timeout_s=CONSUME_S, what="the consumers saw everything acknowledged")
        except AssertionError as error:
            for who, seen in consumer_journal.seen.items():
                error.add_note(f"{who} lacks {sorted(wanted - seen.keys())[:20]}")
            raise
        # Read anew: the kernel may deliver what a stopped producer had sent through a cut only now.
        queues = [read_queue(master, queue_id) for queue_id in range(QUEUES)]
        for who, seen in consumer_journal.seen.items():
            check_seen(queues, seen, who)

    # The story ----------------------------------------------------------------------------------------------

    def history(self) -> str:
        """The faults, and how long each interrupted sends."""
        producer_journal = self.group.producer_journal
        direct_sends = sum(one.sent for one in self.direct_producers)
        lines = [
            f"seed {self.seed}, {self.settings}: {len(self.fault_records)} faults; "
            f"{producer_journal.outcomes[SEND_OK]} of the Java producer's "
            f"{producer_journal.last} sends acknowledged, "
            f"{self.direct_acks()} of {direct_sends} direct sends; "
            f"{len({ack.address for ack in self.acks})} brokers acknowledged; Java saw "
            f"{dict(producer_journal.outcomes)}"
        ]
        moments = sorted(ack.acked_s for ack in self.acks)
        for one in self.fault_records:
            within = [at for at in moments if one.began_s <= at <= one.healed_s]
            ends = [one.began_s, *within, one.healed_s]
            silence_s = max(b - a for a, b in itertools.pairwise(ends))
            lines.append(
                f"{one.what} for {one.ended_s - one.began_s:.1f} s: healed after "
                f"{one.healed_s - one.ended_s:.1f} s, longest silence {silence_s:.2f} s"
            )
        return "\n".join(lines)
