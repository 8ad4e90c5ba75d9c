"""Tests that a replica never truncates what may be acknowledged: it follows no master whose log is shorter,
keeps its bytes, and says which broker has what and which command decides.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from epochmq_broker.replication.ha.client import HAClientPhase
from epochmq_broker.replication.ha.log_doubt import LogDoubt
from tests.unit.broker.replication.ha.broker_node import BrokerNode, until
from tests.unit.broker.replication.ha.following_nodes import ALL_ACK, nodes, same

SAFE = ALL_ACK | {"minInSyncReplicas": "2", "controllerAddr": "10.0.0.9:9878;10.0.0.8:9878"}


async def test_a_replica_keeps_acknowledged_bytes_that_its_master_lacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The volume of 3 is restored from a copy of a clean stop, and 3 becomes the master."""
    async with nodes(tmp_path, 3, SAFE) as (a, b, c):
        address = await a.lead(1, {1, 2, 3})
        await b.follow(address, 1, a)
        await c.follow(address, 1, a)
        older = a.put(100)
        await same(a, b, c)
        await until(lambda: c.ha.confirm_offset == older)
        await c.close()
        shutil.copytree(tmp_path / "3", tmp_path / "restored")
        await c.open()
        await c.follow(address, 1, a)
        end = a.put(200)
        await until(lambda: {one.ha.confirm_offset for one in (a, b, c)} == {end})
        await c.close()
        restored = await BrokerNode(tmp_path / "restored", 3, SAFE).open()
        try:
            await a.ha.stop()
            bytes_before = b.log_bytes()
            master = await restored.lead(2)
            await b.follow(master, 2, restored)
            client = b.ha.client
            assert client is not None
            await until(lambda: client.divergence != "")
            assert f"broker 2 (this one) has acknowledged messages up to offset {end}" in client.divergence
            assert f"ends at {older} and agrees up to {older} only" in client.divergence
            order = "mqadmin electMaster -a 10.0.0.9:9878 -bn group-a -c DefaultCluster -b 2"
            assert order in client.divergence
            known = len(caplog.records)
            client.reconnect()
            await until(lambda: client.phase is HAClientPhase.CONNECTING)
            await until(lambda: client.phase is HAClientPhase.DIVERGED)
            said = [one for one in caplog.records[known:] if one.levelno >= logging.ERROR]
            assert not said, "it is logged once"
            assert (b.end, b.log_bytes()) == (end, bytes_before)
            assert b.ha.doubt.current == LogDoubt(), "it lacks nothing, and may be elected"
            # A better master: the order has made this broker the master.
            master = await b.lead(3)
            await restored.follow(master, 3, b)
            await same(b, restored)
            assert restored.end == end
        finally:
            await restored.close()
        await c.open()


async def test_the_divergence_ends_with_a_master_that_has_the_bytes(tmp_path: Path) -> None:
    async with nodes(tmp_path, 3, SAFE) as (a, b, c):
        await b.follow(await a.lead(1, {1, 2}), 1, a)
        end = a.put(20)
        await until(lambda: a.ha.confirm_offset == end == b.ha.confirm_offset)
        empty = await c.lead(2)
        await b.follow(empty, 2, c)
        client = b.ha.client
        assert client is not None
        await until(lambda: client.divergence != "")
        await b.follow(await a.lead(3, {1}), 3, a)
        await until(lambda: client.phase is HAClientPhase.FOLLOWING)
        assert client.divergence == ""
        assert b.end == end


async def test_without_all_acknowledgements_the_master_is_followed(tmp_path: Path) -> None:
    """RocketMQ's rule: a confirmed message may be on the former master only."""
    async with nodes(tmp_path, 3) as (a, b, c):
        await b.follow(await a.lead(1, {1, 2}), 1, a)
        end = a.put(20)
        await until(lambda: b.end == end == b.ha.confirm_offset)
        await b.follow(await c.lead(2), 2, c)
        await until(lambda: b.end == 0)


async def test_bytes_that_a_master_stored_alone_are_neither_confirmed_nor_protected(tmp_path: Path) -> None:
    """With minInSyncReplicas=2 it has acknowledged none of them."""
    async with nodes(tmp_path, 2, SAFE) as (a, b):
        await a.lead(1, {1})
        a.put(20)
        sync = a.ha.sync_state
        assert sync is not None
        assert a.end > 0
        assert (sync.confirm_offset, a.ha.confirmed_by_all) == (0, 0)
        await a.follow(await b.lead(2), 2, b)
        await until(lambda: a.end == 0)
