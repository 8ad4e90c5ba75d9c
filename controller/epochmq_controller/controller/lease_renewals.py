"""Serves lease renewals on a fast path: the leading controller of a thousand groups gets more than six
thousand of them a second.

A renewal is a heartbeat (904) of an EpochMQ broker with `writeLeaseEpoch`. A typed decoder reads the bytes of
its header, and a template makes the response. All other heartbeats raise `FastPathMiss`, and
`processor.heartbeat` handles them: heartbeats without a lease or of a fenced master, one-way requests, loose
JSON, missing fields, and values out of range.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal

import msgspec

from epochmq_controller.controller.controller import Controller
from epochmq_controller.replica_groups.heartbeats import TIMEOUT_DEFAULT_MS, Heartbeat
from epochmq_controller.replica_groups.state_machine_types import LEASE_OF_ANOTHER_MS, LEASE_OF_REFUSED_MS
from epochmq_protocol.codes import CURRENT_VERSION, ResponseCode
from epochmq_protocol.errors import FastPathMiss
from epochmq_protocol.headers_controller import INCARNATION_FIELD, LEASE_MS_FIELD, LOG_IN_DOUBT_FIELD
from epochmq_protocol.integers import Int, Long
from epochmq_protocol.transport import RemotingConnection
from epochmq_protocol.transport.connection import FastRequestHandler
from epochmq_protocol.write_promise import SUCCESSORS_FROM_SET_FIELD

HEADER_START: Final = b'{"code":904'
SUCCESS_REMARK: Final = "Heart beat success"
REFUSED_REMARK: Final = "The heartbeat does not count: another store has registered under this broker id"


class _Fields(msgspec.Struct, gc=False, kw_only=True, rename="camel"):
    """The fields of a renewal: those of BrokerHeartbeatRequestHeader, and our own."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Long
    epoch: Int
    max_offset: Long
    confirm_offset: Long
    heartbeat_timeout_mills: Long
    election_priority: Int | None = None
    write_lease_epoch: Int
    confirmed_by_all: Long = -1
    may_lack: str | None = msgspec.field(name=LOG_IN_DOUBT_FIELD, default=None)
    fenced_epoch: str | None = None
    lineage: str = msgspec.field(name=INCARNATION_FIELD, default="")


class _Request(msgspec.Struct, gc=False):
    """The header of a renewal. Responses and one-way requests have another flag."""

    fields: _Fields = msgspec.field(name="extFields")
    opaque: Int
    flag: Literal[0] = 0


_LEASE_MS: Final = LEASE_MS_FIELD.encode()
_FROM_SET: Final = SUCCESSORS_FROM_SET_FIELD.encode()
_TAIL_FORMAT: Final = b',"remark":"%b","serializeTypeCurrentRPC":"JSON","version":%d}'
_TAIL: Final = _TAIL_FORMAT % (SUCCESS_REMARK.encode(), CURRENT_VERSION)
_REFUSED_TAIL: Final = _TAIL_FORMAT % (REFUSED_REMARK.encode(), CURRENT_VERSION)
_OPAQUE_CHARS_MAX: Final = 11
"""Of an opaque, a 32-bit number, in a header."""
_decode = msgspec.json.Decoder(_Request, strict=False).decode


class LeaseRenewals:
    """The fast handler of request 904 BROKER_HEARTBEAT."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def handlers(self) -> dict[bytes, FastRequestHandler]:
        """The handler by the first bytes of the header (see `RemotingServer`)."""
        return {HEADER_START: self.renew}

    def renew(self, connection: RemotingConnection, header: bytes, body: bytes) -> None:
        """Takes a renewal. The response follows once a quorum has confirmed that this controller leads.
        FastPathMiss for other heartbeats. RequestError SYSTEM_BUSY if too many requests are pending."""
        try:
            request = _decode(header)
        except (ValueError, RecursionError):
            raise FastPathMiss("not a plain lease renewal") from None
        fields, opaque = request.fields, request.opaque
        if fields.fenced_epoch is not None:
            raise FastPathMiss("a heartbeat of a fenced master")
        connection.defer(opaque)
        heartbeat = Heartbeat(  # the arguments in the order of the fields: keywords cost time
            0,
            fields.heartbeat_timeout_mills or TIMEOUT_DEFAULT_MS,
            connection,
            fields.broker_addr,
            fields.epoch,
            fields.max_offset,
            fields.confirm_offset,
            fields.election_priority,
            fields.may_lack == "true",
            fields.confirmed_by_all,
            False,
            fields.lineage,
        )
        self._controller.renew_lease(
            (fields.cluster_name, fields.broker_name, fields.broker_id),
            heartbeat,
            fields.write_lease_epoch,
            lambda lease_ms: connection.respond_encoded(
                opaque,
                renewal_response(
                    opaque, lease_ms, from_set=not self._controller.config.enable_elect_unclean_master
                ),
            ),
        )


def renewal_response(opaque: int, lease_ms: int, *, from_set: bool) -> bytes:
    """The frame of a response, byte for byte as `processor` makes it. `lease_ms` 0: no lease is granted;
    `LEASE_OF_REFUSED_MS`: nor does the heartbeat count; `LEASE_OF_ANOTHER_MS`: the sender is not the master.
    `from_set`: successors come from the SyncStateSet."""
    number = b"%d" % opaque
    tail = _REFUSED_TAIL if lease_ms == LEASE_OF_REFUSED_MS else _TAIL
    return _heads(lease_ms, from_set)[len(number)] + number + tail


@lru_cache(maxsize=16)
def _heads(lease_ms: int, from_set: bool) -> tuple[bytes, ...]:
    """The beginnings of responses up to the opaque, by the number of its characters."""
    refused = lease_ms == LEASE_OF_REFUSED_MS
    code, tail = (
        (ResponseCode.CONTROLLER_BROKER_ID_INVALID, _REFUSED_TAIL)
        if refused
        else (ResponseCode.SUCCESS, _TAIL)
    )
    granted = b""
    if lease_ms == LEASE_OF_ANOTHER_MS:
        granted = b'"extFields":{"%b":"false"},' % _FROM_SET
    elif lease_ms > 0:
        stated = b',"%b":"true"' % _FROM_SET if from_set else b""
        granted = b'"extFields":{"%b":"%d"%b},' % (_LEASE_MS, lease_ms, stated)
    start = b'{"code":%d,%b"flag":1,"language":"PYTHON","opaque":' % (code, granted)
    heads: list[bytes] = []
    for chars in range(_OPAQUE_CHARS_MAX + 1):
        size = len(start) + chars + len(tail)
        heads.append((4 + size).to_bytes(4, "big") + size.to_bytes(4, "big") + start)
    return tuple(heads)
