"""The producers under which volumes fail: RocketMQ's, or threads of this process if a test is to need no
Java."""

from __future__ import annotations

import signal
from typing import Protocol

from tests.integration.ack_checks import Ack
from tests.integration.chaos.journals import ProducerJournal
from tests.integration.disks.run_directory import command
from tests.integration.replica_rounds import Producer
from tests.interop.java_env import compile_java, java_command
from tests.support.freeze import freeze
from tests.support.group_processes import GroupProcesses
from tests.support.group_traffic import QUEUES, TOPIC
from tests.support.process import ManagedProcess, wait_until

SENDERS, PAUSE_MS = 4, 10


class Traffic(Protocol):
    """A producer that sends to whichever broker accepts, from the first `resume` on, but for pauses."""

    def resume(self) -> None:
        """Starts to send, or goes on."""

    def pause(self) -> None:
        """Sends nothing more. Messages that were sent may still be stored."""

    def end(self) -> None:
        """Ends for good."""

    def acks(self) -> list[Ack]:
        """All acknowledgements so far."""


class JavaTraffic:
    """RocketMQ's producer; a pause suspends its process."""

    def __init__(self, group: GroupProcesses) -> None:
        home = group.directory / "producer"
        self._journal = ProducerJournal(home / "journal")
        arguments = [group.nameserver.address, TOPIC, str(home / "journal"), str(SENDERS), str(PAUSE_MS)]
        classes = compile_java("ChaosProducer.java", "ChaosConsumers.java")
        java = java_command("ChaosProducer", arguments, home=home, classes=classes, heap_mb=128)
        environment = {"ROCKETMQ_HOME": str(home)}
        self._process = ManagedProcess(command(java), name=home.name, directory=home, env=environment)

    def resume(self) -> None:
        if self._process.alive:
            self._process.signal(signal.SIGCONT)
        else:
            self._process.start()

    def pause(self) -> None:
        freeze([self._process])

    def end(self) -> None:
        self._process.kill()

    def acks(self) -> list[Ack]:
        assert self._process.alive, f"the producer ended: {self._process.output()}"
        self._journal.read()
        return self._journal.acks


class ThreadTraffic:
    """A thread for each queue, which knows the addresses of all brokers."""

    def __init__(self, group: GroupProcesses, seed: int) -> None:
        self._addresses = [one.address for one in group.brokers]
        self._seed = seed
        self._runs = 0
        self._acks: list[Ack] = []
        self._producers: list[Producer] = []

    def resume(self) -> None:
        self._runs += 1
        self._producers = [
            Producer(queue, self._addresses, self._seed + self._runs, pause_s=PAUSE_MS / 1000)
            for queue in range(QUEUES)
        ]
        for one in self._producers:
            one.sent = self._runs * 1_000_000
            one.start()

    def pause(self) -> None:
        for one in self._producers:
            one.finish()
            self._acks += one.acks
        self._producers = []

    def end(self) -> None:
        self.pause()

    def acks(self) -> list[Ack]:
        return [*self._acks, *(ack for one in self._producers for ack in one.acks)]


def wait_acknowledged(traffic: Traffic, count: int, *, timeout_s: float = 120) -> None:
    """Waits until more than `count` messages are acknowledged."""
    wait_until(lambda: len(traffic.acks()) > count, timeout_s=timeout_s, what="messages are acknowledged")
