"""Runs three brokers, with three controllers or with a DLedger log, each process on a file system of its own;
a nameserver; and RocketMQ's producer and consumers."""

from __future__ import annotations

import random
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.integration.chaos.group import FIRST
from tests.integration.chaos.journals import ConsumerJournal, ProducerJournal
from tests.integration.disks.ack_ledger import differences
from tests.integration.disks.faulty_volume import FaultyVolume, compile_program
from tests.integration.disks.images import ImagePool, ImageVolume, replace_all_by_clones
from tests.integration.disks.run_directory import RunDirectory, command
from tests.integration.replica_rounds import SAFE
from tests.interop.java_env import compile_java, java_command
from tests.support.cluster import Settings, Value
from tests.support.dledger_group import OurDLedgerGroup
from tests.support.freeze import freeze
from tests.support.group_processes import ElectingGroup, Factory, Member
from tests.support.group_traffic import QUEUES, TOPIC, acknowledged, wait_confirmed
from tests.support.process import ManagedProcess, wait_until
from tests.support.remoting import split_address
from tests.support.replica_group import ReplicaGroup

SIZE = 3
SENDERS = 16
FIRST_MEMBER_SHARE = 0.5
WAIT_SHARE = 0.3
"""The share of members that serve before the next one starts."""
KINDS = ("ext4", "xfs")
SETTINGS: dict[str, Value] = {
    # Files of this size are full after some seconds, so that power cuts also hit the creation of files.
    "mappedFileSizeCommitLog": 4 << 20,
    "maxMessageSize": 1 << 16,
    "mappedFileSizeConsumeQueue": 20 * 2000,
    "maxHashSlotNum": 5000,
    "maxIndexNum": 20_000,
    "defaultTopicQueueNums": QUEUES,
    "cleanFileForciblyEnable": False,
}


def our_process(role: str) -> Factory:
    """A factory of processes of this role, which end with the tests."""

    def make(config: Path) -> ManagedProcess:
        arguments = [sys.executable, "-m", "epochmq", role, "--config", str(config)]
        return ManagedProcess(command(arguments), name=config.parent.name, directory=config.parent)

    return make


class ClientOnDisks(ElectingGroup):
    """A group whose members' stores are mount points, with RocketMQ's producer as its client. Subclasses call
    `_add_clients` after they have made the processes of the group."""

    def _add_clients(self, *, senders: int = SENDERS, consumers: bool = False) -> None:
        self.producer_journal = ProducerJournal(self.directory / "producer" / "journal")
        self.consumer_journal = ConsumerJournal(self.directory / "consumers" / "journal")
        self.producer = self._client("producer", "ChaosProducer", str(senders), "0")
        self.clients = [self._client("consumers", "ChaosConsumers")] if consumers else []
        self.clients.append(self.producer)
        self._exits = ExitStack()

    @property
    def stateful(self) -> list[Member]:
        """The members with a disk."""
        raise NotImplementedError

    def state_folder(self, member: Member) -> Path:
        """The mount point of the member's file system."""
        return member.config.parent / "store"

    def _client(self, name: str, main: str, *arguments: str) -> ManagedProcess:
        home = self.directory / name
        java = java_command(
            main,
            [self.nameserver.address, TOPIC, str(home / "journal"), *arguments],
            home=home,
            classes=compile_java("ChaosProducer.java", "ChaosConsumers.java"),
            heap_mb=128,
        )
        return ManagedProcess(command(java), name=name, directory=home, env={"ROCKETMQ_HOME": str(home)})

    # Life ---------------------------------------------------------------------------------------------------

    def _mount(self, exits: ExitStack) -> None:
        """Mounts a file system for each member."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        with ExitStack() as exits:
            self._mount(exits)
            exits.callback(self._end_processes)
            self.start()
            wait_until(lambda: acknowledged(self.wait_master(), FIRST), what="the topic is there")
            for process in self.clients:
                process.start()
            self.wait_acknowledged(0)
            self._exits = exits.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(self.logs(6000))
        self._exits.close()

    def _end_processes(self) -> None:
        for process in self.clients:
            process.kill()
        self.kill()

    # Traffic ------------------------------------------------------------------------------------------------

    def wait_acknowledged(self, count: int, *, timeout_s: float = 180) -> None:
        """Waits until the producer has more than `count` acknowledgements."""

        def reached() -> bool:
            assert self.producer.alive, f"the producer ended: {self.producer.output()}"
            self.producer_journal.read()
            return len(self.producer_journal.acks) > count

        wait_until(reached, timeout_s=timeout_s, what="the Java producer is acknowledged")

    def pause(self) -> None:
        """Stops the producer's process; messages that it has sent may still be stored."""
        freeze([self.producer])
        self.producer_journal.read()

    def resume(self) -> None:
        """Continues the producer's process."""
        self.producer.signal(signal.SIGCONT)


class DiskGroup(ClientOnDisks, ReplicaGroup):
    """A replica group of three brokers and three controllers."""

    def __init__(
        self,
        directory: Path,
        settings: Settings,
        *,
        senders: int = SENDERS,
        consumers: bool = False,
        octet: int = 61,
    ) -> None:
        super().__init__(
            directory,
            [our_process("controller")] * SIZE,
            [our_process("broker")] * SIZE,
            broker={**SAFE, **SETTINGS, **settings},
            nameserver=our_process("nameserver"),
            octet=octet,
        )
        self._add_clients(senders=senders, consumers=consumers)

    @property
    def stateful(self) -> list[Member]:
        """The members with a disk."""
        return [*self.controllers, *self.brokers]

    def wait_settled(self) -> Member:
        """Waits until the master has confirmed what all replicas have."""
        return wait_confirmed(self)

    def differences(self, member: Member, master: Member) -> list[str]:
        """The differences between logs and epoch files."""
        return differences(member, master)


