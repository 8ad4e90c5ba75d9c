"""What people ask of a replica that RocketMQ knows no request for. The codes are far above RocketMQ's; its
brokers answer them REQUEST_CODE_NOT_SUPPORTED (3)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from epochmq_protocol.headers_base import Header, Int, Long


class SteeringCode(IntEnum):
    """What a request asks for."""

    HAND_OVER = 20_001
    """Of the master: give the mastership to another replica, without losing a message or failing a send."""
    STEER = 20_002
    """Of any replica: take no messages; take no part in elections. Says how it is."""
    COPY_TABLES = 20_003
    """Of a replica: copy the master's tables now."""
    SHOW = 20_004
    """Of the master: how far its log reaches, and who is in sync. Its replicas ask."""
    LOG_CHECKSUMS = 20_005
    """Of the master: checksums of a range of its log. Its replicas compare theirs."""


class HandOverRequestHeader(Header, kw_only=True):
    """Request of HAND_OVER. `broker_id` is the one of the controllers; `address` is where that replica serves
    clients; `timeout_ms` bounds how long it may take to catch up before anything is held."""

    broker_id: Long
    address: str = ""
    timeout_ms: Int = 5000


class HandOverResponseHeader(Header, kw_only=True):
    """Answer of HAND_OVER. `held_ms`: how long sends had to wait, until the new master took them."""

    master_broker_id: Long = 0
    master_address: str | None = None
    master_epoch: Int = 0
    held_ms: Int = 0


class SteerHeader(Header, kw_only=True):
    """Request and answer of STEER. A field that is left out of the request stays as it is. `fenced`: no
    message is taken. `drained`: it copies the log, is in no SyncStateSet and so becomes no master. In
    answers, `takes`: whether it takes messages now; `undispatched`: bytes of a replica's log that are in no
    queue yet, which would have to be when it became the master."""

    fenced: bool | None = None
    drained: bool | None = None
    takes: bool | None = None
    undispatched: Long | None = None


class ShowHeader(Header, kw_only=True):
    """Answer of SHOW. `members`: the SyncStateSet as `1,2,3`; `proposed`, alike: one that the controllers
    were asked for, with an unknown fate; `learners`: who is connected and becomes no member."""

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

    def is_out_for_good(self, broker_id: int) -> bool:
        """Whether this replica is no member and can become none: nobody proposes a learner."""
        return broker_id in _ids(self.learners) and broker_id not in _ids(self.members) | _ids(self.proposed)


class LogChecksumsHeader(Header, kw_only=True):
    """Request and answer of LOG_CHECKSUMS. The request names the range, how many bytes a checksum covers, and
    the newest epoch of the master's log as its handshake said it. The answer says where the log begins; its
    body holds the CRC-32 of each chunk, four bytes each, big-endian, and is empty when the range starts
    before the log does."""

    epoch: Int = -1
    start_offset: Long = 0
    end_offset: Long = 0
    chunk_bytes: Int = 0
    min_offset: Long = 0


def text_of(ids: Iterable[int]) -> str:
    """Ids as SHOW carries them."""
    return ",".join(map(str, sorted(ids)))


def _ids(text: str) -> frozenset[int]:
    return frozenset(int(one) for one in text.split(",") if one.isdecimal())
