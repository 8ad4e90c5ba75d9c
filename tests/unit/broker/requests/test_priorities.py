"""The queue that a priority chooses."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochmq_broker.requests.processors.priorities import queue_by_priority
from epochmq_protocol.errors import RequestError
from epochmq_protocol.message import BatchElement, encode_batch
from epochmq_protocol.topics import TopicConfig
from tests.unit.broker.kit import UNIQ_KEY, running, send_command

NAME = "_SYS_MSG_PRIORITY_"
TOPIC = TopicConfig("T", write_queue_nums=4)


@pytest.mark.parametrize(
    ("priority", "queue_id"),
    [("0", 0), ("3", 3), ("4", 3), ("2147483647", 3), ("+2", 2), ("03", 3), ("٣", 3)]
    + [(wrong, 1) for wrong in ("-1", "2147483648", " 3", "3 ", "x", "1_0", "")],
)
def test_the_queue_has_the_number_of_the_priority(priority: str, queue_id: int) -> None:
    properties = {NAME: priority}
    assert queue_by_priority(properties, TOPIC, 1) == queue_id
    assert properties == {NAME: priority}


@pytest.mark.parametrize(
    "other",
    ["TRAN_MSG", "DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "__SHARDINGKEY"],
)
def test_a_message_of_another_type_loses_its_priority(other: str) -> None:
    properties = {NAME: "3", other: "True"}
    assert queue_by_priority(properties, TOPIC, 1) == 1
    assert properties == {other: "True"}


def test_a_topic_without_write_queues_takes_no_priority() -> None:
    with pytest.raises(RequestError, match="no write queue"):
        queue_by_priority({NAME: "3"}, TopicConfig("T", write_queue_nums=0), 1)


async def test_the_response_names_the_queue_of_the_priority_and_a_batch_keeps_its_own(tmp_path: Path) -> None:
    properties = {"UNIQ_KEY": UNIQ_KEY, NAME: "3"}
    batch = encode_batch([BatchElement(b"x", b"")])
    async with running(tmp_path) as bench:
        bench.broker.topics.put(TopicConfig("T", read_queue_nums=4, write_queue_nums=4))
        answer = bench.peer().call(send_command("T", b"one", properties, queue_id=1))
        assert (answer.code, (answer.ext or {})["queueId"]) == (0, "3")
        answer = bench.peer().call(send_command("T", batch, properties, queue_id=1, batch=True))
        assert (answer.code, (answer.ext or {})["queueId"]) == (0, "1")
        assert [bench.count("T", queue_id) for queue_id in range(4)] == [0, 1, 0, 1]
