"""A fast handler gives the responses of the ordinary path, in every phase of every gate, on both ports.

Each request goes in twice: as a Java client writes it, and with the keys of its JSON header in another order,
which no fast handler takes.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import orjson
import pytest

from epochmq_broker.config.clock import boot_ms
from epochmq_broker.membership.modes.controlled import ControlledMode
from epochmq_broker.requests.fast_handler import GateName, Port
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import ConnectError
from epochmq_protocol.frame import Command, encode_json_header, response
from epochmq_protocol.transport.connection import RemotingConnection
from epochmq_protocol.transport.request_dispatcher import RequestDispatcher
from epochmq_store.files.page_residency import PageResidency
from epochmq_store.statuses import RunningFlags
from tests.unit.broker.auth.kit import ENABLED
from tests.unit.broker.kit import BORN_MS, UNIQ_KEY, Bench, Peer, pull_command, running, send_command
from tests.unit.broker.services.pop.support import ack_command, extra_info, pop, send
from tests.unit.broker.services.transactions.support import (
    end_command,
    half_command,
    half_properties,
    send_half,
)

CONTROLLED = {"enableControllerMode": "true", "controllerAddr": "127.0.0.1:1"}
GROUP = {"enableSlaveActingMaster": "true", "totalReplicas": "2"}
SLAVE = {"brokerRole": "SLAVE", "brokerId": "1"}
MASTER = "127.53.7.9:10911"
VOLATILE = frozenset({"msgId", "queueOffset", "transactionId", "recallHandle"})
"""Ext fields of responses that differ between two sends of the same message."""
MESSAGES = 3
LARGE = "l" * 40_000
"""Properties that are too long."""


class Tried(NamedTuple):
    """A request twice: for the fast handler, and for the ordinary path."""

    code: int
    fast: Command
    ordinary: Command


Samples = Callable[[Bench], Awaitable[list[Tried]]]


async def sends(bench: Bench) -> list[Tried]:
    """Plain messages, one of a transaction, one with a delivery time, and messages that are rejected."""
    plain = {"UNIQ_KEY": UNIQ_KEY, "WAIT": "true"}
    commands = [
        send_command("T", broker_name="broker-a"),
        send_command("T", properties=plain | {"TAGS": "a", "KEYS": "k", "WAIT": "false"}),
        send_command("T", properties=plain | {"TIMER_DELAY_SEC": "1000"}),
        send_command("T", properties=plain | {"own": LARGE}),
        send_command("unknown", default_topic="none"),
        half_command(properties=half_properties(), born_timestamp=BORN_MS),
    ]
    return [Tried(one.code, one, one) for one in commands]


async def pulls(bench: Bench, code: int) -> list[Tried]:
    """Pulls that find messages, and pulls that are rejected."""
    commands = [
        pull_command("T", code=code, sys_flag=4),
        pull_command("T", 1, code=code, sys_flag=5, commit_offset=1, bname="broker-a"),
        pull_command("T", MESSAGES + 9, code=code, sys_flag=4),
        pull_command("T", queue_id=99, code=code),
        pull_command("unknown", code=code),
    ]
    return [Tried(code, one, one) for one in commands]


async def ends(bench: Bench) -> list[Tried]:
    """Commits, and one without a half message."""
    halves = [send_half(bench, topic="T") for _ in range(2)]
    missing = end_command(msgspec.structs.replace(halves[0], physical_offset=1 << 40))
    commits = [end_command(half) for half in halves]
    return [Tried(37, *commits), Tried(37, missing, missing)]


async def acks(bench: Bench) -> list[Tried]:
    """Acknowledgements of a popped message, and one with an offset that does not exist."""
    messages, header = await pop(bench, invisible_time=3_600_000)
    ack = ack_command(extra_info(header, messages[0], 0), messages[0])
    beyond = msgspec.structs.replace(messages[0], queue_offset=999)
    wrong = ack_command(extra_info(header, beyond, 0), beyond)
    return [Tried(ack.code, one, one) for one in (ack, wrong)]


SAMPLES: dict[int, Samples] = {
    RequestCode.SEND_MESSAGE_V2: sends,
    RequestCode.PULL_MESSAGE: lambda bench: pulls(bench, RequestCode.PULL_MESSAGE),
    RequestCode.LITE_PULL_MESSAGE: lambda bench: pulls(bench, RequestCode.LITE_PULL_MESSAGE),
    RequestCode.END_TRANSACTION: ends,
    RequestCode.ACK_MESSAGE: acks,
}
"""Requests of each code that a fast handler takes. The first of each is served by the fast handler."""


async def samples(bench: Bench) -> list[Tried]:
    """The requests of every fast handler of the broker."""
    send(bench, MESSAGES)
    codes = [code for fast in bench.broker.pipeline.fast for code in fast.codes]
    return [tried for code in codes for tried in await SAMPLES[code](bench)]


# The phases of the gates


async def unchanged(bench: Bench) -> None:
    """All gates are open."""


async def become_slave(bench: Bench) -> None:
    """Another broker is the master, and this one is its replica (`RoleTransitions`)."""
    broker = bench.broker
    broker.mode.replicas.lease.end()
    broker.live.set_role(1, "SLAVE")
    broker.master_services.stop()
    await broker.ha.become_replica(None, 2, broker_id=1)


async def lose_lease(bench: Bench) -> None:
    """The lease is over, and the gate is open still."""
    bench.broker.mode.replicas.lease.end()


async def fence(bench: Bench) -> None:
    """The broker may write no more under its epoch."""
    bench.broker.mode.replicas.lease.fence()


async def fill_disk(bench: Bench) -> None:
    """The disk is full."""
    bench.broker.store.state.set_flag(RunningFlags.DISK_FULL, True)


async def hold(bench: Bench) -> None:
    """A switchover is under way."""
    bench.broker.mode.replicas.gate.hold()


async def relay(bench: Bench) -> None:
    """The new master is known."""
    bench.broker.mode.replicas.gate.relay(MASTER)


async def relay_as_slave(bench: Bench) -> None:
    """This broker is the new master's replica."""
    await relay(bench)
    await become_slave(bench)


