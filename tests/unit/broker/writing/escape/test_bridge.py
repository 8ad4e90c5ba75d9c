"""A message leaves when another group takes it, is sent again until then, and never counts too early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from epochmq_broker.writing.escape import bridge as bridge_module
from epochmq_broker.writing.escape import lane as lane_module
from epochmq_broker.writing.escape.bridge import EscapeBridge
from epochmq_broker.writing.escape.rules import Destination, EscapeKind
from epochmq_broker.writing.escape.window import SPAN_MAX
from epochmq_broker.writing.inner_message import InnerMessage, PutResult
from epochmq_broker.writing.quarantine import Quarantine, QuarantiningService
from epochmq_protocol import message as records
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import ConnectError
from epochmq_protocol.frame import Command, encode, response
from epochmq_protocol.route import BrokerData, QueueData, TopicRouteData
from epochmq_store.statuses import PutStatus
from tests.unit.broker.kit import until

HOST = records.encode_host("127.0.0.1", 10911)
ROUTE = TopicRouteData(
    queue_datas=[QueueData("b", 4, 4, 6)], broker_datas=[BrokerData("c", "b", {0: "b:10911"})]
)


class Writer:
    """The log of this broker."""

    sends_wait = False
    end = 1000

    def __init__(self) -> None:
        self.stored: list[InnerMessage] = []

    def put(self, message: InnerMessage) -> PutResult:
        self.stored.append(message)
        return PutResult(PutStatus.PUT_OK, 900, size=100)

    def safe_end(self, *, acknowledged: bool = False) -> int:
        return 1000 if acknowledged else 500


class Group:
    """The other group, and the nameserver."""

    def __init__(self) -> None:
        self.route_data: TopicRouteData | None = ROUTE
        self.code = ResponseCode.SUCCESS
        self.reachable = True
        self.bodies: list[bytes] = []
        self.asked_fresh: list[float | None] = []
        self.open = asyncio.Event()
        self.open.set()
        self.under_way = self.most_under_way = 0

    async def route(self, topic: str, fresh_s: float | None = None) -> TopicRouteData | None:
        self.asked_fresh.append(fresh_s)
        return self.route_data

    async def call(self, address: str, command: Command, timeout_ms: float = 3000) -> Command:
        assert (address, timeout_ms) == ("b:10911", 3000)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await self.open.wait()
            if not self.reachable:
                raise ConnectError("refused")
            encode(command)
            self.bodies.append(command.body)
            return response(command, self.code)
        finally:
            self.under_way -= 1


class Fixture:
    """A bridge, its surroundings, and one lane."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(broker_name="a", broker_id=1)
        self.writer, self.group = Writer(), Group()
        self.standing = SimpleNamespace(capabilities=SimpleNamespace(delivers_here=False, escapes=True))
        live: Any = SimpleNamespace(current=self.config, standing=self.standing)
        writer: Any = self.writer
        self.quarantine = Quarantine(live, writer=writer, create_topic=lambda *_: None, store_host=HOST)
        surroundings: Any = {
            "writer": self.writer,
            "routes": self.group,
            "client": self.group,
            "quarantine": self.quarantine,
        }
        self.bridge = EscapeBridge(live, **surroundings, revive_topic="revive")
        self.lane = self.bridge.lane(EscapeKind.DELAY)

    def put(self, body: bytes = b"m") -> PutResult:
        made = InnerMessage(topic="T", queue_id=0, body=body, properties={}, born_timestamp=0, born_host=HOST)
        return self.lane.put(made)

    def metric(self, name: str) -> float:
        return self.bridge.metric_values()[f"broker_{name}:delay"]


@pytest.fixture
async def made(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fixture]:
    monkeypatch.setattr(bridge_module, "PAUSE_S", 0.001)
    monkeypatch.setattr(bridge_module, "PAUSE_MAX_S", 0.004)
    found = Fixture()
    yield found
    found.bridge.stop()


async def test_a_master_stores_messages_itself(made: Fixture) -> None:
    made.standing.capabilities.delivers_here = True
    assert made.bridge.destination() is Destination.LOCAL
    assert made.put() == PutResult(PutStatus.PUT_OK, 900, size=100)
    assert (made.lane.end, made.lane.safe_end(), made.lane.safe_end(acknowledged=True)) == (1000, 500, 1000)
    assert (made.lane.sends_wait, made.lane.is_remote) == (False, False)
    assert not made.group.bodies


