"""A master and its replicas without a controller, as real processes: each of ours or of RocketMQ's, with a
directory of its own, and one nameserver, ours unless the test says otherwise. Each has a loopback address of
its own, too, unless the test gives all of them one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.cluster import NEVER_BUSY, START_TIMEOUT_S, Settings, properties
from tests.support.net import free_port, loopback
from tests.support.process import wait_until
from tests.support.remoting import Response, call
from tests.support.replica_group import Factory, Member, logs_of, our_nameserver

SEND_MESSAGE_V2 = 310
GET_BROKER_HA_STATUS = 907
LOG_FILE = 1 << 20


class Pair:
    """`brokers[0]` is the master."""

    NAME = "broker-a"

    def __init__(
        self,
        directory: Path,
        brokers: Sequence[Factory],
        *,
        broker: Settings | None = None,
        octet: int = 60,
        nameserver: Factory = our_nameserver,
        nameserver_settings: Settings | None = None,
        host: str | None = None,
    ) -> None:
        self.directory = directory
        self._host = host
        host = host or loopback(octet)
        port = free_port(host)
        self.nameserver = self._member(
            "nameserver",
            f"{host}:{port}",
            nameserver,
            {
                "listenPort": port,
                "bindAddress": host,
                "kvConfigPath": str(directory / "nameserver" / "kvConfig.json"),
                **(nameserver_settings or {}),
            },
        )
        self.brokers = [self._broker(i, make, broker or {}, octet) for i, make in enumerate(brokers)]

    def _member(self, name: str, address: str, make: Factory, settings: Settings) -> Member:
        path = self.directory / name / f"{name.split('-')[0]}.conf"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(properties(settings))
        return Member(name, address, path, make, make(path))

    def _broker(self, number: int, make: Factory, settings: Settings, octet: int) -> Member:
        host = self._host or loopback(octet)
        port = free_port(host)
        store = self.store(number)
        return self._member(
            f"broker-{number}",
            f"{host}:{port}",
            make,
            {
                "brokerClusterName": "TestCluster",
                "brokerName": self.NAME,
                "brokerId": number,
                "brokerRole": "SLAVE" if number else "SYNC_MASTER",
                "brokerIP1": host,
                "brokerIP2": host,
                "bindAddress": host,
                "listenPort": port,
                "haListenPort": port + 1,
                "namesrvAddr": self.nameserver.address,
                "storePathRootDir": str(store),
                "storePathCommitLog": str(store / "commitlog"),
                "mappedFileSizeCommitLog": LOG_FILE,
                "maxMessageSize": 64 * 1024,
                "maxHashSlotNum": 50_000,
                "maxIndexNum": 200_000,
                "mappedFileSizeTimerLog": 1 << 20,
                "registerNameServerPeriod": 10_000,
                **NEVER_BUSY,
                **settings,
            },
        )

    def store(self, number: int) -> Path:
        """A broker's directory."""
        return self.directory / f"broker-{number}" / "store"

    @property
    def master(self) -> Member:
        """Whom clients send to."""
        return self.brokers[0]

    @property
    def members(self) -> list[Member]:
        """All processes."""
        return [self.nameserver, *self.brokers]

    def __enter__(self) -> Self:
        try:
            self.nameserver.start()
            for member in self.brokers:
                member.start()
                serves = partial(self.answers, member)
                wait_until(serves, timeout_s=START_TIMEOUT_S, what=f"{member.name} serves")
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
        """Ends all."""
        for member in reversed(self.members):
            member.process.kill()

    def logs(self, characters: int = 3000) -> str:
        """The end of every process's output."""
        return logs_of(self.members, characters)

    def answers(self, member: Member) -> bool:
        """Whether a broker takes requests."""
        assert member.process.alive, f"{member.name} ended\n{member.process.output()}"
        try:
            call(member.address, GET_BROKER_HA_STATUS, timeout_s=2)
        except OSError:
            return False
        return True

    def send(self, topic: str = "orders", body: bytes = b"hello", *, queue_id: int = 0) -> Response:
        """One message to the master, which makes the topic when it does not exist."""
        ext = {
            "a": "producers", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0",
            "g": "1700000000000", "h": "0", "i": "WAIT\x01true\x02", "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        return call(self.master.address, SEND_MESSAGE_V2, ext, body, timeout_s=60)

    def deliver(self, body: bytes = b"hello", *, queue_id: int = 0) -> None:
        """One message, sent until it is acknowledged, as a client does it."""
        wait_until(lambda: self.send(body=body, queue_id=queue_id).code == 0, what="a send is acknowledged")

    def ha(self, number: int = 0) -> dict[str, Any]:
        """What a broker says of its replication."""
        response = call(self.brokers[number].address, GET_BROKER_HA_STATUS)
        assert response.code == 0, response
        found: dict[str, Any] = json.loads(response.body)
        return found

    def end(self) -> int:
        """The end of the master's log."""
        return int(self.ha()["masterCommitLogMaxOffset"])

    def wait_followed(self, count: int = 1) -> int:
        """Waits until so many replicas have the whole log; its end."""

        def reached() -> bool:
            status = self.ha()
            end = status["masterCommitLogMaxOffset"]
            return len([1 for one in status["haConnectionInfo"] if one["slaveAckOffset"] == end]) >= count

        wait_until(reached, timeout_s=START_TIMEOUT_S, what=f"{count} replicas have all")
        return self.end()

    def log_bytes(self, number: int, end: int) -> bytes:
        """A broker's log from the first byte, wherever it begins, to `end`."""
        data = bytearray()
        for path in sorted((self.store(number) / "commitlog").iterdir()):
            data += path.read_bytes()[: max(end - int(path.name), 0)]
        return bytes(data)
