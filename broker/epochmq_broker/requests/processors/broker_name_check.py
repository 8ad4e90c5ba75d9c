"""Rejects requests that were meant for a broker of another name.

A client uses the addresses of a route for up to half a minute before it looks the route up again. Where
addresses are reused, as those of pods are, a broker of another group may have the address by then. That
broker would store the message, or respond to a pull from its own queues and so move the consumer's offset.
Clients of version 5 name the broker (`bname`, `n` in the short form of a send); RocketMQ's brokers ignore the
name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from epochmq_broker.config.broker_config import LiveConfig
from epochmq_broker.requests.request_rules import rule_of
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler

LOGICAL_PREFIX = "__syslo__"
"""Prefix of names that stand for the brokers of a static topic (MixAll)."""


def names_another_broker(named: str, broker_name: str) -> bool:
    """Whether a request with the broker name `named` is not for the broker `broker_name`."""
    return bool(named) and named != broker_name and not named.startswith(LOGICAL_PREFIX)


def reject_requests_for_others(
    handlers: Mapping[int, RequestHandler], live: LiveConfig
) -> dict[int, RequestHandler]:
    """Wraps handlers of requests that name a broker: a request for another broker raises RequestError
    SYSTEM_ERROR. A client then sends to another broker, or pulls again later."""

    def with_check(handler: RequestHandler, field: str) -> RequestHandler:
        def handle(
            connection: RemotingConnection, command: Command
        ) -> Command | Awaitable[Command | None] | None:
            named = (command.ext or {}).get(field, "")
            own = live.current.broker_name
            if names_another_broker(named, own):
                raise RequestError(
                    ResponseCode.SYSTEM_ERROR, f"the request is for the broker {named}, this one is {own}"
                )
            return handler(connection, command)

        return handle

    return {code: with_check(handler, rule_of(code).name_field) for code, handler in handlers.items()}
