"""The processes of a chaos round: those of the group, each in a network namespace of its own, brokers on a
small disk of their own, and two JVMs with RocketMQ's producer and consumers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.integration.ack_checks import epoch_starts
from tests.integration.chaos import disks
from tests.integration.chaos.journals import ConsumerJournal, ProducerJournal
from tests.integration.chaos.network import Network
from tests.integration.replica_rounds import SAFE
from tests.interop.java_env import compile_java, java_command
from tests.support.cluster import START_TIMEOUT_S, Settings, Value
from tests.support.group_processes import ElectingGroup, Factory, Member, Places
from tests.support.group_traffic import QUEUES, TOPIC, acknowledged, check_equal, wait_confirmed
from tests.support.process import ManagedProcess, wait_until
from tests.support.replica_group import ReplicaGroup

SIZE = 3
PORTS = {"nameserver": 9876, "controller": 9878, "broker": 10911}
JUDGE = "judge"
FIRST = b"first"
"""The body of the message that creates the topic."""
SENDERS, PAUSE_MS = 4, 30
SMALL: dict[str, Value] = {
    # Files that are full after some seconds: a full disk matters only when a new file is needed.
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20 * 500,
    "maxMessageSize": 1 << 16,
    "maxHashSlotNum": 5000,
    "maxIndexNum": 20_000,
    "cleanResourceInterval": 500,
    "cleanFileForciblyEnable": False,  # otherwise old messages would be removed to free space
    "defaultTopicQueueNums": QUEUES,
}


class ChaosProcesses:
    """Makes processes in network namespaces of their own; those with a slow disk have it below them."""

    network: Network
    slow_disks: dict[str, disks.SlowDisk]
    directory: Path

    def _made_by(self, role: str) -> Factory:
        def make(config: Path) -> ManagedProcess:
            name = config.parent.name
            command = [sys.executable, "-m", "epochmq", role, "--config", str(config)]
            disk = self.slow_disks.get(name)
            return ManagedProcess(
                self.network.command(name, command),
                name=name,
                directory=config.parent,
                env=None if disk is None else disk.env,
            )

        return make

    def _java(self, name: str, main: str, arguments: list[str], sources: tuple[str, ...]) -> ManagedProcess:
        home = self.directory / name
        command = java_command(main, arguments, home=home, classes=compile_java(*sources), heap_mb=128)
        return ManagedProcess(
            self.network.command(name, command), name=name, directory=home, env={"ROCKETMQ_HOME": str(home)}
        )


class ClientsUnderFaults(ChaosProcesses, ElectingGroup):
    """A group with a nameserver, brokers and the clients. While it is entered, the calling thread is in a
    namespace of its own whose links are never cut. Without `java` there are no JVMs. Subclasses call
    `_lay_out` before they make the processes of the group, and `_add_clients` after."""

    CLIENTS: Sequence[str] = ("producer", "consumers")

    def _lay_out(self, directory: Path, names: Sequence[str]) -> Places:
        """Makes a namespace and a slow disk for each of these processes, and returns their addresses."""
        self.places = ["nameserver", *names, *self.CLIENTS]
        self.network = Network([*self.places, JUDGE])
        library = disks.compile_shim(directory)
        self.slow_disks = {name: disks.SlowDisk(library, directory / "switches" / name) for name in names}
        self.small_disks: dict[str, disks.SmallDisk] = {}
        self._exits = ExitStack()
        return lambda name: f"{self.network.address[name]}:{PORTS[name.split('-')[0]]}"

    def _add_clients(self, *, java: bool) -> None:
        self.producer_journal = ProducerJournal(self.directory / "producer" / "journal")
        self.consumer_journal = ConsumerJournal(self.directory / "consumers" / "journal")
        self.clients = self._clients() if java else []

    def _clients(self) -> list[ManagedProcess]:
        """The consumers come before the producer."""
        producer, consumers = self.CLIENTS
        return [
            self._client(consumers, "ChaosConsumers"),
            self._client(producer, "ChaosProducer", str(SENDERS), str(PAUSE_MS)),
        ]

    def _client(self, name: str, main: str, *arguments: str) -> ManagedProcess:
        journal = str(self.directory / name / "journal")
        sources = ("ChaosProducer.java", "ChaosConsumers.java")
        return self._java(name, main, [self.nameserver.address, TOPIC, journal, *arguments], sources)

    def __enter__(self) -> Self:
        with ExitStack() as exits:
            exits.enter_context(self.network)
            exits.enter_context(self.network.within(JUDGE))
            self._mount_disks(exits)
            exits.callback(self._end_processes)
            self.start()
            self._start_clients()
            self._exits = exits.pop_all()
        return self

    def _mount_disks(self, exits: ExitStack) -> None:
        """Gives each broker a small disk of its own."""
        for member in self.brokers:
            disk = disks.SmallDisk(member.config.parent / "store")
            exits.callback(disk.unmount)
            self.small_disks[member.name] = disk

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(self.logs(8000))
        self._exits.close()

    def _end_processes(self) -> None:
        for process in self.clients:
            process.kill()
        self.kill()

    def logs(self, characters: int = 2500) -> str:
        """The end of every process's log, including the clients'."""
        parts = [super().logs(characters)]
        for one in self.clients:
            # RocketMQ's logging library reports its own initialization.
            lines = [line for line in one.output(100_000).splitlines() if "|-INFO in" not in line]
            parts.append(f"--- {one.name} (status {one.status})\n" + "\n".join(lines)[-characters:])
        return "\n".join(parts)

    def _start_clients(self) -> None:
        wait_until(lambda: acknowledged(self.wait_master(), FIRST), what="the topic exists")
        for process in self.clients:
            process.start()
        self.wait_clients(acks=0, timeout_s=180)

    def end_clients(self) -> None:
        """Stops the producer, which then writes down the results of its last sends."""
        for process in self.clients[1:]:
            process.stop()

    def wait_clients(self, *, acks: int, timeout_s: float) -> None:
        """Waits until the Java producer, if there is one, was acknowledged more than `acks` times."""
        if not self.clients:
            return

        def reached() -> bool:
            for process in self.clients:
                assert process.alive, f"{process.name} ended with {process.status}: {process.output()}"
            self.producer_journal.read()
            return len(self.producer_journal.acks) > acks

        wait_until(reached, timeout_s=timeout_s, what="the Java producer is acknowledged")


class ChaosGroup(ClientsUnderFaults, ReplicaGroup):
    """Three controllers, three brokers, a nameserver and the clients."""

    def __init__(self, directory: Path, settings: Settings, *, java: bool = True) -> None:
        names = [f"{kind}-{i}" for kind in ("controller", "broker") for i in range(SIZE)]
        places = self._lay_out(directory, names)
        super().__init__(
            directory,
            [self._made_by("controller")] * SIZE,
            [self._made_by("broker")] * SIZE,
            broker={**SAFE, **SMALL, **settings},
            nameserver=self._made_by("nameserver"),
            places=places,
        )
        self._add_clients(java=java)

    def wait_in_sync(self, count: int, *, timeout_s: float = START_TIMEOUT_S) -> None:
        """Waits until every controller responds, too: one that still starts has no signal handlers, so that
        the next fault could not stop it in an orderly way."""
        super().wait_in_sync(count, timeout_s=timeout_s)
        wait_until(lambda: all(map(self.has_metadata, self.controllers)), what="every controller responds")

    def wait_settled(self) -> Member:
        """Waits until the master has confirmed what all replicas have."""
        return wait_confirmed(self)

    def leaderships(self, master: Member) -> list[tuple[int, int]]:
        """The beginnings of the epochs."""
        return epoch_starts(master)

    def check_equal(self) -> None:
        """Checks that logs and epoch files are equal."""
        check_equal(self)
