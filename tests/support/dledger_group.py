"""Brokers of one DLedger group as real processes: each of ours or of RocketMQ's, with a directory and a
loopback address of its own, and one nameserver."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import struct
from collections.abc import Sequence
from pathlib import Path

from epochmq_formats.dledger_log import FILLER_SIZE_MIN
from epochmq_protocol.dledger import ENTRY_MAGIC
from tests.support.cluster import START_TIMEOUT_S, Settings
from tests.support.group_processes import ElectingGroup, Factory, Member, Places, our_nameserver, own_places
from tests.support.group_traffic import (
    GET_BROKER_RUNTIME_INFO,
    SEND_MESSAGE_V2,
    SUCCESS,
    read_queue,
    send_header,
)
from tests.support.process import wait_until
from tests.support.remoting import call

GET_BROKER_CLUSTER_INFO = 106
FILE_SIZE = 1 << 20
BEHIND_MAX = 1000
"""How many committed entries a broker in sync may lack while clients send."""


class DLedgerGroup(ElectingGroup):
    """`brokers[0]` has the id n0 in the group, and so on."""

    def __init__(
        self,
        directory: Path,
        brokers: Sequence[Factory],
        *,
        broker: Settings | None = None,
        octet: int = 61,
        nameserver: Factory = our_nameserver,
        places: Places | None = None,
        peer_places: Places | None = None,
    ) -> None:
        """`places` and `peer_places`: where brokers listen to clients and to their peers."""
        super().__init__(directory, places or own_places(octet))
        self._keys = itertools.count()
        self.nameserver = self.make_nameserver(nameserver)
        # A broker listens to its peers and to clients at one address, and at different ports.
        place = peer_places or self._places
        peers = ";".join(f"n{number}-{place(f'broker-{number}')}" for number in range(len(brokers)))
        self.brokers = [
            self.make_broker(
                number,
                make,
                {
                    "enableDLegerCommitLog": True,
                    "dLegerGroup": self.NAME,
                    "dLegerSelfId": f"n{number}",
                    "dLegerPeers": peers,
                    "mappedFileSizeCommitLog": FILE_SIZE,
                    "maxMessageSize": 64 * 1024,
                    "slaveReadEnable": True,
                    "registerNameServerPeriod": 10_000,
                    **(broker or {}),
                },
            )
            for number, make in enumerate(brokers)
        ]

    def _start(self) -> None:
        self.nameserver.start()
        for member in self.brokers:
            member.start()
        self.wait_master()

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

        wait_until(equal, what=f"the brokers show the same messages in queue {queue_id}")
        return shown[0]

    def wait_caught_up(self) -> None:
        """Waits until all brokers have committed the same entries. No client sends meanwhile."""

        def same_end() -> bool:
            with contextlib.suppress(OSError):
                ends = {self.committed_end(one) for one in self.brokers}
                return len(ends) == 1 and None not in ends
            return False

        wait_until(same_end, timeout_s=START_TIMEOUT_S, what="all brokers have committed the same entries")

    def wait_replicated(self) -> None:
        """Waits until clients find all brokers, and each broker has committed what the master had committed
        when it was asked. Clients may send meanwhile."""

        def replicated() -> bool:
            master = self.master()
            if master is None or len(set(self.registered().values())) < len(self.brokers):
                return False
            with contextlib.suppress(OSError):
                end = self.committed_end(master)
                ends = [self.committed_end(one) for one in self.brokers]
                return end is not None and all(one is not None and one >= end > 0 for one in ends)
            return False

        wait_until(replicated, timeout_s=2 * START_TIMEOUT_S, what="all brokers have what the master had")

    def log_bytes(self, member: Member, end: int) -> bytes:
        """The data files of a broker up to a position; they begin at 0."""
        number = self.brokers.index(member)
        files = sorted((self.store(number) / f"dledger-n{number}" / "data").iterdir())
        return b"".join(path.read_bytes()[: max(end - int(path.name), 0)] for path in files)

    def committed_end(self, member: Member) -> int | None:
        """The end of what a broker shows; None if it does not say. OSError: it does not respond."""
        response = call(member.address, GET_BROKER_RUNTIME_INFO, timeout_s=5)
        if response.code != SUCCESS:
            return None
        return int(json.loads(response.body)["table"]["commitLogMaxOffset"])


class OurDLedgerGroup(DLedgerGroup):
    """All brokers are EpochMQ's, and say themselves how far they are."""

    def _start(self) -> None:
        for member in self.members:
            member.start()
        self.wait_in_sync(len(self.brokers))

    def runtime(self, member: Member) -> dict[str, str]:
        """What a broker says of itself. OSError: it does not respond."""
        response = call(member.address, GET_BROKER_RUNTIME_INFO, timeout_s=5)
        if response.code != SUCCESS:
            raise OSError(f"{member.name}: {response}")
        found: dict[str, str] = json.loads(response.body)["table"]
        return found

    def wait_master(self, *, other_than: Member | None = None) -> Member:
        """Waits for a master that clients find and that serves. It stores no message for that."""
        found: list[Member] = []

        def serves() -> bool:
            found[:] = [one for one in (self.master(),) if one is not None and one is not other_than]
            with contextlib.suppress(OSError):
                return bool(found) and self.runtime(found[0])["dledgerServes"] == "true"
            return False

        wait_until(serves, timeout_s=START_TIMEOUT_S, what="a master serves")
        return found[0]

    def wait_in_sync(self, count: int, *, timeout_s: float = START_TIMEOUT_S) -> None:
        """Waits until clients find a master that serves, and `count` brokers, that one included, have almost
        all of its log."""
        state: list[object] = []

        def reached() -> bool:
            self.check_alive()
            state[:] = [self._in_sync()]
            return state[0] == count

        try:
            wait_until(reached, timeout_s=timeout_s, what=f"{count} brokers are in sync")
        except AssertionError as error:
            error.add_note(f"in sync: {state}, registered: {self.registered()}")
            raise

    def _in_sync(self) -> int:
        """How many brokers are in sync; 0 without a master that serves."""
        addresses = self.registered()
        master = self.master()
        if master is None or sorted(addresses.values()) != sorted(one.address for one in self.brokers):
            return 0
        count = 0
        with contextlib.suppress(OSError):
            leader = self.runtime(master)
            if leader["dledgerServes"] != "true":
                return 0
            for member in self.brokers:
                found = self.runtime(member)
                behind = found["dledgerBehind"]
                follows = found["dledgerLeader"] == leader["dledgerId"]
                count += follows and behind != "" and int(behind) <= BEHIND_MAX
        return count

    def wait_settled(self) -> Member:
        """Waits until all brokers have the same log, and show all of it. Returns the master. No client sends
        meanwhile."""
        found: list[Member] = []

        def settled() -> bool:
            found[:] = [one for one in (self.master(),) if one is not None]
            with contextlib.suppress(OSError):
                return bool(found) and self._end_of_all() is not None
            return False

        wait_until(settled, timeout_s=START_TIMEOUT_S, what="all brokers have committed the same log")
        return found[0]

    def _end_of_all(self) -> int | None:
        states = [self.runtime(member) for member in self.brokers]
        ends = {int(state[key]) for state in states for key in ("dledgerLogEnd", "commitLogMaxOffset")}
        return ends.pop() if len(ends) == 1 else None

    def log_of(self, member: Member) -> bytes:
        """The bytes of a broker's log, once the broker says where it ends."""
        ends: list[int] = []

        def told() -> bool:
            ends[:] = [int(self.runtime(member)["dledgerLogEnd"])]
            return True

        wait_until(told, what=f"{member.name} says where its log ends")
        return self.log_bytes(member, ends[0])

    def leaderships(self, master: Member) -> list[tuple[int, int]]:
        """(position, term) of the first entry of each term, the oldest first. The log has its beginning."""
        log, at = self.log_of(master), 0
        found: list[tuple[int, int]] = []
        while at + FILLER_SIZE_MIN <= len(log):
            magic, size = struct.unpack_from(">ii", log, at)
            assert size > 0, f"no entry at {at}"
            if magic == ENTRY_MAGIC:
                (term,) = struct.unpack_from(">q", log, at + 16)
                if not found or found[-1][1] != term:
                    found.append((at, term))
            at += size
        assert found, "the log has no entry"
        return found

    def check_equal(self) -> None:
        """Checks that all logs have the same bytes. No client sends meanwhile."""
        master = self.wait_settled()
        assert [line for member in self.brokers for line in self.differences(member, master)] == []

    def differences(self, member: Member, master: Member) -> list[str]:
        """The difference between the logs of a broker and of its master, as text."""
        one, other = self.log_of(member), self.log_of(master)
        if one == other:
            return []
        common = min(len(one), len(other))
        first = next((at for at in range(common) if one[at] != other[at]), common)
        return [
            f"the log of {member.name} has {len(one)} bytes, the master's {len(other)}; they differ from"
            f" {first} on"
        ]
