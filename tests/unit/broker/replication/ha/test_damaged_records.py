"""Tests that a damaged record stays on the broker where it is: no replica acknowledges a copy of it, and no
broker takes it for a torn tail and truncates what is behind it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from epochmq_broker.replication.ha.client import HAClientPhase
from epochmq_broker.replication.ha.log_end import DamagedLogError
from epochmq_protocol.record_layout import PHYSICAL_OFFSET_AT
from epochmq_store.record import DispatchRequest
from epochmq_store.statuses import RunningFlags
from tests.unit.broker.replication.ha.broker_node import BrokerNode, until
from tests.unit.broker.replication.ha.following_nodes import ALL_ACK, nodes, same

SAFE = ALL_ACK | {"mappedFileSizeCommitLog": str(16 << 20), "minInSyncReplicas": "2"}
DAMAGED_NUMBER = 20


def damage(node: BrokerNode) -> int:
    """Flips a bit of the physical offset of an old record; returns where the record starts."""
    position = 0
    for _ in range(DAMAGED_NUMBER):
        found = node.store.log.parse(position, (), check_crc=True)
        assert isinstance(found, DispatchRequest)
        position += found.size
    flip(node, position)
    return position


def flip(node: BrokerNode, position: int) -> None:
    node.store.log.files.files[0].map[position + PHYSICAL_OFFSET_AT + 7] ^= 1


async def test_a_rebuilt_replica_does_not_acknowledge_a_damaged_record(tmp_path: Path) -> None:
    async with nodes(tmp_path, 3, SAFE) as (a, b, c):
        address = await a.lead(1, {1, 2})
        await b.follow(address, 1, a)
        end = a.put(100)
        await same(a, b)
        await until(lambda: a.ha.confirm_offset == end == b.ha.confirm_offset)
        position = damage(a)
        await c.follow(address, 1, a)
        client, sync = c.ha.client, a.ha.sync_state
        assert client is not None
        assert sync is not None
        await until(lambda: f"the record at offset {position} is damaged" in client.divergence)
        assert "mqadmin electMaster" in client.divergence
        end = a.put(10)
        await until(lambda: a.ha.confirm_offset == end, "the sound replica goes on")
        await until(lambda: 3 in sync.replicas)
        assert sync.replicas[3].ack_offset <= position
        assert 3 not in sync.members_or_proposed
        # The master's bytes are repaired.
        flip(a, position)
        await same(a, b, c)
        await until(lambda: client.divergence == "")
        await until(lambda: 3 in sync.members_or_proposed)


async def undispatched(a: BrokerNode, b: BrokerNode) -> int:
    """b gets a log whose confirmed offset does not advance, so that it dispatches nothing; then a record of
    b's is damaged. Returns its offset."""
    await b.follow(await a.lead(1, {1, 2, 3}), 1, a)
    end = a.put(100)
    await until(lambda: b.end == end)
    await until(lambda: a.ha.sync_state is not None and a.ha.sync_state.replicas[2].ack_offset == end)
    assert b.store.replica_log.dispatched_offset == 0
    return damage(b)


async def test_a_replica_that_cannot_dispatch_a_confirmed_record_is_not_in_sync(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2, SAFE) as (a, b):
        position = await undispatched(a, b)
        end, sync, client = b.end, a.ha.sync_state, b.ha.client
        assert sync is not None
        assert client is not None
        a.ha.adopt({1, 2}, 5)
        await until(lambda: client.phase is HAClientPhase.FAILED)
        assert b.ha.doubt.may_lack_acknowledged, "it is no candidate"
        assert b.store.damage.ranges[0].start == position
        assert b.end == end
        await until(lambda: 2 not in sync.replicas)


async def test_a_new_master_does_not_truncate_at_a_damaged_record(tmp_path: Path) -> None:
    """It takes no messages and fences itself, so that another one is elected."""
    async with nodes(tmp_path, 2, SAFE) as (a, b):
        position = await undispatched(a, b)
        end = b.end
        b.ha._confirmed.value = end
        with pytest.raises(DamagedLogError, match=f"damaged at offset {position}, below the confirmed"):
            await b.lead(2)
        assert b.end == end
        assert b.store.state.flags & RunningFlags.FLUSH_FAILED
        assert b.store.state.flags & RunningFlags.LOG_DAMAGED
        assert b.ha.doubt.may_lack_acknowledged
        with pytest.raises(DamagedLogError):
            await b.lead(3)
        assert b.end == end


async def test_a_torn_record_is_still_truncated(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2, SAFE) as (a, b):
        await a.lead(1)
        a.put(10)
        whole = a.end
        a.put(1)
        data = a.log_bytes()
        await b.follow(None, 1)
        b.store.replica_log.write(0, memoryview(data[:-7]))
        b.ha._confirmed.value = len(data) - 7
        await b.lead(2)
        assert b.end == whole
