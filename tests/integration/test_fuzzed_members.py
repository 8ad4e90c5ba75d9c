"""Frames that no correct member sends, at the ports of members without a secret: neither controllers nor
brokers end, log an unexpected exception, or grow; and afterwards they lead and serve clients."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from epochmq_protocol.headers_controller import (
    CONFIRMED_BY_ALL_FIELD,
    FENCED_EPOCH_FIELD,
    LEASE_EPOCH_FIELD,
    MIN_IN_SYNC_FIELD,
)
from tests.integration.test_bad_input import anonymous_kb, send_bad_frames
from tests.support.bad_frames import BadFrames
from tests.support.group_processes import Member, our_broker, our_controller
from tests.support.member_frames import HAFrames, RaftFrames
from tests.support.process import wait_until
from tests.support.remoting import call, split_address
from tests.support.replica_group import ReplicaGroup

SEED = int(os.environ.get("EPOCHMQ_SEED", "20260812"))
CONTROLLER_CODES = [1001, 1002, 1003, 1004, 1005, 1006, 1010, 1011, 1012, 1013, 904]
OWN_NUMBERS = [
    MIN_IN_SYNC_FIELD,
    CONFIRMED_BY_ALL_FIELD,
    FENCED_EPOCH_FIELD,
    LEASE_EPOCH_FIELD,
]
CONNECTIONS = 8
FRAMES_PER_CONNECTION = 50
GROWTH_MAX_KB = 48 * 1024
IDLE_S = 0.05

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaGroup]:
    made = ReplicaGroup(tmp_path_factory.mktemp("fuzzed"), [our_controller] * 3, [our_broker] * 2, octet=83)
    with made as running:
        yield running


async def _throw(address: str, data: bytes) -> None:
    """Writes to a connection of its own, and reads until nothing comes or the peer closes."""
    reader, writer = await asyncio.open_connection(*split_address(address))
    with contextlib.suppress(ConnectionError, TimeoutError):
        writer.write(data)
        await writer.drain()
        while True:
            async with asyncio.timeout(IDLE_S):
                if not await reader.read(1 << 16):
                    break
    writer.transport.abort()


async def throw(addresses: Iterable[str], pieces: Iterator[bytes]) -> None:
    """Sends pieces of bytes to each address in turn, some at a time, each over a connection of its own."""
    targets = itertools.cycle(addresses)

    async def work() -> None:
        for piece in pieces:
            await _throw(next(targets), piece)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(CONNECTIONS):
            tasks.create_task(work())


def check_sound(members: Iterable[Member], before: dict[str, int]) -> None:
    for member in members:
        process = member.process
        assert process.alive, f"{process.name} ended with {process.status}:\n{process.output()}"
        text = process.output_path.read_text()
        at = text.find("Traceback")
        assert at < 0, f"{process.name} logged an unexpected exception: {text[max(at - 500, 0) : at + 3000]}"
        assert '"level": "critical"' not in text, f"{process.name} stopped for good"
        growth = anonymous_kb(process) - before[process.name]
        assert growth < GROWTH_MAX_KB, f"{process.name} grew by {growth} kB"


def sizes(members: Iterable[Member]) -> dict[str, int]:
    return {member.process.name: anonymous_kb(member.process) for member in members}


def check_served(group: ReplicaGroup, send: Callable[[], None]) -> None:
    """The controllers lead, the group has a master, and a client is served."""
    wait_until(lambda: group.leader() is not None, timeout_s=120, what="a controller leads")
    group.wait_master()
    wait_until(lambda: _is_served(send), timeout_s=120, what="a client's message is stored")


def _is_served(send: Callable[[], None]) -> bool:
    with contextlib.suppress(OSError, AssertionError):
        send()
        return True
    return False


def sending(group: ReplicaGroup) -> Callable[[], None]:
    def send() -> None:
        header = {"a": "good", "b": "good", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
        master = group.master()
        assert master is not None
        assert call(master.address, 310, header, b"hello").code == 0

    return send


def fuzz_raft(group: ReplicaGroup, seed: int, connections: int) -> None:
    frames = iter(RaftFrames(seed, "controllers", ["n0", "n1", "n2", "n3"]))
    pieces = (b"".join(itertools.islice(frames, FRAMES_PER_CONNECTION)) for _ in range(connections))
    before = sizes(group.controllers)
    asyncio.run(throw([member.address for member in group.controllers], pieces))
    check_sound(group.controllers, before)
    check_served(group, sending(group))


def fuzz_ha(group: ReplicaGroup, seed: int, connections: int) -> None:
    master = group.wait_master()
    host, port = split_address(master.address)
    before = sizes(group.brokers)
    pieces = itertools.islice(iter(HAFrames(seed)), connections)
    asyncio.run(throw([f"{host}:{port + 1}"], pieces))
    check_sound(group.brokers, before)
    check_served(group, sending(group))


def fuzz_controller(group: ReplicaGroup, seed: int, count: int) -> None:
    controller = group.wait_leader()
    frames = BadFrames(seed, CONTROLLER_CODES, OWN_NUMBERS)
    send_bad_frames(controller.process, controller.address, frames, count)
    check_served(group, sending(group))


def test_controllers_survive_2000_bad_requests(group: ReplicaGroup) -> None:
    fuzz_controller(group, SEED, 2000)


def test_a_master_survives_300_bad_ha_connections(group: ReplicaGroup) -> None:
    fuzz_ha(group, SEED, 300)


def test_controllers_survive_5000_bad_calls_of_raft(group: ReplicaGroup) -> None:
    fuzz_raft(group, SEED, 100)


@pytest.mark.soak
def test_members_survive_an_hour_of_bad_frames(group: ReplicaGroup) -> None:
    seed = SEED if "EPOCHMQ_SEED" in os.environ else int(time.time())
    print(f"EPOCHMQ_SEED={seed}")
    for number in range(60):
        fuzz_controller(group, seed + number, 10_000)
        fuzz_ha(group, seed + number, 1000)
        fuzz_raft(group, seed + number, 500)


def test_the_same_seed_gives_the_same_frames(tmp_path: Path) -> None:
    for make in (lambda: RaftFrames(5, "g", ["n0"]), lambda: HAFrames(5)):
        assert list(itertools.islice(make(), 50)) == list(itertools.islice(make(), 50))
