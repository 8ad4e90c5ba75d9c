"""The processes of one group: a nameserver and brokers, each of ours or of RocketMQ's, with a directory of
its own. Subclasses say what else belongs to the group, how its brokers are configured, and when it serves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.cluster import NEVER_BUSY, START_TIMEOUT_S, Settings, our_process, properties
from tests.support.net import free_port, loopback
from tests.support.process import ManagedProcess
from tests.support.remoting import split_address

Factory = Callable[[Path], ManagedProcess]
"""Makes the process that runs a configuration file."""
Places = Callable[[str], str]
"""The address (ip:port) at which the process of this name is to listen."""


@dataclass
class Member:
    """One process of the group."""

    name: str
    address: str
    config: Path
    make: Factory
    process: ManagedProcess

    def start(self) -> None:
        """Starts it, or starts it again."""
        self.process = self.make(self.config)
        self.process.start()


def logs_of(members: Sequence[Member], characters: int) -> str:
    """The end of the output of each process."""
    return "\n".join(f"{one.name} at {one.address}:\n{one.process.report(characters)}" for one in members)


def own_places(octet: int) -> Places:
    """Gives each process a loopback address of its own, and each call another port of it."""
    hosts: dict[str, str] = {}

    def place(name: str) -> str:
        if name not in hosts:
            hosts[name] = loopback(octet)
        return _place(hosts[name])

    return place


def one_place(host: str) -> Places:
    """Gives all processes this address, with ports of their own."""
    return lambda _name: _place(host)


def _place(host: str) -> str:
    return f"{host}:{free_port(host)}"


def our_controller(config: Path) -> ManagedProcess:
    """`epochmq controller`."""
    return our_process("controller", config)


def our_broker(config: Path) -> ManagedProcess:
    """`epochmq broker`."""
    return our_process("broker", config)


def our_nameserver(config: Path) -> ManagedProcess:
    """`epochmq nameserver`."""
    return our_process("nameserver", config)


class GroupProcesses:
    """As a context manager, starts the group, and kills all its processes at the end."""

    CLUSTER = "TestCluster"
    NAME = "group-a"

    nameserver: Member
    brokers: list[Member]

    def __init__(self, directory: Path, places: Places) -> None:
        self.directory = directory
        self._places = places

    def start(self) -> None:
        """Starts all processes, and waits until the group serves. Ends all if one fails."""
        try:
            self._start()
        except BaseException as error:
            self._end(error)
            raise

    def _start(self) -> None:
        raise NotImplementedError

    @property
    def members(self) -> list[Member]:
        """All processes, in the order in which they are started."""
        return [self.nameserver, *self.brokers]

    def store(self, number: int) -> Path:
        """A broker's directory."""
        return self.directory / f"broker-{number}" / "store"

    def check_alive(self) -> None:
        """Fails when a process that was started, and not killed by the test, has ended."""
        for member in self.members:
            status = member.process.status
            assert status is None or status == -9, f"{member.name} ended with {status}"

    def kill(self) -> None:
        """Ends all at once."""
        for member in reversed(self.members):
            member.process.kill()

    def logs(self, characters: int = 3000) -> str:
        """The end of every process's output."""
        return logs_of(self.members, characters)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        if error is not None:
            error.add_note(self.logs())
        self.kill()

    def make_member(self, name: str, address: str, make: Factory, settings: Settings) -> Member:
        """A process that is not started yet, with its configuration file."""
        path = self.directory / name / f"{name.split('-')[0]}.conf"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(properties(settings))
        return Member(name, address, path, make, make(path))

    def make_nameserver(self, make: Factory, settings: Settings | None = None) -> Member:
        """The nameserver, with these settings besides the usual ones."""
        address = self._places("nameserver")
        host, port = split_address(address)
        usual: Settings = {
            "listenPort": port,
            "bindAddress": host,
            "kvConfigPath": str(self.directory / "nameserver" / "kvConfig.json"),
        }
        return self.make_member("nameserver", address, make, {**usual, **(settings or {})})

    def make_broker(self, number: int, make: Factory, settings: Settings) -> Member:
        """A broker of the group, with small files, and with these settings besides the usual ones."""
        name = f"broker-{number}"
        address = self._places(name)
        host, port = split_address(address)
        store = self.store(number)
        usual: Settings = {
            "brokerClusterName": self.CLUSTER,
            "brokerName": self.NAME,
            "brokerIP1": host,
            "brokerIP2": host,
            "bindAddress": host,
            "listenPort": port,
            "haListenPort": port + 1,
            "namesrvAddr": self.nameserver.address,
            "storePathRootDir": str(store),
            "storePathCommitLog": str(store / "commitlog"),
            "maxHashSlotNum": 50_000,
            "maxIndexNum": 200_000,
            "mappedFileSizeTimerLog": 1 << 20,
            **NEVER_BUSY,
        }
        return self.make_member(name, address, make, {**usual, **settings})


class ElectingGroup(GroupProcesses):
    """A group whose master is elected. What it says of itself depends on who elects."""

    def master(self) -> Member | None:
        """The present master, while it lives."""
        raise NotImplementedError

    def wait_master(self, *, other_than: Member | None = None) -> Member:
        """Waits for a master (other than this one) that clients find, and returns it."""
        raise NotImplementedError

    def wait_in_sync(self, count: int, *, timeout_s: float = START_TIMEOUT_S) -> None:
        """Waits for a master that clients find, and `count` living replicas in sync, which include it."""
        raise NotImplementedError

    def wait_settled(self) -> Member:
        """Waits until all replicas have the whole log, and the master shows all of it to consumers. Returns
        the master. No client sends meanwhile."""
        raise NotImplementedError

    def leaderships(self, master: Member) -> list[tuple[int, int]]:
        """(position, epoch or term) of the first byte of each, the oldest first."""
        raise NotImplementedError

    def check_equal(self) -> None:
        """Checks that the logs of all replicas are equal. No client sends meanwhile."""
        raise NotImplementedError

    def differences(self, member: Member, master: Member) -> list[str]:
        """The differences between a replica's log and its master's, as texts."""
        raise NotImplementedError
