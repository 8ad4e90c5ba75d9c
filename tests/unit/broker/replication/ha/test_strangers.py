"""A stranger at the HA port reads nothing, acknowledges for nobody, evicts nobody and takes no place."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from epochmq_broker.replication.ha.server import CONNECTIONS_MAX, WAITING_MAX
from epochmq_protocol.ha_frames import ReplicaHandshake, encode_ack, encode_replica_handshake
from epochmq_protocol.ha_proofs import MASTER_HELLO_BYTES, ProofAtReplica
from epochmq_protocol.member_proofs import PROOF_BYTES, parse_secrets
from epochmq_protocol.transport import port_counts
from tests.support.member_secrets import OTHER_SECRET, SECRET, secret_file
from tests.unit.broker.replication.ha.broker_node import BrokerNode, until

ALL_ACK = {"allAckInSyncStateSet": "true", "inSyncReplicas": "2", "haSendHeartbeatInterval": "200"}
TIMEOUT_S = 60
MODES = pytest.mark.parametrize("controlled", [True, False], ids=["controlled", "plain"])


def of_members(tmp_path: Path, *, allow: bool = False, secret: str = SECRET) -> dict[str, str]:
    name = "secret" if secret == SECRET else "other"
    settings = {"memberSecretPath": secret_file(tmp_path / name, secret)}
    return settings | ({"allowUnauthenticatedMembers": "true"} if allow else {})


@asynccontextmanager
async def node(
    tmp_path: Path, broker_id: int, settings: dict[str, str], *, controlled: bool = True
) -> AsyncIterator[BrokerNode]:
    directory = tmp_path / f"broker-{broker_id}"
    if not controlled and broker_id > 1:
        settings = settings | {"brokerRole": "SLAVE", "brokerId": str(broker_id)}
    opened = await BrokerNode(directory, broker_id, ALL_ACK | settings, controlled=controlled).open()
    try:
        yield opened
    finally:
        await opened.close()


class Stranger:
    """A connection to the HA port of a master."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, master: BrokerNode) -> Stranger:
        host, _, port = master.address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def read(self, size: int) -> bytes:
        async with asyncio.timeout(TIMEOUT_S):
            return await self.reader.readexactly(size)

    async def until_closed(self) -> bytes:
        """Everything that the master sends until it closes."""
        async with asyncio.timeout(TIMEOUT_S):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""

    async def forge(self, broker_id: int, offset: int) -> bytes:
        """Acknowledges for a replica; returns the master's handshake."""
        self.writer.write(encode_replica_handshake(ReplicaHandshake(broker_id)))
        head = await self.read(20)
        await self.read(struct.unpack_from(">ii", head)[1])
        self.writer.write(encode_ack(offset))
        await self.read(36)
        return head

    def close(self) -> None:
        self.writer.close()


async def lead(master: BrokerNode) -> None:
    if master.controlled:
        await master.lead(1, {1, 2})


async def follow(replica: BrokerNode, address: str) -> None:
    if replica.controlled:
        await replica.follow(address, 1)
    else:
        assert replica.ha.client is not None
        replica.ha.client.follow(address)


async def joined(master: BrokerNode, replica: BrokerNode) -> None:
    """The replica follows, and has all that the master has."""
    await follow(replica, master.address)
    await until(lambda: replica.end == master.end and master.ha.server and master.ha.server.transferring)


async def test_a_forged_acknowledgement_counts_without_a_secret(tmp_path: Path) -> None:
    """The attack, where nobody proves anything: what the dead replica 2 never got counts as its own."""
    async with node(tmp_path, 1, {}) as master:
        await lead(master)
        end = master.put(10)
        stranger = await Stranger.connect(master)
        await stranger.forge(2, 0)
        stranger.writer.write(encode_ack(end))
        await until(lambda: master.ha.confirm_offset == end, "the master believes it")
        stranger.close()