class FaultyGroup(DiskGroup):
    """A group on file systems that fail on command, under RocketMQ's producer and consumers."""

    def __init__(self, directory: Path, settings: Settings, *, senders: int = SENDERS) -> None:
        super().__init__(directory, settings, senders=senders, consumers=True)
        self.volumes: dict[str, FaultyVolume] = {}

    def _mount(self, exits: ExitStack) -> None:
        run = exits.enter_context(RunDirectory())
        program = compile_program(run.path)
        for member in self.stateful:
            volume = FaultyVolume(program, run.path, run.path / member.name, self.state_folder(member))
            exits.callback(volume.close)
            self.volumes[member.name] = volume


class GroupOnImages(ClientOnDisks):
    """A group on images, whose power can be cut. Subclasses call `_choose_disks` at the end of `__init__`."""

    SCOPE: str
    """The members with a disk, in words."""

    def _choose_disks(self, seed: int, kind: str | None = None) -> None:
        """`kind` is the file system of all members; without it each member gets a random one."""
        self.random = random.Random(seed)
        self.kinds = [kind or self.random.choice(KINDS) for _ in self.stateful]
        self.volumes: dict[str, ImageVolume] = {}

    def _mount(self, exits: ExitStack) -> None:
        run = exits.enter_context(RunDirectory())
        pool = ImagePool(run)
        for member, kind in zip(self.stateful, self.kinds, strict=True):
            self.volumes[member.name] = pool.volume(member.name, self.state_folder(member), kind)

    # Power cuts ---------------------------------------------------------------------------------------------

    def cut_all(self) -> float:
        """Cuts the power of all members at one moment. Returns how long their processes were stopped for it,
        in seconds."""
        members = self.stateful
        began = time.monotonic()
        freeze([member.process for member in members])
        clones = self._clone(members)
        took = time.monotonic() - began
        self._replace_by_clones(members, clones)
        return took

    def cut_one(self, member: Member) -> float:
        """Cuts the power of this member and stops the others cleanly. Returns how long the processes were
        stopped for it, in seconds. The others get SIGTERM before they can notice the cut, so no controller
        elects another master."""
        others = [other for other in self.stateful if other is not member]
        began = time.monotonic()
        freeze([one.process for one in self.stateful])
        clones = self._clone([member])
        took = time.monotonic() - began
        for other in others:
            other.process.signal(signal.SIGTERM)
        member.process.signal(signal.SIGKILL)
        for other in others:
            other.process.signal(signal.SIGCONT)
        self._wait_stopped(others)
        self._replace_by_clones([member], clones)
        return took

    def _clone(self, members: Sequence[Member]) -> list[Path]:
        return [self.volumes[member.name].clone() for member in members]

    def _replace_by_clones(self, members: Sequence[Member], clones: Sequence[Path]) -> None:
        """Kills the members, and replaces their disks by the clones."""
        for member in members:
            member.process.signal(signal.SIGKILL)
        for member in members:
            member.process.kill()
        replace_all_by_clones(
            [(self.volumes[member.name], clone) for member, clone in zip(members, clones, strict=True)]
        )

    def stop_all(self) -> None:
        """Stops all members cleanly at once."""
        for member in self.stateful:
            member.process.signal(signal.SIGTERM)
        self._wait_stopped(self.stateful)

    def _wait_stopped(self, members: Sequence[Member]) -> None:
        for member in members:
            status = member.process.wait()
            assert status == 0, f"{member.name} stopped with {status}"

    def start_all(self, *, first: Member | None, timeout_s: float) -> str:
        """Starts all members, which have ended, in a random order, and waits until all replicas are in sync
        and all members serve. Each member starts together with the previous one, or when that one serves.
        `first` often starts first, before another replica can be elected. Returns the order, as text."""
        order = list(self.stateful)
        self.random.shuffle(order)
        if first is not None and self.random.random() < FIRST_MEMBER_SHARE:
            order.sort(key=lambda member: member is not first)
        started = []
        for member in order:
            member.start()
            waits = self.random.random() < WAIT_SHARE
            if waits and member in self.brokers:
                member.process.wait_until(partial(_serves, member), what="serving")
            started.append(f"{member.name}{' and then' if waits else ''}")
        self.wait_in_sync(SIZE, timeout_s=timeout_s)
        for member in order:  # a process that still starts would be killed by the signal for a clean stop
            member.process.wait_until(partial(_serves, member), what="serving")
        return ", ".join(started)


class ImageGroup(GroupOnImages, DiskGroup):
    """A replica group on images."""

    SCOPE = "all six"

    def __init__(
        self,
        directory: Path,
        settings: Settings,
        seed: int,
        *,
        kind: str | None = None,
        senders: int = SENDERS,
    ) -> None:
        super().__init__(directory, settings, senders=senders)
        self._choose_disks(seed, kind)


class DLedgerImageGroup(GroupOnImages, OurDLedgerGroup):
    """Three brokers with a DLedger log on images, without controllers."""

    SCOPE = "all three"

    def __init__(self, directory: Path, settings: Settings, seed: int) -> None:
        super().__init__(
            directory,
            [our_process("broker")] * SIZE,
            broker={**SETTINGS, **settings},
            nameserver=our_process("nameserver"),
        )
        self._add_clients()
        self._choose_disks(seed)

    @property
    def stateful(self) -> list[Member]:
        """The members with a disk."""
        return self.brokers


def _serves(member: Member) -> bool:
    """Whether the member accepts connections."""
    with socket.create_connection(split_address(member.address), timeout=2):
        return True
