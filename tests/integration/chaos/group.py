"""The processes of a chaos round: those of the group, each in a network namespace of its own, brokers on a
small disk of their own, and two JVMs with RocketMQ's producer and consumers."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.integration.chaos import disks
from tests.integration.chaos.journals import ConsumerJournal, ProducerJournal
from tests.integration.chaos.network import Network
from tests.integration.replica_rounds import SAFE
from tests.interop.java_env import compile_java, java_command
from tests.support.cluster import Settings, Value
from tests.support.group_traffic import QUEUES, TOPIC, acknowledged
from tests.support.process import ManagedProcess, wait_until
from tests.support.replica_group import Factory, ReplicaGroup

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


class ChaosGroup(ChaosProcesses, ReplicaGroup):
    """Three controllers, three brokers, a nameserver and the clients. While it is entered, the calling thread
    is in a namespace of its own whose links are never cut. Without `java` there are no JVMs."""

    CLIENTS = ("producer", "consumers")

    def __init__(self, directory: Path, settings: Settings, *, java: bool = True) -> None:
        names = [f"{kind}-{i}" for kind in ("controller", "broker") for i in range(SIZE)]
        self.places = ["nameserver", *names, *self.CLIENTS]
        self.network = Network([*self.places, JUDGE])
        self._library = disks.compile_shim(directory)
        self.slow_disks = {
            name: disks.SlowDisk(self._library, directory / "switches" / name) for name in names
        }
        self.small_disks: dict[str, disks.SmallDisk] = {}
        super().__init__(
            directory,
            [self._made_by("controller")] * SIZE,
            [self._made_by("broker")] * SIZE,
            broker={**SAFE, **SMALL, **settings},
            nameserver=self._made_by("nameserver"),
            places=lambda name: f"{self.network.address[name]}:{PORTS[name.split('-')[0]]}",
        )
        self.producer_journal = ProducerJournal(directory / "producer" / "journal")
        self.consumer_journal = ConsumerJournal(directory / "consumers" / "journal")
        self.clients = self._clients() if java else []
        self._exits = ExitStack()

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
            exits.callback(self._end)
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

    def _end(self) -> None:
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
