"""With lockInStrictMode a queue is locked for a client if a majority of the group's brokers grants it."""

from __future__ import annotations

import asyncio

import pytest

from epochmq_broker.config.broker_config import LiveConfig, from_properties
from epochmq_broker.membership.acting import lock_quorum
from epochmq_broker.membership.acting.lock_quorum import LockQuorum
from epochmq_broker.tables.rebalance_locks import RebalanceLocks
from epochmq_protocol.bodies import (
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueue,
    UnlockBatchRequestBody,
    from_json,
    to_json,
)
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import CallTimeoutError
from epochmq_protocol.frame import Command, response

Q0, Q1 = MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)
OWN, FIRST, SECOND = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"


class Members:
    """Replaces a RemotingClient: the other members, each with locks of its own."""

    def __init__(self) -> None:
        self.locks = {FIRST: RebalanceLocks(), SECOND: RebalanceLocks()}
        self.dead: set[str] = set()
        self.rejecting: set[str] = set()
        self.requests: list[tuple[str, Command]] = []
        self.asked = asyncio.Event()
        self.hanging: set[str] = set()

    async def call(self, address: str, command: Command, timeout_ms: float = 3000) -> Command:
        """RemotingClient.call."""
        self.requests.append((address, command))
        self.asked.set()
        assert timeout_ms == lock_quorum.MEMBER_TIMEOUT_MS
        if address in self.hanging:
            await asyncio.Event().wait()
        if address in self.dead:
            raise CallTimeoutError(f"{address} is dead")
        if address in self.rejecting:
            return response(command, ResponseCode.SYSTEM_BUSY)
        body = from_json(LockBatchRequestBody, command.body)
        assert body.only_this_broker, "a member that asks the others again would never end"
        locks = self.locks[address]
        if command.code == RequestCode.UNLOCK_BATCH_MQ:
            locks.unlock(body.consumer_group, body.mq_set, body.client_id)
            return response(command, ResponseCode.SUCCESS)
        granted = locks.lock(body.consumer_group, body.mq_set, body.client_id, 0)
        answer = LockBatchResponseBody(lock_ok_mq_set=granted)
        return response(command, ResponseCode.SUCCESS, body=to_json(answer))


class Fixture:
    """One broker of three."""

    def __init__(self, **settings: str) -> None:
        text = {"brokerIP1": "10.0.0.1", "lockInStrictMode": "true", "totalReplicas": "3"}
        self.live = LiveConfig(from_properties(text | settings).config)
        self.members = Members()
        self.own = RebalanceLocks()
        self.quorum = LockQuorum(self.live, self.own, self.members)
        self.quorum.members = lambda: {0: OWN, 1: FIRST, 2: SECOND}

    def body(self, client_id: str = "c1", **fields: bool) -> LockBatchRequestBody:
        return LockBatchRequestBody(consumer_group="g", client_id=client_id, mq_set={Q0, Q1}, **fields)

    async def lock(self, client_id: str = "c1") -> set[MessageQueue]:
        body = self.body(client_id)
        assert self.quorum.is_needed(body)
        return await self.quorum.lock(body)


async def test_all_members_are_asked_for_the_queues_that_this_broker_granted() -> None:
    fixture = Fixture()
    fixture.own.lock("g", [Q1], "other", lock_quorum.now_ms())
    assert await fixture.lock() == {Q0}
    assert [address for address, _ in fixture.members.requests] == [FIRST, SECOND]
    for _, command in fixture.members.requests:
        assert from_json(LockBatchRequestBody, command.body).mq_set == {Q0}


async def test_a_majority_is_enough() -> None:
    fixture = Fixture()
    fixture.members.dead.add(FIRST)
    assert await fixture.lock() == {Q0, Q1}
    fixture.members.rejecting.add(SECOND)
    assert await fixture.lock() == set(), "one of three brokers is no majority"


async def test_a_queue_that_another_client_has_at_a_majority_is_not_granted() -> None:
    fixture = Fixture()
    for locks in fixture.members.locks.values():
        locks.lock("g", [Q0], "other", 0)
    assert await fixture.lock() == {Q1}


async def test_both_of_two_replicas_are_needed() -> None:
    fixture = Fixture(totalReplicas="2")
    fixture.quorum.members = lambda: {0: OWN, 1: FIRST}
    assert await fixture.lock() == {Q0, Q1}
    fixture.quorum.members = lambda: {0: OWN}
    assert await fixture.lock() == set(), "while the master is down no client gets a lock"


async def test_before_a_nameserver_was_asked_only_this_broker_counts() -> None:
    fixture = Fixture()
    quorum = LockQuorum(fixture.live, fixture.own, fixture.members)
    assert await quorum.lock(fixture.body()) == set()
    assert fixture.members.requests == []


@pytest.mark.parametrize("settings", [{"lockInStrictMode": "false"}, {"totalReplicas": "1"}])
def test_other_members_are_not_needed_without_strict_mode_or_replicas(settings: dict[str, str]) -> None:
    fixture = Fixture(**settings)
    assert not fixture.quorum.is_needed(fixture.body())
    assert fixture.quorum.lock_here(fixture.body()) == {Q0, Q1}


def test_a_request_of_another_member_is_answered_alone() -> None:
    fixture = Fixture()
    assert not fixture.quorum.is_needed(fixture.body(only_this_broker=True))


async def test_an_unlock_is_sent_to_all_members_and_waits_for_none() -> None:
    fixture = Fixture()
    assert await fixture.lock() == {Q0, Q1}
    fixture.members.hanging.add(FIRST)
    fixture.members.requests.clear()
    fixture.quorum.unlock(UnlockBatchRequestBody(consumer_group="g", client_id="c1", mq_set={Q0}))
    assert fixture.own.lock("g", [Q0], "other", lock_quorum.now_ms()) == {Q0}
    async with asyncio.timeout(120):
        while len(fixture.members.requests) < 2:
            fixture.members.asked.clear()
            await fixture.members.asked.wait()
    assert fixture.members.locks[SECOND].lock("g", [Q0, Q1], "other", 0) == {Q0}
    await fixture.quorum.stop()


async def test_an_unlock_of_another_member_is_not_passed_on() -> None:
    fixture = Fixture()
    body = UnlockBatchRequestBody(consumer_group="g", client_id="c1", only_this_broker=True, mq_set={Q0})
    fixture.quorum.unlock(body)
    await asyncio.sleep(0)
    assert fixture.members.requests == []


async def test_unlock_requests_to_members_that_hang_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_quorum, "PENDING_UNLOCKS_MAX", 3)
    fixture = Fixture()
    fixture.members.hanging |= {FIRST, SECOND}
    for _ in range(5):
        fixture.quorum.unlock(UnlockBatchRequestBody(consumer_group="g", client_id="c1", mq_set={Q0}))
        await asyncio.sleep(0)
    assert len(fixture.members.requests) == 3
    await fixture.quorum.stop()
