"""Large bodies are encoded and decoded in steps, with the results of the plain encoder and decoder."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

import pytest

from epochmq_protocol.bodies import (
    ConsumerData,
    CreateTopicListRequestBody,
    HeartbeatData,
    LockBatchRequestBody,
    ProducerData,
    SubscriptionData,
    TopicStatsTable,
    from_json,
    to_json,
)
from epochmq_protocol.bodies_admin import TopicOffset
from epochmq_protocol.bodies_base import MessageQueue
from epochmq_protocol.bodies_in_turns import LISTS_BYTES_MAX, STEP_BYTES, decode_steps, map_entry, with_items
from epochmq_protocol.errors import BodyError
from epochmq_protocol.topics import TopicConfig

T = TypeVar("T")


def finish(steps: Generator[None, None, T]) -> tuple[T, int]:
    """The result of the steps, and how many there were."""
    count = 1
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


HEARTBEAT = HeartbeatData(
    client_id="c",
    heartbeat_fingerprint=7,
    consumer_data_set=[
        ConsumerData(
            group_name=f"g{n}",
            subscription_data_set=[SubscriptionData(topic=f"t{m}", tags_set={"a", "b"}) for m in range(5)],
        )
        for n in range(200)
    ]
    + [
        ConsumerData(
            group_name="wide", subscription_data_set=[SubscriptionData(topic=f"t{n}") for n in range(1000)]
        )
    ],
    producer_data_set=[ProducerData(f"p{n}") for n in range(500)],
)
LOCK = LockBatchRequestBody(
    consumer_group="g", client_id="c", mq_set={MessageQueue("t", "b", n) for n in range(2000)}
)
TOPICS = CreateTopicListRequestBody(
    topic_config_list=[TopicConfig(f"t{n}", attributes={"+a": "b"}) for n in range(300)]
)


@pytest.mark.parametrize("body", [HEARTBEAT, LOCK, TOPICS])
def test_a_large_body_is_decoded_in_many_steps(body: Any) -> None:
    data = to_json(body)
    decoded, steps = finish(decode_steps(type(body), data))
    assert decoded == body
    assert steps > len(data) / STEP_BYTES / 2


@pytest.mark.parametrize(
    ("word", "other"),
    [
        (b'"groupName"', b'"group_name"'),  # a name in another spelling
        (b'"unitMode":false', b'"unitMode":"false"'),  # another type
        (b'"clientID"', b'"unknown":1,"clientID"'),
    ],
)
def test_other_names_and_types_than_rocketmqs_are_read_in_steps_too(word: bytes, other: bytes) -> None:
    data = to_json(HEARTBEAT).replace(word, other)
    decoded, steps = finish(decode_steps(HeartbeatData, data))
    assert decoded == from_json(HeartbeatData, data) == HEARTBEAT
    assert steps > 20


def test_a_small_body_is_decoded_at_once() -> None:
    assert finish(decode_steps(HeartbeatData, b"{clientID:'c'}")) == (HeartbeatData(client_id="c"), 1)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"{clientID:'" + b"c" * STEP_BYTES + b"'}", "not standard"),
        (b" " * (LISTS_BYTES_MAX + 1), "expected at most"),
        (b'{"clientID":"' + b"c" * STEP_BYTES + b'","consumerDataSet":7}', "consumerDataSet"),
        (b"[" + b"1," * STEP_BYTES + b"1]", "HeartbeatData"),
    ],
)
def test_a_large_body_that_is_malformed_is_rejected(data: bytes, why: str) -> None:
    with pytest.raises(BodyError, match=why):
        finish(decode_steps(HeartbeatData, data))


def test_a_body_that_is_encoded_by_its_entries_is_that_of_the_plain_encoder() -> None:
    rows = {MessageQueue('"offsetTable":{}', "b", n): TopicOffset(1, n, 3) for n in range(12)}
    entries = b",".join(map_entry(queue, row) for queue, row in sorted(rows.items()))
    body = with_items(to_json(TopicStatsTable(topic_put_tps=1.5)), "offsetTable", b"{%b}" % entries)
    assert body == to_json(TopicStatsTable(offset_table=rows, topic_put_tps=1.5))


def test_a_field_that_the_body_lacks_cannot_be_filled() -> None:
    with pytest.raises(ValueError, match="no empty field nothing"):
        with_items(b"{}", "nothing", b"[]")
