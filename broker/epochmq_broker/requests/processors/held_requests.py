"""Runs a request that was held, such as a POP that waits for a message: its client always gets a response,
whatever happens while the request runs."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from epochmq_broker.config.clock import now_ms
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.headers_base import Header
from epochmq_protocol.transport.connection import RemotingConnection

log = logging.getLogger(__name__)

FAILED_REMARK = "the request failed after it had waited; the broker's log says why"


def with_birth_time(command: Command) -> Command:
    """The request with a `bornTime` (ms): the present time if it has none or 0. The request is held with that
    time, as in RocketMQ. When it runs again its `pollTime` still counts from its arrival."""
    ext = command.ext or {}
    if ext.get("bornTime", "0") != "0":
        return command
    return msgspec.structs.replace(command, ext={**ext, "bornTime": str(now_ms())})


def run_held(
    connection: RemotingConnection,
    command: Command,
    serve: Callable[[RemotingConnection, Command], Command | None],
    header_on_error: Header,
) -> None:
    """Serves a held request and sends its response, unless `serve` returns None: it is held again.
    `header_on_error` are the fields of the response to a request that is rejected or fails."""
    try:
        answer = serve(connection, command)
    except RequestError as error:
        answer = response(command, error.code, error.remark, header=header_on_error)
    except Exception:
        log.exception("a held request failed when it ran again", extra={"code": command.code})
        answer = response(command, ResponseCode.SYSTEM_ERROR, FAILED_REMARK, header=header_on_error)
    if answer is not None:
        connection.respond(answer)