async def open_gate(bench: Bench) -> None:
    """The switchover failed."""
    bench.broker.mode.replicas.gate.open()


async def reject_late_requests(bench: Bench) -> None:
    """The requests have waited too long."""
    for server in (bench.broker.ports.main, bench.broker.ports.vip):
        server.dispatcher.check_requests(lambda code: f"request {code} is late")


async def end_isolation(bench: Bench) -> None:
    """A returned master goes online."""
    bench.broker.mode.isolation.open()


async def close_isolation(bench: Bench) -> None:
    """The broker is an isolated master, as it was before it made the requests."""


def for_another(command: Command) -> Command:
    """The request with the name of another broker."""
    field = "n" if command.code == RequestCode.SEND_MESSAGE_V2 else "bname"
    return msgspec.structs.replace(command, ext={**(command.ext or {}), field: "broker-b"})


class Phase(NamedTuple):
    """One phase of one gate. `enter` brings it about, and `leave` ends it while requests wait."""

    gate: GateName | None
    enter: Callable[[Bench], Awaitable[None]]
    send: int
    """The code of the response to a plain send."""
    leave: Callable[[Bench], Awaitable[None]] = unchanged
    change: Callable[[Command], Command] = lambda command: command
    settings: dict[str, str] = CONTROLLED
    is_fast: bool = False
    """Whether fast handlers serve."""
    is_cold: bool = False


