"""Strangers at every port of a group whose members have a secret: whatever they send, the members live, keep
their terms, epochs and members, and serve a client all the time without a failed send."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from epochmq_protocol.member_requests import BROKER_REQUESTS, CONTROLLER_REQUESTS, RAFT_REQUESTS
from tests.integration.test_bad_input import send_bad_frames
from tests.integration.test_fuzzed_members import (
    CONTROLLER_CODES,
    FRAMES_PER_CONNECTION,
    OWN_NUMBERS,
    SEED,
    check_sound,
    sizes,
    throw,
)
from tests.support.bad_frames import BROKER_CODES, NAMESERVER_CODES, BadFrames
from tests.support.dledger_group import DLedgerGroup
from tests.support.group_processes import Member, our_broker, our_controller
from tests.support.group_traffic import SEND_MESSAGE_V2, send_header
from tests.support.member_frames import HAFrames, ProofFrames, RaftFrames
from tests.support.member_secrets import secret_file
from tests.support.process import wait_until
from tests.support.remoting import call, split_address
from tests.support.replica_group import ReplicaGroup
from tests.support.stalls import unless_stalled

pytestmark = pytest.mark.timeout(900)

TERM_MAX = 1000
"""No group of a test holds as many elections. A higher term is a stranger's."""
POPS = [200050, 200051, 200052, 200053, 200054, 200055, 200151]


def secured(group: ReplicaGroup | DLedgerGroup, secret: str) -> None:
    """Gives every member the secret."""
    for member in group.members:
        with member.config.open("a") as file:
            file.write(f"\nmemberSecretPath={secret}\n")


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaGroup]:
    directory = tmp_path_factory.mktemp("strangers")
    made = ReplicaGroup(directory, [our_controller] * 3, [our_broker] * 2, octet=84)
    secured(made, secret_file(directory / "secret"))
    with made as running:
        yield running


@pytest.fixture(scope="module")
def dledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DLedgerGroup]:
    directory = tmp_path_factory.mktemp("strangers-dledger")
    made = DLedgerGroup(directory, [our_broker] * 3, octet=87)
    secured(made, secret_file(directory / "secret"))
    with made as running:
        yield running


class Client:
    """Sends a message again and again, each once, and counts what was not acknowledged."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="client")
        self.sent = 0
        self.failures: list[str] = []

    def __enter__(self) -> Client:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(0.02):
            header = send_header(0, f"{self.sent:032X}")
            try:
                answer = call(self._address, SEND_MESSAGE_V2, header, b"x", timeout_s=120)
                failure = None if answer.code == 0 else f"{answer.code} {answer.remark}"
            except OSError as error:
                failure = str(error)
            self.sent += 1
            if failure is not None:
                self.failures.append(failure)


@contextlib.contextmanager
def served(address: str) -> Iterator[None]:
    """A client is served at this address all the time."""
    with Client(address) as client:
        yield
        wait_until(lambda: client.sent > 0, what="the client has sent")
    assert client.failures == []


def known(group: ReplicaGroup) -> tuple[object, ...]:
    """What no stranger changes: the group's epoch and master, its replicas, and the Raft group."""
    replicas = group.wait_replicas()
    leader = group.wait_leader()
    metadata = group.metadata(leader)
    assert metadata is not None
    assert int(metadata["term"]) < TERM_MAX
    ids = sorted(
        one["brokerId"] for kind in ("inSyncReplicas", "notInSyncReplicas") for one in replicas[kind]
    )
    return replicas["masterEpoch"], replicas["masterAddress"], ids, metadata["peers"]


@contextlib.contextmanager
def unchanged(group: ReplicaGroup) -> Iterator[Member]:
    """The master; afterwards all is as before, and the members are sound."""
    master = group.wait_master()
    before, size = known(group), sizes(group.members)
    with served(master.address):
        yield master
    check_sound(group.members, size)
    assert known(group) == before


def pieces(frames: Iterator[bytes], connections: int) -> Iterator[bytes]:
    """The frames of each connection in one piece."""
    for _ in range(connections):
        yield b"".join(itertools.islice(frames, FRAMES_PER_CONNECTION))