async def test_nothing_leaves_unless_it_may_and_this_broker_acts(made: Fixture) -> None:
    made.standing.capabilities.escapes = False
    assert made.put().status is PutStatus.SERVICE_NOT_AVAILABLE
    assert not made.writer.stored
    assert not made.lane.is_remote
    assert made.lane.end == made.lane.safe_end() > made.writer.end


async def test_a_message_is_safe_when_another_group_has_stored_it(made: Fixture) -> None:
    made.group.open.clear()
    stored = made.put()
    assert (stored.status, stored.is_remote, stored.end) == (PutStatus.PUT_OK, True, made.lane.end)
    statuses: list[PutStatus] = []
    made.lane.when_safe(stored.end, statuses.append)
    await until(lambda: made.group.under_way)
    assert made.lane.safe_end(acknowledged=True) < stored.end
    assert made.metric("escape_waiting") == 1
    made.group.open.set()
    await until(lambda: made.lane.safe_end() == stored.end)
    assert statuses == [PutStatus.PUT_OK]
    assert (made.metric("escape_waiting"), made.metric("escaped_total")) == (0, 1)
    assert not made.writer.stored


@pytest.mark.parametrize("obstacle", ["no route", "no queue", "unreachable", "rejects", "not safe"])
async def test_a_message_that_cannot_leave_is_sent_again(made: Fixture, obstacle: str) -> None:
    group = made.group
    match obstacle:
        case "no route":
            group.route_data = None
        case "no queue":
            group.route_data = TopicRouteData(queue_datas=[QueueData("a", 4, 4, 6)])
        case "unreachable":
            group.reachable = False
        case "rejects":
            group.code = ResponseCode.SERVICE_NOT_AVAILABLE
        case "not safe":
            group.code = ResponseCode.FLUSH_SLAVE_TIMEOUT
    stored = made.put()
    await until(lambda: made.metric("escape_failures_total") >= 3)
    assert made.lane.safe_end() < stored.end
    assert (made.metric("escape_waiting"), made.metric("escaped_total")) == (1, 0)
    assert group.asked_fresh[0] is None
    assert group.asked_fresh[1] == bridge_module.ROUTE_FRESH_S
    group.route_data, group.reachable, group.code = ROUTE, True, ResponseCode.SUCCESS
    await until(lambda: made.lane.safe_end() == stored.end)
    assert (made.metric("escape_waiting"), made.metric("escaped_total")) == (0, 1)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, ResponseCode.SUCCESS),
        ({"properties": {"a\x02": "b"}}, ResponseCode.SUCCESS),
        ({"flag": 1 << 40}, ResponseCode.SUCCESS),
        ({"properties": {"long": "x" * (17 << 20)}}, ResponseCode.SUCCESS),
        ({}, ResponseCode.MESSAGE_ILLEGAL),
    ],
    ids=["half message without a topic", "separator in a name", "too large a flag", "header", "rejected"],
)
async def test_a_message_that_no_group_can_store_is_set_aside(
    made: Fixture, message: dict[str, Any], code: ResponseCode
) -> None:
    """It would be sent for ever, and hold the offset of its service."""
    made.group.code = code
    values: dict[str, Any] = {"topic": "T", "queue_id": 0, "body": b"poison", "properties": {}}
    stored = made.lane.put(InnerMessage(**(values | message), born_timestamp=0, born_host=HOST))
    await until(lambda: made.lane.safe_end() == stored.end)
    assert made.quarantine.counts[QuarantiningService.ESCAPE] == 1
    assert (made.metric("escape_waiting"), made.metric("escaped_total")) == (0, 0)
    assert made.bridge._bytes == 0
    assert not made.writer.stored


@pytest.mark.parametrize("kind", EscapeKind)
@pytest.mark.parametrize(
    "code",
    [ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE],
)
async def test_a_message_is_sent_until_the_other_group_has_it_safe(
    made: Fixture, kind: EscapeKind, code: ResponseCode
) -> None:
    made.group.code = code
    made.lane = made.bridge.lane(kind)
    stored = made.put()
    failures = f"broker_escape_failures_total:{kind.value}"
    await until(lambda: made.bridge.metric_values()[failures] >= 2)
    assert made.lane.safe_end() < stored.end
    made.group.code = ResponseCode.SUCCESS
    await until(lambda: made.lane.safe_end() == stored.end)


