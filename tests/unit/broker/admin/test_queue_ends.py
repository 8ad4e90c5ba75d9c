"""A peer of a DLedger group that has never seen the messages of a queue, because they have expired, does not
lead before it has taken the queue's end from the master."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
from pathlib import Path

import pytest

from epochmq_broker.membership.dledger.commit_log_peer import CommitLogPeer
from epochmq_broker.membership.dledger.group_state import runtime_info
from epochmq_broker.membership.modes.dledger import DLedgerMode
from epochmq_protocol.admin_api.messages import AdminError
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.transport.client import RemotingClient
from epochmq_protocol.transport.group_members import BROKERS, MemberChange
from tests.support.net import free_port
from tests.unit.broker.admin.leadership_calls import leader_of, promote, state_of, until_leads, until_ready
from tests.unit.broker.admin.served_operations import Served
from tests.unit.broker.dledger_bench import TOPIC, peers_of, settings_of
from tests.unit.broker.kit import HOST, send_command, until

EXPIRED, LATER = 0, 1
"""A queue whose messages expire, and one that gets messages afterwards."""


class Member:
    """One broker of the group, which may start several times."""

    def __init__(
        self, home: Path, peers: str, number: int, *, joins: bool = False, dledger: bool = True
    ) -> None:
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
            joinDLedgerGroup=str(joins).lower(),
            enableDLegerCommitLog=str(dledger).lower(),
        )
        self.served = self._made()

    def _made(self) -> Served:
        return Served(self.home, **self._settings)

    @property
    def dledger(self) -> CommitLogPeer:
        mode = self.served.broker.mode
        assert isinstance(mode, DLedgerMode)
        return mode.commit_log

    async def start_again(self, *, emptied: bool = False, dledger: bool = True) -> None:
        self._settings["enableDLegerCommitLog"] = str(dledger).lower()
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

    async def expire(self) -> None:
        """Drops all files of the log but the last one, as soon as that has a durable entry."""
        log = self.dledger._log
        await until(lambda: log.durable_index == log.end_index)
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
            await one.expire()
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
        await until(lambda: emptied.dledger.is_ready or emptied.dledger.peer.leader_id is not None)
        async with asyncio.timeout(60):
            while not emptied.dledger.is_ready:  # others may be elected meanwhile
                with contextlib.suppress(AdminError):
                    await promote(emptied.served)
                await until_ready(emptied.served)
        await leader.send(emptied.address, EXPIRED, 1)
        for one in group:
            await until(lambda one=one: one.end(EXPIRED) == 6)


@pytest.mark.parametrize("begins_with", ["expired files", "a plain log"])
async def test_a_peer_joins_a_log_that_has_lost_its_beginning(tmp_path: Path, begins_with: str) -> None:
    """A group of one that has existed for longer than it keeps messages, or was upgraded from a plain log,
    grows by a peer, which is not ready and does not lead before it has taken the ends of the queues. Then the
    former peer leaves, and the new one continues every queue."""
    peers = peers_of(2).split(";")
    addresses = [peer.partition("-")[2] for peer in peers]
    async with contextlib.AsyncExitStack() as stack, RemotingClient() as client:

        async def start(number: int, *, dledger: bool = True) -> Member:
            known = ";".join(peers[: number + 1])
            one = Member(tmp_path / str(number), known, number, joins=number > 0, dledger=dledger)
            stack.push_async_callback(one.stop)
            await one.served.broker.start()
            return one

        first = await start(0, dledger=begins_with != "a plain log")
        if isinstance(first.served.broker.mode, DLedgerMode):
            await until(lambda: first.dledger.is_ready)
        await first.send(first.address, EXPIRED, 5)
        if not isinstance(first.served.broker.mode, DLedgerMode):
            await first.start_again(dledger=True)
            await until(lambda: first.dledger.is_ready)
        await first.send(first.address, LATER, 20)
        await until(lambda: first.end(LATER) == 20)
        if begins_with == "expired files":
            await first.expire()
            assert first.served.broker.store.min_phy_offset > 0

        joined = await start(1)
        added = await BROKERS.change(client, addresses[0], MemberChange("n1", addresses[1]))
        assert set(added.members) == {"n0", "n1"}
        await until(lambda: joined.end(LATER) == 20)
        assert joined.dledger.queue_ends.are_missing
        reasons = (await state_of(joined.served)).not_ready
        assert reasons == ["it does not know the ends of queues whose messages have expired"]
        assert runtime_info(joined.dledger)["dledgerLacksQueueEnds"] == "true"
        with pytest.raises(AdminError, match="did not take over"):
            await promote(first.served, 2)

        joined.served.broker.slave_sync.follow(first.address)
        await until(lambda: not joined.dledger.queue_ends.are_missing)
        assert joined.end(EXPIRED) == 5
        await until_ready(joined.served)
        removed = await BROKERS.change(client, addresses[1], MemberChange("n0"))
        assert set(removed.members) == {"n1"}
        await until_leads(joined.served)
        await joined.send(joined.address, EXPIRED, 1)
        await until(lambda: joined.end(EXPIRED) == 6)


async def test_a_peer_that_was_away_for_longer_than_messages_are_kept_says_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It drops nothing that it has committed. Once its directory is emptied, it follows again."""
    peers = peers_of(3)
    async with contextlib.AsyncExitStack() as stack:
        group = [Member(tmp_path / str(number), peers, number) for number in range(3)]
        for one in group:
            stack.push_async_callback(one.stop)
            await one.served.broker.start()
        await until(lambda: any(one.dledger.is_ready for one in group))
        leading = leader_of([one.served for one in group])
        leader = next(one for one in group if one.served is leading)
        await leader.send(leader.address, EXPIRED, 5)
        for one in group:
            await until(lambda one=one: one.end(EXPIRED) == 5)
        away = group[group.index(leader) - 1]
        await away.stop()
        others = [one for one in group if one is not away]
        await until(lambda: any(one.dledger.is_ready for one in others))
        leader = next(one for one in others if one.dledger.is_ready)
        await leader.send(leader.address, LATER, 40)
        for one in others:
            await until(lambda one=one: one.end(LATER) == 40)
            await one.expire()

        await away.start_again()
        text = "the log of n[0-2] begins at entry [0-9]+, .* empty its directory"
        async with asyncio.timeout(60):
            while not re.search(text, caplog.text):  # noqa: ASYNC110 (other peers bring it about)
                await asyncio.sleep(0.05)
        rejections = [one for one in caplog.records if re.search(text, one.getMessage())]
        assert len(rejections) <= 3, "one for each leader"
        assert away.end(EXPIRED) == 5
        assert not (await state_of(away.served)).ready

        await away.start_again(emptied=True)
        await until(lambda: away.end(LATER) == 40)
