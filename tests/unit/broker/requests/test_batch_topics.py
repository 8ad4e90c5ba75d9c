"""Topics with `queue.type=BatchCQ`: what producers, consumers and administrators get from them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from epochmq_protocol import message as records
from epochmq_protocol.bodies import QueryConsumeQueueResponseBody, from_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.frame import Command
from epochmq_protocol.headers_admin import CreateTopicRequestHeader, QueryConsumeQueueRequestHeader
from epochmq_protocol.headers_client import (
    ConsumerSendMsgBackRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    SearchOffsetRequestHeader,
)
from epochmq_protocol.message import BatchElement, encode_batch
from tests.unit.broker.kit import UNIQ_KEY, Bench, Peer, command, pull_command, running, send_command

TOPIC = "batches"
SUSPEND, SUBSCRIPTION = 2, 4


async def create(bench: Bench, attributes: str | None = "+queue.type=BatchCQ") -> Command:
    header = CreateTopicRequestHeader(
        topic=TOPIC,
        default_topic="TBW102",
        read_queue_nums=2,
        write_queue_nums=2,
        perm=6,
        topic_filter_type="SINGLE_TAG",
        attributes=attributes,
    )
    peer = bench.peer()
    return await peer.answer(peer.send(command(RequestCode.UPDATE_AND_CREATE_TOPIC, header)))


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path) as made:
        assert (await create(made)).code == 0
        yield made


def body_of(count: int) -> bytes:
    return encode_batch([BatchElement(b"body-%d" % at, b"KEYS\x01k%d\x02" % at, at) for at in range(count)])


def batch(count: int = 3, topic: str = TOPIC, body: bytes | None = None, **properties: str | None) -> Command:
    """A batch as a Java client sends it. Property None: left out."""
    given = {"UNIQ_KEY": UNIQ_KEY, "WAIT": "true"} | properties
    return send_command(
        topic,
        body_of(count) if body is None else body,
        {name: value for name, value in given.items() if value is not None},
        code=RequestCode.SEND_BATCH_MESSAGE,
        batch=True,
    )


def offsets(peer: Peer, queue_id: int = 0) -> tuple[int, int]:
    """(min, max) of a queue."""
    found = []
    for code, header in (
        (RequestCode.GET_MIN_OFFSET, GetMinOffsetRequestHeader(topic=TOPIC, queue_id=queue_id)),
        (RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(topic=TOPIC, queue_id=queue_id)),
    ):
        answer = peer.call(command(code, header))
        assert answer.code == 0
        found.append(int((answer.ext or {})["offset"]))
    return found[0], found[1]


def pulled(peer: Peer, offset: int, **fields: Any) -> tuple[int, dict[str, str], list[records.MessageExt]]:
    answer = peer.call(pull_command(TOPIC, offset, **fields))
    return answer.code, answer.ext or {}, records.decode_records(answer.body or b"")


async def test_a_batch_is_one_record_with_the_batch_as_its_body(bench: Bench) -> None:
    peer = bench.peer()
    assert peer.call(batch(3)).code == 0
    answer = peer.call(batch(4))
    record = bench.record(TOPIC, 0, 3)
    assert record.body == body_of(4)
    assert record.sys_flag == records.NEED_UNWRAP_FLAG | records.INNER_BATCH_FLAG
    assert record.queue_offset == 3
    assert records.parse_properties(record.properties) == {
        "UNIQ_KEY": UNIQ_KEY,
        "WAIT": "true",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "CLUSTER": "TestCluster",
        "INNER_NUM": "4",
        "INNER_BASE": "3",
    }
    assert answer.code == 0
    assert answer.ext == {
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "msgId": record.msg_id,
        "queueId": "0",
        "queueOffset": "3",
        "transactionId": UNIQ_KEY,
        "batchUniqId": UNIQ_KEY,
    }


async def test_offsets_count_messages(bench: Bench) -> None:
    peer = bench.peer()
    assert offsets(peer) == (-1, 0)
    peer.call(batch(3))
    peer.call(batch(4))
    assert offsets(peer) == (0, 7)
    assert offsets(peer, 1) == (-1, 0)


async def test_a_pull_returns_whole_batches(bench: Bench) -> None:
    peer = bench.peer()
    for count in (3, 4, 30):
        peer.call(batch(count))
    code, ext, found = pulled(peer, 4)
    assert code == 0
    assert [record.queue_offset for record in found] == [3]
    assert (ext["nextBeginOffset"], ext["minOffset"], ext["maxOffset"]) == ("7", "0", "37")
    code, ext, found = pulled(peer, 7, max_msg_nums=1)
    assert [record.queue_offset for record in found] == [7]
    code, ext, _ = pulled(peer, 37)
    assert (code, ext["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "37")
    code, ext, _ = pulled(peer, 38)
    assert (code, ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "37")


async def test_a_waiting_pull_is_answered_when_a_batch_arrives(bench: Bench) -> None:
    peer = bench.peer()
    opaque = peer.send(pull_command(TOPIC, 0, sys_flag=SUSPEND | SUBSCRIPTION))
    peer.collect()
    assert opaque not in peer.answers
    bench.peer().call(batch(3))
    answer = await peer.answer(opaque)
    assert answer.code == 0
    assert (answer.ext or {})["nextBeginOffset"] == "3"


async def test_the_traffic_of_a_batch_counts_its_messages(bench: Bench) -> None:
    peer = bench.peer()
    peer.call(batch(3))
    pulled(peer, 0)
    stats = bench.broker.tables.stats
    messages, _, requests = stats.put_traffic(TOPIC, 0).totals()
    assert (messages, requests) == (3, 1)
    assert stats.get_traffic("group", TOPIC, 0).messages == 3


async def test_an_administrator_sees_the_units(bench: Bench) -> None:
    peer = bench.peer()
    for count in (3, 4, 5):
        peer.call(batch(count))
    header = QueryConsumeQueueRequestHeader(topic=TOPIC, queue_id=0, index=4, count=10)
    answer = peer.call(command(RequestCode.QUERY_CONSUME_QUEUE, header))
    shown = from_json(QueryConsumeQueueResponseBody, answer.body)
    expected = [bench.record(TOPIC, 0, offset) for offset in (3, 7)]
    assert [(row.physic_offset, row.physic_size) for row in shown.queue_data or []] == [
        (record.physical_offset, record.store_size) for record in expected
    ]
    assert (shown.min_queue_index, shown.max_queue_index) == (0, 12)


async def test_a_search_by_time_returns_the_first_offset_of_a_batch(bench: Bench) -> None:
    peer = bench.peer()
    for count in (3, 4):
        peer.call(batch(count))
    stored = bench.record(TOPIC, 0, 3).store_timestamp
    for time_ms, offset in ((stored - 100_000, "0"), (stored + 1, "3")):
        header = SearchOffsetRequestHeader(topic=TOPIC, queue_id=0, timestamp=time_ms)
        answer = peer.call(command(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header))
        assert (answer.ext or {})["offset"] == offset


async def test_messages_that_are_no_batch_are_single_records(bench: Bench) -> None:
    peer = bench.peer()
    for ordinary in (False, True):
        answer = bench.peer(ordinary=ordinary).call(send_command(TOPIC))
        assert answer.code == 0
    assert (answer.ext or {})["queueOffset"] == "1"
    answer = peer.call(batch(3, UNIQ_KEY=None))
    assert answer.code == 0
    assert (answer.ext or {})["queueOffset"] == "2"
    assert "batchUniqId" not in (answer.ext or {})
    assert (peer.call(batch(2)).ext or {})["queueOffset"] == "5"
    assert offsets(peer) == (0, 7)
    assert [record.queue_offset for record in pulled(peer, 0)[2]] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "sent",
    [
        batch(2, DELAY="3"),
        batch(2, TIMER_DELAY_SEC="10"),
        batch(32_768),
        batch(2, body=body_of(2)[:-1]),
        batch(2, topic="%RETRY%g"),
        send_command(TOPIC, properties={"UNIQ_KEY": UNIQ_KEY, "INNER_NUM": "2"}),
        send_command(TOPIC, properties={"UNIQ_KEY": UNIQ_KEY, "INNER_NUM": "x"}, sys_flag=0x80),
        send_command("BenchmarkTest", properties={"UNIQ_KEY": UNIQ_KEY, "INNER_NUM": "2"}, sys_flag=0x80),
    ],
    ids=["delay", "timer", "too many", "malformed", "retry", "no flag", "no number", "plain topic"],
)
async def test_what_cannot_be_an_inner_batch_is_illegal(bench: Bench, sent: Command) -> None:
    end = bench.broker.store.max_phy_offset
    assert bench.peer().call(sent).code == ResponseCode.MESSAGE_ILLEGAL
    assert bench.broker.store.max_phy_offset == end


async def test_a_batch_of_a_plain_topic_stays_single_records(bench: Bench) -> None:
    answer = bench.peer().call(batch(3, topic="BenchmarkTest"))
    assert "batchUniqId" not in (answer.ext or {})
    assert bench.count("BenchmarkTest") == 3
    assert bench.record("BenchmarkTest", 0, 2).sys_flag == 0


async def test_a_batch_cannot_be_sent_back(bench: Bench) -> None:
    """As in RocketMQ: the record is a batch, and the retry topic has no queues for batches."""
    peer = bench.peer()
    peer.call(batch(3))
    offset = bench.record(TOPIC, 0, 0).physical_offset
    header = ConsumerSendMsgBackRequestHeader(offset=offset, group="group", delay_level=0)
    answer = peer.call(command(RequestCode.CONSUMER_SEND_MSG_BACK, header))
    assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_the_type_of_a_topic_cannot_change(bench: Bench) -> None:
    answer = await create(bench, "-queue.type")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "unchangeable" in (answer.remark or "")


async def test_a_broker_continues_its_queues_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        assert (await create(bench)).code == 0
        bench.peer().call(batch(3))
    async with running(tmp_path) as bench:
        peer = bench.peer()
        assert offsets(peer) == (0, 3)
        assert (peer.call(batch(4)).ext or {})["queueOffset"] == "3"
        assert pulled(peer, 0)[1]["nextBeginOffset"] == "7"
    assert not list((tmp_path / "consumequeue" / TOPIC).rglob("0*"))


async def test_a_queue_that_was_looked_up_before_its_topic_existed_gets_its_type(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        bench.broker.store.queue(TOPIC, 0)
        assert (await create(bench)).code == 0
        answer = bench.peer().call(batch(3))
        assert (answer.ext or {}).get("batchUniqId") == UNIQ_KEY
        assert bench.count(TOPIC) == 3
