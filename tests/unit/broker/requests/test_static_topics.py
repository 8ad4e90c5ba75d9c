"""Static topics: logical queues keep their offsets while they move between two broker groups."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from epochmq_broker.tables.static_topics.cleaner import MappingCleaner
from epochmq_protocol import fastjson
from epochmq_protocol import message as records
from epochmq_protocol.bodies import from_json, to_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.headers_admin import CreateTopicRequestHeader, GetTopicConfigRequestHeader
from epochmq_protocol.headers_client import (
    GetMaxOffsetRequestHeader,
    QueryConsumerOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from epochmq_protocol.route import TopicRouteData
from epochmq_protocol.topics import (
    LogicQueueMappingItem,
    TopicConfigAndQueueMapping,
    TopicConfigSerializeWrapper,
    TopicQueueMappingDetail,
    TopicQueueMappingInfo,
)
from tests.unit.broker.kit import Bench, bodies, command, pull_command, running, send_command

TOPIC = "static"
MOVED_TO = 10_000
"""The logical offset at which the second broker begins."""


class Groups:
    """Two broker groups, which reach each other as over the network."""

    def __init__(self, first: Bench, second: Bench) -> None:
        self.benches = {"broker-a": first, "broker-b": second}
        self.peers = {name: bench.peer() for name, bench in self.benches.items()}
        self.asked: list[tuple[str, int]] = []
        for bench in self.benches.values():
            bench.broker.remote_queues.call = self._call  # type: ignore[method-assign]

    async def _call(self, broker: str, code: int, ext: Mapping[str, str], *, lo: str = "false") -> Command:
        if broker not in self.peers:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"cannot find addr for broker {broker}")
        self.asked.append((broker, code))
        peer = self.peers[broker]
        return await peer.answer(peer.send(command(code, **{**ext, "bname": broker, "lo": lo})))

    async def ask(self, broker: str, request: Command) -> Command:
        """The response of a broker."""
        peer = self.peers[broker]
        return await peer.answer(peer.send(request))

    async def map(
        self, broker: str, *items: LogicQueueMappingItem, epoch: int = 1, queues: int = 1
    ) -> Command:
        """Creates the topic with one logical queue, 0, on a broker."""
        return await self.ask(broker, create(broker, {0: list(items)}, epoch=epoch, queues=queues))

    async def send(self, broker: str, *texts: str) -> list[int]:
        """Sends messages to logical queue 0. Returns their logical offsets."""
        offsets = []
        for text in texts:
            answer = await self.ask(broker, send_command(TOPIC, text.encode()))
            assert answer.code == 0, answer.remark
            assert answer.ext is not None
            assert answer.ext["queueId"] == "0"
            offsets.append(int(answer.ext["queueOffset"]))
        return offsets

    async def pull(self, broker: str, offset: int, **fields: Any) -> tuple[int, int, list[bytes], Command]:
        """(code, next offset, bodies) of a pull of logical queue 0."""
        answer = await self.ask(broker, pull_command(TOPIC, offset, **fields))
        assert answer.ext is not None, answer.remark
        found = bodies(records.decode_records(answer.body)) if answer.body else []
        return answer.code, int(answer.ext.get("nextBeginOffset", -1)), found, answer

    async def moved(self) -> None:
        """Logical queue 0 has three messages on broker-a, and then two on broker-b."""
        await self.map("broker-a", item("broker-a"))
        await self.send("broker-a", "a0", "a1", "a2")
        closed = item("broker-a")  # mqadmin does not set the end
        opened = item("broker-b", gen=1, logic=MOVED_TO)
        await self.map("broker-b", closed, opened, epoch=2)
        await self.map("broker-a", closed, opened, epoch=2)
        assert await self.send("broker-b", "b0", "b1") == [MOVED_TO, MOVED_TO + 1]


def item(
    broker: str, *, gen: int = 0, queue: int = 0, logic: int = 0, end: int = -1
) -> LogicQueueMappingItem:
    return LogicQueueMappingItem(gen=gen, queue_id=queue, bname=broker, logic_offset=logic, end_offset=end)


def create(
    broker: str,
    hosted: dict[int, list[LogicQueueMappingItem]],
    *,
    epoch: int = 1,
    queues: int = 1,
    force: bool = False,
    scope: str = "__global__",
) -> Command:
    mapping = TopicQueueMappingDetail(
        topic=TOPIC, scope=scope, total_queues=len(hosted), bname=broker, epoch=epoch, hosted_queues=hosted
    )
    header = CreateTopicRequestHeader(
        topic=TOPIC,
        default_topic="TBW102",
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=6,
        topic_filter_type="SINGLE_TAG",
        force=force,
    )
    return command(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, header, to_json(mapping))


@pytest.fixture
async def groups(tmp_path: Path) -> AsyncIterator[Groups]:
    async with contextlib.AsyncExitStack() as stack:
        benches = [
            await stack.enter_async_context(running(tmp_path / name, {"brokerName": name}))
            for name in ("broker-a", "broker-b")
        ]
        yield Groups(*benches)


async def test_a_logical_queue_lies_in_the_physical_queue_of_its_item(groups: Groups) -> None:
    await groups.map("broker-a", item("broker-a", queue=1), queues=2)
    assert await groups.send("broker-a", "one", "two") == [0, 1]
    assert groups.benches["broker-a"].count(TOPIC, 1) == 2
    code, next_offset, found, answer = await groups.pull("broker-a", 0)
    assert (code, next_offset, found) == (0, 2, [b"one", b"two"])
    assert answer.ext is not None
    assert answer.ext["offsetDelta"] == "0"


async def test_a_send_and_a_pull_of_a_queue_led_by_another_broker_are_rejected(groups: Groups) -> None:
    await groups.moved()
    answer = await groups.ask("broker-a", send_command(TOPIC, b"late"))
    assert answer.code == ResponseCode.NOT_LEADER_FOR_QUEUE
    assert answer.remark == "static-0 does not exit in request process of current broker broker-a"
    answer = await groups.ask("broker-a", pull_command(TOPIC, 0))
    assert answer.code == ResponseCode.NOT_LEADER_FOR_QUEUE
    assert answer.remark == "static-0 cannot find mapping item in request process of current broker broker-a"


async def test_the_new_leader_serves_everything_in_order_with_offsets_that_continue(groups: Groups) -> None:
    await groups.moved()
    offset, found, deltas = 0, [], set()
    for _ in range(5):
        code, offset, messages, answer = await groups.pull("broker-b", offset)
        found += messages
        assert answer.ext is not None
        deltas.add(answer.ext["offsetDelta"])
        if code == ResponseCode.PULL_NOT_FOUND:
            break
    assert found == [b"a0", b"a1", b"a2", b"b0", b"b1"]
    assert offset == MOVED_TO + 2
    assert deltas == {"0", str(MOVED_TO)}


@pytest.mark.long
async def test_a_pull_in_the_gap_before_the_new_leader_continues_at_its_first_message(groups: Groups) -> None:
    await groups.moved()
    code, next_offset, _, _ = await groups.pull("broker-b", 500)
    assert (code, next_offset) == (ResponseCode.PULL_RETRY_IMMEDIATELY, MOVED_TO)


async def test_a_send_before_the_first_offset_is_decided_has_no_logical_offset(groups: Groups) -> None:
    await groups.map("broker-b", item("broker-a"), item("broker-b", gen=1, logic=-1))
    assert await groups.send("broker-b", "early") == [-1]


async def test_a_held_pull_moves_with_its_queue(groups: Groups) -> None:
    await groups.map("broker-a", item("broker-a"))
    await groups.send("broker-a", "a0")
    peer = groups.peers["broker-a"]
    opaque = peer.send(pull_command(TOPIC, 1, sys_flag=6))
    await groups.map("broker-a", item("broker-a", end=1), item("broker-b", gen=1, logic=100), epoch=2)
    assert (await peer.answer(opaque)).code == ResponseCode.NOT_LEADER_FOR_QUEUE


async def test_min_max_search_and_earliest_time_span_both_brokers(groups: Groups) -> None:
    await groups.moved()

    async def offset(code: int, **ext: str) -> str:
        answer = await groups.ask("broker-b", command(code, topic=TOPIC, queueId="0", **ext))
        assert answer.code == 0, answer.remark
        assert answer.ext is not None
        return answer.ext.get("offset") or answer.ext["timestamp"]

    assert await offset(RequestCode.GET_MIN_OFFSET) == "0"
    assert await offset(RequestCode.GET_MAX_OFFSET) == str(MOVED_TO + 2)
    assert await offset(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp="0") == "0"
    late = str(1 << 50)
    assert await offset(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=late) == str(MOVED_TO + 2)
    upper = {"boundaryType": "UPPER"}
    assert await offset(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=late, **upper) == str(MOVED_TO + 1)
    assert await offset(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp="0", **upper) == "0"
    first = groups.benches["broker-a"].record(TOPIC, 0, 0)
    assert await offset(RequestCode.GET_EARLIEST_MSG_STORETIME) == str(first.store_timestamp)
    for code in (
        RequestCode.GET_MIN_OFFSET,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
    ):
        answer = await groups.ask("broker-a", command(code, topic=TOPIC, queueId="0", timestamp="0"))
        assert answer.code == ResponseCode.NOT_LEADER_FOR_QUEUE


async def test_consumer_offsets_are_stored_where_the_message_is(groups: Groups) -> None:
    await groups.moved()
    query = QueryConsumerOffsetRequestHeader(consumer_group="group", topic=TOPIC, queue_id=0)

    async def stored() -> tuple[int, str | None]:
        answer = await groups.ask("broker-b", command(RequestCode.QUERY_CONSUMER_OFFSET, query))
        return answer.code, (answer.ext or {}).get("offset")

    async def commit(offset: int) -> None:
        update = UpdateConsumerOffsetRequestHeader(
            consumer_group="group", topic=TOPIC, queue_id=0, commit_offset=offset
        )
        answer = await groups.ask("broker-b", command(RequestCode.UPDATE_CONSUMER_OFFSET, update))
        assert answer.code == 0, answer.remark

    for bench in groups.benches.values():
        bench.broker.groups.find("group")
    assert await stored() == (ResponseCode.QUERY_NOT_FOUND, None)
    await commit(2)
    assert groups.benches["broker-a"].broker.offsets.query("group", TOPIC, 0) == 2
    assert await stored() == (0, "2")
    await commit(MOVED_TO + 1)
    assert groups.benches["broker-b"].broker.offsets.query("group", TOPIC, 0) == 1
    assert await stored() == (0, str(MOVED_TO + 1))
    update = UpdateConsumerOffsetRequestHeader(
        consumer_group="group", topic=TOPIC, queue_id=0, commit_offset=1
    )
    for code, header in (
        (RequestCode.QUERY_CONSUMER_OFFSET, query),
        (RequestCode.UPDATE_CONSUMER_OFFSET, update),
    ):
        answer = await groups.ask("broker-a", command(code, header))
        assert answer.code == ResponseCode.NOT_LEADER_FOR_QUEUE
    assert groups.benches["broker-a"].broker.offsets.query("group", TOPIC, 0) == 2


async def test_a_pull_commits_the_physical_offset(groups: Groups) -> None:
    await groups.moved()
    await groups.pull("broker-b", MOVED_TO, sys_flag=5, commit_offset=MOVED_TO + 1)
    assert groups.benches["broker-b"].broker.offsets.query("group", TOPIC, 0) == 1


async def test_a_translated_request_is_not_translated_again(groups: Groups) -> None:
    await groups.moved()
    header = GetMaxOffsetRequestHeader(topic=TOPIC, queue_id=0, lo=False)
    answer = await groups.ask("broker-a", command(RequestCode.GET_MAX_OFFSET, header))
    assert answer.ext == {"offset": "3"}


async def test_other_topics_are_not_affected(groups: Groups) -> None:
    await groups.moved()
    peer = groups.peers["broker-a"]
    assert peer.call(send_command("BenchmarkTest")).code == 0
    assert peer.call(pull_command("BenchmarkTest")).code == 0


async def test_a_broker_that_cannot_be_found_is_named(groups: Groups) -> None:
    closed, opened = item("broker-x", end=3), item("broker-a", gen=1, logic=100)
    await groups.map("broker-a", closed, opened)
    answer = await groups.ask("broker-a", pull_command(TOPIC, 0))
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "cannot find addr for broker broker-x",
    )


@pytest.mark.parametrize(
    ("items", "epoch", "remark"),
    [
        ([item("broker-a")], 1, "Can't accept data with small epoch 1 < 2"),
        ([item("broker-b")], 2, "The new leader is different but epoch equal"),
        ([item("broker-a", queue=-1)], 3, "The field is illegal, should not be negative"),
        (
            [item("broker-a", logic=-1), item("broker-b", gen=1)],
            3,
            "The non-latest item has negative logic offset",
        ),
        ([item("broker-a"), item("broker-b", logic=5)], 3, "The gen does not increase monotonically"),
        (
            [item("broker-a", logic=7), item("broker-b", gen=1, logic=5)],
            3,
            "The base logic offset does not increase monotonically",
        ),
        (
            [item("broker-a", end=9), item("broker-b", gen=1, logic=5)],
            3,
            "The max logic offset does not increase monotonically",
        ),
    ],
)
async def test_a_mapping_that_would_lose_messages_is_rejected(
    groups: Groups, items: list[LogicQueueMappingItem], epoch: int, remark: str
) -> None:
    assert (await groups.map("broker-a", item("broker-a"), epoch=2)).code == 0
    answer = await groups.map("broker-a", *items, epoch=epoch)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)


async def test_a_mapping_without_a_known_queue_keeps_it_unless_the_epoch_is_the_same(groups: Groups) -> None:
    await groups.map("broker-a", item("broker-a"), epoch=2)
    other = {1: [item("broker-a", queue=1)]}
    answer = await groups.ask("broker-a", create("broker-a", other, epoch=2))
    assert answer.remark == "Cannot accept equal epoch with null data"
    assert (await groups.ask("broker-a", create("broker-a", other, epoch=3, queues=2))).code == 0
    assert set(groups.benches["broker-a"].broker.tables.static_topics.table[TOPIC].hosted_queues) == {0, 1}
    forced = await groups.ask("broker-a", create("broker-a", {}, epoch=1, force=True))
    assert forced.code == 0
    assert set(groups.benches["broker-a"].broker.tables.static_topics.table[TOPIC].hosted_queues) == {0, 1}


async def test_the_mapping_is_shown_if_asked_for_registered_copied_and_deleted(groups: Groups) -> None:
    await groups.moved()
    peer = groups.peers["broker-b"]

    def config(*, lo: bool | None) -> TopicConfigAndQueueMapping:
        header = GetTopicConfigRequestHeader(topic=TOPIC, lo=lo)
        answer = peer.call(command(RequestCode.GET_TOPIC_CONFIG, header))
        return from_json(TopicConfigAndQueueMapping, answer.body)

    assert config(lo=None).mapping_detail is None
    shown = config(lo=True).mapping_detail
    assert shown is not None
    assert [one.bname for one in shown.hosted_queues[0]] == ["broker-a", "broker-b"]
    tables = groups.benches["broker-b"].broker.tables
    infos = tables.static_topics.infos([TOPIC, "BenchmarkTest"])
    assert {name: info.curr_id_map for name, info in infos.items()} == {TOPIC: {0: 0}}
    infos = groups.benches["broker-a"].broker.tables.static_topics.infos([TOPIC])
    assert infos[TOPIC].curr_id_map == {}
    answer = peer.call(command(RequestCode.GET_ALL_TOPIC_CONFIG)).body
    assert json.loads(answer)["topicQueueMappingDetailMap"][TOPIC]["hostedQueues"].keys() == {"0"}
    body = from_json(TopicConfigSerializeWrapper, answer)
    assert body.topic_queue_mapping_detail_map == tables.static_topics.table
    assert body.mapping_data_version == tables.static_topics.data_version
    assert peer.call(command(RequestCode.DELETE_TOPIC_IN_BROKER, topic=TOPIC)).code == 0
    assert not tables.static_topics.table


async def test_mappings_survive_a_restart(tmp_path: Path) -> None:
    for _ in range(2):
        async with running(tmp_path) as bench:
            static = bench.broker.tables.static_topics
            if not static.table:
                peer = bench.peer()
                opaque = peer.send(create("broker-a", {0: [item("broker-a")]}))
                assert (await peer.answer(opaque)).code == 0
            assert static.table[TOPIC].hosted_queues[0] == [item("broker-a")]
    file = fastjson.loads((tmp_path / "config" / "topicQueueMapping.json").read_bytes())
    assert set(file) == {"dataVersion", "topicQueueMappingInfoMap"}


class TestCleaning:
    """What the leader and the former leader of a queue drop from their mappings."""

    async def clean(self, groups: Groups, broker: str, leaders: dict[str, dict[int, int]]) -> list[str]:
        """Cleans a broker's mapping while the route says `leaders`. Returns the brokers of queue 0."""
        route = TopicRouteData(
            topic_queue_mapping_by_broker={
                name: TopicQueueMappingInfo(topic=TOPIC, bname=name, epoch=9, curr_id_map=queues)
                for name, queues in leaders.items()
            }
        )

        async def nameserver(command: Command) -> Command:
            return response(command, ResponseCode.SUCCESS, body=to_json(route))

        parts = groups.benches[broker].broker
        parts.remote_queues.nameserver = nameserver  # type: ignore[method-assign]
        static = parts.tables.static_topics
        await MappingCleaner(parts.live, static, parts.remote_queues).clean()
        return [one.bname or "" for one in static.table[TOPIC].hosted_queues.get(0, [])]

    async def test_the_leader_keeps_an_item_that_has_messages(self, groups: Groups) -> None:
        await groups.moved()
        found = await self.clean(groups, "broker-b", {"broker-b": {0: 0}})
        assert found == ["broker-a", "broker-b"]

    async def test_the_leader_drops_an_earlier_item_without_messages(self, groups: Groups) -> None:
        closed, opened = item("broker-a", end=3), item("broker-b", gen=1, logic=MOVED_TO)
        for broker in ("broker-a", "broker-b"):
            await groups.map(broker, closed, opened)
        assert await self.clean(groups, "broker-b", {"broker-b": {0: 0}}) == ["broker-b"]
        # The former leader has nothing to drop: it does not lead the queue.
        assert await self.clean(groups, "broker-a", {"broker-b": {0: 0}}) == ["broker-a", "broker-b"]

    async def test_an_item_stays_while_its_broker_cannot_be_reached(self, groups: Groups) -> None:
        await groups.map("broker-b", item("broker-x", end=3), item("broker-b", gen=1, logic=MOVED_TO))
        found = await self.clean(groups, "broker-b", {"broker-b": {0: 0}})
        assert found == ["broker-x", "broker-b"]

    @pytest.mark.parametrize(("epoch", "kept"), [(1, []), (2, ["broker-a", "broker-x"])])
    async def test_a_former_leader_forgets_a_queue_that_moved_on(
        self, groups: Groups, epoch: int, kept: list[str]
    ) -> None:
        first, second = item("broker-a", end=3), item("broker-x", gen=1, logic=100, end=3)
        await groups.map("broker-a", first, second)
        await groups.map("broker-b", first, second, item("broker-b", gen=2, logic=200), epoch=epoch)
        assert await self.clean(groups, "broker-a", {"broker-b": {0: 0}}) == kept
