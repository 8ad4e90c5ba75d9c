"""Creates a healthy store in which every feature of the broker has left its files: transactions, timer
messages, POP, filters with extensions, request modes, a static topic, users and ACLs."""

from __future__ import annotations

from pathlib import Path

from epochmq_broker.config.clock import now_ms
from epochmq_protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    MessageRequestMode,
    SetMessageRequestModeRequestBody,
    SubscriptionData,
    to_json,
)
from epochmq_protocol.codes import RequestCode
from epochmq_protocol.frame import request
from epochmq_protocol.headers_admin import CreateTopicRequestHeader
from epochmq_protocol.headers_client import HeartbeatRequestHeader
from epochmq_protocol.topics import LogicQueueMappingItem, TopicQueueMappingDetail
from tests.unit.broker.auth.kit import PROVIDERS, create_acl, create_user
from tests.unit.broker.kit import Bench, command, running, send_command, until
from tests.unit.broker.services.pop import support as pop
from tests.unit.broker.services.transactions import support as transactions

TIMER_LOG_UNITS = 78  # of a file of 4096 bytes
SETTINGS = {
    "timerPrecisionMs": "100",
    "timerFlushIntervalMs": "20",
    "mappedFileSizeTimerLog": "4096",
    "enableConsumeQueueExt": "true",
    "enableCalcFilterBitMap": "true",
    "enablePropertyFilter": "true",
    "transactionCheckInterval": "3600000",
    "transactionOpBatchInterval": "20",
} | PROVIDERS
SAME_TIME = 3
"""Timer messages that fall due at one time, in an hour."""
INVISIBLE_MS = 3000
"""When POP's records reach the revive topic, and long enough to acknowledge messages."""


async def create(directory: Path) -> None:
    """Creates the store and stops its broker."""
    async with running(directory, pop.FAST_REVIVES | SETTINGS) as bench:
        _register_filter(bench)
        await _send_timers(bench)
        await _end_transactions(bench)
        await _pop(bench)
        await _set_tables(bench)


def _register_filter(bench: Bench) -> None:
    consumer = ConsumerData(
        group_name="readers",
        subscription_data_set=[
            SubscriptionData(topic="T", sub_string="a > 1", expression_type="SQL92", sub_version=1)
        ],
    )
    body = to_json(HeartbeatData(client_id="client", consumer_data_set=[consumer]))
    assert bench.peer().call(request(RequestCode.HEART_BEAT, HeartbeatRequestHeader(), body)).code == 0


async def _send_timers(bench: Bench) -> None:
    later = now_ms() + 3_600_000
    dues = (
        [now_ms() + 200] * 3
        + [later] * SAME_TIME
        + [later + 1000 * at for at in range(1, 2 * TIMER_LOG_UNITS)]
    )
    for number, due in enumerate(dues):
        properties = {"UNIQ_KEY": f"timer-{number}", "TIMER_DELIVER_MS": str(due)}
        assert bench.peer().call(send_command("later", b"%d" % number, properties)).code == 0
    await until(lambda: bench.count("later") == 3)


async def _end_transactions(bench: Bench) -> None:
    halves = [
        transactions.send_half(
            bench, properties=transactions.half_properties() | {"UNIQ_KEY": f"transaction-{number}"}
        )
        for number in range(3)
    ]
    for half, kind in zip(halves, (transactions.COMMIT, transactions.ROLLBACK), strict=False):
        assert bench.peer().call(transactions.end_command(half, kind)).code == 0
    await until(lambda: b"".join(transactions.ops(bench)).count(b",") == 2)


async def _pop(bench: Bench) -> None:
    pop.send(bench, 4, TAGS="blue", a="2")
    pop.send(bench, 3, topic="ordered")
    found, header = await pop.pop(bench, invisible_time=INVISIBLE_MS)
    received = [message for message in found if message.queue_id == 0]
    assert (len(found), len(received)) == (5, 4), "another one is committed in queue 1"
    start = received[0].queue_offset
    for message in received[:2]:
        answer = bench.peer().call(pop.ack_command(pop.extra_info(header, message, start), message))
        assert answer.code == 0, answer.remark
    in_order, _ = await pop.pop(bench, "ordered", order=True, invisible_time=INVISIBLE_MS)
    assert len(in_order) == 3
    await until(lambda: sum(bench.count(pop.REVIVE, queue_id) for queue_id in range(8)) >= 3)


async def _set_tables(bench: Bench) -> None:
    peer = bench.peer()
    mode = SetMessageRequestModeRequestBody(
        topic="T", consumer_group="g", mode=MessageRequestMode.POP, pop_share_queue_num=2
    )
    assert peer.call(request(RequestCode.SET_MESSAGE_REQUEST_MODE, body=to_json(mode))).code == 0
    items = [
        LogicQueueMappingItem(gen=0, queue_id=0, bname="broker-b", logic_offset=0, end_offset=10),
        LogicQueueMappingItem(gen=1, queue_id=0, bname="broker-a", logic_offset=1000),
    ]
    mapping = TopicQueueMappingDetail(
        topic="static", total_queues=1, bname="broker-a", epoch=1, hosted_queues={0: items}
    )
    header = CreateTopicRequestHeader(
        topic="static",
        default_topic="TBW102",
        read_queue_nums=1,
        write_queue_nums=1,
        perm=6,
        topic_filter_type="SINGLE_TAG",
        force=False,
    )
    create = command(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, header, to_json(mapping))
    answer = await peer.answer(peer.send(create))
    assert answer.code == 0, answer.remark
    assert peer.call(create_user("alice", "secret")).code == 0
    assert peer.call(create_acl("alice", ["Topic:T"], ["Pub", "Sub"])).code == 0
