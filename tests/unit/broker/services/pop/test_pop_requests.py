"""A POP hands out messages once, with a checkpoint, and an acknowledgement ends that."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from epochmq_broker.requests.processors import pop as pop_processor
from epochmq_broker.services.pop.checkpoints import PopCheckPoint, decode_checkpoint
from epochmq_broker.tables.topics import topic_config
from epochmq_protocol.bodies import BatchAck, BatchAckMessageRequestBody, to_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.frame import request
from epochmq_protocol.headers_client import ChangeInvisibleTimeResponseHeader
from epochmq_protocol.message import BatchElement, decode_records, encode_batch, parse_properties
from epochmq_store.statuses import RunningFlags
from tests.unit.broker.kit import UNIQ_KEY, Bench, bodies, running, send_command, until
from tests.unit.broker.services.pop.support import (
    FAST_REVIVES,
    REVIVE,
    ack_command,
    change_command,
    extra_info,
    pop,
    pop_command,
    popping,
    send,
)


def revive_records(bench: Bench) -> list[bytes]:
    """The bodies of all records of the revive topic, queue by queue."""
    return [
        bench.record(REVIVE, queue_id, offset).body
        for queue_id in range(8)
        for offset in range(bench.count(REVIVE, queue_id))
    ]


async def test_a_message_is_handed_out_once(bench: Bench) -> None:
    send(bench, 3)
    messages, header = await pop(bench)
    assert bodies(messages) == [b"0", b"1", b"2"]
    assert (header.start_offset_info, header.msg_offset_info) == ("0 0 0", "0 0 0,1,2")
    assert (header.rest_num, header.invisible_time, header.revive_qid) == (0, 60_000, 0)
    assert (await pop(bench))[0] == []
    assert bench.broker.offsets.query("g", "T", 0) == 3


async def test_every_pop_stores_its_checkpoint_before_the_response(bench: Bench) -> None:
    send(bench, 2)
    send(bench, 1, queue_id=2)
    _, header = await pop(bench)
    found = {point.queue_id: point for body in revive_records(bench) if (point := decode_checkpoint(body))}
    assert found.keys() == {0, 2}
    first = found[0]
    assert (first.topic, first.group, first.start_offset, first.diffs) == ("T", "g", 0, [0, 1])
    assert (first.pop_time, first.invisible_time, first.broker_name) == (header.pop_time, 60_000, "broker-a")
    record = bench.record(REVIVE, 0, 0)
    assert parse_properties(record.properties)["TIMER_DELIVER_MS"] == str(header.pop_time + 59_000)


async def test_without_a_checkpoint_nothing_is_handed_out(bench: Bench) -> None:
    send(bench, 2)
    bench.broker.store.state.set_flag(RunningFlags.NOT_WRITEABLE, True)
    messages, header = await pop(bench)
    assert (messages, header.rest_num) == ([], 2)
    bench.broker.store.state.set_flag(RunningFlags.NOT_WRITEABLE, False)
    assert len((await pop(bench))[0]) == 2


async def test_pops_of_one_queue_and_limits(bench: Bench) -> None:
    send(bench, 40)
    send(bench, 2, queue_id=1)
    assert len((await pop(bench, queue_id=1))[0]) == 2
    first, header = await pop(bench, max_msg_nums=5)
    assert (len(first), header.rest_num) == (5, 35)
    assert len((await pop(bench))[0]) == 32
    assert len((await pop(bench))[0]) == 3


async def test_tags_select_and_others_are_passed(bench: Bench) -> None:
    send(bench, 2, TAGS="a")
    send(bench, 2, TAGS="b")
    send(bench, 1, TAGS="a")
    messages, header = await pop(bench, exp="a")
    assert header.msg_offset_info == "0 0 0,1,4"
    assert len(messages) == 3
    point = decode_checkpoint(revive_records(bench)[0])
    assert point is not None
    assert point.diffs == [0, 1, 4]
    assert bench.broker.offsets.query("g", "T", 0) == 5


async def test_sql_selects_by_properties(bench: Bench) -> None:
    send(bench, 1, size="3")
    send(bench, 1, size="30")
    messages, _ = await pop(bench, exp="size > 5", exp_type="SQL92")
    assert [message.queue_offset for message in messages] == [1]
    bad = bench.peer().call(pop_command(exp="size >", exp_type="SQL92"))
    assert bad.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_a_new_group_begins_at_the_end_if_it_asks_for_that(tmp_path: Path) -> None:
    async with popping(tmp_path, {"initPopOffsetByCheckMsgInMem": "false"}) as bench:
        send(bench, 5)
        messages, _ = await pop(bench, init_mode=1)
        assert [message.queue_offset for message in messages] == [4]
        assert len((await pop(bench, consumer_group="other", init_mode=0))[0]) == 5


async def test_unacknowledged_messages_come_again_from_the_retry_topic(bench: Bench) -> None:
    send(bench, 3)
    messages, header = await pop(bench, invisible_time=200)
    kept = messages[1]
    for message in (messages[0], messages[2]):
        done = bench.peer().call(ack_command(extra_info(header, message, 0), message))
        assert done.code == ResponseCode.SUCCESS
    await until(lambda: bench.count("%RETRY%g_T") == 1)
    again, second = await pop(bench)
    (message,) = again
    assert (message.body, message.topic, message.reconsume_times) == (kept.body, "T", 1)
    properties = parse_properties(message.properties)
    assert properties["1ST_POP_TIME"] == str(header.pop_time)
    info = properties["POP_CK"]
    assert info == f"0 {second.pop_time} 60000 {second.revive_qid} 1 broker-a 0 0"
    assert (second.start_offset_info, second.msg_offset_info) == ("1 0 0", "1 0 0")
    topic = bench.broker.topics.get("%RETRY%g_T")
    assert topic is not None
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)
    assert bench.broker.pop.revives.revived == 1


async def test_a_message_with_the_highest_number_of_attempts_blocks_no_other(
    bench: Bench,
) -> None:
    """A client may send any number of attempts. As in Java, −2³¹ follows 2³¹ − 1."""
    properties = {"UNIQ_KEY": UNIQ_KEY, "WAIT": "true"}
    often = send_command("T", b"often", properties, reconsume_times=(1 << 31) - 1)
    assert bench.peer().call(often).code == ResponseCode.SUCCESS
    send(bench, 1)
    messages, _ = await pop(bench, invisible_time=200)
    assert len(messages) == 2
    await until(lambda: bench.count("%RETRY%g_T") == 2)
    again = [bench.record("%RETRY%g_T", 0, offset) for offset in range(2)]
    assert {message.body: message.reconsume_times for message in again} == {b"often": -(1 << 31), b"0": 1}


@pytest.mark.parametrize(
    "properties",
    [
        pytest.param(b"DELAY\x01soon\x02", id="a delay that is no number"),
        pytest.param(b"large\x01%b\x02" % (b"x" * 32_640), id="no room for more properties"),
    ],
)
async def test_a_message_whose_copy_is_rejected_blocks_no_other(bench: Bench, properties: bytes) -> None:
    """The broker does not parse the properties of the messages in a batch."""
    body = encode_batch([BatchElement(b"odd", properties), BatchElement(b"plain")])
    batch = send_command("T", body, code=RequestCode.SEND_BATCH_MESSAGE, batch=True)
    assert bench.peer().call(batch).code == ResponseCode.SUCCESS
    messages, _ = await pop(bench, invisible_time=200)
    assert [message.body for message in messages] == [b"odd", b"plain"]

    def checkpoints() -> list[PopCheckPoint]:
        return [point for body in revive_records(bench) if (point := decode_checkpoint(body))]

    await until(lambda: bench.count("%RETRY%g_T") == 1 and len(checkpoints()) == 2)
    assert bench.record("%RETRY%g_T", 0, 0).body == b"plain"
    again = checkpoints()[-1]
    assert (again.start_offset, again.count) == (0, 1), "the odd message is revived later"


async def test_a_retry_topic_whose_name_is_too_long_blocks_no_other_message(bench: Bench) -> None:
    topic, group = "T" * 127, "g" * 127
    bench.broker.topics.put(topic_config(topic, 1))
    send(bench, 1, topic)
    await pop(bench, topic, consumer_group=group, invisible_time=200)
    await until(lambda: bench.broker.pop.revives.retries.counts)
    send(bench, 1, topic)
    (message,), _ = await pop(bench, topic, consumer_group=group)
    assert message.queue_offset == 1
    assert f"%RETRY%{group}_{topic}" not in bench.broker.topics


async def test_a_retry_topic_of_a_long_name_that_exists_blocks_no_other_message(bench: Bench) -> None:
    topic, group = "T" * 127, "g" * 127
    bench.broker.topics.put(topic_config(f"%RETRY%{group}_{topic}", 1))
    bench.broker.topics.put(topic_config(topic, 1))
    send(bench, 1, topic)
    assert len((await pop(bench, topic, consumer_group=group))[0]) == 1


async def test_retry_topics_of_version_2(tmp_path: Path) -> None:
    async with popping(tmp_path, {"enableRetryTopicV2": "true"}) as bench:
        send(bench, 1)
        await pop(bench, invisible_time=200)
        await until(lambda: bench.count("%RETRY%g+T") == 1)
        for _ in range(200):  # half of the POPs look into the retry topic of version 1 instead
            again, header = await pop(bench)
            if again:
                break
        assert (again[0].topic, header.start_offset_info) == ("T", "2 0 0")
        actual = bench.broker.live.update({"popResponseReturnActualRetryTopic": "true"})
        assert actual == []
        await pop(bench)


async def test_the_revive_offset_is_committed_and_survives(tmp_path: Path) -> None:
    async with popping(tmp_path) as bench:
        send(bench, 1)
        await pop(bench, invisible_time=200)
        await until(lambda: bench.count("%RETRY%g_T") == 1)
        await until(lambda: bench.broker.offsets.query("CID_RMQ_SYS_REVIVE_GROUP", REVIVE, 0) == 0)
    async with popping(tmp_path) as bench:
        await until(lambda: bench.broker.pop.revives._queues)
        assert bench.broker.pop.revives._queues[0].next_offset == 1
        assert bench.count("%RETRY%g_T") == 1


async def test_after_a_kill_unacknowledged_messages_are_not_lost(tmp_path: Path) -> None:
    """The broker stops in order; what matters is that nothing but its files is used."""
    async with popping(tmp_path, {"reviveInterval": "600000"}) as bench:
        send(bench, 2)
        await pop(bench, invisible_time=200)
    async with popping(tmp_path) as bench:
        assert (await pop(bench))[0] == []
        await until(lambda: bench.count("%RETRY%g_T") == 2)


async def test_batches_acknowledge(bench: Bench) -> None:
    send(bench, 3)
    _, header = await pop(bench, invisible_time=300)
    batch = BatchAck(
        consumer_group="g",
        topic="T",
        retry="0",
        start_offset=0,
        queue_id=0,
        revive_queue_id=header.revive_qid,
        pop_time=header.pop_time,
        invisible_time=300,
        bit_set=b"\x85",  # 0, 2 and 7, which does not exist
    )
    body = to_json(BatchAckMessageRequestBody(broker_name="broker-a", acks=[batch]))
    assert bench.peer().call(request(RequestCode.BATCH_ACK_MESSAGE, body=body)).code == 0
    stored = json.loads(revive_records(bench)[1])
    assert (stored["ao"], stored["aol"]) == (-1, [0, 2])
    assert parse_properties(bench.record(REVIVE, 0, 1).properties)["TAGS"] == "bAck"
    await until(lambda: bench.count("%RETRY%g_T") == 1)
    assert bench.record("%RETRY%g_T", 0, 0).body == b"1"
    empty = bench.peer().call(request(RequestCode.BATCH_ACK_MESSAGE, body=b"{}"))
    assert empty.code == ResponseCode.NO_MESSAGE


async def test_a_changed_time_replaces_the_checkpoint(bench: Bench) -> None:
    send(bench, 1)
    (message,), header = await pop(bench, invisible_time=300)
    changed = bench.peer().call(change_command(extra_info(header, message, 0), message, 500))
    answer = ChangeInvisibleTimeResponseHeader.decode(changed.ext)
    assert (changed.code, answer.invisible_time, answer.revive_qid) == (0, 500, header.revive_qid)
    assert answer.pop_time >= header.pop_time
    await until(lambda: bench.count("%RETRY%g_T") == 1)
    properties = parse_properties(bench.record("%RETRY%g_T", 0, 0).properties)
    assert properties["1ST_POP_TIME"] == str(answer.pop_time)
    await until(lambda: bench.broker.offsets.query("CID_RMQ_SYS_REVIVE_GROUP", REVIVE, 0) == 1)
    assert bench.count("%RETRY%g_T") == 1
    beyond = change_command(extra_info(header, message, 0), message, 500)
    assert beyond.ext is not None
    beyond.ext["offset"] = "7"
    assert bench.peer().call(beyond).code == ResponseCode.NO_MESSAGE


async def test_wrong_acknowledgements_get_rocketmqs_codes(bench: Bench) -> None:
    send(bench, 1)
    (message,), header = await pop(bench)
    info = extra_info(header, message, 0)

    def ack(**changes: str) -> tuple[int, str]:
        command = ack_command(info, message)
        assert command.ext is not None
        command.ext.update(changes)
        response = bench.peer().call(command)
        return response.code, response.remark or ""

    assert ack(topic="unknown")[0] == ResponseCode.TOPIC_NOT_EXIST
    assert ack(queueId="77")[0] == ResponseCode.MESSAGE_ILLEGAL
    assert ack(queueId="-1")[0] == ResponseCode.MESSAGE_ILLEGAL
    assert ack(offset="2") == (
        ResponseCode.NO_MESSAGE,
        "offset is illegal, key:T@0, commit:2, store:0~1",
    )
    assert ack(extraInfo="1 2 3")[0] == ResponseCode.SYSTEM_ERROR
    assert ack(extraInfo=info.replace(" 0 0 broker-a", " 555 0 broker-a"))[0] == ResponseCode.SYSTEM_ERROR
    assert ack(bname="other")[0] == ResponseCode.SYSTEM_ERROR
    assert ack()[0] == ResponseCode.SUCCESS


async def test_wrong_pops_get_rocketmqs_codes(bench: Bench) -> None:
    send(bench, 1)

    def code(topic: str = "T", **fields: object) -> int:
        return bench.peer().call(pop_command(topic, **fields)).code

    now = int(time.time() * 1000)
    assert code("unknown") == ResponseCode.TOPIC_NOT_EXIST
    assert code(queue_id=50) == ResponseCode.INVALID_PARAMETER
    assert code(max_msg_nums=33) == ResponseCode.INVALID_PARAMETER
    assert code(born_time=now - 1600, poll_time=1000) == ResponseCode.POLLING_TIMEOUT
    assert code(consumer_group="bad group") == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert bench.broker.live.update({"brokerPermission": "2"}) == []
    assert code() == ResponseCode.NO_PERMISSION
    assert bench.broker.live.update({"brokerPermission": "6"}) == []
    bench.broker.live.set_role(1, "SLAVE")
    assert code() == ResponseCode.SYSTEM_BUSY


async def test_orderly_pops_block_their_queue_until_the_acknowledgement(bench: Bench) -> None:
    send(bench, 2)
    (first,), header = await pop(bench, max_msg_nums=1, order=True, attempt_id="a")
    assert header.revive_qid == 999
    assert header.order_count_info == "0 0 0"
    assert (await pop(bench, order=True, attempt_id="b"))[0] == []
    repeated, _ = await pop(bench, max_msg_nums=1, order=True, attempt_id="a")
    assert bodies(repeated) == [b"0"]
    _, header = await pop(bench, max_msg_nums=1, order=True, attempt_id="a")
    peer = bench.peer()
    opaque = peer.send(pop_command(order=True, attempt_id="c", poll_time=10_000))
    info = extra_info(header, first, 0)
    assert bench.peer().call(ack_command(info, first)).code == 0
    assert bench.broker.offsets.query("g", "T", 0) == 1
    assert bodies(decode_records((await peer.answer(opaque)).body)) == [b"1"]
    assert bench.broker.offsets.query("g", "T", 0) == 1
    assert revive_records(bench) == []


async def test_the_state_of_orderly_pops_survives_a_restart(tmp_path: Path) -> None:
    async with popping(tmp_path) as bench:
        send(bench, 1)
        await pop(bench, order=True)
    table = json.loads((tmp_path / "config" / "consumerOrderInfo.json").read_text().replace("{0:", '{"0":'))
    assert table["table"]["T@g"]["0"]["o"] == [0]
    async with popping(tmp_path) as bench:
        assert (await pop(bench, order=True))[0] == []


async def test_an_orderly_queue_is_popped_again_when_its_time_is_over(bench: Bench) -> None:
    send(bench, 1)
    (message,), header = await pop(bench, order=True, invisible_time=60_000)
    peer = bench.peer()
    opaque = peer.send(pop_command(order=True, poll_time=20_000))
    changed = bench.peer().call(change_command(extra_info(header, message, 0), message, 100))
    assert changed.code == 0
    response = await peer.answer(opaque)
    assert bodies(decode_records(response.body)) == [b"0"]
    assert response.ext is not None
    assert response.ext["orderCountInfo"] == "0 qo0%0 1;0 0 1"


async def test_in_memory_acknowledgements_store_nothing(tmp_path: Path) -> None:
    async with popping(tmp_path, {"enablePopBufferMerge": "true"}) as bench:
        send(bench, 2)
        messages, header = await pop(bench)
        assert bench.broker.offsets.query("g", "T", 0) == 0
        for message in messages:
            bench.peer().call(ack_command(extra_info(header, message, 0), message))
        assert bench.broker.offsets.query("g", "T", 0) == 2
        assert revive_records(bench) == []


async def test_what_is_in_memory_is_stored_at_the_stop(tmp_path: Path) -> None:
    async with popping(tmp_path, {"enablePopBufferMerge": "true"}) as bench:
        send(bench, 3)
        messages, header = await pop(bench)
        bench.peer().call(ack_command(extra_info(header, messages[1], 0), messages[1]))
    async with popping(tmp_path) as bench:
        point, ack = (json.loads(body) for body in revive_records(bench))
        assert (point["d"], ack["ao"]) == ([0, 1, 2], 1)
        assert bench.broker.offsets.query("g", "T", 0) == 3


async def test_a_pop_that_a_switchover_overtakes_hands_out_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_processor, "STEP_BUDGET_S", -1.0)  # pauses after every queue
    async with popping(tmp_path, {"enablePopBufferMerge": "true"}) as bench:
        send(bench, 2, queue_id=0)
        send(bench, 2, queue_id=1)
        peer, pops = bench.peer(), bench.broker.pop
        opaque = peer.send(pop_command(max_msg_nums=3))
        handed_out = pops.buffer.checkpoints
        bench.broker.live.standing.handover_changed(True)
        response = await peer.answer(opaque)
        assert (response.code, pops.buffer.checkpoints) == (
            (ResponseCode.SUCCESS, 1) if handed_out else (ResponseCode.SYSTEM_BUSY, 0)
        )


async def test_what_is_in_memory_too_long_is_stored(tmp_path: Path) -> None:
    settings = {"enablePopBufferMerge": "true", "popCkStayBufferTime": "50", "enablePopBatchAck": "true"}
    async with popping(tmp_path, settings) as bench:
        send(bench, 2)
        await pop(bench)
        await until(lambda: revive_records(bench))
        await until(lambda: bench.broker.offsets.query("g", "T", 0) == 2)
        assert bench.broker.pop.buffer.is_empty


async def test_a_reset_moves_a_popping_group(bench: Bench) -> None:
    send(bench, 4)
    await pop(bench)
    bench.broker.offsets.set_pending_reset("g", "T", 0, 2)
    messages, _ = await pop(bench)
    assert bodies(messages) == [b"2", b"3"]


async def test_a_threshold_of_unacknowledged_messages_stops_pops(tmp_path: Path) -> None:
    settings = {"enablePopMessageThreshold": "true", "popInflightMessageThreshold": "1"}
    async with popping(tmp_path, settings) as bench:
        send(bench, 4)
        messages, header = await pop(bench, max_msg_nums=2)
        assert (await pop(bench))[0] == []
        for message in messages:
            bench.peer().call(ack_command(extra_info(header, message, 0), message))
        assert len((await pop(bench))[0]) == 2


async def test_with_the_timer_messages_come_again_after_their_time(tmp_path: Path) -> None:
    async with running(tmp_path, FAST_REVIVES) as bench:
        send(bench, 2)
        messages, header = await pop(bench, invisible_time=1500)
        bench.peer().call(ack_command(extra_info(header, messages[0], 0), messages[0]))
        assert revive_records(bench) == []
        await until(lambda: bench.count("%RETRY%g_T") == 1)
        revived = bench.record("%RETRY%g_T", 0, 0)
        assert revived.body == b"1"
        assert revived.store_timestamp - header.pop_time > 1500
        assert len(revive_records(bench)) == 2


async def test_with_sync_flush_the_offset_waits_for_the_disk_and_nothing_comes_twice(tmp_path: Path) -> None:
    async with popping(tmp_path, {"flushDiskType": "SYNC_FLUSH"}) as bench:
        peer = bench.peer()
        for number in range(3):
            assert (await peer.answer(peer.send(send_command("T", b"%d" % number)))).code == 0
        messages, header = await pop(bench)
        assert bodies(messages) == [b"0", b"1", b"2"]
        assert (await pop(bench))[0] == []
        await until(lambda: bench.broker.offsets.query("g", "T", 0) == 3)
        opaque = peer.send(ack_command(extra_info(header, messages[0], 0), messages[0]))
        assert (await peer.answer(opaque)).code == 0
        assert bench.broker.store.unflushed_bytes == 0
        changed = change_command(extra_info(header, messages[1], 0), messages[1], 60_000)
        assert (await peer.answer(peer.send(changed))).code == 0


@pytest.mark.parametrize(("is_v2", "received"), [("false", 2), ("true", 1)])
async def test_retry_topics_v2_do_not_collide(tmp_path: Path, is_v2: str, received: int) -> None:
    """Of group `a_b` and topic `c`, and of group `a` and topic `b_c`, version 1 makes the same name."""
    async with popping(tmp_path, {"enableRetryTopicV2": is_v2}) as bench:
        send(bench, 1, topic="b_c")
        send(bench, 1, topic="c")
        assert len((await pop(bench, topic="b_c", consumer_group="a", invisible_time=200))[0]) == 1
        await until(lambda: bench.broker.pop.revives.revived == 1)
        assert len((await pop(bench, topic="c", consumer_group="a_b"))[0]) == received
