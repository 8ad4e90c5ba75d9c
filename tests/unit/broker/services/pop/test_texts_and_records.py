"""The texts and records of POP are RocketMQ's."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochmq_broker.services.pop.checkpoints import (
    AckMsg,
    PopCheckPoint,
    ack_message,
    checkpoint_message,
    decode_ack,
    decode_checkpoint,
)
from epochmq_broker.services.pop.extra_info import (
    ExtraInfo,
    join_entries,
    message_offsets_entry,
    parse_extra_info,
    retry_flag,
    start_offset_entry,
    topic_of_retry_flag,
    topic_without_retry,
)
from epochmq_protocol import fastjson
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.topics import pop_retry_topic

HOST = b"\x7f\0\0\1\0\0\x2a\x9f"

long = st.integers(0, 2**62)


@given(long, long, long, st.integers(0, 999), st.sampled_from("012"), st.integers(0, 1000), long)
def test_extra_info_is_read_as_it_was_written(
    start: int, pop: int, invisible: int, revive: int, retry: str, queue: int, offset: int
) -> None:
    info = ExtraInfo(start, pop, invisible, revive, retry, "broker-a", queue, offset)
    assert parse_extra_info(info.encode()) == info


def test_extra_info_has_rocketmqs_form() -> None:
    info = ExtraInfo(7, 1000, 60_000, 3, "1", "broker-a", 0, 9)
    assert info.encode() == "7 1000 60000 3 1 broker-a 0 9"
    short = parse_extra_info("7 1000 60000 999 0 broker-a")
    assert (short.queue_id, short.queue_offset, short.is_order, short.revive_time) == (-1, -1, True, 61_000)


@pytest.mark.parametrize(
    "text", ["", "1 2 3 4 0", "a 2 3 4 0 b", "1 2 3 x 0 b", "1 2 3 4 0 b z", f"{2**63} 2 3 4 0 b"]
)
def test_other_extra_info_is_rejected_with_its_text(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_extra_info(text)
    assert caught.value.code == ResponseCode.SYSTEM_ERROR
    assert caught.value.remark.startswith("extraInfo=")


def test_retry_topics_have_flags_and_lead_back_to_their_topic() -> None:
    for is_v2, flag in ((False, "1"), (True, "2")):
        retry = pop_retry_topic("T_x", "g", is_v2=is_v2)
        assert retry_flag(retry) == flag
        assert topic_of_retry_flag("T_x", "g", flag) == retry
        assert topic_without_retry(retry, "g") == "T_x"
    assert (retry_flag("T"), topic_of_retry_flag("T", "g", "0"), topic_without_retry("T", "g")) == (
        "0",
        "T",
        "T",
    )
    with pytest.raises(RequestError):
        topic_of_retry_flag("T", "g", "3")


def test_a_response_lists_offsets_by_queue() -> None:
    starts = [start_offset_entry("T", 0, 5), start_offset_entry("%RETRY%g_T", 0, 2)]
    assert join_entries(starts) == "0 0 5;1 0 2"
    assert message_offsets_entry("T", 3, [5, 6, 9]) == "0 3 5,6,9"
    assert join_entries([]) == ""


def checkpoint(**fields: object) -> PopCheckPoint:
    """A checkpoint of three messages at 5, 6 and 9."""
    values: dict[str, object] = {
        "start_offset": 5,
        "pop_time": 1000,
        "invisible_time": 60_000,
        "count": 3,
        "queue_id": 1,
        "topic": "T",
        "group": "g",
        "diffs": [0, 1, 4],
        "broker_name": "b",
    }
    return PopCheckPoint(**(values | fields))  # type: ignore[arg-type]  # the values have the fields' types


def test_a_checkpoint_has_fastjsons_form() -> None:
    found = checkpoint()
    assert found.encode() == (
        b'{"bm":0,"bn":"b","c":"g","d":[0,1,4],"it":60000,"n":3,"pt":1000,"q":1,'
        b'"reviveTime":61000,"ro":0,"so":5,"t":"T"}'
    )
    assert decode_checkpoint(found.encode()) == found
    assert decode_checkpoint(b'{"so":1}') is None


@given(st.text(max_size=20), st.text(max_size=20))
def test_any_topic_and_broker_is_written_as_by_fastjson(topic: str, broker: str) -> None:
    fields = {
        "bm": 0,
        "bn": broker,
        "it": 0,
        "n": 0,
        "pt": 0,
        "q": 0,
        "reviveTime": 0,
        "ro": 0,
        "so": 0,
        "t": topic,
    }
    assert PopCheckPoint(topic=topic, broker_name=broker).encode() == fastjson.dumps(fields)


def test_acknowledged_messages_of_a_checkpoint_are_not_revived() -> None:
    found = checkpoint()
    assert [found.acknowledge(offset) for offset in (6, 7, 4)] == [True, False, False]
    assert found.unacknowledged == [5, 9]
    old = checkpoint(diffs=None)
    assert old.acknowledge(6)
    assert old.unacknowledged == [5, 7]
    assert not old.acknowledge(8)


def test_a_checkpoint_of_32_messages_survives_javas_signed_bits() -> None:
    found = checkpoint(count=32, diffs=list(range(32)))
    for offset in range(5, 37):
        assert found.acknowledge(offset)
    assert found.unacknowledged == []
    signed = decode_checkpoint(b'{"bm":-1,"n":32,"t":"T","c":"g"}')
    assert signed is not None
    assert signed.unacknowledged == []


def test_messages_of_the_revive_topic_name_their_checkpoint() -> None:
    message = checkpoint_message(checkpoint(), "rmq_sys_REVIVE_LOG_c", 2, HOST, 77)
    assert message.properties == {
        "TAGS": "ck",
        "TIMER_DELIVER_MS": "60000",  # a second before the messages become visible
        "UNIQ_KEY": "T@1@5@g@1000@b@ck",
    }
    ack = AckMsg(
        ack_offset=6, start_offset=5, group="g", topic="T", queue_id=1, pop_time=1000, broker_name="b"
    )
    assert ack.key() == checkpoint().key
    stored = ack_message(ack, "rmq_sys_REVIVE_LOG_c", 2, 61_000, HOST, 77)
    assert stored.properties == {
        "TAGS": "ack",
        "TIMER_DELIVER_MS": "61000",
        "UNIQ_KEY": "T@1@6@g@1000@b@ack",
    }
    assert json.loads(stored.body) == {"ao": 6, "bn": "b", "c": "g", "pt": 1000, "q": 1, "so": 5, "t": "T"}


def test_acknowledgements_are_read_by_short_and_long_names() -> None:
    short = decode_ack(b'{"ao":-1,"aol":[5,9],"c":"g","pt":1000,"q":1,"so":5,"t":"T"}')
    assert (short.is_batch, short.offsets, short.key("b")) == (True, [5, 9], checkpoint().key)
    long_names = decode_ack(
        b'{"ackOffset":6,"startOffset":5,"consumerGroup":"g","topic":"T","queueId":1,"popTime":1000}'
    )
    assert (long_names.offsets, long_names.key("b")) == ([6], checkpoint().key)
