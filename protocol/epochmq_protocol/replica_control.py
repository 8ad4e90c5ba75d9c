"""Defines EpochMQ's own requests to a replica, for which RocketMQ has none: switchover, fencing, draining,
table copy, checksums.

The request codes are far above RocketMQ's. Java brokers respond REQUEST_CODE_NOT_SUPPORTED (3) to them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Annotated, Final

import msgspec
from msgspec import field

from epochmq_protocol.errors import RemoteProtocolError
from epochmq_protocol.headers_base import Header
from epochmq_protocol.integers import INT_MAX, INT_MIN, Int, Long


class ReplicaControlCode(IntEnum):
    """Request codes of replica control."""

    SWITCHOVER = 20_001
    """To the master: transfer the mastership to another replica, without losing a message or failing a
    send."""
    SET_CONTROL_STATE = 20_002
    """To any replica: fence or unfence, drain or undrain it. The response has its control state."""
    COPY_TABLES = 20_003
    """To a replica: copy the master's tables (topics, groups, offsets) now."""
    GET_MASTER_LOG_STATE = 20_004
    """To the master, from its replicas: where its log ends, and which replicas are in sync."""
    LOG_CHECKSUMS = 20_005
    """To the master, from its replicas: checksums of a range of its log, to compare with their own."""
    GET_ALL_USERS_AND_ACLS = 20_006
    """To the master, from its replicas: the users and ACLs of the access control."""
    SCRUB_CHECKSUMS = 20_009
    """To a replica, from another one: checksums of parts of its log, to compare with its own."""
    SCRUB_BYTES = 20_010
    """To a replica, from another one: the bytes of a part of its log, to repair the other's."""
    SETTLE_STORE = 20_011
    """To a broker whose store the controllers refuse: adopt the store for its broker id, or give it another
    id."""
    ADOPT_GROUP = 20_012
    """To the leading controller, which has lost its storage: rebuild a replica group from what its brokers
    say. To be repeated while the response has `remainingEpochs`."""
    WRITE_PROMISE = 20_013
    """To the master, from its replicas: a promise not to become master for a while (`write_promise`)."""


REMAINING_EPOCHS: Final = "remainingEpochs"
"""Ext field of the response to ADOPT_GROUP: how many epochs remain to be counted; 0 when the group has its
master."""


class AdoptedReplica(msgspec.Struct, frozen=True, rename="camel"):
    """One replica in the body of ADOPT_GROUP, and where it serves clients."""

    broker_id: Long
    address: str


class AdoptedGroup(msgspec.Struct, frozen=True, rename="camel"):
    """The body of ADOPT_GROUP. `master_epoch`: the greatest epoch that a broker of the group knows. The new
    master gets a greater one."""

    cluster_name: str
    broker_name: str
    master_broker_id: Long
    master_epoch: Annotated[int, msgspec.Meta(ge=INT_MIN, le=INT_MAX - 1)]
    replicas: list[AdoptedReplica]


class SettleStoreHeader(Header, kw_only=True):
    """Request and response of SETTLE_STORE. `adopt`: keep the broker id, instead of getting another one.
    `timeout_ms`: how long to wait for the controllers. In responses, `broker_id` is the id of the store."""

    adopt: bool = False
    timeout_ms: Int = 5000
    broker_id: Long | None = None


class SwitchoverRequestHeader(Header, kw_only=True):
    """Request of SWITCHOVER. `broker_id`: the next master, by the controllers' id. `address`: where that
    replica serves clients. `timeout_ms` bounds its catching up, before the master holds sends."""

    broker_id: Long
    address: str = ""
    timeout_ms: Int = 5000


class SwitchoverResponseHeader(Header, kw_only=True):
    """Response to SWITCHOVER. `held_ms`: how long sends waited until the new master accepted them; in a
    DLedger group, how long the transfer took. There `master_epoch` is the term."""

    master_broker_id: Long = 0
    master_address: str | None = None
    master_epoch: Int = 0
    held_ms: Int = 0


