"""Messages that a consumer sends back are delivered again later; too many failures end in the dead-letter
topic."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from epochmq_protocol import message as records
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.frame import Command
from epochmq_protocol.headers_client import ConsumerSendMsgBackRequestHeader
from tests.unit.broker.kit import UNIQ_KEY, Bench, command, running, send_command

SCHEDULE = "SCHEDULE_TOPIC_XXXX"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path) as made:
        made.peer().call(
            send_command("T", b"body", {"UNIQ_KEY": UNIQ_KEY, "TAGS": "a", "WAIT": "true"}, flag=5)
        )
        yield made


def send_back(offset: int = 0, **fields: Any) -> Command:
    """Sends back the message at a commit-log offset, as group g."""
    values: dict[str, Any] = {"group": "g", "delay_level": 0, "origin_topic": "T"}
    return command(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        ConsumerSendMsgBackRequestHeader(offset=offset, **(values | fields)),
    )


async def test_the_first_retry_waits_at_level_three_with_its_original_topic_noted(bench: Bench) -> None:
    assert bench.peer().call(send_back()).code == ResponseCode.SUCCESS
    original = bench.record("T", 0, 0)
    again = bench.record(SCHEDULE, 2, 0)
    assert (again.body, again.flag, again.born_timestamp, again.born_host) == (
        original.body,
        original.flag,
        original.born_timestamp,
        original.born_host,
    )
    assert again.reconsume_times == 1
    properties = records.parse_properties(again.properties)
    assert properties["RETRY_TOPIC"] == "T"
    assert properties["ORIGIN_MESSAGE_ID"] == original.msg_id
    assert properties["REAL_TOPIC"] == "%RETRY%g"
    assert properties["WAIT"] == "false"
    assert (properties["UNIQ_KEY"], properties["TAGS"], properties["DELAY"]) == (UNIQ_KEY, "a", "3")
    retry = bench.broker.topics.get("%RETRY%g")
    assert retry is not None
    assert (retry.write_queue_nums, retry.perm) == (1, 6)


async def test_a_retry_waits_at_the_level_that_the_consumer_names(bench: Bench) -> None:
    assert bench.peer().call(send_back(delay_level=5)).code == ResponseCode.SUCCESS
    assert bench.count(SCHEDULE, 4) == 1


async def test_each_further_retry_waits_a_level_longer_and_keeps_the_original_topic(bench: Bench) -> None:
    peer = bench.peer()
    peer.call(send_back())
    first = bench.record(SCHEDULE, 2, 0)
    peer.call(send_back(first.physical_offset))
    second = bench.record(SCHEDULE, 3, 0)
    assert second.reconsume_times == 2
    properties = records.parse_properties(second.properties)
    assert properties["RETRY_TOPIC"] == "T"
    assert properties["ORIGIN_MESSAGE_ID"] == bench.record("T", 0, 0).msg_id


@pytest.mark.parametrize("fields", [{"max_reconsume_times": 0}, {"delay_level": -1}])
async def test_a_message_beyond_the_retry_limit_goes_to_the_dead_letter_topic(
    bench: Bench, fields: dict[str, int]
) -> None:
    assert bench.peer().call(send_back(**fields)).code == ResponseCode.SUCCESS
    dead = bench.record("%DLQ%g", 0, 0)
    properties = records.parse_properties(dead.properties)
    assert properties["DELAY"] == "0"
    assert properties["RETRY_TOPIC"] == "T"
    assert dead.reconsume_times == 1
    topic = bench.broker.topics.get("%DLQ%g")
    assert topic is not None
    assert (topic.write_queue_nums, topic.perm) == (1, 6)


async def test_the_groups_retry_limit_applies_to_clients_that_name_none(bench: Bench) -> None:
    group = bench.broker.groups.find("g")
    assert group is not None
    bench.broker.groups.update([msgspec.structs.replace(group, retry_max_times=0)])
    assert bench.peer().call(send_back()).code == ResponseCode.SUCCESS
    assert bench.count("%DLQ%g") == 1


async def test_a_group_without_retry_queues_drops_the_message(bench: Bench) -> None:
    group = bench.broker.groups.find("g")
    assert group is not None
    bench.broker.groups.update([msgspec.structs.replace(group, retry_queue_nums=0)])
    assert bench.peer().call(send_back()).code == ResponseCode.SUCCESS
    assert bench.count(SCHEDULE, 2) == 0


async def test_a_missing_message_cannot_be_sent_back(bench: Bench) -> None:
    answer = bench.peer().call(send_back(1 << 40))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == f"look message by offset failed, {1 << 40}"


async def test_an_unknown_group_without_auto_creation(bench: Bench) -> None:
    bench.broker.live.update({"autoCreateSubscriptionGroup": "false"})
    assert bench.peer().call(send_back(group="new")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_a_broker_without_write_permission(bench: Bench) -> None:
    bench.broker.live.update({"brokerPermission": "4"})
    assert bench.peer().call(send_back()).code == ResponseCode.NO_PERMISSION


async def test_a_retry_topic_without_write_permission(bench: Bench) -> None:
    retry = bench.broker.topics.create_in_send_back("%RETRY%g", 1)
    bench.broker.topics.put(msgspec.structs.replace(retry, perm=4))
    assert bench.peer().call(send_back()).code == ResponseCode.NO_PERMISSION


async def test_the_retry_topic_has_the_unit_flag_only_if_the_consumer_asks_for_it(bench: Bench) -> None:
    assert bench.peer().call(send_back()).code == ResponseCode.SUCCESS
    assert bench.peer().call(send_back(group="unit", unit_mode=True)).code == ResponseCode.SUCCESS
    flags = {}
    for group in ("g", "unit"):
        retry = bench.broker.topics.get(f"%RETRY%{group}")
        assert retry is not None
        flags[group] = retry.topic_sys_flag
    assert flags == {"g": 0, "unit": 2}
