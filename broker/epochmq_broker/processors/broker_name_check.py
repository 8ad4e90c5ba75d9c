"""Requests that were meant for the broker of another name.

A client keeps an address for half a minute after it was last told one. Where addresses are given out again,
as those of pods are, another group's broker may be at it by then: it would take the message, or answer a pull
with queues of its own and so move the consumer's offset. 5.x clients say whom they mean (`bname`, `n` in the
short form of a send); RocketMQ's brokers do not look at it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from epochmq_broker.config import LiveConfig
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler

LOGICAL = "__syslo__"
"""How the names begin that stand for the brokers of a static topic (MixAll)."""

_NAMED_BY: dict[int, str] = {
    RequestCode.SEND_MESSAGE: "bname",
    RequestCode.SEND_MESSAGE_V2: "n",
    RequestCode.SEND_BATCH_MESSAGE: "n",
    RequestCode.CONSUMER_SEND_MSG_BACK: "bname",
    RequestCode.PULL_MESSAGE: "bname",
    RequestCode.LITE_PULL_MESSAGE: "bname",
    RequestCode.QUERY_CONSUMER_OFFSET: "bname",
    RequestCode.UPDATE_CONSUMER_OFFSET: "bname",
    RequestCode.GET_MAX_OFFSET: "bname",
    RequestCode.GET_MIN_OFFSET: "bname",
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: "bname",
    RequestCode.GET_EARLIEST_MSG_STORETIME: "bname",
}
"""Requests about messages and queues, and the field in which they say whom they mean."""


def names_another_broker(named: str, broker_name: str) -> bool:
    """Whether a request that names `named` is not for the broker `broker_name`."""
    return bool(named) and named != broker_name and not named.startswith(LOGICAL)


def reject_requests_for_others(
    handlers: Mapping[int, RequestHandler], live: LiveConfig
) -> dict[int, RequestHandler]:
    """The handlers, which refuse what is for another broker: RequestError SYSTEM_ERROR, after which clients
    send elsewhere or pull again later."""

    def guarded(handler: RequestHandler, field: str) -> RequestHandler:
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
        code: guarded(handler, _NAMED_BY[code]) if code in _NAMED_BY else handler
        for code, handler in handlers.items()
    }
