"""Light message queues in the broker: sends, pulls, offsets, and the file of the offsets."""

from __future__ import annotations

import json
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from epochmq_broker.config.clock import now_ms
from epochmq_broker.tables.light_tables import LightBrokerStats, LightConsumerOffsetTable
from epochmq_protocol import message as records
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.headers_client import UpdateConsumerOffsetRequestHeader
from epochmq_protocol.message import BatchElement, crc_property, encode_batch
from tests.unit.broker.kit import UNIQ_KEY, Bench, command, pull_command, running, send_command, until

LIGHT = {"enableLmq": "true", "enableMultiDispatch": "true"}
GROUP = "%LMQ%group"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path, LIGHT) as made:
        yield made


def named(names: str, **more: str) -> dict[str, str]:
    return {"UNIQ_KEY": UNIQ_KEY, "INNER_MULTI_DISPATCH": names, **more}


async def test_a_sent_message_can_be_pulled_from_its_light_queues(bench: Bench) -> None:
    peer = bench.peer()
    for number in range(3):
        answer = peer.call(send_command("BenchmarkTest", b"%d" % number, named("%LMQ%a,%LMQ%b")))
        assert answer.code == ResponseCode.SUCCESS
        assert (answer.ext or {})["queueOffset"] == str(number)
    answer = peer.call(pull_command("%LMQ%b", 1, group=GROUP))
    assert answer.code == ResponseCode.SUCCESS
    messages = records.decode_records(answer.body)
    assert [message.body for message in messages] == [b"1", b"2"]
    assert [message.topic for message in messages] == ["BenchmarkTest"] * 2
    assert b"INNER_MULTI_QUEUE_OFFSET\x011,1\x02" in messages[0].properties


async def test_a_held_pull_of_a_light_queue_is_answered_by_the_next_message(bench: Bench) -> None:
    peer = bench.peer()
    peer.call(send_command("BenchmarkTest", b"first", named("%LMQ%a")))
    held = peer.send(pull_command("%LMQ%a", 1, group=GROUP, sys_flag=6))
    peer.call(send_command("BenchmarkTest", b"second", named("%LMQ%a")))
    answer = await peer.answer(held)
    assert [message.body for message in records.decode_records(answer.body)] == [b"second"]


async def test_a_transactions_message_is_in_light_queues_when_it_is_committed(bench: Bench) -> None:
    peer = bench.peer()
    half = peer.call(
        send_command(
            "BenchmarkTest", b"half", named("%LMQ%a", TRAN_MSG="true", PGROUP="producers"), sys_flag=4
        )
    )
    assert half.code == ResponseCode.SUCCESS
    assert bench.count("%LMQ%a") == 0
    assert bench.count("RMQ_SYS_TRANS_HALF_TOPIC") == 1
    answer = peer.call(
        command(
            RequestCode.END_TRANSACTION,
            producerGroup="producers",
            tranStateTableOffset=(half.ext or {})["queueOffset"],
            commitLogOffset="0",
            commitOrRollback="8",
            fromTransactionCheck="false",
            msgId=UNIQ_KEY,
            transactionId=UNIQ_KEY,
        )
    )
    assert answer.code == ResponseCode.SUCCESS
    assert bench.count("%LMQ%a") == 1


async def test_a_batch_cannot_write_into_light_queues(bench: Bench) -> None:
    properties = records.format_properties(named("%LMQ%a", INNER_MULTI_QUEUE_OFFSET="0"))
    body = encode_batch([BatchElement(b"one", properties)])
    answer = bench.peer().call(
        send_command("BenchmarkTest", body, {}, code=RequestCode.SEND_BATCH_MESSAGE, batch=True)
    )
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert bench.count("BenchmarkTest") == 0


async def test_too_many_light_queues_get_rocketmqs_answer(tmp_path: Path) -> None:
    async with running(tmp_path, LIGHT | {"maxLmqConsumeQueueNum": "1"}) as bench:
        peer = bench.peer()
        assert peer.call(send_command("BenchmarkTest", b"1", named("%LMQ%a"))).code == ResponseCode.SUCCESS
        answer = peer.call(send_command("BenchmarkTest", b"2", named("%LMQ%b")))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert (answer.remark or "").startswith("[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]")