async def test_a_stranger_cannot_acknowledge_for_a_replica_nor_read_the_log(tmp_path: Path) -> None:
    async with node(tmp_path, 1, of_members(tmp_path)) as master:
        await lead(master)
        master.put(10)
        before = master.ha.confirm_offset
        rejected = port_counts.strangers_rejected
        for first in (
            encode_replica_handshake(ReplicaHandshake(2)),
            encode_ack(master.end),
            struct.pack(">q", 0),
            b"GET / HTTP/1.1\r\n\r\n",
        ):
            stranger = await Stranger.connect(master)
            stranger.writer.write(first)
            assert await stranger.until_closed() == b"", "not one byte of the log"
            stranger.close()
        assert port_counts.strangers_rejected == rejected + 4
        assert master.ha.confirm_offset == before


@MODES
async def test_a_replica_with_the_secret_follows(tmp_path: Path, controlled: bool) -> None:
    settings = of_members(tmp_path)
    async with (
        node(tmp_path, 1, settings, controlled=controlled) as master,
        node(tmp_path, 2, settings, controlled=controlled) as replica,
    ):
        await lead(master)
        master.put(60)
        await joined(master, replica)
        master.put(60)
        await until(lambda: replica.end == master.end, "what follows arrives")
        (acks,) = master.ha.server.transferring if master.ha.server is not None else []
        await until(lambda: acks.ack_offset == master.end, "and is acknowledged")
        assert replica.log_bytes() == master.log_bytes()
        assert master.ha.server is not None
        assert all(one.is_proven for one in master.ha.server.connections)


@MODES
async def test_a_replica_with_another_secret_gets_nothing(tmp_path: Path, controlled: bool) -> None:
    async with (
        node(tmp_path, 1, of_members(tmp_path), controlled=controlled) as master,
        node(tmp_path, 2, of_members(tmp_path, secret=OTHER_SECRET), controlled=controlled) as replica,
    ):
        await lead(master)
        master.put(30)
        await follow(replica, master.address)
        rejected = port_counts.strangers_rejected
        stranger = await Stranger.connect(master)
        proof = ProofAtReplica(parse_secrets(OTHER_SECRET), bytes(32))
        stranger.writer.write(proof.hello())
        hello = await stranger.read(MASTER_HELLO_BYTES)
        stranger.writer.write(parse_secrets(OTHER_SECRET)[0].key_id + bytes(PROOF_BYTES))
        assert await stranger.until_closed() == b""
        stranger.close()
        assert hello
        assert port_counts.strangers_rejected > rejected
        assert replica.end == 0


