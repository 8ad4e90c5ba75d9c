"""What a slave of a group with an acting master answers: sends and ends of transactions are rejected as by
RocketMQ's, pulls are served or sent to the master."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from epochmq_broker.membership.modes.acting import ActingMasterMode
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.frame import Command
from epochmq_protocol.headers_client import ConsumerSendMsgBackRequestHeader
from epochmq_store.statuses import RunningFlags
from tests.unit.broker.kit import HOST, Bench, command, pull_command, running, send_command

SLAVE = {
    "brokerRole": "SLAVE",
    "brokerId": "1",
    "slaveReadEnable": "true",
    "enableSlaveActingMaster": "true",
    "recallMessageEnable": "true",
}
SUSPEND, SUBSCRIPTION = 2, 4
MESSAGES = 3


@pytest.fixture
async def bench(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    """A slave whose log has three messages in the first queue of topic T."""
    settings: Mapping[str, str] = getattr(request, "param", {})
    async with running(tmp_path, SLAVE | dict(settings)) as made:
        for _ in range(MESSAGES):
            assert made.peer().call(send_command("T")).code == ResponseCode.SUCCESS
        made.broker.store.state.set_flag(RunningFlags.REPLICA, True)
        yield made


def pull(offset: int, *, waits: bool = True) -> Command:
    flags = SUBSCRIPTION | (SUSPEND if waits else 0)
    return pull_command("T", offset, sys_flag=flags, suspend_timeout_millis=20_000)


def held(bench: Bench) -> int:
    return bench.broker.processors.pull.hold.held


@pytest.mark.parametrize("ordinary", [False, True])
@pytest.mark.parametrize(
    "properties", [{"WAIT": "true"}, {"WAIT": "false"}, {"DELAY": "2"}, {"TIMER_DELAY_SEC": "9"}]
)
async def test_a_send_is_rejected_and_nothing_is_stored(
    bench: Bench, ordinary: bool, properties: dict[str, str]
) -> None:
    end = bench.broker.store.max_phy_offset
    rejected = bench.peer(ordinary=ordinary).call(send_command("T", b"x", properties))
    assert rejected.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "messages are put to the slave" in (rejected.remark or "")
    assert bench.broker.store.max_phy_offset == end


async def test_a_message_sent_back_is_rejected_with_rocketmq_s_remark(bench: Bench) -> None:
    """A Java consumer then sends it to the retry topic itself."""
    header = ConsumerSendMsgBackRequestHeader(offset=0, group="g", delay_level=0, origin_topic="T")
    rejected = bench.peer().call(command(RequestCode.CONSUMER_SEND_MSG_BACK, header))
    assert rejected.code == ResponseCode.SYSTEM_ERROR
    assert rejected.remark == f"no master available along with {HOST}"


async def test_ends_of_transactions_and_recalls_are_rejected(bench: Bench) -> None:
    end = {
        "producerGroup": "p", "tranStateTableOffset": "0", "commitLogOffset": "0", "commitOrRollback": "8",
        "fromTransactionCheck": "false", "msgId": "x",
    }  # fmt: skip
    assert bench.peer().call(command(RequestCode.END_TRANSACTION, **end)).code == (
        ResponseCode.SLAVE_NOT_AVAILABLE
    )
    recall = {"topic": "T", "recallHandle": "x", "producerGroup": "p"}
    assert bench.peer().call(command(RequestCode.RECALL_MESSAGE, **recall)).code == (
        ResponseCode.SLAVE_NOT_AVAILABLE
    )


async def test_a_pull_is_served_or_held_until_it_is_released(bench: Bench) -> None:
    """The master's return releases held pulls: their consumers then pull from the master."""
    assert bench.peer().call(pull(0)).code == ResponseCode.SUCCESS
    peer = bench.peer()
    opaque = peer.send(pull(MESSAGES))
    assert held(bench) == 1
    bench.broker.processors.pull.hold.release()
    answer = await peer.answer(opaque)
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert answer.ext is not None
    assert (answer.ext["suggestWhichBrokerId"], answer.ext["nextBeginOffset"]) == ("0", str(MESSAGES))


@pytest.mark.parametrize("offset", [MESSAGES + 1, 1000])
async def test_an_offset_beyond_the_slave_s_log_is_kept(bench: Bench, offset: int) -> None:
    """The master has the messages before it. Consumers must not consume them again when it is back."""
    answer = bench.peer().call(pull(offset, waits=False))
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert answer.ext is not None
    assert answer.ext["nextBeginOffset"] == str(offset)
    peer = bench.peer()
    peer.send(pull(offset))
    assert held(bench) == 1, "the pull waits"


@pytest.mark.parametrize("bench", [{"offsetCheckInSlave": "true"}], indirect=True)
async def test_an_offset_beyond_the_log_is_corrected_with_offset_check_in_slave(bench: Bench) -> None:
    answer = bench.peer().call(pull(1000, waits=False))
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert answer.ext is not None
    assert answer.ext["nextBeginOffset"] == str(MESSAGES)


async def test_a_server_side_reset_of_offsets_is_rejected(bench: Bench) -> None:
    fields = {"topic": "T", "group": "g", "timestamp": "-1", "isForce": "true"}
    rejected = bench.peer().call(command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **fields))
    assert rejected.code == ResponseCode.SYSTEM_ERROR
    assert rejected.remark == "Can not reset offset in slave broker"


@pytest.mark.parametrize("bench", [{"slaveReadEnable": "false"}], indirect=True)
async def test_without_slave_read_enable_every_pull_is_rejected(bench: Bench) -> None:
    assert bench.peer().call(pull(0)).code == ResponseCode.SYSTEM_BUSY


async def test_without_the_feature_notifications_succeed_and_have_no_effect(tmp_path: Path) -> None:
    async with running(tmp_path, SLAVE | {"enableSlaveActingMaster": "false"}) as bench:
        fields: dict[str, Any] = {"minBrokerId": "1", "minBrokerAddr": f"{HOST}:10911"}
        answer = bench.peer().call(command(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, **fields))
        assert answer.code == ResponseCode.SUCCESS
        assert not bench.broker.delays.is_running


async def test_a_notification_starts_and_stops_the_special_services(bench: Bench) -> None:
    broker, mode = bench.broker, bench.broker.mode
    assert isinstance(mode, ActingMasterMode)
    group = mode.group
    group.start()
    group.start_service(0, "127.53.7.9:10911")
    assert not broker.delays.is_running
    fields: dict[str, Any] = {"minBrokerId": "1", "minBrokerAddr": f"{HOST}:10911"}
    assert bench.peer().call(command(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, **fields)).code == 0
    assert group.is_acting_master
    assert broker.delays.is_running
    assert broker.timer is not None
    assert broker.timer.is_master
    await asyncio.sleep(0)  # the checks of transactions start
    fields = {"minBrokerId": "0", "minBrokerAddr": "127.53.7.9:10911", "haBrokerAddr": "127.53.7.9:10912"}
    assert bench.peer().call(command(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, **fields)).code == 0
    assert not group.is_acting_master
    assert not broker.delays.is_running
    assert not broker.timer.is_master