async def test_without_the_key_the_property_has_no_effect(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        peer = bench.peer()
        assert peer.call(send_command("BenchmarkTest", b"1", named("%LMQ%a"))).code == ResponseCode.SUCCESS
        assert bench.count("%LMQ%a") == 0
        assert b"INNER_MULTI_QUEUE_OFFSET" not in bench.record("BenchmarkTest", 0, 0).properties
        assert peer.call(pull_command("%LMQ%a", 0, group="group")).code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_light_groups_offset_survives_a_restart(tmp_path: Path) -> None:
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group=GROUP, topic="%LMQ%a", queue_id=0, commit_offset=1
    )
    async with running(tmp_path, LIGHT) as bench:
        bench.peer().call(send_command("BenchmarkTest", b"1", named("%LMQ%a")))
        assert bench.peer().call(command(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code == 0
        bench.broker.tables.offsets.commit("plain", "%LMQ%a", 0, 1)
    written = json.loads((tmp_path / "config" / "lmqConsumerOffset.json").read_text().replace("0:1", '"0":1'))
    assert written["lmqOffsetTable"] == {"%LMQ%a@%LMQ%group": 1}
    assert written["offsetTable"] == {"%LMQ%a@plain": {"0": 1}}
    async with running(tmp_path, LIGHT) as bench:
        assert bench.broker.tables.offsets.query(GROUP, "%LMQ%a", 0) == 1


async def test_plain_groups_keep_their_offsets_when_the_key_changes(tmp_path: Path) -> None:
    settings: dict[str, str]
    offset = 0
    for settings in ({}, LIGHT, {}, LIGHT):
        async with running(tmp_path, settings | {"consumerOffsetUpdateVersionStep": "1"}) as bench:
            offsets = bench.broker.tables.offsets
            assert offsets.query("plain", "BenchmarkTest", 0) == (offset or None)
            offset += 1
            stored = bench.peer().call(
                send_command("BenchmarkTest", b"an offset beyond the queue is lowered")
            )
            assert stored.code == ResponseCode.SUCCESS
            offsets.commit("plain", "BenchmarkTest", 0, offset)


def test_a_light_group_has_one_offset_for_each_topic() -> None:
    offsets = LightConsumerOffsetTable(now_ms)
    offsets.commit(GROUP, "%LMQ%a", 5, 7)
    assert offsets.query(GROUP, "%LMQ%a", 0) == 7
    assert offsets.queues(GROUP, "%LMQ%a") == {0: 7}
    assert offsets.topics_of(GROUP) == set()
    assert offsets.clamp(lambda _topic, _queue: 3) == 1
    assert offsets.query(GROUP, "%LMQ%a", 0) == 3
    assert offsets.forget_group(GROUP)
    assert offsets.query(GROUP, "%LMQ%a", 0) is None


@pytest.mark.parametrize("counts_each", [False, True])
def test_light_queues_share_one_counter_unless_each_is_counted(*, counts_each: bool) -> None:
    stats = LightBrokerStats("cluster", 0, lambda _topic: False)
    stats.counts_each = counts_each
    same = stats.get_traffic(GROUP, "%LMQ%a", 0) is stats.get_traffic(GROUP + "2", "%LMQ%b", 0)
    assert same is not counts_each


async def test_light_topics_and_groups_exist_and_are_not_stored(bench: Bench) -> None:
    topics, groups = bench.broker.tables.topics, bench.broker.tables.groups
    config = topics.get("%LMQ%any")
    assert config is not None
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (1, 1, 6)
    assert "%LMQ%any" in topics
    before = dict(topics.table)
    topics.update([config])
    topics.put(config)
    assert dict(topics.table) == before
    assert groups.find("%LMQ%g") is not None
    assert "%LMQ%g" not in groups.table


async def test_a_slave_copies_the_offsets_of_light_groups(tmp_path: Path) -> None:
    async with running(tmp_path / "a", LIGHT) as master, running(tmp_path / "b", LIGHT) as slave:
        master.broker.offsets.commit(GROUP, "%LMQ%a", 0, 7)
        master.broker.offsets.commit("plain", "T", 2, 9)
        answer = master.peer().call(command(RequestCode.GET_ALL_CONSUMER_OFFSET))
        (await slave.broker.slave_sync._read_offsets(answer.body))()
        assert slave.broker.offsets.query(GROUP, "%LMQ%a", 0) == 7
        assert slave.broker.offsets.query("plain", "T", 2) == 9


async def test_a_timer_message_is_in_light_queues_when_it_is_delivered(bench: Bench) -> None:
    peer = bench.peer()
    delayed = send_command("BenchmarkTest", b"x", named("%LMQ%a", TIMER_DELAY_MS="1000"))
    assert peer.call(delayed).code == ResponseCode.SUCCESS
    assert bench.count("%LMQ%a") == 0
    await until(lambda: bench.count("BenchmarkTest") == 1)
    assert bench.count("%LMQ%a") == 1


@pytest.mark.parametrize("name", ["TIMER_DELAY_MS", "TRAN_MSG"])
async def test_a_copied_record_has_a_checksum_of_its_own(tmp_path: Path, name: str) -> None:
    async with running(tmp_path, {"enabledAppendPropCRC": "true"}) as bench:
        peer = bench.peer()
        special = (
            {"TIMER_DELAY_MS": "1000"} if name == "TIMER_DELAY_MS" else {"TRAN_MSG": "true", "PGROUP": "p"}
        )
        flag = 4 if name == "TRAN_MSG" else 0
        properties = {"UNIQ_KEY": UNIQ_KEY} | special
        assert peer.call(send_command("BenchmarkTest", b"x", properties, sys_flag=flag)).code == 0
        if name == "TRAN_MSG":
            end = command(
                RequestCode.END_TRANSACTION,
                producerGroup="p",
                tranStateTableOffset="0",
                commitLogOffset="0",
                commitOrRollback="8",
                fromTransactionCheck="false",
                msgId=UNIQ_KEY,
                transactionId=UNIQ_KEY,
            )
            assert peer.call(end).code == ResponseCode.SUCCESS
        await until(lambda: bench.count("BenchmarkTest") == 1)
        record = bench.record("BenchmarkTest", 0, 0)
        assert record.properties.count(b"__CRC32#") == 1
        queue = bench.broker.store.queue("BenchmarkTest", 0)
        unit = queue.unit(0)
        assert unit is not None
        stored = bench.broker.store.read(unit[0], unit[1])
        assert stored is not None
        assert stored[-20:] == crc_property(zlib.crc32(stored[:-20]))
