"""Tests failures of RocketMQ's replication, named by the number of their issue. Further ones are tested in
`test_sync_state`, `test_following`, `tests/unit/broker/membership/controlled` and the simulation.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from epochmq_broker.replication.ha.client import HAClientPhase
from epochmq_broker.replication.ha.service import HARole
from epochmq_broker.replication.ha.sync_state import SyncState
from epochmq_protocol.topics import DataVersion
from epochmq_store.statuses import GetStatus, PutStatus
from tests.unit.broker.replication.ha.broker_node import BrokerNode, until
from tests.unit.store.support import Message, put

ALL_ACK = {"allAckInSyncStateSet": "true", "checkSyncStateSetPeriod": "20"}


@contextlib.asynccontextmanager
async def node(directory: Path, broker_id: int = 1) -> AsyncIterator[BrokerNode]:
    made = await BrokerNode(directory, broker_id, ALL_ACK).open()
    try:
        yield made
    finally:
        await made.close()


def offered(a: BrokerNode) -> GetStatus:
    """The result for a consumer that asks for the first unconfirmed message."""
    queue = a.store.lookup.existing_queue(Message().topic, 0)
    assert queue is not None
    return a.store.get(queue, 1, 32).status


async def test_5663_an_expansion_whose_response_was_lost_counts(tmp_path: Path) -> None:
    """The controllers accepted the new member, and the master does not know. A message that only the old set
    has must not be acknowledged, because the new member could be elected without it."""
    async with node(tmp_path / "a") as a, node(tmp_path / "b", 2) as b:
        asked: list[frozenset[int]] = []
        a.ha.on_proposals(lambda proposal: asked.append(proposal.members))
        await a.lead(1)
        a.put(3)
        await b.follow(a.address, 1)
        await until(lambda: asked, "the replica is proposed")
        assert asked == [{1, 2}]
        await b.close()
        end = a.put(1)
        statuses: list[PutStatus] = []
        a.puts.when_safe(end, statuses.append)
        await asyncio.sleep(0)
        assert not statuses
        assert a.ha.confirm_offset < end


async def test_6662_and_6728_the_confirmed_offset_waits_for_a_member_without_report(tmp_path: Path) -> None:
    """A master has only one of two replicas, or a connection that has reported nothing, or zero."""
    async with node(tmp_path / "a") as a, node(tmp_path / "b", 2) as b:
        await a.lead(1, {1, 2, 3}, 5)
        end = a.put(5)
        await b.follow(a.address, 1)
        await until(lambda: b.end == end, "one replica has all")
        assert a.ha.confirm_offset == 0
        sync = a.ha.sync_state
        assert sync is not None
        sync.replica_connected(3, async_learner=False)
        assert sync.replica_acknowledged(3, 0, 0)
        assert a.ha.confirm_offset == 0
        assert sync.replica_acknowledged(3, end, 0)
        await until(lambda: a.ha.confirm_offset == end, "all three have all")


async def test_6609_and_6703_after_a_crash_only_confirmed_and_present_bytes_are_shown(
    tmp_path: Path,
) -> None:
    async with node(tmp_path) as a:
        await a.lead(1)
        confirmed = a.put(3)
        await until(lambda: a.ha.confirm_offset == confirmed, "alone, it confirms what it has")
        assert a.ha.adopt({1, 2}, 9)
        end = a.put(3)
        assert a.ha.confirm_offset == confirmed < end
    async with node(tmp_path) as a:
        assert (a.ha.role, a.end) == (HARole.IDLE, end)
        assert put(a.store, Message())[0] is PutStatus.SERVICE_NOT_AVAILABLE
        assert offered(a) is not GetStatus.FOUND
        a.store.checkpoint.confirm_phy_offset = end + 1000
    async with node(tmp_path) as a:
        assert a.ha.confirm_offset <= a.end


async def test_6316_an_epoch_without_a_new_master_counts_as_newer_at_nameservers() -> None:
    """Two masters register: the one with the greater epoch counts, whatever their counters are."""
    old, new = DataVersion(counter=900, state_version=3), DataVersion(counter=1, state_version=4)
    assert new.compare(old) > 0


async def test_7219_looking_for_members_that_fell_behind_survives_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node(tmp_path) as a:
        looked: list[int] = []

        def fail(self: SyncState, now_ms: int) -> None:
            looked.append(now_ms)
            raise RuntimeError("a fault of ours")

        await a.lead(1)
        monkeypatch.setattr(SyncState, "change_to_propose", fail)
        await until(lambda: len(looked) > 3, "it is looked at again and again")


async def test_9689_the_epoch_is_on_disk_before_it_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker does not lead an epoch that it could not save: no replica may get bytes of it."""
    async with node(tmp_path / "a") as a, node(tmp_path / "b", 2) as b:
        await a.lead(1)
        a.put(2)
        await b.follow(a.address, 1)
        await until(lambda: b.end == a.end, "the replica has all")

        def fail() -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as broken:
            broken.setattr(b.ha.epochs, "_save", fail)
            with pytest.raises(OSError, match="No space"):
                await b.lead(2)
        assert b.ha.role is not HARole.MASTER
        assert put(b.store, Message())[0] is PutStatus.SERVICE_NOT_AVAILABLE
        await b.lead(2)
        assert b.epochs == [(1, 0), (2, b.end)]


async def test_10812_and_6306_a_replica_follows_the_master_it_is_told_not_the_one_it_knows(
    tmp_path: Path,
) -> None:
    """Seen on 5.3.3: a demoted master continues to serve, and a replica stays with it for minutes."""
    async with node(tmp_path / "a") as a, node(tmp_path / "b", 2) as b, node(tmp_path / "c", 3) as c:
        await a.lead(1)
        a.put(2)
        for replica in (b, c):
            await replica.follow(a.address, 1)
        await until(lambda: b.end == c.end == a.end, "all are equal")
        await b.lead(2)
        await c.follow(None, 2)
        follower = c.ha.client
        assert follower is not None
        await until(lambda: follower.phase is HAClientPhase.WAITING, "it has left the former master")
        c.ha.follow(b.address)
        b.put(2)
        await until(lambda: c.end == b.end, "it follows the new master")
