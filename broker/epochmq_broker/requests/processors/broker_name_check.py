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
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler

LOGICAL_PREFIX = "__syslo__"
"""Prefix of names that stand for the brokers of a static topic (MixAll)."""

_NAME_FIELDS: dict[int, str] = {
    RequestCode.SEND_MESSAGE: "bname",
    RequestCode.SEND_MESSAGE_V2: "n",
    RequestCode.SEND_BATCH_MESSAGE: "n",
    RequestCode.CONSUMER_SEND_MSG_BACK: "bname",
    RequestCode.END_TRANSACTION: "bname",
    RequestCode.RECALL_MESSAGE: "bname",
    RequestCode.PULL_MESSAGE: "bname",
    RequestCode.LITE_PULL_MESSAGE: "bname",
    RequestCode.QUERY_CONSUMER_OFFSET: "bname",
    RequestCode.UPDATE_CONSUMER_OFFSET: "bname",
    RequestCode.GET_MAX_OFFSET: "bname",
    RequestCode.GET_MIN_OFFSET: "bname",
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: "bname",
    RequestCode.GET_EARLIEST_MSG_STORETIME: "bname",
    RequestCode.POP_MESSAGE: "bname",
    RequestCode.ACK_MESSAGE: "bname",
    RequestCode.PEEK_MESSAGE: "bname",
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: "bname",
    RequestCode.NOTIFICATION: "bname",
    RequestCode.POLLING_INFO: "bname",
    RequestCode.GET_TOPIC_CONFIG: "bname",
    RequestCode.UPDATE_AND_CREATE_TOPIC: "bname",
    RequestCode.DELETE_TOPIC_IN_BROKER: "bname",
}
"""Requests about messages, queues and topics, and the field with the broker's name."""


def names_another_broker(named: str, broker_name: str) -> bool:
    """Whether a request with the broker name `named` is not for the broker `broker_name`."""
    return bool(named) and named != broker_name and not named.startswith(LOGICAL_PREFIX)


def reject_requests_for_others(
    handlers: Mapping[int, RequestHandler], live: LiveConfig
) -> dict[int, RequestHandler]:
    """Wraps the handlers: a request for another broker raises RequestError SYSTEM_ERROR. A client then sends
    to another broker, or pulls again later."""

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

    return {
        code: with_check(handler, _NAME_FIELDS[code]) if code in _NAME_FIELDS else handler
        for code, handler in handlers.items()
    }
