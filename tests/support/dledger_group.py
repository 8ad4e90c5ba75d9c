"""Brokers of one DLedger group as real processes: each of ours or of RocketMQ's, with a directory and a
loopback address of its own, and one nameserver."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.cluster import NEVER_BUSY, START_TIMEOUT_S, Settings, properties
from tests.support.group_traffic import (
    GET_BROKER_RUNTIME_INFO,
    SEND_MESSAGE_V2,
    SUCCESS,
    read_queue,
    send_header,
)
from tests.support.net import free_port, loopback
from tests.support.process import wait_until
from tests.support.remoting import call
from tests.support.replica_group import Factory, Member, logs_of, our_nameserver

GET_BROKER_CLUSTER_INFO = 106
FILE_SIZE = 1 << 20


class DLedgerGroup:
    """`brokers[0]` has the id n0 in the group, and so on."""

    CLUSTER, NAME = "TestCluster", "group-a"

    def __init__(
        self,
        directory: Path,
        brokers: Sequence[Factory],
        *,
        broker: Settings | None = None,
        octet: int = 61,
        nameserver: Factory = our_nameserver,
    ) -> None:
        self.directory = directory
        self._keys = itertools.count()
        host = loopback(octet)
        port = free_port(host)
        self.nameserver = self._member(
            "nameserver",
            f"{host}:{port}",
            nameserver,
            {
                "listenPort": port,
                "bindAddress": host,
                "kvConfigPath": str(directory / "nameserver" / "kvConfig.json"),
            },
        )
        hosts = [loopback(octet) for _ in brokers]
        peers = ";".join(f"n{number}-{host}:{free_port(host)}" for number, host in enumerate(hosts))
        self.brokers = [
            self._broker(number, make, hosts[number], {"dLegerPeers": peers, **(broker or {})})
            for number, make in enumerate(brokers)
        ]

    def _member(self, name: str, address: str, make: Factory, settings: Settings) -> Member:
        path = self.directory / name / f"{name.split('-')[0]}.conf"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(properties(settings))
        return Member(name, address, path, make, make(path))

    def _broker(self, number: int, make: Factory, host: str, settings: Settings) -> Member:
        port = free_port(host)
        store = self.store(number)
        return self._member(
            f"broker-{number}",
            f"{host}:{port}",
            make,
            {
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
                "enableDLegerCommitLog": True,
                "dLegerGroup": self.NAME,
                "dLegerSelfId": f"n{number}",
                "mappedFileSizeCommitLog": FILE_SIZE,
                "maxMessageSize": 64 * 1024,
                "maxHashSlotNum": 50_000,
                "maxIndexNum": 200_000,
                "mappedFileSizeTimerLog": 1 << 20,
                "slaveReadEnable": True,
                "registerNameServerPeriod": 10_000,
                **NEVER_BUSY,
                **settings,
            },
        )

    def store(self, number: int) -> Path:
        """A broker's directory."""
        return self.directory / f"broker-{number}" / "store"

    @property
    def members(self) -> list[Member]:
        """All processes."""
        return [self.nameserver, *self.brokers]

    def __enter__(self) -> Self:
        try:
            self.nameserver.start()
            for member in self.brokers:
                member.start()
            self.wait_master()
        except BaseException as error:
            error.add_note(self.logs())
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(self.logs())
        self.stop()

    def stop(self) -> None:
        """Kills all."""
        for member in reversed(self.members):
            member.process.kill()

    def logs(self, characters: int = 3000) -> str:
        """The end of every process's output."""
        return logs_of(self.members, characters)

    def registered(self) -> dict[str, str]:
        """The addresses of the group by broker id, as the nameserver tells them."""
        with contextlib.suppress(OSError):
            response = call(self.nameserver.address, GET_BROKER_CLUSTER_INFO, timeout_s=2)
            if response.code == SUCCESS:
                return dict(re.findall(r'[{,](\d+):"([^"]+)"', response.body.decode()))
        return {}

    def master(self) -> Member | None:
        """The living broker that the nameserver names as master."""
        address = self.registered().get("0")
        return next((one for one in self.brokers if one.address == address and one.process.alive), None)

    def wait_master(self, *, other_than: Member | None = None) -> Member:
        """Waits for a master that stores messages."""
        found: list[Member] = []

        def stores() -> bool:
            found[:] = [one for one in (self.master(),) if one is not None and one is not other_than]
            return bool(found) and self.send(found[0], b"first of a master")

        wait_until(stores, timeout_s=START_TIMEOUT_S, what="a master stores a message")
        return found[0]

    def send(self, member: Member, body: bytes, *, queue_id: int = 0) -> bool:
        """Sends one message once. Returns whether it was acknowledged."""
        header = send_header(queue_id, f"{next(self._keys):032X}")
        try:
            return call(member.address, SEND_MESSAGE_V2, header, body, timeout_s=10).code == SUCCESS
        except OSError:
            return False

    def texts(self, member: Member, queue_id: int = 0) -> list[bytes]:
        """The bodies of a queue's messages, as a broker shows them."""
        return [message.body for message in read_queue(member, queue_id)]

    def wait_equal(self, members: Sequence[Member], queue_id: int) -> list[bytes]:
        """Waits until these brokers show the same messages in a queue, and returns their bodies."""
        shown: list[list[bytes]] = []

        def equal() -> bool:
            with contextlib.suppress(OSError, AssertionError):
                shown[:] = [self.texts(one, queue_id) for one in members]
                return all(one == shown[0] for one in shown)
            return False

        wait_until(equal, timeout_s=60, what=f"the brokers show the same messages in queue {queue_id}")
        return shown[0]

    def wait_caught_up(self) -> None:
        """Waits until all brokers have committed the same entries. No client sends meanwhile."""

        def same_end() -> bool:
            with contextlib.suppress(OSError):
                ends = {self._committed_end(one) for one in self.brokers}
                return len(ends) == 1 and None not in ends
            return False

        wait_until(same_end, timeout_s=START_TIMEOUT_S, what="all brokers have committed the same entries")

    def _committed_end(self, member: Member) -> int | None:
        response = call(member.address, GET_BROKER_RUNTIME_INFO, timeout_s=5)
        if response.code != SUCCESS:
            return None
        return int(json.loads(response.body)["table"]["commitLogMaxOffset"])
