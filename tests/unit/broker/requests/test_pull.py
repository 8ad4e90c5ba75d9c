"""Pulls: the messages they return, the code of each situation, and how they wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from epochmq_protocol import message as records
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.frame import FLAG_ONEWAY, Command
from tests.unit.broker.kit import (
    Bench,
    bodies,
    pull_command,
    running,
    send_command,
    until,
)
from tests.unit.broker.pull_requests import COMMIT, SUBSCRIPTION, SUSPEND, TOPIC, fill, heartbeat, positions


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path) as made:
        yield made


@pytest.fixture(params=["fast", "ordinary"])
def path(request: pytest.FixtureRequest) -> str:
    """The path that a pull takes."""
    return str(request.param)


async def test_a_pull_brings_the_records_as_they_are_stored(bench: Bench, path: str) -> None:
    peer = bench.peer(ordinary=path == "ordinary")
    fill(peer, "a", "b", "c")
    answer = peer.call(pull_command(TOPIC))
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, "FOUND")
    assert records.decode_records(answer.body) == [bench.record(TOPIC, 0, offset) for offset in range(3)]
    assert positions(answer) == (3, 0, 3)
    ext = answer.ext or {}
    assert (ext["suggestWhichBrokerId"], ext["topicSysFlag"], ext["groupSysFlag"]) == ("0", "0", "0")


async def test_no_more_messages_come_than_asked_for(bench: Bench) -> None:
    peer = bench.peer()
    fill(peer, *"abcde")
    answer = peer.call(pull_command(TOPIC, 1, max_msg_nums=2))
    assert bodies(records.decode_records(answer.body)) == [b"1", b"2"]
    assert positions(answer) == (3, 0, 5)


async def test_only_messages_with_the_wanted_tags_come(bench: Bench, path: str) -> None:
    peer = bench.peer(ordinary=path == "ordinary")
    fill(peer, "a", "b", "c", "a", "")
    answer = peer.call(pull_command(TOPIC, subscription="a || c"))
    assert bodies(records.decode_records(answer.body)) == [b"0", b"2", b"3"]
    assert positions(answer)[0] == 5


class TestStatuses:
    """The pull's position in its queue decides the code and the next offset."""

    @pytest.mark.parametrize(
        ("count", "offset", "code", "remark", "next_offset"),
        [
            (0, 0, ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE", 0),
            (0, 5, ResponseCode.PULL_OFFSET_MOVED, "NO_MESSAGE_IN_QUEUE", 0),
            (2, 2, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 2),
            (2, 3, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 2),
            (2, -1, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 0),
        ],
    )
    async def test_nothing_found(
        self, bench: Bench, path: str, count: int, offset: int, code: int, remark: str, next_offset: int
    ) -> None:
        peer = bench.peer(ordinary=path == "ordinary")
        fill(peer, *(["a"] * count))
        answer = peer.call(pull_command(TOPIC, offset))
        assert (answer.code, answer.remark) == (code, remark)
        assert positions(answer) == (next_offset, 0, count)
        assert answer.body == b""

    async def test_without_a_match_the_client_continues_after_the_scanned_messages(
        self, bench: Bench
    ) -> None:
        peer = bench.peer()
        fill(peer, "a", "a")
        answer = peer.call(pull_command(TOPIC, subscription="b"))
        assert (answer.code, answer.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
        assert positions(answer)[0] == 2

    async def test_a_pull_returns_a_pending_reset_once(self, bench: Bench) -> None:
        peer = bench.peer()
        fill(peer, "a", "b")
        bench.broker.offsets.set_pending_reset("group", TOPIC, 0, 1)
        answer = peer.call(pull_command(TOPIC))
        assert (answer.code, answer.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
        assert positions(answer)[0] == 1
        assert peer.call(pull_command(TOPIC)).code == ResponseCode.SUCCESS


class TestRefusals:
    """Pulls that are rejected."""

    def expect(
        self, bench: Bench, code: int, forbidden: str | None = None, topic: str = TOPIC, **fields: Any
    ) -> Command:
        """Sends one pull that is rejected, in the same way on both paths."""
        pull = pull_command(topic, **fields)
        answer = bench.peer().call(pull)
        other = bench.peer(ordinary=True).call(pull)
        assert (answer.code, answer.remark, answer.ext) == (other.code, other.remark, other.ext)
        assert answer.code == code
        assert (answer.ext or {}).get("forbiddenType") == forbidden
        return answer

    async def test_a_broker_without_read_permission(self, bench: Bench) -> None:
        bench.broker.live.update({"brokerPermission": "2"})
        self.expect(bench, ResponseCode.NO_PERMISSION, "1")

    async def test_lite_pulls_if_they_are_disabled(self, bench: Bench) -> None:
        fill(bench.peer(), "a")
        for ordinary in (False, True):
            peer = bench.peer(ordinary=ordinary)
            bench.broker.live.update({"litePullMessageEnable": "true"})
            assert peer.call(pull_command(TOPIC, code=RequestCode.LITE_PULL_MESSAGE)).code == 0
            bench.broker.live.update({"litePullMessageEnable": "false"})
            answer = peer.call(pull_command(TOPIC, code=RequestCode.LITE_PULL_MESSAGE))
            assert (answer.code, answer.ext) == (ResponseCode.NO_PERMISSION, {"forbiddenType": "1"})

    async def test_an_unknown_group_without_auto_creation(self, tmp_path: Path) -> None:
        async with running(tmp_path, {"autoCreateSubscriptionGroup": "false"}) as bench:
            self.expect(bench, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)

    async def test_a_group_whose_consumption_is_disabled(self, bench: Bench) -> None:
        group = bench.broker.groups.find("group")
        assert group is not None
        bench.broker.groups.update([msgspec.structs.replace(group, consume_enable=False)])
        self.expect(bench, ResponseCode.NO_PERMISSION, "2")

    async def test_an_unknown_topic(self, bench: Bench) -> None:
        self.expect(bench, ResponseCode.TOPIC_NOT_EXIST, topic="Unknown")

    async def test_a_topic_without_read_permission(self, bench: Bench) -> None:
        topic = bench.broker.topics.get(TOPIC)
        assert topic is not None
        bench.broker.topics.put(msgspec.structs.replace(topic, perm=2))
        self.expect(bench, ResponseCode.NO_PERMISSION, "3")

    @pytest.mark.parametrize("queue_id", [-1, 1024])
    async def test_a_queue_that_does_not_exist(self, bench: Bench, queue_id: int) -> None:
        self.expect(bench, ResponseCode.INVALID_PARAMETER, queue_id=queue_id)

    async def test_an_empty_expression(self, bench: Bench) -> None:
        self.expect(bench, ResponseCode.SUBSCRIPTION_PARSE_FAILED, subscription="||")

    async def test_expressions_other_than_tags(self, bench: Bench) -> None:
        answer = self.expect(bench, ResponseCode.SYSTEM_ERROR, subscription="a > 1", expression_type="SQL92")
        assert answer.remark == "The broker does not support consumer to filter message by SQL92"


class TestKnownSubscriptions:
    """A pull without its own subscription uses the group's heartbeats."""

    async def test_nobody_of_the_group_is_online(self, bench: Bench) -> None:
        answer = bench.peer().call(pull_command(TOPIC, sys_flag=0))
        assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST

    async def test_the_groups_subscription_filters(self, bench: Bench, path: str) -> None:
        peer = bench.peer(ordinary=path == "ordinary")
        fill(peer, "a", "b")
        peer.call(heartbeat(tags="b"))
        answer = peer.call(pull_command(TOPIC, sys_flag=0, sub_version=1))
        assert bodies(records.decode_records(answer.body)) == [b"1"]

    async def test_a_topic_the_group_does_not_subscribe(self, bench: Bench) -> None:
        peer = bench.peer()
        peer.call(heartbeat(topic="Other"))
        answer = peer.call(pull_command(TOPIC, sys_flag=0))
        assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST

    async def test_a_newer_subscription_than_the_broker_knows(self, bench: Bench) -> None:
        peer = bench.peer()
        peer.call(heartbeat(version=5))
        answer = peer.call(pull_command(TOPIC, sys_flag=0, sub_version=6))
        assert answer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST

    async def test_a_topic_forbidden_to_the_group(self, bench: Bench) -> None:
        peer = bench.peer()
        peer.call(heartbeat())
        bench.broker.groups.forbid("group", TOPIC, True)
        answer = peer.call(pull_command(TOPIC, sys_flag=0))
        assert (answer.code, answer.ext) == (ResponseCode.NO_PERMISSION, {"forbiddenType": "5"})

    async def test_a_group_that_may_not_broadcast(self, bench: Bench) -> None:
        peer = bench.peer()
        group = bench.broker.groups.find("group")
        assert group is not None
        bench.broker.groups.update([msgspec.structs.replace(group, consume_broadcast_enable=False)])
        peer.call(heartbeat(model="BROADCASTING"))
        answer = peer.call(pull_command(TOPIC, sys_flag=0))
        assert (answer.code, answer.ext) == (ResponseCode.NO_PERMISSION, {"forbiddenType": "4"})

    async def test_a_changed_subscription_takes_effect_at_once(self, bench: Bench) -> None:
        peer = bench.peer()
        fill(peer, "a", "b")
        peer.call(heartbeat(tags="a"))
        peer.call(pull_command(TOPIC, sys_flag=0))
        peer.call(heartbeat(tags="b", version=2))
        answer = peer.call(pull_command(TOPIC, sys_flag=0))
        assert bodies(records.decode_records(answer.body)) == [b"1"]


class TestWaiting:
    """A pull at the end of its queue waits if it asks to."""

    async def test_a_held_pull_gets_the_next_message(self, bench: Bench, path: str) -> None:
        peer = bench.peer(ordinary=path == "ordinary")
        opaque = peer.send(pull_command(TOPIC, sys_flag=SUSPEND | SUBSCRIPTION))
        peer.collect()
        assert not peer.answers
        assert peer.connection.in_flight == 1
        fill(peer, "a", "b")
        answer = await peer.answer(opaque)
        assert bodies(records.decode_records(answer.body)) == [b"0", b"1"]
        assert peer.connection.in_flight == 0

    async def test_a_message_with_another_tag_does_not_end_the_wait(self, bench: Bench) -> None:
        peer = bench.peer()
        opaque = peer.send(pull_command(TOPIC, sys_flag=SUSPEND | SUBSCRIPTION, subscription="b"))
        fill(peer, "a")
        await asyncio.sleep(0)
        peer.collect()
        assert opaque not in peer.answers
        fill(peer, "b")
        answer = await peer.answer(opaque)
        assert positions(answer)[0] == 2

    async def test_a_held_pull_ends_empty_when_its_time_is_up(self, bench: Bench, path: str) -> None:
        peer = bench.peer(ordinary=path == "ordinary")
        opaque = peer.send(pull_command(TOPIC, sys_flag=SUSPEND | SUBSCRIPTION, suspend_timeout_millis=100))
        answer = await peer.answer(opaque)
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        assert positions(answer) == (0, 0, 0)

    async def test_without_long_polling_a_pull_waits_the_short_polling_time(self, tmp_path: Path) -> None:
        async with running(tmp_path, {"longPollingEnable": "false", "shortPollingTimeMills": "50"}) as bench:
            peer = bench.peer()
            opaque = peer.send(pull_command(TOPIC, sys_flag=SUSPEND | SUBSCRIPTION))
            assert (await peer.answer(opaque)).code == ResponseCode.PULL_NOT_FOUND

    async def test_a_pull_that_does_not_ask_to_wait_ends_at_once(self, bench: Bench) -> None:
        assert bench.peer().call(pull_command(TOPIC)).code == ResponseCode.PULL_NOT_FOUND

    async def test_a_held_pull_passes_all_checks_again_before_its_response(self, bench: Bench) -> None:
        peer = bench.peer()
        opaque = peer.send(pull_command(TOPIC, sys_flag=SUSPEND | SUBSCRIPTION))
        bench.broker.live.update({"brokerPermission": "2"})
        fill(bench.peer(), "a")
        assert (await peer.answer(opaque)).code == ResponseCode.NO_PERMISSION

    async def test_deleting_the_topic_ends_the_wait(self, bench: Bench) -> None:
        peer = bench.peer()
        fill(peer, "a", topic="Auto")
        opaque = peer.send(pull_command("Auto", 1, sys_flag=SUSPEND | SUBSCRIPTION))
        bench.broker.topics.delete("Auto")
        assert (await peer.answer(opaque)).code == ResponseCode.TOPIC_NOT_EXIST

    async def test_a_lost_connection_leaves_nothing_behind(self, bench: Bench) -> None:
        peer = bench.peer()
        peer.send(pull_command(TOPIC, sys_flag=SUSPEND | SUBSCRIPTION))
        peer.close()
        fill(bench.peer(), "a")
        await until(lambda: bench.broker.processors.pull.hold.held == 0)
        assert bench.fast.in_flight == 0

    async def test_a_one_way_pull_is_not_held(self, bench: Bench) -> None:
        peer = bench.peer()
        pull = pull_command(TOPIC, sys_flag=SUSPEND | SUBSCRIPTION)
        pull.flag |= FLAG_ONEWAY
        peer.send(pull)
        peer.collect()
        assert not peer.answers
        assert bench.broker.processors.pull.hold.held == 0

    async def test_with_sync_flush_a_held_pull_gets_a_message_after_its_flush(self, tmp_path: Path) -> None:
        async with running(tmp_path, {"flushDiskType": "SYNC_FLUSH"}) as bench:
            consumer, producer = bench.peer(), bench.peer()
            opaque = consumer.send(pull_command(TOPIC, sys_flag=SUSPEND | SUBSCRIPTION))
            producer.send(send_command(TOPIC))
            answer = await consumer.answer(opaque)
            assert bodies(records.decode_records(answer.body)) == [b"hello"]
            assert bench.broker.store.flushed_where == bench.broker.store.max_phy_offset


class TestOffsets:
    """A pull commits its group's offset."""

    async def test_a_pull_with_the_commit_flag_commits_its_offset(self, bench: Bench, path: str) -> None:
        peer = bench.peer(ordinary=path == "ordinary")
        fill(peer, "a", "b")
        peer.call(pull_command(TOPIC, 1, sys_flag=SUBSCRIPTION, commit_offset=1))
        assert bench.broker.offsets.query("group", TOPIC, 0) is None
        peer.call(pull_command(TOPIC, 1, sys_flag=COMMIT | SUBSCRIPTION, commit_offset=1))
        assert bench.broker.offsets.query("group", TOPIC, 0) == 1
        assert bench.broker.offsets.query_pull("group", TOPIC, 0) == 2

    async def test_a_woken_pull_does_not_store_its_old_offset_again(self, bench: Bench) -> None:
        peer = bench.peer()
        opaque = peer.send(pull_command(TOPIC, sys_flag=COMMIT | SUSPEND | SUBSCRIPTION, commit_offset=0))
        bench.broker.offsets.commit("group", TOPIC, 0, 7)
        fill(peer, "a")
        await peer.answer(opaque)
        assert bench.broker.offsets.query("group", TOPIC, 0) == 7


async def test_a_consumer_far_behind_is_sent_to_a_slave_if_slaves_may_be_read(tmp_path: Path) -> None:
    settings = {"slaveReadEnable": "true", "accessMessageInMemoryMaxRatio": "40"}
    async with running(tmp_path, settings) as bench:
        peer = bench.peer()
        fill(peer, "a", "b")
        near = peer.call(pull_command(TOPIC)).ext or {}
        bench.broker.processors.pull._memory_bytes = 0
        far = peer.call(pull_command(TOPIC, max_msg_nums=1)).ext or {}
        assert (near["suggestWhichBrokerId"], far["suggestWhichBrokerId"]) == ("0", "1")


async def test_fetched_messages_are_counted(bench: Bench) -> None:
    peer = bench.peer()
    fill(peer, "a", "b")
    answer = peer.call(pull_command(TOPIC))
    peer.call(pull_command(TOPIC, 2))
    flow = bench.broker.tables.stats.get_traffic("group", TOPIC, 0)
    assert (flow.messages, flow.bytes, flow.requests) == (2, len(answer.body), 1)
    assert bench.broker.tables.stats.misses == 1
