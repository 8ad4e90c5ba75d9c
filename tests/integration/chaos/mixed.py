"""Chaos rounds under every kind of message: retries, delay levels, timer messages, transactions, POP and
ordered POP, with processes that die and hang, cut links and power cuts."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.integration.chaos.faults import ChaosFault, ChaosFaultPlan
from tests.integration.chaos.group import ChaosGroup, ChaosProcesses
from tests.integration.chaos.mixed_journals import (
    MixedConsumerJournal,
    MixedProducerJournal,
    contradictions,
    missing,
)
from tests.integration.chaos.rounds import HEAL_S, FaultRecord, applied
from tests.integration.disks.images import ImagePool, ImageVolume, replace_all_by_clones
from tests.integration.disks.run_directory import RunDirectory
from tests.support.cluster import Value
from tests.support.freeze import freeze
from tests.support.group_processes import Member
from tests.support.group_traffic import check_equal, wait_confirmed
from tests.support.process import ManagedProcess, wait_until

CONSUME_S = 300.0
"""How long after the last fault all messages may take: a message whose POP was not acknowledged comes again
after the invisible time, and a check of a transaction needs a producer that has found the new master."""
PAUSE_MS = 40
SOURCES = ("MixedProducers.java", "MixedConsumers.java")
SETTINGS: dict[str, Value] = {
    "flushDiskType": "SYNC_FLUSH",
    "transactionTimeOut": 2000,
    "transactionCheckInterval": 1000,
    "transactionCheckMax": 10_000,
}


class MixedClients(ChaosProcesses):
    """Clients of every kind: the JVMs, and what they have written down."""

    CLIENTS: Sequence[str]
    clients: list[ManagedProcess]
    sent: MixedProducerJournal
    consumed: MixedConsumerJournal

    def _mixed_clients(self, nameserver: str, brokers: str) -> list[ManagedProcess]:
        """`brokers`: the names of the groups, with commas between; the first has the messages that are
        consumed in order."""
        producer, consumers = self.CLIENTS
        journals = {name: str(self.directory / name / "journal") for name in self.CLIENTS}
        return [
            self._java(consumers, "MixedConsumers", [nameserver, journals[consumers], brokers], SOURCES),
            self._java(producer, "MixedProducers", [nameserver, journals[producer], str(PAUSE_MS)], SOURCES),
        ]

    def wait_clients(self, *, acks: int, timeout_s: float) -> None:
        """Waits until messages of each kind were acknowledged, and more than `acks` in all."""

        def reached() -> bool:
            for process in self.clients:
                assert process.alive, f"{process.name} ended with {process.status}: {process.output()}"
            self.sent.read()
            return self.sent.count > acks and all(self.sent.acks.values())

        wait_until(reached, timeout_s=timeout_s, what="the Java producers are acknowledged")

    def end_clients(self) -> None:
        """Ends the sends. The producer's process stays, and answers checks of transactions."""
        producer = self.clients[1]
        producer.signal(signal.SIGTERM)
        journal = self.directory / producer.name / "journal"
        # A send that took very long may have written its result behind that line.
        wait_until(lambda: b"\nend\n" in journal.read_bytes(), what="the producers have ended")


class MixedGroup(MixedClients, ChaosGroup):
    """The group of a chaos round on images, whose power can be cut, with clients of every kind."""

    def __init__(self, directory: Path, settings: dict[str, Value]) -> None:
        super().__init__(directory, SETTINGS | settings)
        self.volumes: dict[str, ImageVolume] = {}
        self.sent = MixedProducerJournal(directory / "producer" / "journal")
        self.consumed = MixedConsumerJournal(directory / "consumers" / "journal")

    @property
    def stateful(self) -> list[Member]:
        """The members with a disk."""
        return [*self.controllers, *self.brokers]

    def _mount_disks(self, exits: ExitStack) -> None:
        run = exits.enter_context(RunDirectory())
        pool = ImagePool(run)
        for number, member in enumerate(self.stateful):
            kind = ("ext4", "xfs")[number % 2]
            self.volumes[member.name] = pool.volume(member.name, member.config.parent / "store", kind)

    def _clients(self) -> list[ManagedProcess]:
        return self._mixed_clients(self.nameserver.address, self.NAME)

    def cut_power(self, members: Sequence[Member]) -> None:
        """Cuts the power of these members at one moment: they end, and their disks keep what had reached
        them."""
        freeze([member.process for member in members])
        clones = [self.volumes[member.name].clone() for member in members]
        for member in members:
            member.process.signal(signal.SIGKILL)
        for member in members:
            member.process.kill()
        volumes = [self.volumes[member.name] for member in members]
        replace_all_by_clones(list(zip(volumes, clones, strict=True)))