OK, ERROR, BUSY = ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY
UNAVAILABLE = ResponseCode.SERVICE_NOT_AVAILABLE
PHASES: dict[str, Phase] = {
    "alone": Phase(None, unchanged, OK, settings={}, is_fast=True),
    "the master": Phase(None, unchanged, OK, is_fast=True),
    "a slave": Phase(None, become_slave, BUSY),
    "a slave by its settings": Phase(None, unchanged, BUSY, settings=SLAVE),
    "without a lease": Phase(None, lose_lease, UNAVAILABLE),
    "fenced": Phase(None, fence, UNAVAILABLE),
    "with a full disk": Phase(None, fill_disk, UNAVAILABLE),
    "asked for another broker": Phase(GateName.BROKER_NAME, unchanged, ERROR, change=for_another),
    "asked too late": Phase(GateName.FAST_FAILURE, reject_late_requests, BUSY),
    "checking access": Phase(GateName.ACCESS, unchanged, ResponseCode.NO_PERMISSION, settings=ENABLED),
    "checking access to records": Phase(
        GateName.RECORD_ACCESS, unchanged, ResponseCode.NO_PERMISSION, settings=ENABLED
    ),
    "isolated": Phase(GateName.ISOLATION, close_isolation, UNAVAILABLE, settings=GROUP),
    "online again": Phase(GateName.ISOLATION, end_isolation, OK, settings=GROUP, is_fast=True),
    "holding, then open": Phase(GateName.HOLD, hold, OK, open_gate),
    "holding, then relaying": Phase(GateName.HOLD, hold, OK, relay),
    "holding, then a slave": Phase(GateName.HOLD, hold, OK, relay_as_slave),
    "relaying": Phase(GateName.HOLD, relay, OK),
    "relaying as a slave": Phase(GateName.HOLD, relay_as_slave, OK),
    "open again": Phase(GateName.HOLD, open_gate, OK, is_fast=True),
    "cold": Phase(GateName.COLD_READS, unchanged, OK, is_fast=True, is_cold=True),
}


@contextlib.asynccontextmanager
async def serving(
    directory: Path, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Bench]:
    """Runs a broker that is a master with a lease, if it is under controllers, and knows another one."""

    async def call(address: str, command: Command, timeout_ms: float = 3000) -> Command:
        if address != MASTER:
            raise ConnectError("refused")
        return response(command, OK, "there", ext={"by": "the master", "code": str(command.code)})

    async with running(directory, settings) as bench:
        broker = bench.broker
        monkeypatch.setattr(broker.client, "call", call)
        if isinstance(broker.mode, ControlledMode):
            await broker.ha.become_master(1, {1}, 1, broker_id=1)
            broker.live.set_role(0, "SYNC_MASTER")
            broker.mode.replicas.lease.begin(1)
            broker.mode.replicas.lease.record_grant(1, boot_ms(), 3_600_000)
            broker.master_services.start()
        yield bench


@pytest.fixture
def evict(monkeypatch: pytest.MonkeyPatch) -> Callable[[Bench], None]:
    """A function after which no page of the store is in memory, until it is read."""
    cold = False
    seen: set[tuple[int, int]] = set()

    def is_resident(self: PageResidency, mapping: Any, start: int, stop: int) -> bool:
        known = (id(mapping), start) in seen
        seen.add((id(mapping), start))
        return known or not cold

    def evict(bench: Bench) -> None:
        nonlocal cold
        cold = True
        seen.clear()
        residency = bench.broker.store.reader.residency
        assert residency is not None
        residency.clear()

    monkeypatch.setattr(PageResidency, "_is_resident", is_resident)
    return evict


class Handled:
    """Counts the requests that the fast handlers of a dispatcher serve."""

    def __init__(self, dispatcher: RequestDispatcher) -> None:
        self.codes: set[int] = set()
        for start, handler in dispatcher.fast.items():
            dispatcher.fast[start] = self._counted(handler)

    def _counted(self, handler: Callable[..., bytes | None]) -> Callable[..., bytes | None]:
        def serve(connection: RemotingConnection, header: bytes, body: bytes) -> bytes | None:
            found = handler(connection, header, body)
            self.codes.add(orjson.loads(header)["code"])
            return found

        return serve


