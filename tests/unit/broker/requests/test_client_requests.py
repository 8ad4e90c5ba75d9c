"""Requests of clients as RocketMQ's clients send them: heartbeats, unregistration, offsets and locks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from epochmq_protocol.bodies import (
    CheckClientRequestBody,
    ConsumerData,
    ConsumeType,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageModel,
    MessageQueue,
    ProducerData,
    SubscriptionData,
    from_json,
    to_json,
)
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.frame import Command
from epochmq_protocol.headers_client import (
    GetConsumerListByGroupRequestHeader,
    QueryConsumerOffsetRequestHeader,
    UnregisterClientRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from tests.unit.broker.kit import Bench, Peer, command, running, send_command, until

QUEUE = MessageQueue("T", "broker-a", 0)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path) as made:
        yield made


def heartbeat(
    client_id: str = "c1",
    group: str = "g",
    *topics: str,
    kind: ConsumeType = ConsumeType.CONSUME_PASSIVELY,
    fingerprint: int = 0,
    without_sub: bool = False,
) -> Command:
    subscriptions = [SubscriptionData(topic=topic, sub_string="*", sub_version=1) for topic in topics]
    consumer = ConsumerData(
        group_name=group,
        consume_type=kind,
        message_model=MessageModel.CLUSTERING,
        subscription_data_set=subscriptions,
    )
    body = HeartbeatData(
        client_id=client_id,
        producer_data_set=[ProducerData(group_name="p")],
        consumer_data_set=[consumer] if group else [],
        heartbeat_fingerprint=fingerprint,
        without_sub=without_sub,
    )
    return command(RequestCode.HEART_BEAT, body=to_json(body))


def ids(peer: Peer, group: str = "g") -> list[str]:
    header = GetConsumerListByGroupRequestHeader(consumer_group=group)
    answer = peer.call(command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header))
    if answer.code != ResponseCode.SUCCESS:
        return [answer.remark or ""]
    return from_json(GetConsumerListByGroupResponseBody, answer.body).consumer_id_list


def notices(peer: Peer) -> list[str]:
    peer.collect()
    groups = [(request.ext or {})["consumerGroup"] for request in peer.requests]
    assert all(r.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED and r.is_oneway for r in peer.requests)
    peer.requests.clear()
    return groups


async def test_a_heartbeat_registers_the_client_and_makes_the_groups_retry_topic(bench: Bench) -> None:
    peer = bench.peer()
    answer = peer.call(heartbeat("c1", "g", "T"))
    assert answer.code == ResponseCode.SUCCESS
    assert answer.ext == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
    assert ids(peer) == ["c1"]
    retry = bench.broker.topics.get("%RETRY%g")
    assert retry is not None
    assert (retry.read_queue_nums, retry.perm) == (1, 6)
    assert bench.broker.tables.clients.producer_channel("c1") is peer.connection


async def test_members_get_a_one_way_notice_of_a_changed_group(bench: Bench) -> None:
    one, two = bench.peer(), bench.peer()
    one.call(heartbeat("c1", "g", "T"))
    assert notices(one) == ["g"]
    two.call(heartbeat("c2", "g", "T"))
    assert (notices(one), notices(two)) == (["g"], ["g"])
    bench.broker.tables.clients.channel_closed(two.connection)
    assert notices(one) == ["g"]
    assert ids(one) == ["c1"]


async def test_no_notice_is_sent_if_notices_are_disabled(tmp_path: Path) -> None:
    async with running(tmp_path, {"notifyConsumerIdsChangedEnable": "false"}) as bench:
        peer = bench.peer()
        peer.call(heartbeat("c1", "g", "T"))
        assert notices(peer) == []


async def test_a_short_heartbeat_requests_a_full_one_only_if_subscriptions_are_unknown(bench: Bench) -> None:
    def asks(peer: Peer, fingerprint: int, *, without_sub: bool) -> str:
        topics = () if without_sub else ("T",)
        answer = peer.call(heartbeat("c1", "g", *topics, fingerprint=fingerprint, without_sub=without_sub))
        return (answer.ext or {})["IS_SUB_CHANGE"]

    peer = bench.peer()
    assert asks(peer, 7, without_sub=True) == "true"  # the group's subscriptions are unknown
    assert asks(peer, 7, without_sub=False) == "false"
    assert asks(peer, 7, without_sub=True) == "false"
    assert asks(peer, 8, without_sub=True) == "true"
    assert bench.broker.tables.clients.subscription_count("g") == 1


async def test_a_group_that_may_not_be_created_is_skipped_and_the_rest_of_the_heartbeat_applies(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, {"autoCreateSubscriptionGroup": "false"}) as bench:
        peer = bench.peer()
        assert peer.call(heartbeat("c1", "g", "T")).code == ResponseCode.SUCCESS
        assert ids(peer) == ["no consumer for this group, g"]
        assert "p" in bench.broker.tables.clients.producers


async def test_pull_consumers_are_skipped_if_they_are_disabled(tmp_path: Path) -> None:
    async with running(tmp_path, {"rejectPullConsumerEnable": "true"}) as bench:
        peer = bench.peer()
        peer.call(heartbeat("c1", "pull", "T", kind=ConsumeType.CONSUME_ACTIVELY))
        peer.call(heartbeat("c1", "push", "T"))
        assert ids(peer, "push") == ["c1"]
        assert bench.broker.tables.clients.group("pull") is None


async def test_unregistering_removes_the_client_from_the_named_groups(bench: Bench) -> None:
    peer = bench.peer()
    peer.call(heartbeat("c1", "g", "T"))
    header = UnregisterClientRequestHeader(client_id="c1", producer_group="p", consumer_group="g")
    assert peer.call(command(RequestCode.UNREGISTER_CLIENT, header)).code == ResponseCode.SUCCESS
    assert bench.broker.tables.clients.producers == {}
    assert bench.broker.tables.clients.group("g") is None


async def test_a_malformed_heartbeat_is_rejected_and_the_connection_stays_open(bench: Bench) -> None:
    peer = bench.peer()
    assert peer.call(command(RequestCode.HEART_BEAT, body=b"[1,2")).code == ResponseCode.SYSTEM_ERROR
    assert peer.call(heartbeat("c1", "g", "T")).code == ResponseCode.SUCCESS


async def test_only_tag_expressions_can_be_subscribed(bench: Bench) -> None:
    def check(expression_type: str) -> Command:
        data = SubscriptionData(topic="T", sub_string="a", expression_type=expression_type)
        body = CheckClientRequestBody(client_id="c1", group="g", subscription_data=data)
        return bench.peer().call(command(RequestCode.CHECK_CLIENT_CONFIG, body=to_json(body)))

    assert check("TAG").code == ResponseCode.SUCCESS
    rejected = check("SQL92")
    assert rejected.code == ResponseCode.SYSTEM_ERROR
    assert rejected.remark == "The broker does not support consumer to filter message by SQL92"


# offsets


def update(peer: Peer, offset: int, group: str = "g", topic: str = "T") -> Command:
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group=group, topic=topic, queue_id=0, commit_offset=offset
    )
    return peer.call(command(RequestCode.UPDATE_CONSUMER_OFFSET, header))


def query(peer: Peer, *, topic: str = "T", zero: bool | None = None) -> int | None:
    header = QueryConsumerOffsetRequestHeader(
        consumer_group="g", topic=topic, queue_id=0, set_zero_if_not_found=zero
    )
    answer = peer.call(command(RequestCode.QUERY_CONSUMER_OFFSET, header))
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    assert answer.code == ResponseCode.SUCCESS
    return int((answer.ext or {})["offset"])


async def test_an_offset_is_stored_for_an_existing_group_and_topic(bench: Bench) -> None:
    peer = bench.peer()
    assert update(peer, 5).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    bench.broker.groups.find("g")
    assert update(peer, 5).code == ResponseCode.TOPIC_NOT_EXIST
    peer.call(send_command("T"))
    assert update(peer, 5).code == ResponseCode.SUCCESS
    assert query(peer) == 5


async def test_a_group_without_offset_starts_at_zero_only_if_the_first_message_is_in_memory(
    bench: Bench,
) -> None:
    peer = bench.peer()
    assert query(peer) is None  # nothing in the queue
    peer.call(send_command("T"))
    assert query(peer) == 0
    assert query(peer, zero=True) == 0
    assert query(peer, zero=False) is None


async def test_commits_are_ignored_while_a_reset_is_pending(bench: Bench) -> None:
    peer = bench.peer()
    peer.call(send_command("T"))
    bench.broker.groups.find("g")
    bench.broker.offsets.set_pending_reset("g", "T", 0, 3)
    answer = update(peer, 9)
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, "Offset has been previously reset")
    assert query(peer) == 3


# locks


def lock(peer: Peer, client_id: str, *, unlock: bool = False) -> set[MessageQueue]:
    body = LockBatchRequestBody(consumer_group="g", client_id=client_id, mq_set={QUEUE})
    code = RequestCode.UNLOCK_BATCH_MQ if unlock else RequestCode.LOCK_BATCH_MQ
    answer = peer.call(command(code, body=to_json(body)))
    assert answer.code == ResponseCode.SUCCESS
    return set() if unlock else from_json(LockBatchResponseBody, answer.body).lock_ok_mq_set


async def test_a_queue_is_locked_for_one_client_until_it_unlocks_it(bench: Bench) -> None:
    peer = bench.peer()
    assert lock(peer, "c1") == {QUEUE}
    assert lock(peer, "c2") == set()
    lock(peer, "c2", unlock=True)
    assert lock(peer, "c2") == set()
    lock(peer, "c1", unlock=True)
    assert lock(peer, "c2") == {QUEUE}


# bounds


def large_heartbeat(groups: int, subscriptions: int = 1, *, prefix: str = "many") -> Command:
    consumers = [
        ConsumerData(
            group_name=f"{prefix}-{number}",
            consume_type=ConsumeType.CONSUME_PASSIVELY,
            message_model=MessageModel.CLUSTERING,
            subscription_data_set=[SubscriptionData(topic=f"T{at}") for at in range(subscriptions)],
        )
        for number in range(groups)
    ]
    return command(
        RequestCode.HEART_BEAT, body=to_json(HeartbeatData(client_id="c", consumer_data_set=consumers))
    )


async def test_a_heartbeat_refreshes_only_the_groups_that_it_names(bench: Bench) -> None:
    """A consumer that shut down without a word leaves its group, though others of its process live on."""
    peer, clients = bench.peer(), bench.broker.tables.clients

    def beat(*names: str) -> None:
        consumers = [ConsumerData(group_name=name) for name in names]
        producers = [ProducerData(group_name=name) for name in names]
        body = HeartbeatData(client_id="c", consumer_data_set=consumers, producer_data_set=producers)
        assert peer.call(command(RequestCode.HEART_BEAT, body=to_json(body))).code == ResponseCode.SUCCESS

    beat("kept", "left")
    for table in ({name: group.clients for name, group in clients.groups.items()}, clients.producers):
        members = {name: member for name, of_name in table.items() for member in of_name.values()}
        assert members.keys() == {"kept", "left"}
        for member in members.values():
            member.last_update_ms = 0
        beat("kept")
        assert [name for name, member in members.items() if member.last_update_ms] == ["kept"]


async def test_a_heartbeat_writes_the_tables_for_many_groups_at_a_time(bench: Bench) -> None:
    """Work for each group that grows with the table keeps the event loop, and so the lease, waiting."""
    topics, groups = bench.broker.topics, bench.broker.groups
    told: list[tuple[str, tuple[str, ...]]] = []
    topics.on_change.append(lambda names: told.append(("topics", names)))
    groups.on_change.append(lambda names: told.append(("groups", names)))
    assert bench.peer().call(large_heartbeat(20)).code == ResponseCode.SUCCESS
    names = tuple(f"many-{number}" for number in range(20))
    assert sorted(told) == [("groups", names), ("topics", tuple(f"%RETRY%{name}" for name in names))]
    peer = bench.peer()
    assert (await peer.answer(peer.send(large_heartbeat(300)))).code == ResponseCode.SUCCESS
    names = tuple(f"many-{number}" for number in range(300))
    changed = [name for kind, some in told if kind == "groups" for name in some]
    assert changed == list(names)
    assert all(f"%RETRY%{name}" in topics and name in groups for name in names)
    assert len(ids(bench.peer(), "many-299")) == 1


async def test_the_new_retry_topics_of_a_heartbeat_are_on_disk_with_the_response(
    bench: Bench, tmp_path: Path
) -> None:
    assert bench.peer().call(large_heartbeat(3)).code == ResponseCode.SUCCESS
    tables = bench.broker.tables.files
    assert b"%RETRY%many-2" in tables.topics_json()
    await until(lambda: b"%RETRY%many-2" in (tmp_path / "config" / "topics.json").read_bytes())


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"maxGroupsPerHeartbeat": "3"}, (3, 1)),
        ({"maxSubscriptionsPerHeartbeat": "6"}, (3, 2)),
    ],
)
async def test_a_heartbeat_with_too_much_is_rejected_and_changes_nothing(
    tmp_path: Path, settings: dict[str, str], most: tuple[int, int]
) -> None:
    async with running(tmp_path, settings) as bench:
        peer, (key,) = bench.peer(), settings
        assert peer.call(large_heartbeat(*most)).code == ResponseCode.SUCCESS
        rejected = peer.call(large_heartbeat(most[0] + 1, most[1], prefix="more"))
        assert rejected.code == ResponseCode.SYSTEM_ERROR
        assert key in (rejected.remark or "")
        assert "more-0" not in bench.broker.groups
        bench.broker.live.update({key: "1000"})
        assert peer.call(large_heartbeat(most[0] + 1, most[1])).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("code", [RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ])
async def test_a_lock_of_too_many_queues_is_rejected(tmp_path: Path, code: RequestCode) -> None:
    async with running(tmp_path, {"maxQueuesPerLock": "2"}) as bench:
        for count, expected in ((2, ResponseCode.SUCCESS), (3, ResponseCode.SYSTEM_ERROR)):
            queues = {MessageQueue("T", "broker-a", number) for number in range(count)}
            body = LockBatchRequestBody(consumer_group="g", client_id="c", mq_set=queues)
            answer = bench.peer().call(command(code, body=to_json(body)))
            assert answer.code == expected
        assert "3 queues, more than maxQueuesPerLock=2" in (answer.remark or "")
