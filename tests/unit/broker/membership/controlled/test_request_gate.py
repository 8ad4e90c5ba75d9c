"""Tests requests during a switchover: they are served, held or relayed, and each gets one response."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from epochmq_broker.membership.controlled import request_gate as module
from epochmq_broker.membership.controlled.handover import Handover
from epochmq_broker.membership.controlled.request_gate import RELAYED, GatePhase, RequestGate
from epochmq_broker.requests.request_rules import codes_where, rule_of
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import CallTimeoutError, ConnectError, RequestError
from epochmq_protocol.frame import FLAG_ONEWAY, Command, request, response
from epochmq_protocol.transport.connection import RemotingConnection
from tests.unit.broker.replication.ha.broker_node import until

MASTER, SELF = "10.0.0.2:10911", "10.0.0.1:10911"
SEND, COMMIT, PULL = RequestCode.SEND_MESSAGE_V2, RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.PULL_MESSAGE
POP = RequestCode.POP_MESSAGE
HELD_CODES = codes_where(lambda rule: rule.handover is Handover.HELD)
RELAYED_CODES = HELD_CODES | codes_where(lambda rule: rule.handover is Handover.RELAYED)
NOBODY = cast(RemotingConnection, None)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timeouts are long, so that a slow machine fails no test."""
    monkeypatch.setattr(module, "HOLD_TIMEOUT_S", 60.0)


