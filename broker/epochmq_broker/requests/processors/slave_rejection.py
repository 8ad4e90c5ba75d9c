"""Rejects sends and pulls on a replica before they are decoded, as RocketMQ's slaves do (`rejectRequest` of
its send and pull processors), and changes of tables, which RocketMQ's slaves make and then lose."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from epochmq_broker.config.broker_config import LiveConfig
from epochmq_broker.config.capabilities import BrokerStanding, Capabilities
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler

REMARK = "[REJECTREQUEST]system busy, start flow control for a while"


def reject_send_on_slave(standing: BrokerStanding) -> None:
    """Raises RequestError SYSTEM_BUSY on a slave; Java producers then retry on another broker. The remark
    says what is wrong with the slave, if anything is."""
    if not standing.capabilities.accepts_sends:
        refusal = standing.refusal()
        raise RequestError(ResponseCode.SYSTEM_BUSY, REMARK if refusal is None else f"{REMARK}. {refusal}")


def reject_pull_on_slave(allowed: Capabilities) -> None:
    """Raises RequestError SYSTEM_BUSY on a slave without slaveReadEnable."""
    if not allowed.serves_pulls:
        raise RequestError(ResponseCode.SYSTEM_BUSY, REMARK)


def reject_changes_on_slave(
    handlers: Mapping[int, RequestHandler], live: LiveConfig
) -> dict[int, RequestHandler]:
    """The handlers, which reject requests with NO_PERMISSION while this broker is not the master of its
    group."""
    return {code: _for_master(handler, live) for code, handler in handlers.items()}


def _for_master(handler: RequestHandler, live: LiveConfig) -> RequestHandler:
    def handle(
        connection: RemotingConnection, command: Command
    ) -> Command | Awaitable[Command | None] | None:
        if not live.standing.capabilities.is_master:
            config = live.current
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"broker {config.broker_id} of group {config.broker_name} is not the master, and its tables "
                "are copies of the master's: send the request to the master",
            )
        return handler(connection, command)

    return handle
