"""POPs by priority, and the keys and attributes that say how (RocketMQ 5.4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochmq_broker.requests.processors import pop as pop_module
from epochmq_protocol.message_const import PROPERTY_PRIORITY
from epochmq_protocol.subscription_groups import SubscriptionGroupConfig
from epochmq_protocol.topics import TopicConfig
from tests.unit.broker.kit import Bench, until
from tests.unit.broker.services.pop.support import ack_command, extra_info, pop, popping, send

QUEUES = 4
RETRY = "%RETRY%g_T"


def make_topic(bench: Bench, message_type: str = "PRIORITY") -> None:
    bench.broker.topics.put(
        TopicConfig(
            "T", read_queue_nums=QUEUES, write_queue_nums=QUEUES, attributes={"message.type": message_type}
        )
    )


def send_priorities(bench: Bench) -> None:
    """A message of each priority, the lowest first."""
    for priority in range(QUEUES):
        send(bench, 1, **{PROPERTY_PRIORITY: str(priority)})


async def queues(bench: Bench, **fields: object) -> list[int]:
    messages, _ = await pop(bench, **fields)
    return [message.queue_id for message in messages]


@pytest.fixture(params=[0, 30, 99])
def chosen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The number that each POP draws."""
    number: int = request.param
    monkeypatch.setattr(pop_module.random, "randrange", lambda _end: number)
    return number


@pytest.mark.parametrize(
    ("message_type", "factor", "from_highest"),
    [
        pytest.param("PRIORITY", None, 100, id="default"),
        pytest.param("PRIORITY", "30", 30, id="some-pops"),
        pytest.param("PRIORITY", "0", 0, id="no-pop"),
        pytest.param("NORMAL", "100", 0, id="another-type"),
    ],
)
async def test_a_topic_and_its_group_say_which_pops_go_by_priority(
    tmp_path: Path,
    chosen: int,
    message_type: str,
    factor: str | None,
    from_highest: int,
) -> None:
    async with popping(tmp_path) as bench:
        make_topic(bench, message_type)
        if factor is not None:
            bench.broker.groups.update(
                [SubscriptionGroupConfig(group_name="g", attributes={"+priority.factor": factor})]
            )
        send_priorities(bench)
        by_priority = [3, 2, 1, 0]
        by_chance = [(chosen + number) % QUEUES for number in range(QUEUES)]
        assert await queues(bench) == (by_priority if chosen < from_highest else by_chance)


async def test_zero_is_the_highest_priority_if_the_order_descends(tmp_path: Path) -> None:
    async with popping(tmp_path, {"priorityOrderAsc": "false"}) as bench:
        make_topic(bench)
        send_priorities(bench)
        assert await queues(bench) == [0, 1, 2, 3]
        bench.broker.live.update({"priorityOrderAsc": "true"})
        assert await queues(bench, consumer_group="other") == [3, 2, 1, 0]


async def test_an_orderly_pop_does_not_go_by_priority(bench: Bench, chosen: int) -> None:
    make_topic(bench)
    send_priorities(bench)
    assert await queues(bench, order=True) == [(chosen + number) % QUEUES for number in range(QUEUES)]


@pytest.mark.parametrize(("probability", "topics"), [("0", ["T", RETRY]), ("100", [RETRY, "T"])])
async def test_the_retry_topic_comes_last_unless_a_key_says_otherwise(
    tmp_path: Path, probability: str, topics: list[str]
) -> None:
    settings = {
        "popFromRetryProbabilityForPriority": probability,
        "popFromRetryProbability": "100" if probability == "0" else "0",
        "popResponseReturnActualRetryTopic": "true",
    }
    async with popping(tmp_path, settings) as bench:
        make_topic(bench)
        send_priorities(bench)
        await pop(bench, max_msg_nums=1, invisible_time=100)
        await until(lambda: bench.count(RETRY) == 1)
        messages, _ = await pop(bench)
        assert [message.topic for message in messages] == sorted([RETRY, "T", "T", "T"], key=topics.index)


async def test_a_priority_needs_no_topic_of_that_type(bench: Bench) -> None:
    make_topic(bench, "NORMAL")
    send(bench, 1, queue_id=0, **{PROPERTY_PRIORITY: "9"})
    messages, header = await pop(bench)
    assert [message.queue_id for message in messages] == [QUEUES - 1]
    assert bench.peer().call(ack_command(extra_info(header, messages[0], 0), messages[0])).code == 0
