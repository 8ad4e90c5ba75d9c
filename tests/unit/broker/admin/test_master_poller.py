"""The lag and the SyncStateSet that a replica learns from its master."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from epochmq_broker.admin.master_poller import MasterPoller
from epochmq_broker.replication.ha.service import HARole
from epochmq_protocol.bodies import HARuntimeInfo, to_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import ConnectError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.replica_control import MasterLogStateHeader, ReplicaControlCode
from epochmq_protocol.transport.client import RemotingClient


class Group:
    """A replica's own role, its master, and the responses of that master."""

    def __init__(self) -> None:
        self.role = HARole.REPLICA
        self.address: str | None = "a:1"
        self.answer: Callable[[Command], Command] = shown(1, 500)
        self.asked: list[tuple[str, int]] = []
        self.calls = asyncio.Semaphore(0)

    async def call(self, address: str, command: Command, timeout_ms: float = 3000) -> Command:
        self.asked.append((address, command.code))
        self.calls.release()
        return self.answer(command)


def shown(epoch: int, end: int) -> Callable[[Command], Command]:
    header = MasterLogStateHeader(broker_id=1, master_epoch=epoch, max_offset=end, members="1,2", set_epoch=4)
    return lambda command: response(command, ResponseCode.SUCCESS, header=header)


def rocketmq(*, master: bool) -> Callable[[Command], Command]:
    def answer(command: Command) -> Command:
        if command.code == ReplicaControlCode.GET_MASTER_LOG_STATE:
            return response(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported")
        assert command.code == RequestCode.GET_BROKER_HA_STATUS
        info = HARuntimeInfo(master=master, master_commit_log_max_offset=900)
        return response(command, ResponseCode.SUCCESS, body=to_json(info))

    return answer


def silent(command: Command) -> Command:
    raise ConnectError("nobody")


@pytest.fixture
def group() -> Group:
    return Group()


async def settle(group: Group, asked: int) -> None:
    """Waits until the poller has sent this many requests and has their responses."""
    async with asyncio.timeout(60):
        while len(group.asked) < asked:
            await group.calls.acquire()
    for _ in range(5):
        await asyncio.sleep(0)


def watch_of(group: Group) -> MasterPoller:
    client = cast(RemotingClient, group)
    return MasterPoller(client, lambda: group.role is HARole.REPLICA, lambda: group.address)


async def test_an_epochmq_master_reports_its_end_and_the_syncstateset(group: Group) -> None:
    watch = watch_of(group)
    assert watch.lag(400) == (None, None)
    watch.start()
    await settle(group, 1)
    lag_bytes, lag_ms = watch.lag(400)
    assert lag_bytes == 100
    assert lag_ms is not None
    assert watch.lag(500) == (0, 0)
    assert watch.latest is not None
    assert (watch.latest.member_ids, watch.latest.set_epoch) == ({1, 2}, 4)
    await watch.stop()


async def test_a_rocketmq_master_reports_its_end(group: Group) -> None:
    group.answer = rocketmq(master=True)
    watch = watch_of(group)
    watch.start()
    await settle(group, 2)
    assert watch.lag(850)[0] == 50
    assert watch.latest is None
    assert [code for _, code in group.asked] == [
        ReplicaControlCode.GET_MASTER_LOG_STATE,
        RequestCode.GET_BROKER_HA_STATUS,
    ]
    await watch.stop()


@pytest.mark.parametrize("answer", [silent, rocketmq(master=False)])
async def test_an_unusable_response_changes_nothing(
    group: Group, answer: Callable[[Command], Command]
) -> None:
    group.answer = answer
    watch = watch_of(group)
    watch.start()
    await settle(group, 1)
    assert watch.lag(0) == (None, None)
    await watch.stop()


async def test_a_new_master_is_polled_at_once_and_the_former_ones_data_discarded(group: Group) -> None:
    watch = watch_of(group)
    watch.start()
    await settle(group, 1)
    assert watch.lag(500) == (0, 0)
    group.address, group.answer = "b:1", shown(2, 700)
    assert watch.lag(500) == (None, None)
    await settle(group, 2)
    assert group.asked[1][0] == "b:1"
    assert watch.lag(500)[0] == 200
    await watch.stop()


def test_a_permanent_learner_is_not_in_the_syncstateset_and_cannot_join_it() -> None:
    log_state = MasterLogStateHeader(members="1,2", proposed="1,2,3", learners="3,4")
    assert [one for one in range(1, 6) if log_state.is_permanent_learner(one)] == [4]


async def test_a_master_polls_no_broker(group: Group) -> None:
    group.role = HARole.MASTER
    watch = watch_of(group)
    watch.start()
    for _ in range(5):
        await asyncio.sleep(0)
    assert group.asked == []
    await watch.stop()
