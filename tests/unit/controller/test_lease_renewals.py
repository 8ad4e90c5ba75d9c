"""The fast path reads lease renewals and responds to them exactly as the processor does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochmq_controller.controller.config import ControllerConfig
from epochmq_controller.controller.controller import Controller
from epochmq_controller.controller.lease_renewals import SUCCESS_REMARK, LeaseRenewals, renewal_response
from epochmq_controller.controller.processor import ControllerProcessor
from epochmq_controller.replica_groups.heartbeats import BrokerIdentityInfo, Heartbeat
from epochmq_controller.replica_groups.state_machine_types import LEASE_OF_ANOTHER_MS
from epochmq_protocol.codes import RequestCode
from epochmq_protocol.errors import FastPathMiss, RequestError
from epochmq_protocol.frame import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    Command,
    decode,
    encode,
    request,
    response,
    split,
)
from epochmq_protocol.headers_namesrv import BrokerHeartbeatRequestHeader
from epochmq_protocol.transport import RemotingConnection

Taken = tuple[BrokerIdentityInfo, Heartbeat, int]


class FakeController:
    """Grants every lease for `lease_ms`, and records the heartbeats."""

    def __init__(self, lease_ms: int, unclean: bool = False) -> None:
        self.lease_ms = lease_ms
        self.config = ControllerConfig(enable_elect_unclean_master=unclean)
        self.taken: list[Taken] = []

    def renew_lease(
        self, replica: BrokerIdentityInfo, beat: Heartbeat, lease_epoch: int, done: Callable[[int], object]
    ) -> None:
        self.taken.append((replica, beat, lease_epoch))
        done(self.lease_ms)

    async def request_lease(
        self, replica: BrokerIdentityInfo, beat: Heartbeat, fenced_epoch: int | None, lease_epoch: int
    ) -> int:
        assert fenced_epoch is None
        self.taken.append((replica, beat, lease_epoch))
        return self.lease_ms


class FakeConnection:
    """Records the frames of deferred responses."""

    def __init__(self) -> None:
        self.deferred: list[int] = []
        self.sent: list[bytes] = []

    def defer(self, opaque: int) -> None:
        self.deferred.append(opaque)

    def respond_encoded(self, opaque: int, data: bytes) -> bool:
        assert opaque in self.deferred
        self.sent.append(data)
        return True


def renewal(flag: int = 0, **ext: str) -> Command:
    """The heartbeat of a master that renews its lease under epoch 7."""
    header = BrokerHeartbeatRequestHeader(
        cluster_name="c",
        broker_addr="127.0.0.1:10911",
        broker_name="orders",
        broker_id=2,
        epoch=6,
        max_offset=2**40,
        confirm_offset=12,
        heartbeat_timeout_mills=1500,
        election_priority=4,
    )
    command = request(RequestCode.BROKER_HEARTBEAT, header, ext={"writeLeaseEpoch": "7", **ext})
    command.opaque, command.flag = 4711, flag
    return command


def fast(frame: bytes, lease_ms: int = 300, unclean: bool = False) -> tuple[Taken, bytes]:
    """What the fast path read from a frame, and the frame of its response."""
    controller, connection = FakeController(lease_ms, unclean), FakeConnection()
    _, header, body = split(frame[4:])
    renewals = LeaseRenewals(cast("Controller", controller))
    ((start, handler),) = renewals.handlers().items()
    assert header.startswith(start)
    assert handler(cast("RemotingConnection", connection), header, body) is None
    return controller.taken[0], connection.sent[0]


def ordinary(frame: bytes, lease_ms: int = 300, unclean: bool = False) -> tuple[Taken, bytes]:
    """What the processor read from a frame, and the frame of its response."""

    async def run() -> tuple[Taken, bytes]:
        controller = FakeController(lease_ms, unclean)
        processor = ControllerProcessor(cast("Controller", controller), {})
        reply = await cast("Any", processor.heartbeat(cast("RemotingConnection", None), decode(frame[4:])))
        reply.opaque = decode(frame[4:]).opaque
        return controller.taken[0], encode(reply)

    return asyncio.run(run())


@pytest.mark.parametrize("unclean", [False, True])
@pytest.mark.parametrize("lease_ms", [300, 0, LEASE_OF_ANOTHER_MS])
@pytest.mark.parametrize(
    "ext",
    [{}, {"confirmedByAll": "99"}, {"mayLackAcknowledged": "true"}, {"mayLackAcknowledged": "no", "x": "y"}],
)
def test_fast_path_and_processor_take_and_respond_the_same(
    ext: dict[str, str], lease_ms: int, unclean: bool
) -> None:
    frame = encode(renewal(**ext))
    (replica, beat, epoch), fast_response = fast(frame, lease_ms, unclean)
    (other_replica, other_beat, other_epoch), other_response = ordinary(frame, lease_ms, unclean)
    other_beat.channel = beat.channel
    assert (replica, beat, epoch) == (other_replica, other_beat, other_epoch)
    assert fast_response == other_response


@pytest.mark.parametrize("field", ["confirmedByAll", "writeLeaseEpoch", "fencedEpoch"])
@pytest.mark.parametrize("text", [str(2**63), "-" + "9" * 30, "9" * 4000, "\uff11", "1.0", ""])
def test_a_heartbeat_with_a_number_beyond_javas_range_is_rejected(field: str, text: str) -> None:
    """The log of the controllers could not carry it."""
    with pytest.raises(RequestError, match=f"{field}=.*expected a whole number") as caught:
        ordinary(encode(renewal(**{field: text})))
    assert len(caught.value.remark or "") < 200


@given(st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**31 - 1), st.booleans())
def test_responses_are_those_of_the_general_encoder(opaque: int, lease_ms: int, from_set: bool) -> None:
    ext = {"writeLeaseMs": str(lease_ms)} if lease_ms else {}
    if lease_ms and from_set:
        ext["successorsFromSet"] = "true"
    general = response(Command(RequestCode.BROKER_HEARTBEAT, opaque), 0, SUCCESS_REMARK, ext=ext or None)
    assert renewal_response(opaque, lease_ms, from_set=from_set) == encode(general)


@pytest.mark.parametrize(
    ("lease_ms", "unclean", "stated"),
    [(300, False, "true"), (300, True, None), (0, False, None), (LEASE_OF_ANOTHER_MS, False, "false")],
)
def test_a_lease_says_whether_successors_come_from_the_set(
    lease_ms: int, unclean: bool, stated: str | None
) -> None:
    _, frame = fast(encode(renewal()), lease_ms, unclean)
    assert (decode(frame[4:]).ext or {}).get("successorsFromSet") == stated


@pytest.mark.parametrize(
    "command",
    [
        renewal(FLAG_ONEWAY),
        renewal(FLAG_RESPONSE),
        renewal(fencedEpoch="7"),
        renewal(writeLeaseEpoch="seven"),
        renewal(brokerId="99999999999999999999"),
        renewal(epoch="2147483648"),
    ],
)
def test_the_processor_handles_all_but_plain_renewals(command: Command) -> None:
    with pytest.raises(FastPathMiss):
        fast(encode(command))


@pytest.mark.parametrize(
    "missing",
    ["clusterName", "brokerAddr", "brokerName", "brokerId", "epoch", "maxOffset", "writeLeaseEpoch"],
)
def test_the_processor_handles_a_heartbeat_without_a_field(missing: str) -> None:
    command = renewal()
    assert command.ext is not None
    del command.ext[missing]
    with pytest.raises(FastPathMiss):
        fast(encode(command))


@pytest.mark.parametrize(
    "header", [b'{"code":904,', b'{"code":904,"extFields":null}', b'{"code":904,"extFields":[]}']
)
def test_the_processor_handles_an_unreadable_header(header: bytes) -> None:
    renewals = LeaseRenewals(cast("Controller", FakeController(300)))
    with pytest.raises(FastPathMiss):
        renewals.renew(cast("RemotingConnection", FakeConnection()), header, b"")