class FakeRemoteBroker:
    """The other broker, to which the gate relays."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Command]] = []
        self.answers: list[int | str | Exception] = []
        self.oneway_requests: list[Command] = []

    async def call(self, address: str, command: Command, timeout_ms: float = 3000) -> Command:
        self.asked.append((address, command))
        command.opaque = 999
        answer = self.answers.pop(0) if self.answers else 0
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, str):
            return response(command, ResponseCode.SYSTEM_BUSY, answer)
        return response(command, answer, "there", body=b"there")

    async def oneway(self, address: str, command: Command, timeout_ms: float = 3000) -> None:
        self.oneway_requests.append(command)


class GateHarness:
    """A gate with a handler that records its requests."""

    def __init__(self) -> None:
        self.elsewhere = FakeRemoteBroker()
        self.gate = RequestGate(self.elsewhere, SELF)
        self.here: list[Command] = []
        self.handlers = {
            code: self.gate.guard(self._handle, rule_of(code).handover)
            for code in (*RELAYED_CODES, PULL, POP)
        }

    def _handle(self, connection: RemotingConnection, command: Command) -> Command:
        self.here.append(command)
        return response(command, 0, "here")

    def ask(self, code: int = SEND, **fields: Any) -> asyncio.Task[Command | None]:
        """Passes in a request as the dispatcher does."""
        command = request(code, body=fields.pop("body", b"x"), **fields)
        command.opaque = 7

        async def answered() -> Command | None:
            result = self.handlers[code](NOBODY, command)
            return await result if isinstance(result, Awaitable) else result

        return asyncio.ensure_future(answered())


async def remark(asked: asyncio.Task[Command | None]) -> str | None:
    answer = await asked
    assert answer is not None
    assert answer.opaque == 7
    return answer.remark


async def rejection_code(asked: asyncio.Task[Command | None]) -> int:
    with pytest.raises(RequestError) as caught:
        await asked
    return caught.value.code


def test_an_open_gate_calls_the_handler_directly() -> None:
    harness = GateHarness()
    answer = harness.handlers[SEND](NOBODY, request(SEND))
    assert isinstance(answer, Command)
    plain: Callable[..., Any] = harness.handlers[PULL]
    harness.gate.hold()
    assert isinstance(plain(NOBODY, request(PULL)), Command)
    assert isinstance(harness.handlers[COMMIT](NOBODY, request(COMMIT)), Command)


async def test_held_requests_are_served_here_in_order_when_the_switchover_fails() -> None:
    harness = GateHarness()
    harness.gate.hold()
    asked = [harness.ask(body=bytes([number])) for number in range(5)]
    await until(lambda: harness.gate.held == 5)
    assert not harness.gate.is_open
    assert harness.here == []
    harness.gate.open()
    assert [await remark(one) for one in asked] == ["here"] * 5
    assert [command.body for command in harness.here] == [bytes([number]) for number in range(5)]
    assert harness.gate.held == 0


async def test_held_and_later_requests_are_relayed_to_the_new_master() -> None:
    harness = GateHarness()
    harness.gate.hold()
    held = harness.ask(ext={"a": "group"})
    await until(lambda: harness.gate.held == 1)
    harness.gate.relay(MASTER)
    later = [harness.ask(code) for code in sorted(RELAYED_CODES)]
    assert [await remark(one) for one in [held, *later]] == ["there"] * (1 + len(RELAYED_CODES))
    assert harness.here == []
    (address, first), *_ = harness.elsewhere.asked
    assert address == MASTER
    assert (first.code, first.ext, first.body) == (SEND, {"a": "group", RELAYED: SELF}, b"x")
    assert harness.gate.relayed == 1 + len(RELAYED_CODES)


async def test_a_pop_waits_for_a_switchover_and_is_rejected_by_the_former_master() -> None:
    harness = GateHarness()
    harness.gate.hold()
    held = harness.ask(POP)
    await until(lambda: harness.gate.held == 1)
    assert harness.here == []
    harness.gate.relay(MASTER)
    assert await rejection_code(held) == ResponseCode.SYSTEM_BUSY
    assert await rejection_code(harness.ask(POP)) == ResponseCode.SYSTEM_BUSY
    assert harness.elsewhere.asked == harness.here == []
    harness.gate.open()
    assert await remark(harness.ask(POP)) == "here"


async def test_a_pop_waits_for_a_switchover_that_fails() -> None:
    harness = GateHarness()
    harness.gate.hold()
    held = harness.ask(POP)
    await until(lambda: harness.gate.held == 1)
    assert harness.here == []
    harness.gate.open()
    assert await remark(held) == "here"


async def test_relaying_is_retried_while_the_new_master_is_not_ready() -> None:
    harness = GateHarness()
    harness.gate.relay(MASTER)
    a_replica = "[REJECTREQUEST]system busy, start flow control for a while"
    harness.elsewhere.answers = [a_replica, ResponseCode.SERVICE_NOT_AVAILABLE, ConnectError("not there"), 0]
    assert await remark(harness.ask()) == "there"
    assert len(harness.elsewhere.asked) == 4


async def test_the_end_of_a_transaction_is_relayed_again_when_a_replica_rejected_it() -> None:
    """A slave answers END_TRANSACTION by SLAVE_NOT_AVAILABLE. To a send that code says that the message is
    stored."""
    harness = GateHarness()
    harness.gate.relay(MASTER)
    harness.elsewhere.answers = [ResponseCode.SLAVE_NOT_AVAILABLE, 0]
    assert await remark(harness.ask(RequestCode.END_TRANSACTION)) == "there"
    assert len(harness.elsewhere.asked) == 2
    harness.elsewhere.answers = [ResponseCode.SLAVE_NOT_AVAILABLE, 0]
    await harness.ask(SEND)
    assert len(harness.elsewhere.asked) == 3


async def test_a_request_that_may_have_been_served_is_not_sent_twice() -> None:
    harness = GateHarness()
    harness.gate.relay(MASTER)
    harness.elsewhere.answers = [CallTimeoutError("silence")]
    assert await rejection_code(harness.ask()) == ResponseCode.SERVICE_NOT_AVAILABLE
    assert len(harness.elsewhere.asked) == 1
    harness.elsewhere.answers = [ResponseCode.TOPIC_NOT_EXIST, "[OVERLOAD]system busy"]
    for code in (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SYSTEM_BUSY):
        answer = await harness.ask()
        assert answer is not None
        assert answer.code == code


async def test_a_held_request_times_out_before_its_producer_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HOLD_TIMEOUT_S", 0.05)
    harness = GateHarness()
    harness.gate.hold()
    assert await rejection_code(harness.ask()) == ResponseCode.SERVICE_NOT_AVAILABLE
    harness.gate.relay(MASTER)
    harness.elsewhere.answers = [ResponseCode.SERVICE_NOT_AVAILABLE] * 1000
    assert await rejection_code(harness.ask()) == ResponseCode.SERVICE_NOT_AVAILABLE
    assert harness.gate.held == 0


async def test_a_request_is_relayed_once() -> None:
    harness = GateHarness()
    harness.gate.hold()
    asked = harness.ask(ext={RELAYED: "10.0.0.3:10911"})
    await until(lambda: harness.gate.held == 1)
    harness.gate.relay(MASTER)
    assert await remark(asked) == "here"
    assert harness.elsewhere.asked == []


async def test_a_broker_that_is_master_again_serves_requests_itself() -> None:
    harness = GateHarness()
    harness.gate.relay(MASTER)
    harness.elsewhere.answers = [ResponseCode.SERVICE_NOT_AVAILABLE] * 1000
    asked = harness.ask()
    await until(lambda: len(harness.elsewhere.asked) > 1)
    harness.gate.master_changed("10.0.0.3:10911")
    await until(lambda: harness.elsewhere.asked[-1][0] == "10.0.0.3:10911")
    harness.gate.open()
    assert await remark(asked) == "here"
    harness.gate.master_changed("10.0.0.3:10911")
    assert await remark(harness.ask()) == "here"


async def test_relaying_ends_after_its_period(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = GateHarness()
    harness.gate.relay(MASTER)
    assert await remark(harness.ask()) == "there"
    long_after = time.monotonic() + module.RELAY_PERIOD_S + 1
    monkeypatch.setattr(time, "monotonic", lambda: long_after)
    assert await remark(harness.ask()) == "here"
    assert harness.gate.phase is GatePhase.OPEN


async def test_the_number_and_size_of_held_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_MAX", 3)
    monkeypatch.setattr(module, "HELD_BYTES_MAX", 100)
    harness = GateHarness()
    harness.gate.hold()
    held = [harness.ask() for _ in range(3)]
    await until(lambda: harness.gate.held == 3)
    assert await rejection_code(harness.ask()) == ResponseCode.SYSTEM_BUSY
    harness.gate.open()
    await asyncio.gather(*held)
    harness.gate.hold()
    big = harness.ask(body=b"x" * 90)
    await until(lambda: harness.gate.held == 1)
    assert await rejection_code(harness.ask(body=b"x" * 20)) == ResponseCode.SYSTEM_BUSY
    harness.gate.open()
    assert await remark(big) == "here"
    monkeypatch.setattr(module, "RELAYS_MAX", 0)
    harness.gate.relay(MASTER)
    assert await rejection_code(harness.ask()) == ResponseCode.SYSTEM_BUSY


async def test_one_way_requests_are_relayed_one_way() -> None:
    harness = GateHarness()
    harness.gate.relay(MASTER)
    command = Command(SEND, flag=FLAG_ONEWAY, body=b"x")
    result = harness.handlers[SEND](NOBODY, command)
    assert isinstance(result, Awaitable)
    assert await result is None
    assert [one.body for one in harness.elsewhere.oneway_requests] == [b"x"]
    assert harness.elsewhere.oneway_requests[0].is_oneway
    assert HELD_CODES < RELAYED_CODES
