"""A group of real processes with a sidecar beside every broker and one controller, and a producer that keeps
the address that it knows."""

from __future__ import annotations

import itertools
import socket
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Self

import httpx

from tests.support.group_processes import Member
from tests.support.group_traffic import SUCCESS, send_header
from tests.support.leases import lease_lapses
from tests.support.process import wait_until
from tests.support.remoting import frame, read_frame, split_address
from tests.support.replica_group import ReplicaGroup
from tests.support.sidecar import Sidecar

SEND_MESSAGE_V2 = 310


@dataclass
class Pods:
    """A group with a sidecar beside every broker and one controller."""

    group: ReplicaGroup
    sidecars: dict[str, Sidecar] = field(default_factory=dict)

    def of(self, member: Member) -> Sidecar:
        """The sidecar of a member."""
        return self.sidecars[member.name]

    @property
    def brokers(self) -> list[Member]:
        """The brokers."""
        return self.group.brokers

    def lease_lapses(self) -> int:
        """How many leases of the brokers have run out before they were renewed."""
        return lease_lapses(map(self.of, self.brokers))

    def master(self) -> Member:
        """The broker whose sidecar says that it is the master and ready."""
        found: list[Member] = []

        def reached() -> bool:
            found[:] = [
                one
                for one in self.brokers
                if (state := self.of(one).state()).get("role") == "master" and state["ready"]
            ]
            return len(found) == 1

        wait_until(reached, what="one sidecar says that its broker is a ready master")
        return found[0]

    def members(self, member: Member) -> list[int]:
        """The SyncStateSet as this broker knows it; empty while it does not answer."""
        found: list[int] = self.of(member).state().get("syncStateSet", [])
        return found

    def switch(self, member: Member, path: str, body: object = None) -> dict[str, Any]:
        """Asks this broker's sidecar for a switchover until it is done: a replica that was starved is out of
        the SyncStateSet for a moment, and is rejected then."""
        responses: list[httpx.Response] = []

        def made() -> bool:
            self.wait_ready()
            responses.append(self.of(member).ask("POST", path, body))
            return responses[-1].status_code == 200

        try:
            wait_until(made, what=f"{path} at {member.name}")
        except AssertionError as error:
            error.add_note(responses[-1].text if responses else "no answer")
            raise
        found: dict[str, Any] = responses[-1].json()
        return found

    def others(self, master: Member) -> list[Member]:
        """All brokers but the master."""
        return [one for one in self.brokers if one is not master]

    def wait_ready(self) -> None:
        """Waits until every broker is ready."""
        members = self.brokers
        wait_until(
            lambda: all(self.of(one).ready()[0] == 200 for one in members),
            timeout_s=180,
            what="every broker is ready",
        )


class Producer(threading.Thread):
    """Sends one message after another to one broker, and counts the responses."""

    def __init__(self, target: Member, queue_id: int) -> None:
        super().__init__(daemon=True)
        self.codes: Counter[object] = Counter()
        self._target = target
        self._queue_id = queue_id
        self._over = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        wait_until(lambda: self.codes[SUCCESS] > 20, what="messages are acknowledged")
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join(60)

    def run(self) -> None:
        try:
            with socket.create_connection(split_address(self._target.address), timeout=30) as connection:
                for number in itertools.count(1):
                    if self._over.is_set():
                        return
                    header = send_header(
                        self._queue_id, f"{self._queue_id:08X}{id(self) % (1 << 32):08X}{number:016X}"
                    )
                    connection.sendall(frame(SEND_MESSAGE_V2, header, b"body", opaque=number))
                    self.codes[read_frame(connection)[0]["code"]] += 1
        except OSError as error:
            self.codes[repr(error)] += 1
