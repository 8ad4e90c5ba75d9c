"""Rejects sends and pulls on a replica before they are decoded, as RocketMQ's slaves do (`rejectRequest` of
its send and pull processors)."""

from __future__ import annotations

from epochmq_broker.config.capabilities import Capabilities
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError

REMARK = "[REJECTREQUEST]system busy, start flow control for a while"


def reject_send_on_slave(allowed: Capabilities) -> None:
    """Raises RequestError SYSTEM_BUSY on a slave; Java producers then retry on another broker."""
    if not allowed.accepts_sends:
        raise RequestError(ResponseCode.SYSTEM_BUSY, REMARK)


def reject_pull_on_slave(allowed: Capabilities) -> None:
    """Raises RequestError SYSTEM_BUSY on a slave without slaveReadEnable."""
    if not allowed.serves_pulls:
        raise RequestError(ResponseCode.SYSTEM_BUSY, REMARK)