async def test_a_later_message_does_not_count_before_an_earlier_one(made: Fixture) -> None:
    made.group.open.clear()
    first = made.put(b"first")
    await until(lambda: made.group.under_way == 1)
    made.group.reachable = False
    made.group.open.set()
    await until(lambda: made.metric("escape_failures_total") >= 1)
    held = asyncio.Event()
    routes, made.bridge._routes = (
        made.bridge._routes,
        SimpleNamespace(  # type: ignore[assignment]
            route=lambda _topic, fresh_s: _hold(held if fresh_s is not None else None)
        ),
    )
    made.group.reachable = True
    second = made.put(b"second")
    await until(lambda: b"second" in made.group.bodies)
    assert made.lane.safe_end() < first.end < second.end
    held.set()
    await until(lambda: made.lane.safe_end() == second.end)
    assert made.group.bodies == [b"second", b"first"]
    made.bridge._routes = routes


async def _hold(held: asyncio.Event | None) -> TopicRouteData:
    if held is not None:
        await held.wait()
    return ROUTE


async def test_messages_on_their_way_are_bounded(made: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    made.group.open.clear()
    results = [made.put().status for _ in range(SPAN_MAX + 3)]
    assert results.count(PutStatus.PUT_OK) == SPAN_MAX
    assert set(results[SPAN_MAX:]) == {PutStatus.PUT_TO_REMOTE_BROKER_FAIL}
    other = made.lane = made.bridge.lane(EscapeKind.TIMER)
    assert made.put().status is PutStatus.PUT_OK  # each service has its own
    monkeypatch.setattr(bridge_module, "WAITING_BYTES_MAX", SPAN_MAX + 11)
    assert made.put(b"x" * 11).status is PutStatus.PUT_TO_REMOTE_BROKER_FAIL
    assert made.put(b"x" * 10).status is PutStatus.PUT_OK
    await until(lambda: made.group.under_way == bridge_module.IN_FLIGHT_MAX)
    made.group.open.set()
    await until(lambda: not made.bridge._tasks)
    assert other.waiting == 0
    assert made.group.most_under_way == bridge_module.IN_FLIGHT_MAX
    assert made.bridge._bytes == 0
    assert made.put(b"x" * 1000).status is PutStatus.PUT_OK  # one message always fits


async def test_a_stop_gives_up_what_is_on_its_way(made: Fixture) -> None:
    made.group.open.clear()
    stored = made.put()
    statuses: list[PutStatus] = []
    made.lane.when_safe(stored.end, statuses.append)
    await until(lambda: made.group.under_way)
    assert made.lane.safe_end() < stored.end
    made.bridge.stop()
    await until(lambda: not made.group.under_way)
    made.group.open.set()
    assert statuses == [PutStatus.FLUSH_SLAVE_TIMEOUT]
    assert (made.metric("escape_waiting"), made.metric("escaped_total")) == (0, 0)
    assert made.bridge._bytes == 0
    again = made.put()
    await until(lambda: made.lane.safe_end() == again.end)
    assert made.group.bodies == [b"m"]


async def test_a_response_does_not_wait_for_ever(made: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "SAFE_TIMEOUT_S", 0.001)
    made.group.open.clear()
    stored = made.put()
    statuses: list[PutStatus] = []
    made.lane.when_safe(stored.end, statuses.append)
    await until(lambda: statuses)
    assert statuses == [PutStatus.FLUSH_SLAVE_TIMEOUT]
    made.group.open.set()
    await until(lambda: made.lane.safe_end() == stored.end)
    assert statuses == [PutStatus.FLUSH_SLAVE_TIMEOUT]


async def test_a_number_never_counts_as_an_offset_of_the_log(made: Fixture) -> None:
    """A service keeps the end of a message that has left, and this broker becomes the master again."""
    made.group.open.clear()
    stored = made.put()
    made.standing.capabilities.delivers_here = True
    made.writer.end = 1 << 61
    assert made.lane.end < stored.end


def test_every_kind_has_its_numbers() -> None:
    names: Iterator[str] = iter(Fixture().bridge.metric_values())
    assert {name.partition(":")[2] for name in names} == {kind.value for kind in EscapeKind}