class ReplicaControlStateHeader(Header, kw_only=True):
    """Request and response of SET_CONTROL_STATE. A field that the request leaves out stays as it is.

    `fenced`: the replica accepts no messages. `drained`: it copies the log, but is in no SyncStateSet and
    so cannot become master. In responses, `takes_messages`: whether it accepts messages now; `undispatched`:
    bytes of its log that are not in the consume queues yet, which a new master dispatches first."""

    fenced: bool | None = None
    drained: bool | None = None
    takes_messages: bool | None = field(name="takes", default=None)
    undispatched: Long | None = None


class MasterLogStateHeader(Header, kw_only=True):
    """Response to GET_MASTER_LOG_STATE. `members`: the SyncStateSet as `1,2,3`. `proposed`, in the same
    form: a set that the controllers may or may not have accepted. `learners`: connected replicas that
    cannot join the set."""

    broker_id: Long = 0
    master_epoch: Int = 0
    max_offset: Long = 0
    members: str = ""
    proposed: str = ""
    learners: str = ""
    set_epoch: Int = 0

    @property
    def member_ids(self) -> frozenset[int]:
        """The SyncStateSet."""
        return _ids(self.members)

    def is_permanent_learner(self, broker_id: int) -> bool:
        """Whether a replica is a learner outside the SyncStateSet and outside a proposed one: it cannot
        join."""
        return broker_id in _ids(self.learners) and broker_id not in _ids(self.members) | _ids(self.proposed)


class LogChecksumsHeader(Header, kw_only=True):
    """Request and response of LOG_CHECKSUMS.

    The request names the range, the bytes of a chunk, and the newest epoch of the master's log from its
    handshake. The response says where the log begins. Its body holds the CRC-32 of each chunk, four bytes
    each, big-endian; the body is empty when the range starts before the log."""

    epoch: Int = -1
    start_offset: Long = 0
    end_offset: Long = 0
    chunk_bytes: Int = 0
    min_offset: Long = 0


class LogPartsHeader(Header, kw_only=True):
    """Request of SCRUB_CHECKSUMS and SCRUB_BYTES. The body lists the parts of the log: the first offset and
    the end of each, eight bytes each, big-endian. SCRUB_BYTES takes one part; its response has the bytes.
    The response to SCRUB_CHECKSUMS has the CRC-32 of each part, four bytes each, big-endian.

    `broker_name`: the group that is meant."""

    broker_name: str


PART_BYTES: Final = 16
CRC_BYTES: Final = 4


def encode_log_parts(parts: Sequence[tuple[int, int]]) -> bytes:
    """Encodes parts [start, end) of the log."""
    return struct.pack(f">{2 * len(parts)}q", *(offset for part in parts for offset in part))


def decode_log_parts(body: bytes) -> list[tuple[int, int]]:
    """Decodes parts [start, end) of the log. Raises RemoteProtocolError."""
    count, rest = divmod(len(body), PART_BYTES)
    if rest or not count:
        raise RemoteProtocolError(f"the body has {len(body)} bytes, expected a multiple of {PART_BYTES}")
    offsets = struct.unpack(f">{2 * count}q", body)
    return list(zip(offsets[::2], offsets[1::2], strict=True))


def decode_checksums(body: bytes) -> list[int]:
    """Decodes CRC-32 checksums of four bytes each. Raises RemoteProtocolError."""
    count, rest = divmod(len(body), CRC_BYTES)
    if rest:
        raise RemoteProtocolError(f"the body has {len(body)} bytes, expected a multiple of {CRC_BYTES}")
    return list(struct.unpack(f">{count}I", body))


def encode_checksums(crcs: Sequence[int]) -> bytes:
    """Encodes CRC-32 checksums."""
    return struct.pack(f">{len(crcs)}I", *crcs)


def format_broker_ids(ids: Iterable[int]) -> str:
    """Broker ids as `1,2,3`, ascending."""
    return ",".join(map(str, sorted(ids)))


def _ids(text: str) -> frozenset[int]:
    return frozenset(int(one) for one in text.split(",") if one.isdecimal())