def send_reordered(peer: Peer, command: Command) -> int:
    """Sends a command whose JSON header begins with another key than `code`. Returns its opaque."""
    opaque = peer.next_opaque()
    header = orjson.loads(encode_json_header(msgspec.structs.replace(command, opaque=opaque)))
    data = orjson.dumps(dict(reversed(header.items())))
    size = (4 + len(data) + len(command.body)).to_bytes(4, "big")
    peer.connection.data_received(size + len(data).to_bytes(4, "big") + data + command.body)
    return opaque


def comparable(answer: Command) -> tuple[object, ...]:
    """What is the same in the responses to two equal requests."""
    ext = {name: value for name, value in (answer.ext or {}).items() if name not in VOLATILE}
    return answer.code, answer.remark, answer.flag, answer.version, answer.language, ext, answer.body


@pytest.mark.parametrize("port", Port)
@pytest.mark.parametrize("name", PHASES)
async def test_a_fast_handler_responds_as_the_ordinary_path_does(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    evict: Callable[[Bench], None],
    name: str,
    port: Port,
) -> None:
    phase = PHASES[name]
    async with serving(tmp_path / "made", {}, monkeypatch) as bench:
        made = await samples(bench)
    async with serving(tmp_path / "phase", phase.settings, monkeypatch) as bench:
        if phase.settings is CONTROLLED or not phase.settings:
            made = await samples(bench)
        ports = bench.broker.ports
        dispatcher = (ports.main if port is Port.MAIN else ports.vip).dispatcher
        await phase.enter(bench)
        handled, peer = Handled(dispatcher), Peer(dispatcher)
        asked = []
        for tried in made:
            if phase.is_cold:
                evict(bench)
            first = peer.send(phase.change(tried.fast))
            if phase.is_cold:
                evict(bench)
            asked.append((tried.fast, first, send_reordered(peer, phase.change(tried.ordinary))))
        peer.collect()
        at_once = set(peer.answers)
        for command, first, second in asked:
            assert phase.is_cold or (first in at_once) == (second in at_once), command
        await phase.leave(bench)
        codes = []
        for command, first, second in asked:
            answers = [await peer.answer(opaque) for opaque in (first, second)]
            assert comparable(answers[0]) == comparable(answers[1]), command
            codes.append(answers[0].code)
        assert codes[[command.code for command, *_ in asked].index(RequestCode.SEND_MESSAGE_V2)] == phase.send
        served = {code for fast in bench.broker.pipeline.fast if port in fast.ports for code in fast.codes}
        assert handled.codes <= served
        if phase.is_fast and phase.settings is not GROUP and not phase.is_cold:
            assert handled.codes == served, "the samples do not reach every fast handler"


async def test_every_gate_that_a_fast_handler_meets_has_a_phase(tmp_path: Path) -> None:
    met: set[GateName] = set()
    for number, settings in enumerate((CONTROLLED, GROUP, ENABLED)):
        async with running(tmp_path / str(number), settings) as bench:
            pipeline = bench.broker.pipeline
            met |= {
                gate.name
                for gate in pipeline.gates
                for fast in pipeline.fast
                if any(gate.concerns(code) for code in fast.codes)
            }
    assert met == {phase.gate for phase in PHASES.values()} - {None}


async def test_no_gate_that_a_fast_handler_does_not_satisfy_may_stop_its_requests(tmp_path: Path) -> None:
    async with running(tmp_path, GROUP) as bench:
        pipeline = bench.broker.pipeline
        assert [pipeline.fast_handlers(port) for port in Port] == [{}, {}]
        bench.broker.mode.isolation.open()
        starts = {start for fast in pipeline.fast for start in fast.starts}
        assert set(pipeline.fast_handlers(Port.MAIN)) == starts
        assert set(pipeline.fast_handlers(Port.VIP)) == {
            start for fast in pipeline.fast if Port.VIP in fast.ports for start in fast.starts
        }