class MixedFaultPlan(ChaosFaultPlan):
    """Draws the faults of processes and links, and power cuts."""

    def __init__(self, group: MixedGroup, chance: random.Random) -> None:
        super().__init__(group, chance)
        self._mixed = group

    def _own_kinds(self) -> list[Callable[[], ChaosFault]]:
        return [self._power_of_one, self._power_of_all]

    def essential(self) -> list[ChaosFault]:
        """One fault of each family, in a drawn order."""
        kinds: list[Callable[[], ChaosFault]] = [
            self._kill,
            self._hang,
            partial(self._cut, "cut off", hears=False, heard=False),
            self._power_of_all,
        ]
        self._chance.shuffle(kinds)
        return [kind() for kind in kinds]

    def _power_of_one(self) -> ChaosFault:
        victim = self._broker()
        return ChaosFault(
            f"power of {victim.name}", lambda: self._mixed.cut_power([victim]), victim.start, process=True
        )

    def _power_of_all(self) -> ChaosFault:
        members = self._mixed.stateful

        def start() -> None:
            for member in members:
                member.start()

        return ChaosFault("power of all six", lambda: self._mixed.cut_power(members), start, process=True)


@dataclass
class MixedRounds:
    """`with MixedRounds(folder, seed) as rounds: rounds.run(60)`."""

    directory: Path
    seed: int
    settings: dict[str, Value] = field(default_factory=dict)
    fault_records: list[FaultRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.settings = {"enablePopBufferMerge": self.random.random() < 0.5, **self.settings}
        self.group = MixedGroup(self.directory, self.settings)
        self.fault_plan = MixedFaultPlan(self.group, self.random)

    def __enter__(self) -> Self:
        self.group.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(self.history())
        self.group.__exit__(kind, error, trace)

    def run(self, seconds: float) -> None:
        """Applies one fault of each family, then others for `seconds` in all, then checks."""
        over = time.monotonic() + seconds
        for fault in self.fault_plan.essential():
            self.apply([fault])
        while time.monotonic() < over:
            self.apply(self.fault_plan.draw_some())
        self.group.end_clients()
        self.check()

    def apply(self, some: list[ChaosFault]) -> None:
        """Applies the faults, and waits until all replicas are in sync and messages are acknowledged."""
        group = self.group
        began_s = time.monotonic()
        what = applied(some, self.random)
        ended_s = time.monotonic()
        try:
            group.wait_in_sync(3, timeout_s=HEAL_S)
            group.sent.read()
            group.wait_clients(acks=group.sent.count, timeout_s=HEAL_S)
        finally:
            self.fault_records.append(FaultRecord(what, began_s, ended_s, time.monotonic()))

    def check(self) -> None:
        """Asserts that every acknowledged message was consumed, none early, none that was rolled back, the
        ordered ones in order, and that the replicas are equal."""
        group = self.group
        group.wait_in_sync(3, timeout_s=HEAL_S)
        group.sent.read()

        def all_consumed() -> bool:
            group.consumed.read()
            return not missing(group.sent, group.consumed)

        try:
            wait_until(all_consumed, timeout_s=CONSUME_S, what="every acknowledged message is consumed")
        except AssertionError as error:
            error.add_note(f"missing: {missing(group.sent, group.consumed)}")
            raise
        assert contradictions(group.sent, group.consumed)[:20] == []
        for process in group.clients:
            process.kill()
        seen: list[str | None] = []

        def equal() -> bool:
            seen.append(self._differences())
            return seen[-1] is None

        try:
            wait_until(equal, timeout_s=HEAL_S, what="the replicas are equal")
        except AssertionError as error:
            error.add_note(f"{len(seen)} comparisons, the last: {seen[-5:]}")
            raise

    def _differences(self) -> str | None:
        """Of the replicas. The broker itself still writes for some seconds: records of POP, and op
        messages."""
        try:
            wait_confirmed(self.group)
            check_equal(self.group)
        except AssertionError as error:
            return str(error)
        return None

    def history(self) -> str:
        """The faults, and what was sent and consumed."""
        sent, consumed = self.group.sent, self.group.consumed
        acknowledged = {kind: len(numbers) for kind, numbers in sent.acks.items()}
        lines = [
            f"seed {self.seed}, {self.settings}: {len(self.fault_records)} faults; acknowledged "
            f"{acknowledged}; outcomes {dict(sent.outcomes)}; {len(consumed.sightings)} consumed, "
            f"{consumed.repeated()} of them repetitions"
        ]
        lines += [
            f"{one.what} for {one.ended_s - one.began_s:.1f} s: healed after "
            f"{one.healed_s - one.ended_s:.1f} s"
            for one in self.fault_records
        ]
        return "\n".join(lines)
