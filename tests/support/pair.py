"""A master and its replicas without a controller, as real processes: each of ours or of RocketMQ's, with a
directory of its own, and one nameserver, ours unless the test says otherwise. Each has a loopback address of
its own, too, unless the test gives all of them one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.cluster import START_TIMEOUT_S, Settings
from tests.support.group_processes import (
    Factory,
    GroupProcesses,
    Member,
    one_place,
    our_nameserver,
    own_places,
)
from tests.support.process import wait_until
from tests.support.remoting import Response, call

SEND_MESSAGE_V2 = 310
GET_BROKER_HA_STATUS = 907
LOG_FILE = 1 << 20
STORED = frozenset({0, 10, 11, 12})
"""The codes of a message that the master has stored. A slave that is starved or starts may acknowledge it too
late."""


class Pair(GroupProcesses):
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
        super().__init__(directory, own_places(octet) if host is None else one_place(host))
        self.nameserver = self.make_nameserver(nameserver, nameserver_settings)
        self.brokers = [self.make_broker(i, make, broker or {}) for i, make in enumerate(brokers)]

    def make_broker(self, number: int, make: Factory, settings: Settings) -> Member:
        """A broker with this id: the master's is 0."""
        usual: Settings = {
            "brokerId": number,
            "brokerRole": "SLAVE" if number else "SYNC_MASTER",
            "mappedFileSizeCommitLog": LOG_FILE,
            "maxMessageSize": 64 * 1024,
            "registerNameServerPeriod": 10_000,
        }
        return super().make_broker(number, make, {**usual, **settings})

    @property
    def master(self) -> Member:
        """Whom clients send to."""
        return self.brokers[0]

    def _start(self) -> None:
        """Starts the master first, and waits for each broker before it starts the next."""
        self.nameserver.start()
        for member in self.brokers:
            member.start()
            serves = partial(self.answers, member)
            wait_until(serves, timeout_s=START_TIMEOUT_S, what=f"{member.name} serves")

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

    def deliver_once(self, body: bytes = b"hello", *, queue_id: int = 0) -> None:
        """One message, sent until it is stored; it is stored once, if the master responds."""
        wait_until(lambda: self.send(body=body, queue_id=queue_id).code in STORED, what="a send is stored")

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
