"""A peer of a DLedger group that has never seen the messages of a queue, because they have expired, does not
lead before it has taken the queue's end from the master."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import pytest

from epochmq_broker.dledger.commit_log_peer import CommitLogPeer
from epochmq_protocol.admin_api.messages import AdminError
from epochmq_protocol.codes import ResponseCode
from tests.support.net import free_port
from tests.unit.admin_api.test_leadership import leader_of, promote, until_leads
from tests.unit.admin_api.test_operations import Served
from tests.unit.broker.kit import HOST, send_command, until
from tests.unit.broker.test_dledger_broker import TOPIC, peers_of, settings_of

EXPIRED, LATER = 0, 1
"""A queue whose messages expire, and one that gets messages afterwards."""


class Member:
    """One broker of the group, which may start several times."""

    def __init__(self, home: Path, peers: str, number: int) -> None:
        home.mkdir()
        self.home = home
        self.address = f"{HOST}:{free_port(HOST)}"
        self._settings = settings_of(
            peers,
            number,
            listenPort=self.address.rpartition(":")[2],
            bindAddress=HOST,
            brokerIP1=HOST,
            mappedFileSizeCommitLog=str(96 << 10),
            maxMessageSize=str(16 << 10),
            deleteFileBatchMax="50",
        )
        self.served = self._made()

    def _made(self) -> Served:
        return Served(self.home, **self._settings)

    @property
    def dledger(self) -> CommitLogPeer:
        assert self.served.broker.dledger is not None
        return self.served.broker.dledger

    async def start_again(self, *, emptied: bool = False) -> None:
        await self.served.broker.stop()
        if emptied:
            shutil.rmtree(self.home / "store")
        self.served = self._made()
        await self.served.broker.start()

    async def stop(self) -> None:
        await self.served.broker.stop()

    async def send(self, to: str, queue_id: int, count: int) -> None:
        for _ in range(count):
            command = send_command(TOPIC, bytes(8 << 10), queue_id=queue_id)
            answer = await self.served.broker.client.call(to, command, 30_000)
            assert answer.code == ResponseCode.SUCCESS, answer.remark

    def end(self, queue_id: int) -> int:
        return self.served.broker.store.queue(TOPIC, queue_id).max_offset

    def expire(self) -> None:
        """Drops all files of the log but the last one."""
        store = self.served.broker.store
        for path in (self.home / "store").glob("dledger-*/data/*"):
            os.utime(path, (1, 1))
        store.log_expiry.request_expiry()
        assert store._maintenance is not None
        store._maintenance._tick_expiry()


async def test_an_emptied_peer_takes_the_ends_of_queues_before_it_leads(tmp_path: Path) -> None:
    peers = peers_of(3)
    async with contextlib.AsyncExitStack() as stack:
        group = [Member(tmp_path / str(number), peers, number) for number in range(3)]
        for one in group:
            stack.push_async_callback(one.stop)
            await one.served.broker.start()
        await until(lambda: any(one.dledger.is_ready for one in group))
        for one in group:
            await until(lambda one=one: one.dledger.queue_ends._saved.ends == {})  # a new group
        leading = leader_of([one.served for one in group])
        leader = next(one for one in group if one.served is leading)
        emptied = group[group.index(leader) - 1]
        await emptied.send(leader.address, EXPIRED, 5)
        await emptied.send(leader.address, LATER, 20)
        for one in group:
            await until(lambda one=one: one.end(LATER) == 20)
            one.expire()
        assert leader.served.broker.store.min_phy_offset > 0
        assert leader.end(EXPIRED) == 5

        await emptied.start_again(emptied=True)
        await until(lambda: emptied.end(LATER) == 20)
        assert emptied.end(EXPIRED) == 0
        assert emptied.dledger.queue_ends.are_missing
        with pytest.raises(AdminError, match="did not take over"):
            await promote(leader.served, group.index(emptied) + 1)
        await emptied.start_again()
        assert emptied.dledger.queue_ends.are_missing  # also after a restart

        emptied.served.broker.slave_sync.follow(leader.address)
        await until(lambda: not emptied.dledger.queue_ends.are_missing)
        assert emptied.end(EXPIRED) == 5
        await emptied.start_again()
        assert (emptied.end(EXPIRED), emptied.dledger.queue_ends.are_missing) == (5, False)
        await until(lambda: leader.dledger.is_ready and emptied.dledger.peer.leader_id is not None)
        await promote(leader.served, group.index(emptied) + 1)
        await until_leads(emptied.served)
        await leader.send(emptied.address, EXPIRED, 1)
        for one in group:
            await until(lambda one=one: one.end(EXPIRED) == 6)
