"""Rejects the requests that only a serving master may serve, while a returning master is isolated.

RocketMQ's isolated master is not registered, but it serves clients that still know its address: a consumer
may get offsets and locks from the time before the master was down. Here such requests get
SERVICE_NOT_AVAILABLE. Producers then send to another broker, and consumers retry. Requests of other members
and of administrators are served.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from epochmq_broker.config.broker_config import BrokerConfig
from epochmq_broker.config.refusals import ISOLATED
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler

REMARK: Final = f"the master is {ISOLATED}"


def starts_isolated(config: BrokerConfig) -> bool:
    """Whether a broker with these settings starts isolated, and goes online by `pre_online`."""
    return (
        config.enable_slave_acting_master
        and config.total_replicas > 1
        and not config.skip_pre_online
        and not config.enable_controller_mode
    )


class IsolationGate:
    """The gate of one broker; closed while it is an isolated master."""

    def __init__(self, *, closed: bool) -> None:
        self.is_closed = closed
        self.on_open: list[Callable[[], None]] = []

    def open(self) -> None:
        """Serves clients' requests from now on, and calls the listeners, unless the gate is open."""
        if self.is_closed:
            self.is_closed = False
            for notify in self.on_open:
                notify()

    def guard(self, handler: RequestHandler) -> RequestHandler:
        """Returns the handler of clients' requests with the gate in front of it."""

        def guarded(
            connection: RemotingConnection, command: Command
        ) -> Command | Awaitable[Command | None] | None:
            if self.is_closed:
                raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, REMARK)
            return handler(connection, command)

        return guarded
