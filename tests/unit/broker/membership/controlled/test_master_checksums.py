"""Tests that a master gives its replicas checksums of its log, for its present epoch and within bounds."""

from __future__ import annotations

import asyncio
import struct
import zlib
from pathlib import Path

import pytest

from epochmq_broker.replication.ha import log_checksums
from epochmq_broker.replication.ha.checksum_comparison import RANGE_MAX, LogRange
from epochmq_broker.replication.ha.master_checksums import MasterChecksumClient
from epochmq_broker.replication.ha.service import HARole
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.transport.client import RemotingClient
from epochmq_protocol.transport.connection import RemotingConnection
from epochmq_protocol.transport.server import RemotingServer
from tests.support.net import free_port, loopback
from tests.unit.broker.membership.controlled.fake_controller import OCTET, broker
from tests.unit.broker.membership.controlled.managed_broker import fake_controller, send
from tests.unit.broker.replication.ha.broker_node import until


async def test_a_master_answers_for_its_epoch_and_for_ranges_that_may_be_asked_for(tmp_path: Path) -> None:
    async with (
        fake_controller() as controller,
        broker(tmp_path, controller.address) as one,
        RemotingClient() as client,
    ):
        await until(lambda: one.ha.role is HARole.MASTER)
        for number in range(20):
            await send(one, number)
        end = one.store.max_phy_offset
        epoch = one.ha.epochs.epochs.last_epoch
        log = MasterChecksumClient(client, one.live.current.broker_addr)
        found = await log.checksums(LogRange(0, end, 100), epoch)
        assert found is not None
        data = one.store.read(0, end)
        assert data is not None
        wanted = [zlib.crc32(data[at : at + 100]) for at in range(0, end, 100)]
        assert found.checksums == struct.pack(f">{len(wanted)}I", *wanted)
        assert found.begins == 0
        for asked, of in (
            (LogRange(0, end, 100), epoch + 1),
            (LogRange(0, end + 1, 100), epoch),
            (LogRange(0, RANGE_MAX + 1, 1 << 20), epoch),
            (LogRange(0, RANGE_MAX, 1), epoch),
            (LogRange(10, 10, 1), epoch),
            (LogRange(-1, 10, 1), epoch),
            (LogRange(0, 10, 0), epoch),
        ):
            with pytest.raises(EpochMQError):
                await log.checksums(asked, of)


async def test_a_rocketmq_master_gives_no_checksums() -> None:
    def unknown(_: RemotingConnection, command: Command) -> Command:
        return response(command, 3, "request type not supported")

    host = loopback(OCTET)
    port = free_port(host)
    server = RemotingServer({20_005: unknown})
    await server.start(host, port)
    try:
        async with RemotingClient() as client:
            assert (
                await MasterChecksumClient(client, f"{host}:{port}").checksums(LogRange(0, 1, 1), 1) is None
            )
    finally:
        await server.stop(0)


async def test_the_number_of_waiting_comparisons_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_checksums, "WAITING_MAX", 1)
    async with fake_controller() as controller, broker(tmp_path, controller.address) as one:
        await until(lambda: one.ha.role is HARole.MASTER)
        await send(one)
        wanted = LogRange(0, one.store.max_phy_offset, 1)
        first = asyncio.create_task(one.ha.checksums.of(wanted))
        await asyncio.sleep(0)
        with pytest.raises(log_checksums.ChecksumsBusyError):
            await one.ha.checksums.of(wanted)
        assert len(await first) == 4 * wanted.count