@MODES
async def test_a_replica_follows_only_a_master_that_proves_its_membership(
    tmp_path: Path, controlled: bool
) -> None:
    """Who takes over the address of a master gives no replica a log."""
    async with (
        node(tmp_path, 1, {}, controlled=controlled) as master,
        node(tmp_path, 2, of_members(tmp_path), controlled=controlled) as replica,
    ):
        await lead(master)
        master.put(30)
        attempts = 0

        async def count(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal attempts
            attempts += 1
            writer.write(bytes(200))
            with suppress(ConnectionError):
                await writer.drain()
                writer.close()

        fake = await asyncio.start_server(count, "127.61.4.9", 0)
        await follow(replica, f"127.61.4.9:{fake.sockets[0].getsockname()[1]}")
        await until(lambda: attempts >= 2, "it retries, and gets no further")
        fake.close()
        await follow(replica, master.address)
        assert master.ha.server is not None
        server = master.ha.server
        await until(lambda: any(one.phase.name == "CLOSED" for one in server.connections) or attempts)
        assert replica.end == 0


async def test_a_stranger_does_not_evict_a_replica_and_its_record_ends_the_connection(tmp_path: Path) -> None:
    """Also not while peers without a proof are accepted."""
    settings = of_members(tmp_path, allow=True)
    async with node(tmp_path, 1, settings) as master, node(tmp_path, 2, settings) as replica:
        await lead(master)
        master.put(30)
        await joined(master, replica)
        assert master.ha.server is not None
        (real,) = master.ha.server.connections
        stranger = await Stranger.connect(master)
        stranger.writer.write(encode_replica_handshake(ReplicaHandshake(2)))
        assert await stranger.until_closed() == b""
        stranger.close()
        assert master.ha.server.connections == [real]
        master.put(30)
        await until(lambda: master.ha.confirm_offset == master.end, "the replica acknowledges as before")


@MODES
@pytest.mark.parametrize("has_secret", [True, False])
async def test_idle_strangers_take_no_place_of_a_replica(
    tmp_path: Path, has_secret: bool, controlled: bool
) -> None:
    settings = of_members(tmp_path) if has_secret else {}
    async with (
        node(tmp_path, 1, settings, controlled=controlled) as master,
        node(tmp_path, 2, settings, controlled=controlled) as replica,
    ):
        await lead(master)
        master.put(30)
        idle = [await Stranger.connect(master) for _ in range(CONNECTIONS_MAX + 20)]
        await joined(master, replica)
        assert master.ha.server is not None
        assert len(master.ha.server.connections) <= WAITING_MAX + 1
        for one in idle:
            one.close()


async def test_a_stranger_with_many_connections_evicts_its_own(tmp_path: Path) -> None:
    """Not the replica that has connected from elsewhere, and is about to report its offset."""
    async with node(tmp_path, 1, {}) as master:
        await lead(master)
        server = master.ha.server
        assert server is not None
        host, _, port = master.address.rpartition(":")
        slow = await asyncio.open_connection(host, int(port), local_addr=("127.61.0.9", 0))
        await until(lambda: len(server.connections) == 1, "the first one is accepted")
        (first,) = server.connections
        idle = [await Stranger.connect(master) for _ in range(3 * WAITING_MAX)]
        await until(lambda: len(server.connections) == WAITING_MAX, "the others are accepted")
        for one in idle[: 2 * WAITING_MAX]:
            assert await one.until_closed() == b""
        assert first in server.connections
        for one in idle:
            one.close()
        slow[1].close()


async def _follow_and_compare(master: BrokerNode, replica: BrokerNode) -> None:
    await joined(master, replica)
    master.put(50)
    await until(lambda: replica.end == master.end, "what follows arrives")


@MODES
@pytest.mark.parametrize("who", ["the master", "the replica"])
async def test_a_group_gets_its_secret_by_one_restart_after_the_other(
    tmp_path: Path, controlled: bool, who: str
) -> None:
    """One of both has the secret and accepts peers without a proof; the other has none."""
    accepts = of_members(tmp_path, allow=True)
    first, second = (accepts, {}) if who == "the master" else ({}, accepts)
    unproven = port_counts.unproven_requests
    async with (
        node(tmp_path, 1, first, controlled=controlled) as master,
        node(tmp_path, 2, second, controlled=controlled) as replica,
    ):
        await lead(master)
        master.put(50)
        await _follow_and_compare(master, replica)
    assert port_counts.unproven_requests > unproven


@pytest.mark.parametrize("settings", [True, False], ids=["accepting", "demanding"])
async def test_members_that_accept_others_still_prove_themselves(tmp_path: Path, settings: bool) -> None:
    accepts, demands = of_members(tmp_path, allow=True), of_members(tmp_path, allow=settings)
    async with node(tmp_path, 1, accepts) as master, node(tmp_path, 2, demands) as replica:
        await lead(master)
        master.put(50)
        await _follow_and_compare(master, replica)
        assert master.ha.server is not None
        assert all(one.is_proven for one in master.ha.server.connections)


async def test_the_secret_rotates_without_a_lost_acknowledgement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections live on; new ones take the new secret."""
    monkeypatch.setattr("epochmq_protocol.transport.member_authentication.RELOAD_MS", 0)
    settings = of_members(tmp_path)
    path = Path(settings["memberSecretPath"])
    async with node(tmp_path, 1, settings) as master, node(tmp_path, 2, settings) as replica:
        await lead(master)
        master.put(30)
        await joined(master, replica)
        steps: list[Callable[[], Awaitable[None]]] = []

        async def reconnect() -> None:
            assert replica.ha.client is not None
            replica.ha.client.reconnect()

        async def keep() -> None:
            return None

        steps = [keep, reconnect]
        for secrets in ((OTHER_SECRET, SECRET), (OTHER_SECRET,)):
            secret_file(path, *secrets)
            for step in steps:
                await step()
                end = master.put(30)
                await until(lambda end=end: master.ha.confirm_offset >= end, "acknowledged")
        assert replica.log_bytes() == master.log_bytes()