def fuzz_raft(group: ReplicaGroup, seed: int, connections: int) -> None:
    frames = iter(RaftFrames(seed, "controllers", ["n0", "n1", "n2", "n9"], reckless=True))
    addresses = [member.address for member in group.controllers]
    with unchanged(group):
        asyncio.run(throw(addresses, pieces(frames, connections)))


def fuzz_proofs(group: ReplicaGroup, seed: int, connections: int) -> None:
    codes = sorted({*BROKER_REQUESTS, *CONTROLLER_REQUESTS, *RAFT_REQUESTS})
    addresses = [member.address for member in group.members]
    with unchanged(group):
        asyncio.run(throw(addresses, itertools.islice(iter(ProofFrames(seed, codes)), connections)))


def fuzz_ha(group: ReplicaGroup, seed: int, connections: int) -> None:
    with unchanged(group) as master:
        host, port = split_address(master.address)
        frames = itertools.islice(iter(HAFrames(seed, [1, 2, 3, -1, 2**63 - 1], proofs=True)), connections)
        asyncio.run(throw([f"{host}:{port + 1}"], frames))


def fuzz_requests(group: ReplicaGroup, seed: int, count: int) -> None:
    """Bad requests of every kind at a controller, the nameserver and the master."""
    with unchanged(group) as master:
        for member, codes, numbers in (
            (group.wait_leader(), [*CONTROLLER_CODES, 1009, 20012], OWN_NUMBERS),
            (group.nameserver, NAMESERVER_CODES, []),
            (master, [*BROKER_CODES, *POPS, *sorted(BROKER_REQUESTS)], []),
        ):
            send_bad_frames(member.process, member.address, BadFrames(seed, codes, numbers), count)


FUZZERS: dict[str, tuple[Callable[[ReplicaGroup, int, int], None], int]] = {
    "Raft": (fuzz_raft, 300),
    "proofs": (fuzz_proofs, 2000),
    "HA": (fuzz_ha, 1500),
    "requests": (fuzz_requests, 2500),
}
"""What is sent → by what, and how much of it."""


@pytest.mark.parametrize("kind", FUZZERS)
def test_strangers_change_nothing(group: ReplicaGroup, kind: str, tmp_path: Path) -> None:
    """A stall, too, elects another master or delays an acknowledgement beyond its limit."""
    fuzz, count = FUZZERS[kind]
    unless_stalled(tmp_path, lambda attempt: fuzz(group, SEED + attempt, count))


def peers_of(group: DLedgerGroup) -> list[str]:
    """The addresses at which the brokers listen to their peers."""
    found = re.search(r"^dLegerPeers=(.*)$", group.brokers[0].config.read_text(), re.MULTILINE)
    assert found is not None
    return [peer.partition("-")[2] for peer in found[1].split(";")]


def fuzz_dledger(group: DLedgerGroup, seed: int, connections: int) -> None:
    master = group.wait_master()
    registered, size = group.registered(), sizes(group.members)
    frames = iter(RaftFrames(seed, group.NAME, ["n0", "n1", "n2", "n9"], reckless=True))
    with served(master.address):
        asyncio.run(throw(peers_of(group), pieces(frames, connections)))
    check_sound(group.members, size)
    assert group.registered() == registered, "another broker leads"


def test_strangers_change_nothing_at_a_dledger_group(dledger: DLedgerGroup, tmp_path: Path) -> None:
    unless_stalled(tmp_path, lambda attempt: fuzz_dledger(dledger, SEED + attempt, 300))


@pytest.mark.soak
def test_strangers_change_nothing_for_an_hour(group: ReplicaGroup, dledger: DLedgerGroup) -> None:
    seed = SEED if "EPOCHMQ_SEED" in os.environ else int(time.time())
    print(f"EPOCHMQ_SEED={seed}")
    for number in range(40):
        for fuzz, count in FUZZERS.values():
            fuzz(group, seed + number, 6 * count)
        fuzz_dledger(dledger, seed + number, 400)


def test_the_same_seed_gives_the_same_frames(tmp_path: Path) -> None:
    for make in (lambda: RaftFrames(5, "g", ["n0"], reckless=True), lambda: ProofFrames(5, [1])):
        assert list(itertools.islice(make(), 50)) == list(itertools.islice(make(), 50))
