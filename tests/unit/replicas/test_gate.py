"""What becomes of requests while the mastership changes hands: through, held, relayed; each answered once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from epochmq_broker.replicas import gate as module
from epochmq_broker.replicas.gate import HELD_CODES, RELAYED, RELAYED_CODES, Gate, Phase
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import CallTimeoutError, ConnectError, RequestError
from epochmq_protocol.frame import FLAG_ONEWAY, Command, request, response
from epochmq_protocol.transport.connection import RemotingConnection
from tests.unit.ha.kit import until

MASTER, SELF = "10.0.0.2:10911", "10.0.0.1:10911"
SEND, COMMIT, PULL = RequestCode.SEND_MESSAGE_V2, RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.PULL_MESSAGE
NOBODY = cast(RemotingConnection, None)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stands still gives nothing up, where a test does not say so."""
    monkeypatch.setattr(module, "PATIENCE_S", 60.0)


class Elsewhere:
    """The other broker, as the gate's client reaches it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Command]] = []
        self.answers: list[int | str | Exception] = []
        self.told: list[Command] = []

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
        self.told.append(command)


class Stage:
    """A gate with a handler behind it that notes what it gets."""

    def __init__(self) -> None:
        self.elsewhere = Elsewhere()
        self.gate = Gate(self.elsewhere, SELF)
        self.here: list[Command] = []
        handlers = dict.fromkeys((*RELAYED_CODES, PULL), self._handle)
        self.handlers = self.gate.guard(handlers)

    def _handle(self, connection: RemotingConnection, command: Command) -> Command:
        self.here.append(command)
        return response(command, 0, "here")

    def ask(self, code: int = SEND, **fields: Any) -> asyncio.Task[Command | None]:
        """A request, as the dispatcher hands it in."""
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


async def refused(asked: asyncio.Task[Command | None]) -> int:
    with pytest.raises(RequestError) as caught:
        await asked
    return caught.value.code


def test_an_open_gate_is_no_detour() -> None:
    stage = Stage()
    answer = stage.handlers[SEND](NOBODY, request(SEND))
    assert isinstance(answer, Command)
    plain: Callable[..., Any] = stage.handlers[PULL]
    stage.gate.hold()
    assert isinstance(plain(NOBODY, request(PULL)), Command)
    assert isinstance(stage.handlers[COMMIT](NOBODY, request(COMMIT)), Command)


async def test_what_was_held_is_handled_here_in_order_when_nothing_comes_of_the_switch() -> None:
    stage = Stage()
    stage.gate.hold()
    asked = [stage.ask(body=bytes([number])) for number in range(5)]
    await until(lambda: stage.gate.held == 5)
    assert not stage.gate.lets_through
    assert stage.here == []
    stage.gate.open()
    assert [await remark(one) for one in asked] == ["here"] * 5
    assert [command.body for command in stage.here] == [bytes([number]) for number in range(5)]
    assert stage.gate.held == 0


async def test_what_was_held_goes_to_the_new_master_and_so_does_what_comes_later() -> None:
    stage = Stage()
    stage.gate.hold()
    held = stage.ask(ext={"a": "group"})
    await until(lambda: stage.gate.held == 1)
    stage.gate.relay(MASTER)
    later = [stage.ask(code) for code in sorted(RELAYED_CODES)]
    assert [await remark(one) for one in [held, *later]] == ["there"] * (1 + len(RELAYED_CODES))
    assert stage.here == []
    (address, first), *_ = stage.elsewhere.asked
    assert address == MASTER
    assert (first.code, first.ext, first.body) == (SEND, {"a": "group", RELAYED: SELF}, b"x")
    assert stage.gate.relayed == 1 + len(RELAYED_CODES)


async def test_a_master_that_is_not_one_yet_is_asked_again() -> None:
    stage = Stage()
    stage.gate.relay(MASTER)
    a_replica = "[REJECTREQUEST]system busy, start flow control for a while"
    stage.elsewhere.answers = [a_replica, ResponseCode.SERVICE_NOT_AVAILABLE, ConnectError("not there"), 0]
    assert await remark(stage.ask()) == "there"
    assert len(stage.elsewhere.asked) == 4


async def test_what_may_have_been_done_is_not_asked_twice_and_refusals_are_passed_on() -> None:
    stage = Stage()
    stage.gate.relay(MASTER)
    stage.elsewhere.answers = [CallTimeoutError("silence")]
    assert await refused(stage.ask()) == ResponseCode.SERVICE_NOT_AVAILABLE
    assert len(stage.elsewhere.asked) == 1
    stage.elsewhere.answers = [ResponseCode.TOPIC_NOT_EXIST, "[OVERLOAD]system busy"]
    for code in (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SYSTEM_BUSY):
        answer = await stage.ask()
        assert answer is not None
        assert answer.code == code


async def test_patience_ends_before_a_producers_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.05)
    stage = Stage()
    stage.gate.hold()
    assert await refused(stage.ask()) == ResponseCode.SERVICE_NOT_AVAILABLE
    stage.gate.relay(MASTER)
    stage.elsewhere.answers = [ResponseCode.SERVICE_NOT_AVAILABLE] * 1000
    assert await refused(stage.ask()) == ResponseCode.SERVICE_NOT_AVAILABLE
    assert stage.gate.held == 0


async def test_a_request_is_relayed_once() -> None:
    stage = Stage()
    stage.gate.hold()
    asked = stage.ask(ext={RELAYED: "10.0.0.3:10911"})
    await until(lambda: stage.gate.held == 1)
    stage.gate.relay(MASTER)
    assert await remark(asked) == "here"
    assert stage.elsewhere.asked == []


async def test_a_broker_that_becomes_the_master_again_relays_no_more() -> None:
    stage = Stage()
    stage.gate.relay(MASTER)
    stage.elsewhere.answers = [ResponseCode.SERVICE_NOT_AVAILABLE] * 1000
    asked = stage.ask()
    await until(lambda: len(stage.elsewhere.asked) > 1)
    stage.gate.moved("10.0.0.3:10911")
    await until(lambda: stage.elsewhere.asked[-1][0] == "10.0.0.3:10911")
    stage.gate.open()
    assert await remark(asked) == "here"
    stage.gate.moved("10.0.0.3:10911")
    assert await remark(stage.ask()) == "here"


async def test_clients_that_never_learn_are_refused_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    stage.gate.relay(MASTER)
    assert await remark(stage.ask()) == "there"
    long_after = time.monotonic() + module.RELAY_S + 1
    monkeypatch.setattr(time, "monotonic", lambda: long_after)
    assert await remark(stage.ask()) == "here"
    assert stage.gate.phase is Phase.OPEN


async def test_no_more_is_held_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_MAX", 3)
    monkeypatch.setattr(module, "HELD_BYTES_MAX", 100)
    stage = Stage()
    stage.gate.hold()
    held = [stage.ask() for _ in range(3)]
    await until(lambda: stage.gate.held == 3)
    assert await refused(stage.ask()) == ResponseCode.SYSTEM_BUSY
    stage.gate.open()
    await asyncio.gather(*held)
    stage.gate.hold()
    big = stage.ask(body=b"x" * 90)
    await until(lambda: stage.gate.held == 1)
    assert await refused(stage.ask(body=b"x" * 20)) == ResponseCode.SYSTEM_BUSY
    stage.gate.open()
    assert await remark(big) == "here"
    monkeypatch.setattr(module, "RELAYS_MAX", 0)
    stage.gate.relay(MASTER)
    assert await refused(stage.ask()) == ResponseCode.SYSTEM_BUSY


async def test_one_way_requests_are_passed_on_one_way() -> None:
    stage = Stage()
    stage.gate.relay(MASTER)
    command = Command(SEND, flag=FLAG_ONEWAY, body=b"x")
    result = stage.handlers[SEND](NOBODY, command)
    assert isinstance(result, Awaitable)
    assert await result is None
    assert [one.body for one in stage.elsewhere.told] == [b"x"]
    assert stage.elsewhere.told[0].is_oneway
    assert HELD_CODES < RELAYED_CODES
