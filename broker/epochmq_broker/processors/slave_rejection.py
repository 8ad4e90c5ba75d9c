"""What a replica refuses before it looks at it, as RocketMQ's slaves do (`rejectRequest` of its send and pull
processors)."""

from __future__ import annotations

from epochmq_broker.config import BrokerConfig
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError

REMARK = "[REJECTREQUEST]system busy, start flow control for a while"


def reject_send_on_slave(config: BrokerConfig) -> None:
    """RequestError SYSTEM_BUSY, which Java producers try again elsewhere, when messages go to the master."""
    if config.broker_role == "SLAVE" and not config.enable_slave_acting_master:
        raise RequestError(ResponseCode.SYSTEM_BUSY, REMARK)


def reject_pull_on_slave(config: BrokerConfig) -> None:
    """RequestError SYSTEM_BUSY, without slaveReadEnable."""
    if config.broker_role == "SLAVE" and not config.slave_read_enable:
        raise RequestError(ResponseCode.SYSTEM_BUSY, REMARK)
